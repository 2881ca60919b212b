"""Which correlations a low-rank filter keeps: those that readings will show."""

import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.filtering import lowrank
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, scan_terms
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Tangent
from kaffee.model.observation import LinearObservation, Projection

LATENT, OBSERVED, WINDOWS, STEPS = 32, 4, 4, 500


def test_relevance_is_the_gramian_of_the_next_readings(x64):
    """Where coordinates do not meet, the diagonal is all of it: errors after updates and steps, reading by reading."""
    rng = np.random.default_rng(0)
    a, P, h = rng.uniform(0.5, 1.5, 4), rng.uniform(0.1, 1.0, 4), rng.uniform(0.1, 1.0, 4)
    error, total = np.ones(4), np.zeros(4)
    for _ in range(1 + lowrank.LOOKAHEAD):
        total += h * error**2
        error *= (1.0 - P * h) * a
    found = lowrank.relevance(Tangent(jnp.diag(a)[None]), jnp.asarray(P)[None], jnp.asarray(h)[None])
    np.testing.assert_allclose(found[0], total, rtol=1e-12)


def test_what_is_never_read_stays_in_the_basis(x64):
    """Its weight is small and positive, so that a full rank has all coordinates."""
    nothing = jnp.asarray([[1.0, 0.0]])
    G = lowrank.relevance(Tangent(jnp.eye(2)[None]), jnp.ones((1, 2)), nothing)
    assert 0.0 < float(G[0, 1]) < 1e-6 * float(G[0, 0])


def problem(kind):
    """Make a noisy linear system of which few coordinates are read, and four recordings of it."""
    rng = np.random.default_rng(0)
    A, W = np.full(LATENT, 0.5), 0.45 * rng.standard_normal((LATENT, LATENT)) / np.sqrt(LATENT)
    B = np.eye(OBSERVED, LATENT)
    observation = Projection(OBSERVED, LATENT) if kind == "projection" else LinearObservation(jnp.asarray(B))
    noise, z, rows = rng.uniform(0.05, 1.0, LATENT), np.zeros((WINDOWS, LATENT)), []
    for _ in range(STEPS):
        z = A * z + z @ W.T + np.sqrt(noise) * rng.standard_normal(z.shape)
        rows.append(z @ B.T + 0.2 * rng.standard_normal((WINDOWS, OBSERVED)))
    core, x = ALRNN(*map(jnp.asarray, (A, W, np.zeros(LATENT))), num_gates=0), jnp.asarray(np.array(rows))
    return core, jnp.asarray(noise), Observations(x, jnp.ones(x.shape, bool), observation)


@pytest.mark.parametrize("kind", ["projection", "general"])
def test_weights_of_readings_to_come_lose_less_than_none(kind, x64, monkeypatch):
    core, noise, observations = problem(kind)
    zeros, variances = jnp.zeros((WINDOWS, LATENT)), jnp.broadcast_to(noise, (WINDOWS, LATENT))

    def nll(spec):
        by = parse_filter(spec)
        dynamics = Dynamics(core, noise, jnp.full(OBSERVED, 0.04), by.start_independent(zeros, variances))
        return float(scan_terms(Recursion(filter=by), dynamics, observations).nll.mean())

    dense = nll("ekf")
    assert abs(nll(f"lowrank:{LATENT}") - dense) < 1e-8
    weighted = nll("lowrank:8") - dense
    monkeypatch.setattr(lowrank, "relevance", lambda J, variance, information: jnp.ones_like(variance))
    even = nll("lowrank:8") - dense
    assert even > 0.01
    assert abs(weighted) < 0.3 * even
