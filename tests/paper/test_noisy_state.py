"""The noisy-state predictive objective: its value, its gradient, its optimum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from appendix import fit_one_step, simulate_windows
from scipy.optimize import minimize

from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import get_method, initial_belief, window_nll
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.paper.controls import SpiralSettings, _spiral_data
from kaffee.paper.objectives import OBJECTIVES, Budget, fit_control, get_objective, noisy_state
from kaffee.theory.attenuation import ScalarSystem

RECURSION = get_method(noisy_state(1).row).recursion


def scalar_model(a, gamma, lam, h=0.0):
    """x' = a x + h with variances gamma and lam, in float64."""
    core = Linear(jnp.array([[a]]), jnp.array([h]))
    shell = Shell(0.5 * jnp.log(jnp.array([gamma])), 0.5 * jnp.log(jnp.array([lam])))
    return StateSpaceModel(core, shell, Projection(1, 1), jnp.ones((1, 1)))


@eqx.filter_jit
def loss(model, x, **options):
    """The noisy-state loss of scalar windows (W, 1 + H)."""
    x = jnp.asarray(x)[:, :, None]
    return window_nll(model, x, jnp.ones(x.shape, bool), RECURSION, burn_in=0, certain_start=True, **options).loss


@pytest.mark.parametrize("horizon", [1, 4])
def test_value_is_the_gaussian_nll_of_the_free_run(horizon, x64):
    a, gamma, lam = 0.9, 0.2, 0.5
    x = np.random.default_rng(0).standard_normal((7, horizon + 1))
    h = np.arange(1, horizon + 1)
    variance = h * gamma + lam
    terms = 0.5 * (np.log(2 * np.pi * variance) + (x[:, 1:] - a**h * x[:, :1]) ** 2 / variance)
    assert float(loss(scalar_model(a, gamma, lam), x)) == pytest.approx(terms.mean(), rel=1e-10)


def test_gradient_by_hand_is_that_of_autodiff(x64):
    model, x = scalar_model(0.9, 0.2, 0.5, h=0.1), np.random.default_rng(1).standard_normal((5, 4))

    @eqx.filter_jit
    def gradient(model, kind):
        return eqx.filter_grad(lambda m: loss(m, x, gradient=kind))(model)

    adjoint, autodiff = gradient(model, "adjoint"), gradient(model, "autodiff")
    leaves = (jax.tree.leaves((gradient.core, gradient.shell)) for gradient in (adjoint, autodiff))
    for got, expected in zip(*leaves, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_one_step_optimum_is_the_attenuated_least_squares_fit(x64):
    """Stationary at the least-squares solution to rounding, and that one at kappa a within 3 standard errors."""
    system = ScalarSystem(a=0.95, q=1 - 0.95**2, r=0.5, p=1.0)
    x = simulate_windows(system, 20_000, 2, seed=3)
    fitted = fit_one_step(x)
    variance = np.mean((x[:, 1] - fitted.value * x[:, 0]) ** 2)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: loss(m, x)))(
        scalar_model(fitted.value, 0.3 * variance, 0.7 * variance)
    )
    assert abs(float(gradient.core.A[0, 0])) < 1e-10
    assert float(jnp.max(jnp.abs(gradient.shell.log_process_std))) < 1e-10
    assert float(jnp.max(jnp.abs(gradient.shell.log_observation_std))) < 1e-10
    kappa = 1.0 / 1.5
    assert abs(fitted.value - kappa * system.a) < 3 * fitted.se


def test_open_loop_optimum_lies_in_the_interval_of_proposition_2(x64):
    """Also with variances that grow linearly instead of freely: they do not depend on the core."""
    system, horizon = ScalarSystem(a=0.95, q=0.1, r=1.0, p=1.0), 5
    x = jnp.asarray(simulate_windows(system, 20_000, horizon + 1, seed=4))

    @jax.jit
    @jax.value_and_grad
    def value(free):
        return loss(scalar_model(free[0], jnp.exp(free[1]), jnp.exp(free[2])), x)

    found = minimize(
        lambda free: [np.asarray(v) for v in value(jnp.asarray(free))], np.array([0.9, -2.0, 0.0]), jac=True
    )
    low, high = system.open_loop_interval(t=1, horizon=horizon)
    assert low < found.x[0] < high


def test_a_certain_start_is_only_certain_of_what_was_observed(x64):
    belief = initial_belief(scalar_model(0.9, 0.2, 0.5), jnp.zeros((2, 1)), jnp.array([[True], [False]]), certain=True)
    np.testing.assert_array_equal(belief.covariance[:, 0, 0], [0.0, 1.0])


def test_training_reaches_the_least_squares_fit():
    """The whole chain: standardised series, sampled windows, the training loop, back to data units."""
    data = _spiral_data(0.5, 0, SpiralSettings(num_steps=500))
    core = Linear.create(2, key=jax.random.key(0))
    _, model = fit_control(core, data, noisy_state(1), Budget(num_updates=600), seed=0)
    before, after = data.observations[:-1], data.observations[1:]
    affine = np.column_stack([before, np.ones(len(before))])
    solution = np.linalg.lstsq(affine, after, rcond=None)[0]
    np.testing.assert_allclose(model.core.jacobian(jnp.zeros(2)), solution[:2].T, atol=0.01)
    residual = (after - affine @ solution).std(axis=0)
    np.testing.assert_allclose(np.sqrt(model.shell.process_variance()), residual, rtol=0.03)


def test_objectives_by_name():
    assert list(OBJECTIVES) == ["kaffee", "noisy_state_1", "noisy_state_5", "noisy_state_20"]
    budget = Budget()
    for objective in OBJECTIVES.values():
        settings = objective.settings(budget)
        assert settings.optimiser == get_objective("kaffee").settings(budget).optimiser
        assert settings.schedule.batch_size * settings.scored == pytest.approx(budget.scored_per_update, rel=0.01)
    with pytest.raises(ConfigError, match="Did you mean 'noisy_state_5'"):
        get_objective("noisy_state5")
    with pytest.raises(ConfigError, match="do not fit"):
        noisy_state(2000).settings(budget)
