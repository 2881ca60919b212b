"""Tall and trained observation maps: textbook Kalman algebra, and the adjoint with B and its offset."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import array, flat, make_belief, make_core

from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.gaussian import assimilate, innovate
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, scan_terms
from kaffee.model.observation import LinearObservation

M, K, N, T, W = 5, 2, 7, 3, 2


@eqx.filter_jit
def update(belief, row, seen, observation, variance):
    scored = innovate(belief, row, seen, observation, variance)
    return scored, assimilate(belief, scored)


def tall_map(*, hidden=M - K, per_window=False, compressible=True, seed=0):
    rng = np.random.default_rng(seed)
    lead = (W,) if per_window else ()
    B, b = rng.standard_normal((*lead, N, M - hidden)), rng.standard_normal((*lead, N))
    return LinearObservation(array(B), array(b), hidden, compressible)


def readings(seed=1):
    """One row of all channels, one without any, one with a single channel, which says less than K numbers."""
    rng = np.random.default_rng(seed)
    mask = np.ones((T, W, N), bool)
    mask[1, 0], mask[2, 1], mask[0, 1, :3] = False, False, False
    mask[2, 1, 4] = True
    return array(np.where(mask, rng.standard_normal((T, W, N)), 0.0)), array(mask)


def textbook(mean, P, x, seen, B, b, R):
    """Condition one Gaussian on the entries that were read, in N dimensions, by inverses."""
    B, R, v = B[seen], np.diag(R[seen]), (x - b - B @ mean)[seen]
    S = B @ P @ B.T + R
    gain = P @ B.T @ np.linalg.inv(S)
    nll = 0.5 * (np.linalg.slogdet(S)[1] + v @ np.linalg.solve(S, v) + len(v) * np.log(2.0 * np.pi))
    return mean + gain @ v, P - gain @ S @ gain.T, nll, v @ np.linalg.solve(S, v)


@pytest.mark.parametrize("compressible", [True, False])
@pytest.mark.parametrize("per_window", [True, False])
def test_a_tall_map_is_the_textbook_update(compressible, per_window, x64):
    observation, belief = tall_map(per_window=per_window, compressible=compressible), make_belief(windows=W)
    R, (x, mask) = np.random.default_rng(3).uniform(0.1, 2.0, N), readings()
    for row, seen in zip(*map(np.asarray, (x, mask)), strict=True):
        scored, after = update(belief, row, seen, observation, R)
        assert (scored.inverse_factor.shape[-1] == K) == compressible
        for w in range(W):
            B, b = np.asarray(observation.matrix()), np.asarray(observation.offset)
            B, b = (B[w], b[w]) if per_window else (B, b)
            mean, P, nll, nis = textbook(*(np.asarray(a[w]) for a in (*belief, row, seen)), B, b, R)
            np.testing.assert_allclose(after.mean[w], mean, atol=1e-9)
            np.testing.assert_allclose(after.covariance[w], P, atol=1e-9)
            found = [scored.nll[w], np.sum(np.asarray(scored.whitened[w]) ** 2)]
            np.testing.assert_allclose(found, [nll, nis], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("recursion", "options"),
    [
        (Recursion(), {"per_window": True}),
        (Recursion(), {"compressible": False}),
        (Recursion(assimilate=False), {"hidden": 0}),
    ],
)
def test_the_adjoint_reaches_the_map(recursion, options, x64):
    x, mask = readings()
    rng, own = np.random.default_rng(4), tall_map(**options)
    lead = own.B.shape[:-2]
    variances = (array(rng.uniform(0.1, 0.4, (*lead, size))) for size in (M, N))
    dynamics = Dynamics(make_core("smooth"), *variances, make_belief(windows=W), own)
    weights = array(rng.standard_normal((T, W)))
    mean_bar, P_bar = array(rng.standard_normal((W, M))), array(rng.standard_normal((W, M, M)))

    def value(dynamics, terms_of):
        observation = jax.lax.stop_gradient(dynamics.observation)
        terms = terms_of(dynamics, Observations(x, mask, observation))
        return jnp.sum(weights * terms.nll) + jnp.sum(mean_bar * terms.final[0]) + jnp.sum(P_bar * terms.final[1])

    def plain(dynamics, observations):
        return scan_terms(recursion, dynamics, observations._replace(observation=dynamics.observation))

    gradient = eqx.filter_jit(eqx.filter_grad(value))
    ours = gradient(dynamics, lambda d, o: adjoint_terms(d, recursion, o))
    theirs = gradient(dynamics, plain)
    held = gradient(
        dynamics._replace(observation=None), lambda d, o: adjoint_terms(d, recursion, o._replace(observation=own))
    )
    for part in ("core", "process_variance", "observation_variance", "observation"):
        a, b = flat(getattr(ours, part)), flat(getattr(theirs, part))
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8 * np.abs(b).max(), err_msg=part)
    np.testing.assert_allclose(flat(held.observation_variance), flat(ours.observation_variance), rtol=1e-9)
