"""Observation maps: every product is the product with the dense matrix B."""

import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, MAPS, OBSERVED, make_map, matrix_of

from kaffee.errors import ConfigError
from kaffee.model.observation import LinearObservation, Projection


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_are_those_of_the_matrix(kind, batch, x64):
    observation = make_map(kind)
    B = matrix_of(observation)
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal((*batch, *shape))

    z, x = draw(LATENT), draw(OBSERVED)
    tall, wide = draw(LATENT, 4), draw(4, LATENT)
    P, low, flat = draw(LATENT, LATENT), draw(OBSERVED, LATENT), draw(4, OBSERVED)
    lifted = B.T @ low
    for ours, expected in (
        (observation.observe(jnp.asarray(z)), z @ B.T),
        (observation.lift(jnp.asarray(x)), x @ B),
        (observation.rows(jnp.asarray(tall)), B @ tall),
        (observation.columns(jnp.asarray(wide)), wide @ B.T),
        (observation.add_rows_and_columns(jnp.asarray(P), jnp.asarray(low)), P + lifted + lifted.swapaxes(-1, -2)),
        (observation.extend_columns(jnp.asarray(flat)), flat @ B),
    ):
        assert ours.shape == expected.shape
        np.testing.assert_allclose(ours, expected, rtol=1e-13, atol=1e-14)
    assert (observation.num_observed, observation.latent_dim) == (OBSERVED, LATENT)


@pytest.mark.parametrize("kind", MAPS)
def test_overwriting_gives_the_nearest_state_with_that_observation(kind, x64):
    observation = make_map(kind)
    B = matrix_of(observation)
    rng = np.random.default_rng(0)
    z, x = rng.standard_normal((3, LATENT)), rng.standard_normal((3, OBSERVED))
    new = np.asarray(observation.overwrite(jnp.asarray(z), jnp.asarray(x)))
    np.testing.assert_allclose(new @ B.T, x, atol=1e-13)
    # the move lies in the row space of B: it is orthogonal to everything that is not observed
    null = np.linalg.svd(B)[2][OBSERVED:]
    np.testing.assert_allclose((new - z) @ null.T, 0.0, atol=1e-13)
    same = observation.overwrite(jnp.asarray(z), observation.observe(jnp.asarray(z)))
    np.testing.assert_allclose(same, z, atol=1e-14)


@pytest.mark.parametrize(("N", "M"), [(0, 3), (4, 3)])
def test_projection_must_fit(N, M):
    with pytest.raises(ConfigError, match=f"N = {N} coordinates are observed and the latent state has M = {M}"):
        Projection(N, M)


def test_everything_can_be_observed(x64):
    observation = Projection(3, 3)
    X = jnp.arange(9.0).reshape(3, 3)
    for product in (observation.rows, observation.columns, observation.extend_columns):
        np.testing.assert_array_equal(product(X), X)


def test_a_vector_is_no_map():
    with pytest.raises(ConfigError, match="B must be a matrix"):
        LinearObservation(jnp.ones(3))
