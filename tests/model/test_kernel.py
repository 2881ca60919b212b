"""Kernel maps and registers against automatic differentiation and dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Recursion, arrange_observations, predict, scan_terms
from kaffee.model.kernel import KERNELS, KernelMap, Tangents
from kaffee.model.observation import Projection


def make_map(kernel="matern52", lags=(0, 2), num_observed=2, centres=7, radius=5.0, seed=0):
    rng, N, D = np.random.default_rng(seed), num_observed, num_observed * len(lags)
    arrays = (rng.standard_normal((centres, D)), rng.standard_normal((centres, N)), rng.standard_normal((N, D)))
    return KernelMap(
        *map(jnp.asarray, arrays),
        offset=jnp.asarray(rng.standard_normal(N)),
        length=jnp.asarray(1.5),
        radius=jnp.asarray(radius),
        spread=jnp.asarray(rng.uniform(0.5, 2.0, centres)),
        bandwidth=jnp.asarray(0.7),
        kernel=kernel,
        num_observed=N,
        lags=lags,
    )


@pytest.mark.parametrize("radius", [5.0, 0.3], ids=["near", "far"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_jacobian_is_that_of_the_step(kernel, radius):
    with jax.enable_x64(True):
        core = make_map(kernel, radius=radius)
        z = jnp.asarray(np.random.default_rng(1).standard_normal(core.latent_dim))
        assert bool(core.contains(z)) == (radius == 5.0)
        np.testing.assert_allclose(core.jacobian(z), jax.jacfwd(core)(z), atol=1e-9)


def test_a_register_shifts_and_its_moments_are_those_of_the_dense_jacobian():
    with jax.enable_x64(True):
        core = make_map()
        rng = np.random.default_rng(2)
        z, root = rng.standard_normal((3, 6)), rng.standard_normal((3, 6, 6))
        P = jnp.asarray(root @ root.transpose(0, 2, 1))
        mean, covariance = core.predict_moments(jnp.asarray(z), P)
        np.testing.assert_array_equal(mean[:, 2:], z[:, :4])
        expected, J = core.linearise(jnp.asarray(z))
        np.testing.assert_allclose(mean, expected, atol=1e-12)
        np.testing.assert_allclose(covariance, J @ P @ J.mT, atol=1e-10)


def test_far_away_it_returns_to_the_data_with_more_noise():
    core = make_map(lags=(0,), radius=0.5)
    near, far = core.centres[:1], core.centres[:1] + 1e6
    # The step from far away is one from at most `radius` beside a row.
    assert float(jnp.abs(core.predict_mean(far)).max()) <= float(jnp.abs(core.centres).max()) + 0.5 + 1e-6
    assert float(core.noise_scale(far)[0]) <= 4.0 * float(core.spread.max())
    near_its_nearest = core.noise_scale(core.centres[jnp.argmax(core.centres.sum(axis=1))][None])
    assert float(core.noise_scale(far)[0]) > float(near_its_nearest[0])
    assert near.shape == far.shape


def test_noise_is_that_of_the_nearest_errors():
    core = make_map(lags=(0,))
    narrow = KernelMap(**{**vars(core), "bandwidth": jnp.asarray(1e-3)})
    np.testing.assert_allclose(narrow.noise_scale(core.centres), core.spread, rtol=1e-5)


def test_the_adjoint_knows_local_noise():
    with jax.enable_x64(True):
        core, N = make_map(num_observed=1, lags=(0, 1)), 1
        rng = np.random.default_rng(3)
        x = jnp.asarray(rng.standard_normal((2, 6, N)))
        observations = arrange_observations(x, jnp.ones(x.shape, bool), Projection(N, 2))
        initial = Belief(jnp.zeros((2, 2)), jnp.broadcast_to(jnp.eye(2), (2, 2, 2)))

        def loss(variance, terms):
            return jnp.sum(terms(Dynamics(core, variance, jnp.array([0.1]), initial)).nll)

        variance = jnp.array([0.3, 0.1])
        ours = jax.grad(lambda v: loss(v, lambda d: adjoint_terms(d, Recursion(), observations)))(variance)
        theirs = jax.grad(lambda v: loss(v, lambda d: scan_terms(Recursion(), d, observations)))(variance)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
        scale = core.noise_scale(initial.mean)
        added = predict(core, variance, initial, transport=True).covariance
        bare = core.predict_moments(*initial)[1]
        np.testing.assert_allclose(added - bare, scale[:, None, None] * jnp.diag(variance), atol=1e-12)


def test_tangents_take_their_map_from_the_step():
    core = Tangents(1, (0, 2))
    now = core.with_noise(jnp.array([[0.5, 2.0, -1.0]]))
    mean, J = now.linearise(jnp.array([[1.0, 7.0, 3.0]]))
    np.testing.assert_allclose(mean, [[0.5 + 2.0 - 3.0, 1.0, 7.0]])
    np.testing.assert_allclose(J[0], [[2.0, 0.0, -1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize("wrong", [{"kernel": "square"}, {"lags": (1, 2)}, {"lags": ()}])
def test_wrong_settings(wrong):
    with pytest.raises(ConfigError):
        KernelMap(**{**vars(make_map()), **wrong})


def test_a_skeleton_has_the_shapes_of_the_map():
    core = make_map()
    again = KernelMap.skeleton(**core.hyperparameters())
    assert jax.tree.structure(again) == jax.tree.structure(core)
    assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, core)
