"""Regressions against least squares, and the structures that held-back rows choose."""

from dataclasses import replace

import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.training import autoregression
from kaffee.training.autoregression import (
    Autoregression,
    ForecastScore,
    Structure,
    _stabilise,
    choose_structures,
    find_season,
    fit_autoregression,
    harmonics,
    hold_readings,
    interpolate,
    propose_structures,
)
from kaffee.training.selection import hold_back

NAN = np.nan
FULL_LOOKS = True  # as many starts as in a fit


def autoregressive(coefficients, num_steps=1500, noise=1.0, seed=0):
    """x_t = sum_k a_k x_{t-k} + noise, one coordinate."""
    order, rng = len(coefficients), np.random.default_rng(seed)
    x = np.zeros(order + num_steps)
    for t in range(order, len(x)):
        x[t] = np.dot(coefficients, x[t - order : t][::-1]) + noise * rng.standard_normal()
    return x[order:, None] / x.std()


def best(values):
    series = Series.from_arrays(values)
    held = hold_back(series)
    return choose_structures(series, held.part, ForecastScore(held, (1, 4, 16)))[0][1]


def test_a_regression_is_least_squares_over_all_recordings(monkeypatch):
    monkeypatch.setattr(autoregression, "CHUNK", 7)
    recordings = [np.random.default_rng(k).standard_normal((length, 2)) for k, length in enumerate((40, 30, 2))]
    rows = [(np.concatenate([x[t - 1], x[t - 2], [1.0]]), x[t]) for x in recordings for t in range(2, len(x))]
    features, target = (np.array(a) for a in zip(*rows, strict=True))
    W, *_ = np.linalg.lstsq(features, target)
    found = fit_autoregression(Series.from_arrays(recordings), Structure(2, ridge=0.0))
    np.testing.assert_allclose(np.vstack([found.A[0].T, found.A[1].T, found.c]), W, atol=1e-6)
    residual = target - features @ W
    unbiased = (residual**2).sum(axis=0) / (len(target) - 5)
    np.testing.assert_allclose(np.diag(found.Q), unbiased, rtol=1e-4)


def test_differences_are_expanded_into_lags_of_levels():
    y = autoregressive([0.6], 3000)[:, 0] + 0.05
    x = np.cumsum(y)[:, None] / 100
    found = fit_autoregression(Series.from_arrays(x), Structure(1, differenced=True, ridge=0.0))
    np.testing.assert_allclose(found.A[:, 0, 0], [1.6, -0.6], atol=0.05)
    assert found.radius() == pytest.approx(0.6, abs=0.05)  # of the differences
    ahead = found.forecast(x[None, -5:], np.zeros(1), 400)[:, 0, 0]
    drift = found.c[0] / (1.0 - 0.6)  # what an autoregression of differences tends to
    assert np.diff(ahead)[-1] == pytest.approx(drift, rel=0.1)


def test_forecasts_and_their_variances_are_those_of_simulations():
    model = fit_autoregression(Series.from_arrays(autoregressive([1.2, -0.5], 4000)), Structure(2, ridge=0.0))
    rng, start = np.random.default_rng(1), np.array([[[0.5], [-0.2]]])
    paths = np.repeat(start[:, :, 0], 20_000, axis=0)
    for _ in range(6):
        noise = np.sqrt(model.Q[0, 0]) * rng.standard_normal(len(paths))
        new = model.A[0, 0, 0] * paths[:, -1] + model.A[1, 0, 0] * paths[:, -2] + model.c[0] + noise
        paths = np.column_stack([paths, new])
    np.testing.assert_allclose(model.forecast(start, np.zeros(1), 6)[:, 0, 0], paths[:, 2:].mean(axis=0), atol=0.03)
    np.testing.assert_allclose(model.forecast_variances(6)[:, 0], paths[:, 2:].var(axis=0), rtol=0.05)


def test_principal_lags_are_lags_of_their_projection():
    """Two factors behind 30 channels: long lags of the factors are as good as long lags of all."""
    factors = np.hstack([autoregressive([0.0] * 3 + [0.9], 1200, seed=k) for k in range(2)])
    rng = np.random.default_rng(2)
    x = factors @ rng.standard_normal((2, 30)) + 0.05 * rng.standard_normal((1200, 30))
    model = fit_autoregression(Series.from_arrays(x), Structure(1, reach=4, rank=2, ridge=1e-6))
    assert model.lags.shape == (4, 30, 30)
    assert np.linalg.matrix_rank(model.lags[3], tol=1e-9) <= 2
    plain = fit_autoregression(Series.from_arrays(x), Structure(1, ridge=1e-6))
    assert np.trace(model.Q) < 0.5 * np.trace(plain.Q)


