"""Climatology and persistence by hand, and the linear model against a system that is linear."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import textbook_filter

from certification.problems import (
    COLUMNS,
    SCALER,
    A,
    gappy_series,
    held_out_series,
    passed,
    reconstruct,
    series_of,
    simulated,
    train_series,
    true_reconstruction,
)
from kaffee.certification import linear
from kaffee.certification import linear as regression
from kaffee.certification.forecasts import (
    _climatology,
    _persistence,
    _reading_ages,
    _structure_function,
    default_horizons,
    hold_readings,
)
from kaffee.certification.innovations import Starts, choose_starts, filter_pass, residual_checks
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.rollout import free_run

NAN = np.nan


@pytest.fixture(scope="module")
def fitted():
    return linear.fit_linear(true_reconstruction(), train_series())


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


def short_fit(monkeypatch):
    """Least squares alone: compiling a maximisation takes longer than all else here."""
    schedule = replace(linear.SETTINGS.schedule, num_updates=0)
    monkeypatch.setattr(linear, "SETTINGS", replace(linear.SETTINGS, schedule=schedule))


def autoregressive(coefficients, num_steps=1500, noise=1.0, seed=0):
    """x_t = sum_k a_k x_{t-k} + noise, one coordinate."""
    order, rng = len(coefficients), np.random.default_rng(seed)
    x = np.zeros(order + num_steps)
    for t in range(order, len(x)):
        x[t] = np.dot(coefficients, x[t - order : t][::-1]) + noise * rng.standard_normal()
    return x[order:, None]


def delayed(num_steps=1500):
    """A noisy rhythm, and the same 4 rows later."""
    x = autoregressive([1.8, -0.95], num_steps + 4)
    return np.hstack([x[4:], x[:-4]])


def own_units(values):
    """A series with 0 mean and unit scale, its first four fifths, the rest, and a model of such series."""
    given = Series.from_arrays(values)
    series = given.standardised(Scaler.fit(given))
    model = replace(true_reconstruction(), scaler=Scaler.identity(given.num_coordinates), columns=given.columns)
    return series, *series.split(0.8), model


def radius(model):
    return np.abs(np.linalg.eigvals(np.asarray(model.core.A, float))).max()


def test_a_regression_is_least_squares_over_all_recordings(monkeypatch):
    monkeypatch.setattr(regression, "CHUNK", 7)
    recordings = [np.random.default_rng(k).standard_normal((length, 2)) for k, length in enumerate((40, 30, 2))]
    rows = [(np.concatenate([x[t - 1], x[t - 2], [1.0]]), x[t]) for x in recordings for t in range(2, len(x))]
    features, target = (np.array(a) for a in zip(*rows, strict=True))
    W, *_ = np.linalg.lstsq(features, target)
    found = regression._solve_ridge(*regression._sum_products(recordings, 2), 2, 0.0)
    np.testing.assert_allclose(np.vstack([found.A[0].T, found.A[1].T, found.c]), W, atol=1e-9)
    residual = target - features @ W
    np.testing.assert_allclose(np.diag(found.Q), (residual**2).mean(axis=0) + 1e-6)
    np.testing.assert_allclose(found.predict(recordings[0])[2:], features[:38] @ W, atol=1e-9)


def orders_of(values):
    series, part, *_ = own_units(values)
    return [order for order, _ in regression._choose_orders(series, part)]


def test_the_order_grows_with_the_memory_of_the_data():
    assert orders_of(autoregressive([0.5]))[0] == 1
    assert orders_of(autoregressive([0.0] * 7 + [0.9]))[0] == 8
    assert orders_of(delayed())[0] == 5


def test_the_order_is_bounded_by_rows_and_by_the_cost_of_a_filter():
    def orders(rows, N):
        return regression._possible_orders(Series.from_arrays(np.random.default_rng(0).standard_normal((rows, N))))

    assert orders(10_000, 20) == [1, 2, 3, 5]
    assert orders(10_000, 200) == [1]
    assert orders(60, 2) == [1, 2, 3, 5]
    assert orders(9, 6) == [1]


def test_a_coordinate_that_repeats_another_is_predicted_as_by_least_squares(monkeypatch):
    """And free runs stay bounded."""
    short_fit(monkeypatch)
    series, part, validation, model = own_units(delayed())
    choice = regression._choose_orders(series, part)[0]
    plain = regression._fit_autoregression(part, choice)
    best = linear._Best(validation)
    start = best.score(linear._stabilise(linear._build_companion(plain, 1.0)))
    assert start < regression._one_step_nll(plain, series, part) + 0.1
    assert start < -2.0
    fitted = linear.fit_linear(model, series)
    assert best.score(fitted.model) <= start
    assert radius(fitted.model) < 1
    first = fitted.model.embed(jnp.asarray(series.recordings[0][:1], jnp.float32))
    run = free_run(fitted.model, first, 2000, key=jax.random.key(0))
    assert not run.diverged_at.any()
    assert 0.5 < np.asarray(run.observations).std() < 2


def test_a_noisy_sine_is_known_as_well_as_by_a_long_autoregression(monkeypatch):
    short_fit(monkeypatch)
    sine = np.sin(0.2 * np.arange(3000)) + 0.3 * np.random.default_rng(0).standard_normal(3000)
    _, train, test, model = own_units(sine[:, None])
    fitted = linear.fit_linear(model, train).model
    long = regression._fit_autoregression(train, (20, 1e-9))
    residual = (test.recordings[0] - long.predict(test.recordings[0]))[21:]
    expected = 0.5 * np.log(2 * np.pi * long.Q[0, 0]) + 0.5 * (residual**2).mean() / long.Q[0, 0]
    assert linear._Best(test).score(fitted) < expected + 0.05
    assert radius(fitted) < 1


def test_few_rows_of_many_coordinates_do_no_harm(monkeypatch):
    """12 rows of 6 coordinates, gaps: no crash, nothing explodes, and hardly worse than the climate."""
    short_fit(monkeypatch)
    rng = np.random.default_rng(0)
    columns = tuple("abcdef")
    values = rng.standard_normal((40, 6))
    train = values[:12].copy()
    train[3, 2] = train[5] = np.nan
    model = replace(true_reconstruction(), scaler=Scaler.identity(6), columns=columns)
    fitted = linear.fit_linear(model, Series.from_arrays(train, columns=columns))
    assert radius(fitted.model) <= linear.STABLE + 1e-6
    core, shell, x = fitted.model.core, fitted.model.shell, values[12:]
    matrix, h, B = (np.asarray(a, float) for a in (core.A, core.h, fitted.model.observation.matrix()))
    Gamma, Lambda = (np.diag(np.asarray(v(), float)) for v in (shell.process_variance, shell.observation_variance))
    start = np.asarray(fitted.model.embed(np.float32(x[0])), float)
    nlls, *_ = textbook_filter(
        lambda z: matrix @ z + h, lambda z: matrix, B, Gamma, Lambda, start, Gamma, x[1:], np.ones_like(x[1:], bool)
    )
    assert nlls.mean() / 6 < 0.5 * np.log(2 * np.pi * np.e) + 1.0


def test_gaps_and_short_recordings_are_skipped(monkeypatch):
    short_fit(monkeypatch)
    fitted = linear.fit_linear(true_reconstruction(), gappy_series())
    assert np.isfinite(np.asarray(fitted.model.core.A)).all()
    assert fitted.columns == COLUMNS
    assert fitted.scaler == SCALER
    with pytest.raises(DataError, match="needs a training recording of 8 rows; the longest has 5"):
        linear.fit_linear(true_reconstruction(), series_of(simulated(5, 0)))


def test_a_growing_mode_is_held_back():
    grown = linear._stabilise(reconstruct(passed().reconstruction.model).model)
    np.testing.assert_array_equal(grown.core.A, passed().reconstruction.model.core.A)
    model = grown.replace(core=replace(grown.core, A=1.5 * grown.core.A))
    assert radius(linear._stabilise(model)) == pytest.approx(0.999, abs=1e-4)


def test_holding_back_a_regression_scales_its_kth_matrix_by_the_kth_power():
    rng = np.random.default_rng(0)
    found = regression._Regression(rng.standard_normal((3, 2, 2)), np.zeros(2), np.array([[1.0, 0.3], [0.3, 0.5]]))
    model = linear._build_companion(found)
    scale = linear.STABLE / radius(model)
    expected = linear._build_companion(found._replace(A=found.A * scale ** np.arange(1, 4)[:, None, None]))
    assert scale < 1

    def responses(model):
        matrix, B = np.asarray(model.core.A, float), np.asarray(model.observation.matrix(), float)
        return [B @ np.linalg.matrix_power(matrix, k)[:, :2] for k in range(8)]

    np.testing.assert_allclose(responses(linear._stabilise(model)), responses(expected), rtol=1e-4, atol=1e-5)


def test_interpolation_is_for_starting_values_only():
    values = np.array([[NAN, NAN], [1.0, NAN], [NAN, NAN], [3.0, NAN]])
    assert regression._interpolate(values).tolist() == [[1, 0], [1, 0], [2, 0], [3, 0]]
    assert hold_readings(values).tolist() == [[0, 0], [1, 0], [1, 0], [3, 0]]


def test_horizons_reach_two_decorrelation_times_and_fit_the_held_out_data():
    slow = Series.from_arrays(np.cos(2 * np.pi * np.arange(4000) / 400))  # cos(2 pi k / 400) = 1/e at k = 76
    fast = Series.from_arrays(np.random.default_rng(0).standard_normal(4000))
    assert default_horizons(slow, slow)[0] == 1
    assert max(default_horizons(slow, slow)) == pytest.approx(152, abs=3)
    assert default_horizons(fast, fast) == (1, 2, 5, 12, 28, 64)
    assert max(default_horizons(fast, Series.from_arrays(np.arange(12.0)))) == 3
    assert default_horizons(fast, Series.from_arrays([1.0, 2.0])) == (1,)
