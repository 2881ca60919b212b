"""Climatology and persistence by hand, and the linear model against a system that is linear."""

import numpy as np
import pytest

from certification.problems import (
    A,
    held_out_series,
    passed,
    train_series,
    true_reconstruction,
)
from kaffee.certification.certificate import _fit_baseline
from kaffee.certification.forecasts import (
    _climatology,
    _persistence,
    _reading_ages,
    _structure_function,
    default_horizons,
)
from kaffee.certification.innovations import Starts, choose_starts, filter_pass, residual_checks
from kaffee.data.series import Series

NAN = np.nan

FULL_FITS = True


@pytest.fixture(scope="module")
def fitted():
    return _fit_baseline(true_reconstruction(), train_series(), 0)


def test_climatology_by_hand():
    train = [np.array([[0.0, 1.0], [2.0, NAN]]), np.array([[4.0, 3.0]])]
    found = _climatology(train, Starts(np.array([0, 0]), np.array([3, 5])), (1, 7))
    assert found.mean.shape == found.std.shape == (2, 2, 2)
    np.testing.assert_allclose(found.mean[1, 1], [2.0, 2.0])
    np.testing.assert_allclose(found.std[0, 0], [np.sqrt(8 / 3), 1.0])


def test_structure_function_skips_gaps_and_ends():
    train = [np.array([[0.0], [1.0], [NAN], [5.0]]), np.array([[2.0], [4.0]])]
    np.testing.assert_allclose(_structure_function(train, 1), [(1 + 4) / 2])  # no difference across recordings
    np.testing.assert_allclose(_structure_function(train, 2), [16.0])
    assert np.isnan(_structure_function(train, 4)).all()


def test_persistence_by_hand_with_the_age_of_the_last_reading():
    train = [np.arange(10.0)[:, None] ** 2 * [1.0, 2.0]]
    test = [np.array([[1.0, NAN], [2.0, 7.0], [NAN, NAN], [NAN, 8.0]]), np.array([[NAN, 3.0]] * 3)]
    starts = Starts(np.array([0, 0, 1]), np.array([2, 3, 1]))
    found = _persistence(train, test, starts, (1, 3))
    D = [_structure_function(train, lag) for lag in range(10)]
    np.testing.assert_allclose(found.mean[0], [[2.0, 7.0]] * 2)
    np.testing.assert_allclose(found.std[0] ** 2, [D[2], D[4]])  # one row old
    np.testing.assert_allclose(found.mean[1], [[2.0, 8.0]] * 2)
    np.testing.assert_allclose(found.std[1] ** 2, [[D[3][0], D[1][1]], [D[5][0], D[3][1]]])
    climate = _climatology(train, starts, (1, 3))
    np.testing.assert_allclose(found.mean[2, :, 0], climate.mean[2, :, 0])  # never read
    np.testing.assert_allclose(found.mean[2, :, 1], 3.0)
    far = _persistence(train, test, starts, (20,))  # no pair so far apart
    np.testing.assert_allclose(far.std, _climatology(train, starts, (20,)).std)


def test_ages_start_at_the_first_reading():
    assert _reading_ages(np.array([[NAN], [1.0], [NAN], [NAN]])).ravel().tolist() == [-1, 0, 1, 2]


def test_the_linear_model_is_as_good_as_the_true_one(fitted):
    """Within two standard errors of the difference, over blocks of time."""
    mine = filter_pass(fitted, held_out_series(), choose_starts(held_out_series(), 400))
    difference = np.asarray(mine.rows[0].nll, float)[20:] - np.asarray(passed().rows[0].nll, float)[20:]
    blocks = np.array([block.mean() for block in np.array_split(difference, 20)])
    assert blocks.mean() / 2 < 0.01  # nats per entry
    assert blocks.mean() < 2 * blocks.std(ddof=1) / 20**0.5 + 0.01
    found = residual_checks(mine)
    assert abs(found.nis - 1) < 0.1
    assert found.whiteness.largest < 0.1


def test_the_linear_model_finds_the_rotation(fitted):
    """Its slowest eigenvalues are those of the system, whatever its coordinates."""
    true = np.sort(np.abs(np.linalg.eigvals(A)))[-1]
    values = np.linalg.eigvals(np.asarray(fitted.model.core.A, float))
    leading = values[np.argsort(-np.abs(values))[:2]]
    np.testing.assert_allclose(np.abs(leading), true, atol=0.03)
    expected = np.linalg.eigvals(A)
    np.testing.assert_allclose(np.abs(np.angle(leading)), np.abs(np.angle(expected)).max(), atol=0.03)


def test_horizons_reach_two_decorrelation_times_and_fit_the_held_out_data():
    slow = Series.from_arrays(np.cos(2 * np.pi * np.arange(4000) / 400))  # cos(2 pi k / 400) = 1/e at k = 76
    fast = Series.from_arrays(np.random.default_rng(0).standard_normal(4000))
    assert default_horizons(slow, slow)[0] == 1
    assert max(default_horizons(slow, slow)) == pytest.approx(152, abs=3)
    assert default_horizons(fast, fast) == (1, 2, 5, 12, 28, 64)
    assert max(default_horizons(fast, Series.from_arrays(np.arange(12.0)))) == 3
    assert default_horizons(fast, Series.from_arrays([1.0, 2.0])) == (1,)
