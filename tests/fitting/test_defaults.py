"""Settings from the data: what they follow, that they fit the recordings, and that the user's word counts."""

from functools import reduce

import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.fitting.config import merge, override, parse_override
from kaffee.fitting.defaults import apply_suggestions, settings_for, suggest
from kaffee.fitting.settings import FitSettings


def wave(num_steps, period, num_coordinates=2):
    phase = 2 * np.pi * np.arange(num_steps)[:, None] / period + np.arange(num_coordinates)
    return np.cos(phase) + 0.01 * np.random.default_rng(0).standard_normal((num_steps, num_coordinates))


def suggested(series, *overrides):
    settings = override(FitSettings(), overrides)
    given = reduce(merge, map(parse_override, overrides), {})
    return apply_suggestions(suggest(series, settings), given)


def test_a_slower_recording_is_forced_less_often_and_seen_in_longer_windows():
    fast, slow = (suggested(Series.from_arrays(wave(5000, period))) for period in (20, 200))
    assert fast.pretraining.forcing.interval == 10
    # cos(2 pi k / 200) = 1/e at k = 38
    assert slow.pretraining.forcing.interval in (18, 19, 20)
    assert slow.pretraining.window > fast.pretraining.window
    assert slow.adaptation.scored > fast.adaptation.scored


@pytest.mark.parametrize("num_steps", [14, 40, 100])
def test_windows_fit_in_short_recordings(num_steps):
    series = Series.from_arrays(wave(num_steps, 10))
    settings = suggested(series)
    train, _ = series.split(0.8)
    assert settings.pretraining.window + 1 <= max(train.lengths)
    assert settings.adaptation.burn_in + settings.adaptation.scored + 1 <= max(train.lengths)
    assert settings.adaptation.burn_in >= 0


def test_too_short_a_recording_says_what_is_needed():
    with pytest.raises(DataError, match="8 rows for training, too few for windows of 8 steps"):
        suggest(Series.from_arrays(wave(10, 5)))


def test_the_latent_size_follows_the_coordinates_unless_it_is_given():
    series = Series.from_arrays(wave(500, 20, num_coordinates=6))
    assert suggested(series).core.latent_dim == 30
    assert suggested(series, "core.latent_dim=12").core.latent_dim == 12


def test_a_given_core_is_not_pretrained_and_a_frozen_one_not_confined():
    series = Series.from_arrays(wave(500, 20))
    assert suggested(series, "core.start=somewhere").pretraining.schedule.num_updates == 0
    assert suggested(series).adaptation.confine == 0.25
    assert suggested(series, "method=frozen_core").adaptation.confine is None


def test_every_suggestion_has_a_reason_and_does_not_depend_on_the_held_out_part():
    values = wave(1000, 40)
    other = values.copy()
    other[800:] = np.random.default_rng(1).standard_normal((200, 2))
    found = suggest(Series.from_arrays(values))
    assert all(each.reason for each in found)
    assert found == suggest(Series.from_arrays(other))


def test_a_quick_look_takes_a_tenth_of_the_updates_and_the_paper_takes_nothing_from_the_data():
    series = Series.from_arrays(wave(20_000, 50))
    usual, quick = ({each.key: each for each in suggest(series, None, preset)} for preset in (None, "quick"))
    for stage in ("pretraining", "adaptation"):
        key = f"{stage}.schedule.num_updates"
        assert quick[key].value == usual[key].value // 10
        assert "quick" in quick[key].reason
    looks = {
        name: each["adaptation.schedule.num_updates"].value / each["adaptation.guard"].value
        for name, each in (("usual", usual), ("quick", quick))
    }
    assert looks["quick"] < looks["usual"] / 5
    assert suggest(series, None, "paper") == []
    assert settings_for(series, preset="paper") == FitSettings()
    assert settings_for(series, {"seed": 4}, preset="quick").seed == 4
    with pytest.raises(ConfigError, match=r"Unknown preset 'quik'. Did you mean 'quick'"):
        suggest(series, None, "quik")
