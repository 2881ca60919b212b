"""Rows that are held back, paired scores, and noise that is calibrated on them."""

import numpy as np
import pytest
from training.test_autoregression import autoregressive

from kaffee.data.series import Series
from kaffee.training.autoregression import Structure, fit_autoregression
from kaffee.training.linear import build_state_space
from kaffee.training.selection import (
    LEAD,
    MOST_BLOCKS,
    Judge,
    Scored,
    choose_starts,
    hold_back,
    scale_noise,
)

FULL_FITS = True


def test_no_row_is_both_trained_on_and_held_back():
    values = np.arange(5000.0)
    held = hold_back(Series.from_arrays(values))
    trained = set(np.concatenate(held.part.recordings)[:, 0])
    blocks = [x[lead:, 0] for x, lead in zip(held.blocks.recordings, held.leads, strict=True)]
    assert len(blocks) == MOST_BLOCKS
    assert not trained & set(np.concatenate(blocks))
    assert trained | set(np.concatenate(blocks)) == set(values)
    assert held.blocks.recordings[-1][-1, 0] == 4999  # the end is what comes before the future
    assert held.leads == (LEAD,) * MOST_BLOCKS
    np.testing.assert_array_equal(held.blocks.times[1], held.blocks.recordings[1][:, 0])  # where in time they are


def test_short_and_several_recordings():
    held = hold_back(Series.from_arrays([np.arange(T)[:, None] for T in (50.0, 3.0, 20.0)]))
    assert held.part.lengths == (40, 3, 16)
    assert held.blocks.lengths == (50, 20)
    recordings, rows = choose_starts(held)
    assert (recordings == 0).sum() == 10  # from the last row of training to the last but one
    assert rows.min() == 15


def test_gains_are_paired():
    rng = np.random.default_rng(0)
    common = rng.standard_normal((200, 3))
    worse, better = Scored(common + 0.1), Scored(common)
    gain, error = better.gain_over(worse)
    assert gain == pytest.approx(0.1)
    assert error < 1e-9
    broken = Scored(np.full((200, 3), np.inf))
    assert better.gain_over(broken)[0] == np.inf
    assert broken.gain_over(better)[0] == -np.inf
    missing = common.copy()
    missing[:50, 2] = np.nan
    assert Scored(missing).gain_over(worse)[0] == pytest.approx(0.1, abs=0.2)


@pytest.mark.parametrize("wrong", [-1.0, 1.0])
def test_wrong_noise_is_scaled_back(wrong):
    series = Series.from_arrays(autoregressive([1.2, -0.5], 2000))
    held = hold_back(series)
    judge = Judge(held)
    model = build_state_space(fit_autoregression(held.part, Structure(2)), held.part, 0.9)
    _, scales = judge.calibrate(scale_noise(model, wrong, wrong))
    assert scales[0] == pytest.approx(-wrong, abs=0.25)
    calibrated = judge.score(judge.calibrate(scale_noise(model, wrong, wrong))[0])
    assert np.all(np.abs(calibrated.coverage - 0.9) < 0.06)
