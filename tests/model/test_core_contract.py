"""What every core promises: its Jacobian, the moments that it transports and their cotangents."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import CORES, LATENT, finite_jacobian, flat, make_belief, make_core

from kaffee.model.core import Core, times_shared
from kaffee.model.wrappers import CORE_TYPES

# All that can be drawn at random; a kernel map comes from a regression (test_kernel.py).
CREATORS = {
    "alrnn": {"num_gates": 2},
    "alrnn, structured": {"num_gates": 2, "structure": "lowrank:2"},
    "alrnn, banded": {"num_gates": 2, "structure": "banded:1"},
    "linear": {},
    "polynomial": {"degree": 3},
    "mlp": {"hidden_dim": 7, "depth": 2},
    "dynamix": {"num_observed": 2, "num_experts": 4, "num_gates": 1, "hidden_dim": 5, "num_frames": 8},
}


@pytest.mark.parametrize("kind", CORES)
def test_jacobian_is_the_derivative(kind, x64):
    core = make_core(kind)
    slope = core.with_gate("smooth") if kind == "straight_through" else core
    for z in np.random.default_rng(1).standard_normal((3, LATENT)):
        # central differences with h = 1e-6: rounding of 1e-10, truncation of 1e-12
        np.testing.assert_allclose(core.jacobian(jnp.asarray(z)), finite_jacobian(slope, z), atol=1e-8)


@pytest.mark.parametrize("kind", ["straight_through", "smooth", "hard", "lowrank", "banded", "linear"])
def test_structured_moments_are_the_default_ones(kind, x64):
    """A core's shortcuts compute what the definition by automatic differentiation computes."""
    core = make_core(kind)
    z, P = make_belief()
    for ours, generic in zip(core.predict_moments(z, P), Core.predict_moments(core, z, P), strict=True):
        np.testing.assert_allclose(ours, generic, rtol=1e-13, atol=1e-14)
    mean_bar, P_bar = make_belief(seed=1)
    for with_core in (True, False):
        ours = core.pull_back_moments(z, P, mean_bar, P_bar, with_core=with_core)
        generic = Core.pull_back_moments(core, z, P, mean_bar, P_bar, with_core=with_core)
        assert (ours.core is None) == (not with_core)
        np.testing.assert_allclose(flat(ours), flat(generic), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["smooth", "lowrank", "banded", "mlp"])
def test_products_with_the_tangent_are_those_with_the_jacobian(kind, x64):
    core, rng = make_core(kind), np.random.default_rng(2)
    z, X, d = make_belief().mean, rng.standard_normal((3, LATENT, 2)), rng.uniform(0.1, 1.0, (3, LATENT))
    mean, tangent = core.linearise_products(z)
    J = np.stack([core.jacobian(row) for row in z])
    np.testing.assert_allclose(mean, core.predict_mean(z), rtol=1e-13)
    np.testing.assert_allclose(tangent.apply(jnp.asarray(X)), J @ X, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(tangent.apply_transposed(jnp.asarray(X)), J.mT @ X, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(tangent.square_apply(jnp.asarray(d)), np.einsum("wij,wj->wi", J**2, d), rtol=1e-12)
    back = tangent.square_apply_transposed(jnp.asarray(d))
    np.testing.assert_allclose(back, np.einsum("wij,wi->wj", J**2, d), rtol=1e-12)


@pytest.mark.parametrize("kind", ["straight_through", "polynomial"])
def test_default_cotangents_are_those_of_autodiff(kind, x64):
    core = make_core(kind)
    z, P = make_belief()
    mean_bar, P_bar = make_belief(seed=1)

    def paired(core, z, P):
        mean, covariance = Core.predict_moments(core, z, P)
        return jnp.sum(mean_bar * mean) + jnp.sum(P_bar * covariance)

    expected = jax.grad(paired, argnums=(0, 1, 2))(core, z, P)
    ours = Core.pull_back_moments(core, z, P, mean_bar, P_bar, with_core=True)
    np.testing.assert_allclose(flat(ours), flat(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", CORES)
def test_mean_cotangents_are_those_of_autodiff(kind, x64):
    core = make_core(kind)
    (z, _), (mean_bar, _) = make_belief(), make_belief(seed=1)
    arrays, static = eqx.partition(core, eqx.is_inexact_array)
    expected = jax.grad(lambda a, z: jnp.sum(mean_bar * eqx.combine(a, static).predict_mean(z)), argnums=(0, 1))(
        arrays, z
    )
    ours = core.pull_back_mean(z, mean_bar, with_core=True)
    np.testing.assert_allclose(flat(ours), flat(expected), rtol=1e-12, atol=1e-13)
    alone = core.pull_back_mean(z, mean_bar, with_core=False)
    assert alone[0] is None
    np.testing.assert_allclose(alone[1], ours[1], rtol=1e-12, atol=1e-13)


def test_batched_mean_is_one_state_at_a_time(x64):
    z = make_belief().mean
    core = make_core("mlp")
    np.testing.assert_allclose(core.predict_mean(z), np.stack([core(row) for row in z]), rtol=1e-13)


def test_shared_product(x64):
    rng = np.random.default_rng(0)
    A, X = rng.standard_normal((4, 4)), rng.standard_normal((3, 4, 4))
    np.testing.assert_allclose(times_shared(jnp.asarray(X), jnp.asarray(A)), X @ A, rtol=1e-13)


@pytest.mark.parametrize("name", CREATORS)
def test_skeleton_has_the_shapes_of_the_core_that_it_rebuilds(name):
    core = CORE_TYPES[name.partition(",")[0]].create(3, key=jax.random.key(0), **CREATORS[name])
    skeleton = type(core).skeleton(**core.hyperparameters())
    assert skeleton.hyperparameters() == core.hyperparameters()
    assert core.latent_dim == 3
    assert jax.tree.map(jnp.shape, skeleton) == jax.tree.map(jnp.shape, core)
    assert jax.tree.structure(skeleton) == jax.tree.structure(core)


@pytest.mark.parametrize("name", CREATORS)
def test_float32_stays_float32_in_float64_mode(name, x64):
    core = CORE_TYPES[name.partition(",")[0]].create(3, key=jax.random.key(0), dtype=np.float32, **CREATORS[name])
    assert {a.dtype for a in jax.tree.leaves(core)} == {np.dtype("float32")}
    z = jax.ShapeDtypeStruct((3,), np.float32)
    assert eqx.filter_eval_shape(core, z).dtype == np.float32
    assert eqx.filter_eval_shape(core.jacobian, z).dtype == np.float32


def test_exact_and_surrogate_are_the_core_itself_without_gates(x64):
    core = make_core("mlp")
    assert core.exact() is core
    assert core.surrogate() is core
