"""Gradients through a filtered window: the chain of proposition 3's factors against the real recursion."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from appendix import linear_problem
from models import make_problem

from kaffee.filtering.recursion import Recursion
from kaffee.theory.adaptive_forcing import chain, filter_factors, norm, sensitivity
from kaffee.theory.tracing import trace

FILTER, OPEN_LOOP = Recursion(), Recursion(assimilate=False)


def test_the_chain_of_factors_is_exact_only_where_jacobians_are_constant(x64):
    """z_{r|r} also reaches z_{t|t} through Sigma_{r+1|r+1}, which remembers where J was taken; a product forgets it."""
    for core, exact in (("hard", True), ("smooth", False)):
        dynamics, observations = make_problem(core, "general")
        factors = filter_factors(dynamics.core, trace(FILTER, dynamics, observations))
        product, whole = np.asarray(chain(factors.factor)), np.asarray(sensitivity(FILTER, dynamics, observations))
        error = np.abs(product - whole).max(axis=(1, 2, 3)) / np.abs(whole).max(axis=(1, 2, 3))
        assert error[0] < 1e-10
        assert (error < 1e-10).all() == exact
        if not exact:
            assert error[1:].min() > 0.05
            np.testing.assert_allclose(tangents(dynamics, observations), whole, rtol=1e-8, atol=1e-8)


@eqx.filter_jit
def second_derivatives(core, z):
    return jax.vmap(jax.vmap(lambda state: jax.jacfwd(core.jacobian)(state)))(z)


def tangents(dynamics, observations):
    """The exact chain, on (z, Sigma) together:

    dP = dJ Sigma J' + J Sigma dJ' + J dSigma J',
    dz+ = (I - K B) (J dz + dP B' Omega^-1 v),    dSigma+ = (I - K B) dP (I - K B)'
    """
    run = trace(FILTER, dynamics, observations)
    second = second_derivatives(dynamics.core, run.previous.mean)
    whitened = jnp.einsum("twnm,twn->twm", run.innovation.inverse_factor, run.innovation.whitened)
    b = np.asarray(run.observation.lift(run.present * whitened))
    J, DJ, P, kept = (np.asarray(a) for a in (run.jacobian, second, run.previous.covariance, run.remaining()))
    T, W, M = b.shape
    results = np.zeros((T, W, M, M))
    for w in range(W):
        for k in range(M):
            dz, dP = np.eye(M)[k], np.zeros((M, M))
            for t in range(T):
                half = DJ[t, w] @ dz @ P[t, w] @ J[t, w].T
                moved = half + half.T + J[t, w] @ dP @ J[t, w].T
                dz = kept[t, w] @ (J[t, w] @ dz + moved @ b[t, w])
                dP = kept[t, w] @ moved @ kept[t, w].T
                results[t, w, :, k] = dz
    return results


def test_an_update_can_amplify_a_gradient_in_the_euclidean_norm(x64):
    """A precise observation of z1 moves a strongly correlated, unseen z2 five times as far."""
    dynamics, observations = linear_problem(np.eye(2), 1e-6, 1e-4, [[1.0, 5.0], [5.0, 30.0]], np.ones((1, 1, 1)))
    factors = filter_factors(dynamics.core, trace(FILTER, dynamics, observations))
    assert float(norm(factors.jacobian, ord=2)[0, 0]) == pytest.approx(1.0)
    assert float(norm(factors.factor, ord=2)[0, 0]) > 5.0


def test_a_strong_gain_tames_an_expanding_core(x64):
    T, A = 40, np.array([[1.6, 0.3], [-0.3, 1.4]])
    dynamics, observations = linear_problem(A, 0.5, 0.1, np.eye(2), np.zeros((T, 1, 2)))
    factors = filter_factors(dynamics.core, trace(FILTER, dynamics, observations))
    assert (np.asarray(norm(factors.jacobian, ord=2)) > 1.4).all()
    assert (np.asarray(norm(factors.factor, ord=2)) < 0.5).all()
    free = norm(sensitivity(OPEN_LOOP, dynamics, observations), ord=2)[-1, 0]
    here = norm(sensitivity(FILTER, dynamics, observations), ord=2)[-1, 0]
    np.testing.assert_allclose(free, np.linalg.norm(np.linalg.matrix_power(A, T), 2), rtol=1e-9)
    assert float(here) < 1e-10 * float(free)
    some = sensitivity(FILTER, dynamics, observations, jnp.asarray([[1.0], [0.0]]))
    assert some.shape == (T, 1, 2, 1)
