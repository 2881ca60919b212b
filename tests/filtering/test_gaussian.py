"""Conditioning a Gaussian belief: the textbook update, masking, positivity, jitter."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from models import LATENT, MAPS, OBSERVED, PROPERTY, WINDOWS, gaussian_nll, make_belief, make_map, matrix_of

from kaffee.filtering.gaussian import _RELATIVE_JITTER, Belief, assimilate, gain, innovate, relative_jitter
from kaffee.model.observation import LinearObservation

MASK = np.array([[True, True], [False, True], [False, False]])
VARIANCE = np.array([0.3, 0.7])


@eqx.filter_jit
def update(belief, x, mask, observation, variance):
    """(innovation, filtered belief, gain)."""
    innovation = innovate(belief, x, mask, observation, variance)
    return innovation, assimilate(belief, innovation), gain(innovation)


@pytest.mark.parametrize("kind", MAPS)
def test_textbook_update(kind, x64):
    belief, observation = make_belief(), make_map(kind)
    x = np.random.default_rng(0).standard_normal((WINDOWS, OBSERVED))
    innovation, filtered, K = update(belief, jnp.asarray(x), jnp.asarray(MASK), observation, jnp.asarray(VARIANCE))
    B = matrix_of(observation)
    for w in range(WINDOWS):
        seen = MASK[w]
        H, R = B[seen], np.diag(VARIANCE[seen])
        z, P = np.asarray(belief.mean[w]), np.asarray(belief.covariance[w])
        S = H @ P @ H.T + R
        gain_seen = P @ H.T @ np.linalg.inv(S)
        v = x[w, seen] - H @ z
        assert float(innovation.nll[w]) == pytest.approx(gaussian_nll(x[w, seen], H @ z, S), rel=1e-10)
        np.testing.assert_allclose(innovation.residual[w, seen], v, rtol=1e-12)
        np.testing.assert_allclose(K[w][:, seen], gain_seen, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(K[w][:, ~seen], 0.0)
        np.testing.assert_array_equal(innovation.residual[w, ~seen], 0.0)
        np.testing.assert_allclose(filtered.mean[w], z + gain_seen @ v, rtol=1e-10, atol=1e-12)
        joseph = np.eye(LATENT) - gain_seen @ H
        expected = joseph @ P @ joseph.T + gain_seen @ R @ gain_seen.T
        np.testing.assert_allclose(filtered.covariance[w], expected, rtol=1e-10, atol=1e-11)


def test_nothing_observed_changes_nothing_exactly(x64):
    belief = make_belief()
    innovation, filtered, _ = update(
        belief,
        jnp.full((WINDOWS, OBSERVED), 1e30),
        jnp.zeros((WINDOWS, OBSERVED), bool),
        make_map("general"),
        jnp.asarray(VARIANCE),
    )
    np.testing.assert_array_equal(innovation.nll, 0.0)
    np.testing.assert_array_equal(filtered.mean, belief.mean)
    np.testing.assert_array_equal(filtered.covariance, belief.covariance)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e30])
def test_missing_entries_may_hold_anything(junk, x64):
    args = (jnp.asarray(MASK), make_map("general"), jnp.asarray(VARIANCE))
    x = jnp.ones((WINDOWS, OBSERVED))
    clean = update(make_belief(), x, *args)
    other = update(make_belief(), jnp.where(args[0], x, junk), *args)
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@PROPERTY
@given(
    root=arrays(np.float64, (1, LATENT, LATENT), elements=st.floats(-1e3, 1e3)),
    mask=arrays(np.bool_, (1, OBSERVED)),
    log_std=arrays(np.float64, OBSERVED, elements=st.floats(-6.0, 6.0)),
)
def test_update_shrinks_any_covariance_and_keeps_it_positive(root, mask, log_std, x64):
    """Also singular ones: what hypothesis likes best is a covariance of rank 0 or 1."""
    P = root @ np.swapaxes(root, 1, 2)
    belief = Belief(jnp.zeros((1, LATENT)), jnp.asarray(P))
    _, filtered, _ = update(
        belief, jnp.ones((1, OBSERVED)), jnp.asarray(mask), make_map("general"), jnp.exp(2 * jnp.asarray(log_std))
    )
    new, tolerance = np.asarray(filtered.covariance[0]), 1e-11 * np.trace(P[0])
    assert np.abs(new - new.T).max() <= tolerance
    assert np.linalg.eigvalsh(new)[0] >= -tolerance
    assert np.linalg.eigvalsh(P[0] - new)[0] >= -tolerance


def test_singular_innovation_is_saved_by_the_jitter():
    """Two equal channels with next to no noise: S is singular in float32."""
    belief = Belief(jnp.zeros((1, 2)), 1e4 * jnp.eye(2)[None])
    observation = LinearObservation(jnp.asarray([[1.0, 0.0], [1.0, 0.0]]))
    innovation, filtered, _ = update(belief, jnp.ones((1, 2)), jnp.ones((1, 2), bool), observation, jnp.full(2, 1e-12))
    assert np.isfinite(innovation.nll).all()
    assert np.linalg.eigvalsh(filtered.covariance[0])[0] >= 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jitter_is_far_above_rounding_and_far_below_data(dtype):
    assert 10 * np.finfo(dtype).eps < relative_jitter(dtype) <= 1e-5
    assert set(_RELATIVE_JITTER) == {"float32", "float64", "bfloat16", "float16"}
