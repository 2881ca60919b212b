"""Regressions with known inputs (VARX), their state spaces, and the AL-RNN that begins as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.filtering.sweep import batch_recordings, run_filter
from kaffee.training.autoregression import ForecastScore, Structure, fit_autoregression
from kaffee.training.guard import FreeRunGuard
from kaffee.training.linear import build_state_space, with_gates
from kaffee.training.selection import Judge, hold_back

A, D = np.array([[0.8, 0.3], [-0.3, 0.8]]), np.array([[0.7, 0.0], [-0.2, 0.5]])


@pytest.fixture(scope="module")
def series():
    rng = np.random.default_rng(0)
    u, x = rng.standard_normal((600, 2)), np.zeros((600, 2))
    for t in range(1, 600):
        x[t] = A @ x[t - 1] + D @ u[t] + 0.05 * rng.standard_normal(2)
    return Series.from_arrays(np.hstack([x, u]), columns=["a", "b", "u", "v"]).with_inputs(["u", "v"])


def test_a_regression_finds_the_effect_of_inputs(series):
    found = fit_autoregression(series, Structure(1, ridge=0.0))
    # standard errors: 0.05 / sqrt(600) = 0.002 of D, less of A
    np.testing.assert_allclose(found.D, D, atol=0.008)
    np.testing.assert_allclose(found.A[0], A, atol=0.008)
    np.testing.assert_allclose(found.Q, 0.05**2 * np.eye(2), atol=0.0006)
    bare = fit_autoregression(series.driven_by(None), Structure(1, ridge=0.0))
    assert bare.D.shape == (2, 0)
    assert np.diag(bare.Q).min() > 0.2
    means = found.forecast(
        series.recordings[0][None, 9:10], np.array([10.0]), 2, series.inputs.recordings[0][None, 10:]
    )
    one = A @ series.recordings[0][9] + D @ series.inputs.recordings[0][10]
    np.testing.assert_allclose(means[0, 0], one, atol=0.05)
    np.testing.assert_allclose(means[1, 0], A @ one + D @ series.inputs.recordings[0][11], atol=0.08)


def test_the_state_space_forecasts_as_the_regression_does(series):
    held = hold_back(series)
    judge = Judge(held)
    regression = fit_autoregression(held.part, Structure(2))
    model = build_state_space(regression, held.part, 1.0)
    by_regression, by_filter = ForecastScore(held, judge.horizons)(regression), judge.score(model)
    assert by_filter.mean == pytest.approx(by_regression.mean, abs=0.02)
    assert by_regression.mean < -0.5  # in nats; without inputs the noise alone is worth 0.7 more
    blind = judge.score(model.replace(core=model.core.inner))
    assert blind.mean > by_filter.mean + 1.0


def test_an_alrnn_begins_as_the_driven_linear_model(series):
    regression = fit_autoregression(series, Structure(1))
    base = build_state_space(regression, series, 0.9)
    start = with_gates(base, 3, key=jax.random.key(0))
    assert start.input_dim == 2
    x = jnp.swapaxes(batch_recordings(series, jnp.float32)[:60], 0, 1)
    mask = ~jnp.isnan(x)
    nll = [run_filter(model, x, mask).nll[:, 5:] for model in (base, start)]
    np.testing.assert_allclose(nll[1], nll[0], atol=2e-3)


def test_the_guard_runs_with_the_recorded_inputs(series, monkeypatch):
    monkeypatch.setattr(FreeRunGuard, "STEPS", 1200)
    model = build_state_space(fit_autoregression(series, Structure(1)), series, 0.9)
    guard = FreeRunGuard(series, every=1)
    # Driven, the bare linear core covers the data; at mean inputs all its runs come to rest.
    assert guard.look(model).lost == 0
    assert guard.look(model.replace(core=model.core.inner)).lost == 2 * FreeRunGuard.RUNS