def test_the_order_grows_with_the_memory_of_the_data():
    assert best(autoregressive([0.0] * 7 + [0.9])).structure.memory >= 8
    short = best(autoregressive([0.5])).structure
    assert not short.differenced
    assert not short.harmonics


def test_a_season_is_found_and_pays():
    t, rng = np.arange(600), np.random.default_rng(0)
    x = np.sin(2 * np.pi * t / 12) + 0.4 * np.cos(4 * np.pi * t / 12) + 0.3 * rng.standard_normal(600)
    assert find_season(Series.from_arrays(x)) == pytest.approx(12, abs=0.02)
    assert best(x[:, None]).structure.harmonics >= 2
    assert find_season(Series.from_arrays(rng.standard_normal(600))) is None
    assert find_season(Series.from_arrays(rng.standard_normal(10))) is None


def test_a_trend_is_differenced():
    rng = np.random.default_rng(0)
    x = np.cumsum(0.02 + 0.1 * rng.standard_normal(800))
    structure = best(((x - x.mean()) / x.std())[:, None]).structure
    assert structure.differenced


def test_growing_modes_are_held_back_or_refused():
    model = Autoregression(
        Structure(2), np.array([[[2.0]], [[-1.01]]]), np.zeros((0, 1, 0)), np.zeros((1, 0)), np.zeros(1),
        np.zeros((1, 0)), np.eye(1),
    )  # fmt: skip
    held = _stabilise(model)
    assert held is not None
    assert held.radius() == pytest.approx(0.999)
    assert _stabilise(replace(model, A=np.array([[[3.0]]]))) is None
    # Differences that grow are refused: what they were scaled to would not be differences.
    assert _stabilise(replace(model, A=np.array([[[2.1]], [[-1.1]]]), structure=Structure(1, differenced=True))) is None


def test_drift_within_short_recordings_does_not_come_to_rest_far_away():
    rng = np.random.default_rng(0)
    # All begin near 0 and drift upwards for as long as they last.
    recordings = [np.cumsum(0.1 + 0.1 * rng.standard_normal((15, 2)), axis=0) for _ in range(200)]
    everything = np.concatenate(recordings)
    mean, std = everything.mean(axis=0), everything.std(axis=0)
    series = Series.from_arrays([(x - mean) / std for x in recordings])
    model = fit_autoregression(series, Structure(1))
    assert np.sqrt(np.mean(model.rest() ** 2)) == pytest.approx(autoregression.FARTHEST_REST, rel=0.05)
    # Where it rests nearby, nothing changes: the regression is that of least squares, with a constant.
    x = 1.0 + autoregressive([0.5])
    near = fit_autoregression(Series.from_arrays(x), Structure(1, ridge=0.0))
    table = np.column_stack([x[:-1], np.ones(len(x) - 1)])
    np.testing.assert_allclose(
        [near.A[0, 0, 0], near.c[0]], np.linalg.lstsq(table, x[1:], rcond=None)[0].ravel(), rtol=1e-5
    )


def test_structures_are_bounded_by_rows_and_by_the_cost_of_a_filter():
    def sizes(rows, N, most=256):
        series = Series.from_arrays(np.random.default_rng(0).standard_normal((rows, N)))
        return [(s.order, s.reach) for s in propose_structures(series, most) if not s.differenced]

    assert max(order for order, _ in sizes(10_000, 20)) * 20 <= 100
    assert sizes(9, 6) == [(0, 0), (1, 0)]
    assert (2, 6) in sizes(10_000, 64)
    assert all(order <= 1 for order, _ in sizes(10_000, 200))


def test_gaps():
    values = np.array([[NAN, NAN], [1.0, NAN], [NAN, NAN], [3.0, NAN]])
    assert interpolate(values).tolist() == [[1, 0], [1, 0], [2, 0], [3, 0]]
    assert hold_readings(values).tolist() == [[0, 0], [1, 0], [1, 0], [3, 0]]


def test_harmonics_have_the_phase_of_time():
    structure = Structure(period=12.0, harmonics=2)
    t = np.arange(30.0)
    np.testing.assert_allclose(harmonics(t + 12, structure), harmonics(t, structure), atol=1e-12)
    assert harmonics(t, Structure()).shape == (30, 0)


def test_very_many_short_recordings_are_scored():
    """More recordings than forecasts are scored: some have no start."""
    rng = np.random.default_rng(0)
    series = Series.from_arrays([rng.standard_normal((10, 1)) for _ in range(400)])
    held = hold_back(series)
    scored = ForecastScore(held, (1, 4))(fit_autoregression(held.part, Structure(1)))
    assert np.isfinite(scored.mean)
    assert len(scored.nll) == 256
