"""What a model is good for, in words that follow from verdicts and scores."""

import json

import numpy as np
import pytest

from kaffee.certification.forecasts import Scores, _Score, _Skill
from kaffee.certification.purpose import find_horizon, read_purpose, remark_forecast, remark_run, state_purpose
from kaffee.certification.verdicts import RULES, Verdict


def made_scores(*each):
    """Gain over climatology, its error and coverage at horizons 1, 4, 16."""
    own = [_Score(0, 0, 0, 0, 0, 0, cover, 100) for _, _, cover in each]
    gains = [_Skill("climatology", gain, error, 20) for gain, error, _ in each]
    horizons = (1, 4, 16)[: len(each)]
    return Scores(horizons, horizons, {"surrogate": own}, gains, 9, 9, 0, gains)


def made_verdicts(**others):
    status = dict.fromkeys(RULES, "pass") | {name.replace("_", " "): value for name, value in others.items()}
    return tuple(Verdict(1, name, value, None, "", "") for name, value in status.items())


@pytest.mark.parametrize(
    ("each", "horizon"),
    [
        ([(1.0, 0.1, 0.9), (0.5, 0.1, 0.85), (0.2, 0.1, 0.9)], 16),
        ([(1.0, 0.1, 0.9), (0.5, 0.1, 0.85), (0.05, 0.1, 0.9)], 4),
        ([(1.0, 0.1, 0.9), (0.5, 0.1, 0.6), (0.2, 0.1, 0.9)], 1),
        ([(1.0, 0.1, 0.99), (0.5, 0.1, 0.9), (0.2, 0.1, 0.9)], 0),
        ([(1.0, np.nan, 0.9), (np.nan, np.nan, np.nan)], 1),
    ],
)
def test_the_horizon_ends_where_climatology_is_as_good_or_bands_fail(each, horizon):
    assert find_horizon(made_scores(*each)) == horizon


GOOD = made_scores((1.0, 0.1, 0.9), (0.5, 0.1, 0.9))
SHORT = made_scores((1.0, 0.1, 0.9), (-0.5, 0.1, 0.9))


def test_a_model_that_passes_is_good_for_all():
    found = state_purpose(made_verdicts(), GOOD, 0.5)
    assert found.sentence == (
        "Good for: filtering and smoothing, forecasts up to at least 4 steps (2 units of time), free runs with noise, "
        "free runs without noise."
    )
    assert (found.horizon, found.time, found.longest) == (4, 2.0, 4)


def test_what_it_is_not_good_for_is_said_as_well():
    found = state_purpose(made_verdicts(calibration="warn", core="fail", stochastic_run="unknown"), SHORT, 1.0)
    assert found.sentence == (
        "Good for: forecasts up to 1 step (1 units of time). With care: filtering and smoothing. Not for: forecasts "
        "beyond that, free runs without noise. Not known: free runs with noise."
    )
    nothing = state_purpose(made_verdicts(whiteness="unknown"), None, 1.0)
    assert "Not known: filtering and smoothing, forecasts." in nothing.sentence


def test_commands_repeat_what_matters_to_them():
    purpose = vars(state_purpose(made_verdicts(core="fail"), SHORT, 1.0))
    assert remark_forecast(purpose, 1) == ""
    assert "good for forecasts up to 1 step (1 units of time); 3 steps are beyond" in remark_forecast(purpose, 3)
    assert "has checked forecasts up to 4 steps" in remark_forecast(vars(state_purpose(made_verdicts(), GOOD, 1.0)), 9)
    never = vars(state_purpose(made_verdicts(), made_scores((-1.0, 0.1, 0.9)), 1.0))
    assert "no better than climatology" in remark_forecast(never, 1)
    assert remark_run(purpose, noise=True) == ""
    assert "without noise: by its certificate this model is not good for them" in remark_run(purpose, noise=False)


def test_it_is_read_from_a_run_and_from_the_model_in_it(tmp_path):
    assert read_purpose(tmp_path) is None
    (tmp_path / "certificate.json").write_text(json.dumps({"verdicts": []}))
    assert read_purpose(tmp_path) is None  # an older version's
    (tmp_path / "certificate.json").write_text(json.dumps({"purpose": {"horizon": 3}}))
    (tmp_path / "run.json").write_text("{}")
    assert read_purpose(tmp_path) == read_purpose(tmp_path / "kaffee") == {"horizon": 3}
