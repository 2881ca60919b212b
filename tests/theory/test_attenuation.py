"""Appendices A.2 and A.3: where noisy-state and innovation objectives converge, by formula and by simulation."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from appendix import fit_one_step, fit_open_loop, one_step_target, open_loop_target, pooled_target, simulate_windows
from hypothesis import given
from models import PROPERTY, gaussian_nll
from small import small_model

from kaffee.errors import ConfigError, KaffeeError
from kaffee.model.statespace import Shell
from kaffee.theory.attenuation import (
    ScalarSystem,
    _compress_windows,
    _kalman_nll,
    _KalmanFit,
    _solve_moments,
    fit_kalman,
    series_attenuation,
)

variances = st.floats(0.05, 5.0)
systems = st.builds(ScalarSystem, a=st.floats(0.2, 1.5), q=variances, r=variances, p=variances)


@PROPERTY
@given(system=systems, t=st.integers(1, 4), horizon=st.integers(1, 8))
def test_open_loop_targets_lie_in_the_interval_of_proposition_2(system, t, horizon):
    low, high = system.open_loop_interval(t, horizon)
    target = open_loop_target(system, t, horizon)
    assert low - 1e-9 <= target <= high + 1e-9
    assert 0.0 < low <= high < system.a
    assert one_step_target(system, t) == pytest.approx(low)
    assert open_loop_target(system, t, 1) == pytest.approx(low)
    # no multiplier outside does better: the loss at the target is the least on a wide grid
    P = system.state_variances(t + horizon)
    powers = np.arange(1, horizon + 1)
    kappa = system.kappas(t)[-1]
    rest = P[t:] + system.r - (kappa * system.a**powers) ** 2 * (P[t - 1] + system.r)
    assert (rest > 0).all()

    def loss(a):
        return np.log(rest + (P[t - 1] + system.r) * (a**powers - kappa * system.a**powers) ** 2).sum()

    assert loss(target) <= min(loss(a) for a in np.linspace(1e-3, 2.0 * system.a, 300)) + 1e-9


EXPANDING = ScalarSystem(a=1.05, q=0.3, r=1.0, p=1.0)
WINDOWS, LENGTH, T0 = 40_000, 6, 2


@pytest.fixture(scope="module")
def data():
    return simulate_windows(EXPANDING, WINDOWS, LENGTH, seed=0)


def within(estimate, target, errors=3.0):
    return abs(estimate.value - target) <= errors * estimate.se


def test_a_one_step_fit_to_noisy_states_is_attenuated_as_predicted(data):
    for t in range(1, LENGTH):
        fit = fit_one_step(data, t)
        assert within(fit, one_step_target(EXPANDING, t))
        assert not within(fit, EXPANDING.a, errors=20)
        assert fit.value < 1.0  # an expanding direction looks stable
    assert within(fit_one_step(data), pooled_target(EXPANDING, LENGTH))


def test_the_standard_error_is_honest():
    fits = [fit_one_step(simulate_windows(EXPANDING, 500, LENGTH, seed=seed)) for seed in range(300)]
    values, errors = np.array(fits).T
    assert np.std(values) == pytest.approx(np.mean(errors), rel=0.15)


def test_open_loop_fits_lie_in_the_interval(data):
    for horizon in (2, 3, 4):
        low, high = EXPANDING.open_loop_interval(T0, horizon)
        fit = fit_open_loop(data, T0, horizon)
        assert low < fit < high < EXPANDING.a
        assert fit == pytest.approx(open_loop_target(EXPANDING, T0, horizon), abs=0.02)
        if horizon <= 3:
            assert high < 1.0  # so that every fit is stable although the truth expands
    assert fit_open_loop(data, T0, 1) == pytest.approx(fit_one_step(data, T0).value, rel=1e-9)


def test_the_kalman_likelihood_finds_all_four_parameters(data):
    fit = fit_kalman(data)
    for name, estimate in zip(_KalmanFit._fields, fit, strict=True):
        assert within(estimate, getattr(EXPANDING, name)), name
        assert estimate.se < 0.05 * getattr(EXPANDING, name)
    assert fit.system.a > 1.0


def test_standard_errors_of_the_kalman_fit_are_the_spread_of_fits():
    fits = [fit_kalman(simulate_windows(EXPANDING, 4000, LENGTH, seed=seed)) for seed in range(12)]
    for name in _KalmanFit._fields:
        values, errors = np.array([getattr(fit, name) for fit in fits]).T
        assert 0.5 < np.std(values, ddof=1) / np.mean(errors) < 1.7, name


def test_the_recursion_gives_the_exact_joint_density_and_sees_second_moments_only(data, x64):
    x = data[:300]
    few = _compress_windows(x)
    assert few.shape == (LENGTH, LENGTH)
    both = jax.jit(lambda theta: jnp.stack([_kalman_nll(theta, jnp.asarray(windows)) for windows in (few, x)]))
    lags = np.arange(LENGTH)
    for theta in ([1.05, 0.3, 1.0, 1.0], [-0.4, 2.0, 0.2, 3.0]):
        a, _, r, _ = theta
        P = ScalarSystem(*theta).state_variances(LENGTH)
        joint = a ** np.abs(lags[:, None] - lags) * P[np.minimum(lags[:, None], lags)] + r * np.eye(LENGTH)
        expected = np.mean([gaussian_nll(row, np.zeros(LENGTH), joint) for row in x])
        np.testing.assert_allclose(both(jnp.asarray(theta)), expected, rtol=1e-9)


def test_the_identifiability_proof_as_an_estimator(data):
    moments = _solve_moments(data)
    for name, tolerance in (("a", 0.05), ("q", 0.2), ("r", 0.1), ("p", 0.1)):
        assert getattr(moments, name) == pytest.approx(getattr(EXPANDING, name), abs=tolerance)


def test_the_attenuation_of_a_series_is_that_of_a_regression_on_it():
    """x_{t+1} on x_t gives A (I - Lambda Cov(x)^-1); with correlated coordinates the worst direction is far worse."""
    rng = np.random.default_rng(0)
    A, noise = np.array([[0.9, 0.0], [0.05, 0.85]]), np.array([0.4, 0.6])
    z, rows = np.zeros(2), []
    for _ in range(60_000):
        shared = rng.standard_normal()
        z = A @ z + np.array([shared, 0.9 * shared + 0.1 * rng.standard_normal()])
        rows.append(z + noise * rng.standard_normal(2))
    x = np.array(rows)
    model = small_model()
    model = model.replace(shell=Shell.from_std(np.full(4, 0.1), noise))
    kappa, worst = series_attenuation(model, x)
    np.testing.assert_allclose(kappa, 1.0 - noise**2 / x.var(axis=0), rtol=1e-5)
    reliability = np.eye(2) - np.diag(noise**2) @ np.linalg.inv(np.cov(x.T))
    assert worst == pytest.approx(np.linalg.eigvals(reliability).min(), rel=1e-3)
    assert worst < 0.5 < 0.9 < kappa.min()
    regression = np.linalg.lstsq(x[:-1], x[1:], rcond=None)[0].T
    np.testing.assert_allclose(regression, A @ reliability, atol=0.03)


def test_gaps_are_left_out_and_too_few_rows_have_no_worst_direction():
    model = small_model()
    x = np.random.default_rng(0).standard_normal((50, 2))
    gappy = x.copy()
    gappy[::2, 0] = np.nan
    kappa, _ = series_attenuation(model, gappy)
    Lambda = np.asarray(model.shell.observation_variance())
    np.testing.assert_allclose(kappa, 1 - Lambda / [x[1::2, 0].var(), x[:, 1].var()], rtol=1e-5)
    gappy[:, 0] = np.where(np.arange(50) < 40, np.nan, 0.1 * np.arange(50))
    gappy[40:, 1] = np.nan
    assert np.isnan(series_attenuation(model, gappy)[1])


def test_what_makes_no_sense_is_refused(data):
    with pytest.raises(ConfigError, match="positive"):
        ScalarSystem(a=1.0, q=0.0, r=1.0, p=1.0)
    with pytest.raises(ConfigError, match="a > 0"):
        ScalarSystem(a=-0.5, q=1.0, r=1.0, p=1.0).open_loop_interval(1, 2)
    with pytest.raises(ConfigError, match="Three steps"):
        _solve_moments(data[:, :2])
    with pytest.raises(KaffeeError, match="Bring more windows"):
        fit_kalman(simulate_windows(ScalarSystem(a=0.5, q=1.0, r=1.0, p=1.0), 20, LENGTH, seed=0))
