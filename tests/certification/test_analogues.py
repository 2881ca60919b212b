"""The analogue baseline: weights by hand, a chaotic map that it knows, nothing to know, few rows, gaps."""

import numpy as np
import pytest

from kaffee.certification.analogues import _choose_embeddings, _Rows, _weigh, forecast_analogues
from kaffee.certification.innovations import Starts
from kaffee.metrics.delays import Delays
from kaffee.metrics.scores import gaussian_nll


def spread_starts(num_rows, count):
    rows = np.linspace(10, num_rows - 40, count).astype(int)
    return Starts(np.zeros(count, int), rows)


def logistic(num_rows, start=0.3):
    x = [start]
    for _ in range(num_rows - 1):
        x.append(3.9 * x[-1] * (1 - x[-1]))
    x = np.array(x)[:, None]
    return (x - 0.6) / 0.28


def nll(found, test, starts, i, h):
    y = starts.ahead((test,), h)
    return float(np.nanmean(gaussian_nll(y, found[0][:, i], np.maximum(found[1][:, i], 1e-3))))


@pytest.mark.parametrize("count", [3, 8])
def test_weights_are_those_of_a_ridge_regression_in_both_forms(count):
    rng = np.random.default_rng(0)
    near, states, y = rng.normal(size=(2, count, 5)), rng.normal(size=(2, 5)), rng.normal(size=(2, count))
    weights = _weigh(states, near, 0.1)
    for s in range(2):
        X = near[s] - near[s].mean(axis=0)
        level = 0.1 * np.trace(X @ X.T) / min(count, 5)
        slope = np.linalg.solve(X.T @ X + level * np.eye(5), X.T @ (y[s] - y[s].mean()))
        expected = y[s].mean() + (states[s] - near[s].mean(axis=0)) @ slope
        assert weights[s] @ y[s] == pytest.approx(expected)


def test_a_chaotic_map_is_foreseen_until_nobody_can_and_bands_cover():
    train, test, horizons = logistic(3000), logistic(800, 0.41), (1, 4, 30)
    starts = spread_starts(len(test), 300)
    found = forecast_analogues([train], [test], starts, horizons)
    climate = gaussian_nll(test, train.mean(), train.std()).mean()
    assert nll(found, test, starts, 0, 1) < climate - 3
    assert nll(found, test, starts, 1, 4) < climate - 1
    assert nll(found, test, starts, 2, 30) == pytest.approx(climate, abs=0.02)
    inside = np.abs(starts.ahead((test,), 4) - found[0][:, 1]) < 1.645 * found[1][:, 1]
    assert 0.85 < inside.mean() <= 1.0


def test_noise_that_nobody_foresees_is_left_to_the_climatology():
    rng = np.random.default_rng(1)
    train, test = rng.normal(size=(600, 4)), rng.normal(size=(200, 4))
    starts = spread_starts(200, 100)
    mean, std = forecast_analogues([train], [test], starts, (1, 8))
    assert np.abs(mean - train.mean(axis=0)).max() < 0.5
    np.testing.assert_allclose(std, np.broadcast_to(train.std(axis=0), std.shape), rtol=0.1)


def test_gaps_and_several_recordings_are_no_obstacle():
    whole = logistic(2000)
    train = [whole[:900].copy(), whole[1000:].copy()]
    train[0][::7] = np.nan
    test = logistic(400, 0.7)
    test[3::5] = np.nan
    starts = spread_starts(400, 100)
    mean, std = forecast_analogues(train, [test], starts, (1, 3))
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert std[0, 0, 0] < 0.9


def test_too_few_rows_give_the_climatology():
    train = [np.arange(4.0)[:, None]]
    mean, std = forecast_analogues(train, [np.arange(9.0)[:, None]], Starts(np.array([0]), np.array([5])), (1, 3))
    np.testing.assert_allclose(mean, 1.5)
    np.testing.assert_allclose(std, np.arange(4.0).std())


def test_few_coordinates_are_read_with_their_past():
    assert min(each.copies for each in _choose_embeddings([logistic(300)])) == 3
    assert _choose_embeddings([np.random.default_rng(0).normal(size=(50, 20))]) == [Delays(1, 1)]
    rows = _Rows.of([np.arange(3.0)[:, None], np.arange(10.0, 14.0)[:, None]])
    np.testing.assert_array_equal(rows.embed(np.array([1, 3, 5]), Delays(2, 2)), [[1, 0], [10, 10], [12, 10]])
    assert rows.usable(Delays(1, 2), 1).tolist() == [1, 4, 5]
