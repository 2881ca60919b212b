"""Trajectory and map estimated together: a step against dense linear algebra, and recordings whose truth is known."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training.errors_in_variables import MOST_ROWS, UNKNOWN, group_rows, solve
from kaffee.training.gaussian_process import estimate_jointly
from kaffee.training.kernel_regression import regress


def _tangents(readings, lags):
    """Regress on raw readings, as a context does."""
    x = readings[0]
    rows = np.arange(lags[-1], len(x) - 1)
    u = np.concatenate([x[rows - lag] for lag in lags], axis=1)
    keep = np.isfinite(u).all(axis=1) & np.isfinite(x[rows + 1]).all(axis=1)
    return regress(u[keep], x[rows + 1][keep], lengths=(1.0, 2.0), max_centres=100, max_trial=100)


@pytest.mark.parametrize("lags", [(0,), (0, 2)])
def test_a_step_is_dense_least_squares_and_its_evidence_a_density(lags):
    rng = np.random.default_rng(0)
    readings = [rng.standard_normal((9, 2)), rng.standard_normal((7, 2))]
    readings[0][4, 1] = np.nan
    [group] = group_rows(readings, lags)
    S, D, F = len(group.steps), 2 * len(lags), 3
    z, J, phi = rng.standard_normal((16, 2)), 0.5 * rng.standard_normal((S, 2, D)), rng.standard_normal((S, F))
    R, Q, prior = np.array([0.3, 0.2]), np.array([0.05, 0.1]), np.array([1.0, 2.0, 0.5])
    found = solve([group], lags, z, J, phi, R, Q, prior, certain=False)
    # Everything as rows of one system over (dz, W): readings, starts, what nobody knows, steps, the map's prior.
    count, rows, targets = 32, [], []

    def add(row, target, variance):
        rows.append(row / np.sqrt(variance))
        targets.append(target / np.sqrt(variance))

    def unit(t, n):
        row = np.zeros(count + 2 * F)
        row[2 * t + n] = 1.0
        return row

    begun, logs = set(group.begun.tolist()), 0.0
    for t in range(16):
        for n in range(2):
            if group.seen[t, n]:
                add(unit(t, n), group.x[t, n] - z[t, n], R[n])
            if t in begun:
                add(unit(t, n), -z[t, n], 1.0)
            if not group.seen[t, n] and t not in begun:
                add(unit(t, n), 0.0, UNKNOWN**2)
                logs += np.log(UNKNOWN**2)
    for s, t in enumerate(group.steps):
        for n in range(2):
            row = unit(t + 1, n)
            for i, lag in enumerate(lags):
                row[2 * (t - lag) : 2 * (t - lag) + 2] -= J[s, n, 2 * i : 2 * i + 2]
            row[count + n * F : count + (n + 1) * F] = -phi[s]
            add(row, -z[t + 1, n], Q[n])
    for n in range(2):
        for f in range(F):
            row = np.zeros(count + 2 * F)
            row[count + n * F + f] = 1.0
            add(row, 0.0, prior[f])
    A, b = np.array(rows), np.array(targets)
    best = np.linalg.lstsq(A, b, rcond=None)[0]
    np.testing.assert_allclose(found.states, z + best[:count].reshape(16, 2), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.weights, best[count:].reshape(2, F).T, rtol=1e-8, atol=1e-8)
    spread = np.linalg.inv(A.T @ A)
    np.testing.assert_allclose((found.root.T @ found.root), spread[count:, count:], rtol=1e-8, atol=1e-10)
    # The states' variance is that of a known map, and what the map's adds.
    known = np.linalg.inv((A.T @ A)[:count, :count])
    np.testing.assert_allclose(
        found.map_variance.ravel(), np.diag(spread[:count, :count] - known), rtol=1e-7, atol=1e-9
    )
    determinant = np.linalg.slogdet(A.T @ A)[1]
    scales = group.seen.sum(axis=0) @ np.log(R) + S * np.log(Q).sum() + 2 * np.log(prior).sum() + logs
    assert found.evidence == pytest.approx(-0.5 * (np.sum((A @ best - b) ** 2) + determinant + scales), rel=1e-8)


def test_without_a_map_to_learn_the_evidence_is_the_density_of_the_readings():
    """A known linear map: no features, readings are jointly Gaussian."""
    rng, a, R, Q, T = np.random.default_rng(1), 0.8, np.array([0.3]), np.array([0.1]), 6
    x = rng.standard_normal((T, 1))
    groups = group_rows([x], (0,))
    z = np.zeros((T, 1))
    found = solve(groups, (0,), z, np.full((T - 1, 1, 1), a), np.zeros((T - 1, 1)), R, Q, np.ones(1), certain=True)
    power = np.array([[a ** (t - s) if t >= s else 0.0 for s in range(T)] for t in range(T)])
    covariance = power @ np.diag([1.0] + [Q[0]] * (T - 1)) @ power.T + R[0] * np.eye(T)
    density = multivariate_normal(np.zeros(T), covariance).logpdf(x.ravel())
    assert found.evidence - 0.5 * T * np.log(2 * np.pi) == pytest.approx(density, rel=1e-9)


@pytest.fixture(scope="module")
def lorenz():
    found = simulate(get_system("lorenz63", dt=0.04), 320, seed=5, observation_noise=0.1)
    mean, std = found.observations.mean(axis=0), found.observations.std(axis=0)
    return (found.observations - mean) / std, (found.states - mean) / std


def test_states_are_found_and_their_doubt_is_right(lorenz):
    readings, truth = lorenz
    first = _tangents([readings], (0,))
    found = estimate_jointly([readings], [readings], (0,), first.jacobian, 0.5 * np.mean(first.left_out**2, axis=0))
    error = np.sqrt(np.mean((found.states[0] - truth) ** 2))
    assert error < 0.45 * np.sqrt(np.mean((readings - truth) ** 2))
    np.testing.assert_allclose(np.sqrt(found.observation_variance), 0.1, rtol=0.2)
    # The map's own errors are as large as it says.
    errors = found.regression(truth[:-1]) - truth[1:]
    predicted = np.sqrt(np.mean(found.regression.left_out**2))
    assert 0.4 < np.sqrt(np.mean(errors**2)) / predicted < 2.5


def test_gaps_and_recordings_are_taken_apart(lorenz):
    readings, truth = lorenz
    holes = readings.copy()
    holes[60:63] = np.nan
    filled = holes.copy()
    filled[60:63] = readings[59]
    first = _tangents([readings], (0,))
    variance = 0.5 * np.mean(first.left_out**2, axis=0)
    found = estimate_jointly([holes[:150], holes[150:]], [filled[:150], filled[150:]], (0,), first.jacobian, variance)
    assert [len(z) for z in found.states] == [150, 170]
    assert not np.any((found.recording == 0) & (found.row == 149))
    both = np.concatenate(found.states)
    assert np.sqrt(np.mean((both[60:63] - truth[60:63]) ** 2)) < 0.25


def test_a_map_learnt_without_a_piece_does_not_know_it(lorenz):
    readings, truth = lorenz
    first = _tangents([readings], (0,))
    found = estimate_jointly([readings], [readings], (0,), first.jacobian, 0.5 * np.mean(first.left_out**2, axis=0))
    left = np.arange(200, 240)
    fewer = found.without(left)
    steps = found.row[left]
    whole, part = (np.sqrt(np.mean((f(truth[steps]) - truth[steps + 1]) ** 2)) for f in (found.regression, fewer))
    assert part > whole
    assert part < 0.5


def test_a_group_may_be_left_out_altogether(lorenz, monkeypatch):
    monkeypatch.setattr("kaffee.training.errors_in_variables.MOST_ROWS", 80)
    readings, truth = lorenz
    first = _tangents([readings], (0,))
    found = estimate_jointly([readings], [readings], (0,), first.jacobian, 0.5 * np.mean(first.left_out**2, axis=0))
    fewer = found.without(np.flatnonzero(found.row < 85))
    assert np.sqrt(np.mean((fewer(truth[:-1]) - truth[1:]) ** 2)) < 0.5
    np.testing.assert_allclose(found.states[0], truth, atol=0.5)


def test_long_recordings_are_cut_and_short_ones_gathered():
    groups = group_rows([np.zeros((MOST_ROWS + 500, 1)), np.zeros((400, 1)), np.zeros((300, 1))], (0, 1))
    assert [len(group.x) for group in groups] == [1250, 1950]
    assert [group.first for group in groups] == [0, 1250]
    assert len(groups[1].steps) == 1950 - 3 * 2
    assert groups[1].begun.tolist() == [0, 1, 1250, 1251, 1650, 1651]
