"""Proposition 3 against automatic differentiation of the real step, its special case, and where it ends."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from appendix import PROBLEMS, SIZE, random_problem
from hypothesis import given
from models import PROPERTY, Swing, finite_jacobian, make_problem

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, step
from kaffee.model.observation import Projection
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import Custom
from kaffee.theory.adaptive_forcing import filter_factors, forcing_strengths, gain_variation
from kaffee.theory.tracing import trace
from kaffee.training.forcing import Forcing, run_forced

FILTER, OPEN_LOOP, BLIND = Recursion(), Recursion(assimilate=False), Recursion(transport=False)


@eqx.filter_jit
def step_derivative(recursion, dynamics, observations, run):
    """dz_{t|t}/dz_{t-1|t-1} of the real step at fixed Sigma_{t-1|t-1}, for every step and window."""

    def one(z, P, x, mask):
        def filtered(state):
            belief = Belief(state[None], P[None])
            return step(recursion, dynamics, observations.observation, belief, x[None], mask[None]).filtered.mean[0]

        return jax.jacfwd(filtered)(z)

    return jax.vmap(jax.vmap(one))(*run.previous, observations.x, observations.mask)


def check_factors(recursion, dynamics, observations):
    run = trace(recursion, dynamics, observations)
    factors = filter_factors(dynamics.core, run)
    exact = step_derivative(recursion, dynamics, observations, run)
    np.testing.assert_allclose(factors.factor, exact, rtol=1e-8, atol=1e-8)
    return run, factors


@PROPERTY
@given(**PROBLEMS, size=SIZE)
def test_the_factorisation_is_the_derivative_of_the_real_step(x, process, noise, size, x64):
    run, factors = check_factors(FILTER, *random_problem(x, process, noise, size))
    # (I - K B + R) J, where J is invertible and not by a hair
    R, unfactored = gain_variation(factors)
    rebuilt = (run.remaining() + R) @ factors.jacobian
    regular = np.linalg.cond(factors.jacobian) < 1e5
    np.testing.assert_allclose(np.asarray(rebuilt)[regular], np.asarray(factors.factor)[regular], rtol=1e-8, atol=1e-8)
    assert (np.asarray(unfactored)[regular] < 1e-8).all()
    # Euclidean norms may grow in an update, the norm of Sigma_pred never does
    root = np.linalg.cholesky(np.asarray(run.predicted.covariance))
    assert (np.linalg.norm(np.linalg.solve(root, run.remaining() @ root), 2, axis=(-2, -1)) <= 1.0 + 1e-9).all()
    strengths = np.asarray(forcing_strengths(run))
    assert ((strengths >= -1e-12) & (strengths < 1.0)).all()
    KB = run.observation.extend_columns(run.gain())
    np.testing.assert_allclose(strengths.sum(axis=-1), np.trace(KB, axis1=-2, axis2=-1), rtol=1e-8, atol=1e-8)


def test_every_term_counts_also_under_the_gates_of_training(x64):
    _, factors = check_factors(FILTER, *make_problem("straight_through", "general"))
    share = np.linalg.norm(factors.gain, axis=(-2, -1)) / np.linalg.norm(factors.factor, axis=(-2, -1))
    assert share.max() > 0.05


@pytest.mark.parametrize("recursion", [BLIND, OPEN_LOOP])
def test_without_transport_or_assimilation_the_gain_knows_nothing_of_the_state(recursion, x64):
    run, factors = check_factors(recursion, *make_problem("smooth", "general"))
    assert (np.asarray(factors.gain) == 0.0).all()
    if not recursion.assimilate:
        np.testing.assert_array_equal(factors.factor, factors.jacobian)
        assert (np.asarray(forcing_strengths(run)) == 0.0).all()


class Folded(eqx.Module):
    """F(z) = (z1 + z1 z2, 0): singular everywhere, with a Jacobian that changes along its own null space."""

    def __call__(self, z):
        return jnp.stack([z[0] + z[0] * z[1], jnp.zeros_like(z[0])])


def test_at_a_singular_jacobian_no_r_exists():
    """At z = (0, 0) the null vector of J is e2, but moving along e2 changes the gain and so the filtered state."""
    with jax.enable_x64(True):
        start = Belief(jnp.zeros((1, 2)), jnp.eye(2)[None])
        dynamics = Dynamics(Custom(Folded(), 2), jnp.full(2, 0.1), jnp.full(1, 0.5), start)
        observations = Observations(jnp.ones((1, 1, 1)), jnp.ones((1, 1, 1), bool), Projection(1, 2))
        _, factors = check_factors(FILTER, dynamics, observations)
        J, factor = np.asarray(factors.jacobian[0, 0]), np.asarray(factors.factor[0, 0])
        np.testing.assert_array_equal(J @ [0.0, 1.0], 0.0)  # so (I - K B + R) J e2 = 0 for every R
        # K = P / (P + 0.5), P = (1 + z2)^2 + 0.1: dK/dz2 = 0.5 * 2 / 1.6^2, times the innovation 1
        np.testing.assert_allclose(factor @ [0.0, 1.0], [1.0 / 1.6**2, 0.0], rtol=1e-9)
        assert gain_variation(factors)[1][0, 0] > 0.5


def test_generalised_teacher_forcing_is_the_special_case(x64):
    """B = I, K = alpha I, R = 0: here because the belief is a point and both noises are isotropic."""
    M, alpha = 3, 0.3
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((M, M)))
    core = Custom(Swing(weights), M)
    start = Belief(jnp.asarray([[0.4, -0.2, 0.7]]), jnp.zeros((1, M, M)))
    dynamics = Dynamics(core, jnp.full(M, alpha), jnp.full(M, 1.0 - alpha), start)
    observations = Observations(jnp.ones((1, 1, M)), jnp.ones((1, 1, M), bool), Projection(M, M))
    run, factors = check_factors(FILTER, dynamics, observations)
    np.testing.assert_allclose(forcing_strengths(run)[0, 0], alpha, rtol=1e-9)
    np.testing.assert_allclose(factors.factor, (1.0 - alpha) * factors.jacobian, rtol=1e-9, atol=1e-12)

    model = StateSpaceModel.create(core, M, key=jax.random.key(0), dtype=np.float64)

    @jax.jit
    def forced(z):
        rows = jnp.stack([z, jnp.ones(M)])[None]
        return run_forced(model, rows, jnp.ones(rows.shape, bool), Forcing(interval=1, alpha=alpha))[0].states[0, 0]

    gtf = finite_jacobian(forced, start.mean[0])
    np.testing.assert_allclose(factors.factor[0, 0], gtf, rtol=0, atol=1e-8)
