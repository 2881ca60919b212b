"""The rungs of a short recording, and the noise of fits that hold nothing back."""

import numpy as np
import pytest
from small import gappy_series, small_settings

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.fitting.config import override
from kaffee.fitting.ladder import choose, describe_rungs, prepare, score_rung
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings
from kaffee.model.kernel import KernelMap
from kaffee.training.selection import hold_back


@pytest.fixture(scope="module")
def logistic():
    """A noisy logistic map, of which a linear model knows nothing; standardised."""
    x, rng = np.empty(300), np.random.default_rng(0)
    x[0] = 0.3
    for t in range(299):
        x[t + 1] = 3.8 * x[t] * (1.0 - x[t])
    series = Series.from_arrays(x + 0.01 * rng.standard_normal(300))
    return series.standardised(Scaler.fit(series))


def climb(rows, *settings):
    return prepare(rows, hold_back(rows), override(FitSettings(), ["core.latent_dim=4", *settings]))


def test_a_kernel_map_is_kept_where_neither_a_linear_model_nor_silent_gates_know_the_map(logistic):
    climbing = climb(logistic, "rung=auto")
    model, rungs = choose(climbing, climbing.start)
    assert rungs["chosen"] == "kernel"
    assert isinstance(model.core, KernelMap)
    assert rungs["kernel"]["gain"] > 1.0
    assert rungs["kernel"]["against"] == "linear"
    assert rungs["against"] == "kernel"
    assert rungs["gain"] < -1.0
    assert score_rung(rungs) == pytest.approx(climbing.judge.score(climbing.linear.part).mean - rungs["kernel"]["gain"])
    assert "kernel map in context is kept: the AL-RNN is" in describe_rungs(rungs)
    # All rows were read in the end, those held back as well.
    assert climbing.judge.score(model).mean < score_rung(rungs) + 0.1


def test_no_kernel_map_is_tried_where_the_rung_is_given_or_coordinates_are_many(logistic):
    assert climb(logistic, "rung=alrnn").kernel is None
    wide = Series.from_arrays(np.random.default_rng(0).standard_normal((120, 7)))
    assert climb(wide, "rung=auto", "core.latent_dim=9").kernel is None


def test_a_fit_that_holds_nothing_back_scales_its_noise_by_forecasts_over_several_steps(monkeypatch):
    settings = small_settings("adaptation.calibration=2")
    found = fit(gappy_series(), settings).fitted.model.shell
    monkeypatch.setattr("kaffee.fitting.pipeline._calibrate_by", lambda *_: None)
    plain = fit(gappy_series(), settings).fitted.model.shell
    process = np.asarray(found.log_process_std - plain.log_process_std)
    observation = np.asarray(found.log_observation_std - plain.log_observation_std)
    np.testing.assert_allclose(process, process[0], atol=1e-5)
    np.testing.assert_allclose(observation, observation[0], atol=1e-5)
    assert abs(process[0]) + abs(observation[0]) > 1e-3
