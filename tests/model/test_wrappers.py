"""Wrapped cores: a box leaves its inside unchanged and never diverges; functions become cores or are refused."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, finite_jacobian, flat, make_belief, make_core, make_model
from small import small_model, standard_series

from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.scaler import Scaler
from kaffee.data.windows import training_windows
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import KAFFEE
from kaffee.filtering.rollout import free_run
from kaffee.filtering.sweep import run_filter
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.maps import Linear
from kaffee.model.statespace import Climate
from kaffee.model.wrappers import Confined, Custom, as_core
from kaffee.training.guard import _state_range as state_range
from kaffee.training.guard import confine

BOX = (-0.8 * np.ones(LATENT), 0.6 * np.ones(LATENT))


def make_confined(kind="smooth"):
    return Confined(make_core(kind), *map(jnp.asarray, BOX))


@pytest.mark.parametrize("kind", ["smooth", "hard", "polynomial", "custom"])
def test_the_step_and_jacobian_are_those_of_the_clipped_map(kind, x64):
    inner, core = make_core(kind), make_confined(kind)
    states = 2.0 * np.random.default_rng(1).standard_normal((5, LATENT))
    assert ((states < BOX[0]) | (states > BOX[1])).any(axis=1).all()
    for z in states:
        np.testing.assert_array_equal(core(jnp.asarray(z)), inner(jnp.asarray(np.clip(z, *BOX))))
        np.testing.assert_allclose(core.jacobian(jnp.asarray(z)), finite_jacobian(core, z), atol=1e-8)


def test_inside_the_box_nothing_changes(x64):
    inner, core = make_core("smooth"), make_confined()
    z = jnp.full(LATENT, 0.3)
    np.testing.assert_array_equal(core(z), inner(z))
    np.testing.assert_array_equal(core.jacobian(z), inner.jacobian(z))
    np.testing.assert_array_equal(core.stepper()(z[None]), inner.stepper()(z[None]))


@pytest.mark.parametrize("kind", ["straight_through", "smooth"])
def test_moments_and_cotangents_are_the_default_ones(kind, x64):
    core = make_confined(kind)
    z, P = make_belief()
    for ours, generic in zip(core.predict_moments(z, P), Core.predict_moments(core, z, P), strict=True):
        np.testing.assert_allclose(ours, generic, rtol=1e-12, atol=1e-13)
    mean_bar, P_bar = make_belief(seed=1)
    for with_core in (True, False):
        ours = core.pull_back_moments(z, P, mean_bar, P_bar, with_core=with_core)
        generic = Core.pull_back_moments(core, z, P, mean_bar, P_bar, with_core=with_core)
        np.testing.assert_allclose(flat(ours), flat(generic), rtol=1e-11, atol=1e-12)
    ours, generic = (
        f(z, mean_bar, with_core=True)
        for f in (core.pull_back_mean, lambda *a, **k: Core.pull_back_mean(core, *a, **k))
    )
    np.testing.assert_allclose(flat(ours), flat(generic), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["straight_through", "smooth"])
def test_with_a_home_all_of_a_state_outside_goes_on_from_there(kind, x64):
    home = jnp.full(LATENT, 0.1)
    core = replace(make_confined(kind), home=jnp.stack([-home, home]))
    z, P = make_belief()
    z = z.at[0].set(0.3)
    np.testing.assert_array_equal(core.predict_mean(z)[0], core.inner.predict_mean(z)[0])
    outside = jnp.full((1, LATENT), 0.3).at[0, 2].set(0.7)
    np.testing.assert_array_equal(core.predict_mean(outside), core.inner.predict_mean(home[None]))
    assert not core.jacobian(outside[0]).any()
    for ours, generic in zip(core.predict_moments(z, P), Core.predict_moments(core, z, P), strict=True):
        np.testing.assert_allclose(ours, generic, rtol=1e-12, atol=1e-13)
    mean_bar, P_bar = make_belief(seed=1)
    ours = core.pull_back_moments(z, P, mean_bar, P_bar, with_core=True)
    generic = Core.pull_back_moments(core, z, P, mean_bar, P_bar, with_core=True)
    np.testing.assert_allclose(flat(ours), flat(generic), rtol=1e-11, atol=1e-12)


def test_a_free_run_that_leaves_goes_home_and_a_filter_stays_at_the_wall():
    M = small_model().latent_dim
    # it doubles towards the wall, where F(wall) is beyond it: the wall would hold it
    core = Confined(Linear(2.0 * jnp.eye(M), jnp.full(M, 0.1)), jnp.full(M, -1.0), jnp.full(M, 1.0))
    model = small_model().replace(core=core)
    at_wall = free_run(model, jnp.zeros((1, M)), 60).states
    assert (at_wall[0, 10:] > 1.0).all()
    model = model.replace(climate=Climate.from_moments(np.zeros(M), np.eye(M), states=np.full((1, M), -0.05)))
    states = free_run(model, jnp.zeros((1, M)), 60).states
    assert 0.1 < (states > 1.0).mean() < 0.3
    np.testing.assert_allclose(model.core.predict_mean(jnp.full((1, M), 5.0)), 2.1, rtol=1e-6)


def test_exact_and_surrogate_reach_the_inner_core(x64):
    core = Confined(make_core("hard"), *map(jnp.asarray, BOX))
    assert core.surrogate().inner.gate == "straight_through"
    assert core.surrogate().exact().inner.gate == "hard"


def test_an_expanding_core_diverges_and_its_confined_twin_does_not():
    M = small_model().latent_dim
    wild = ALRNN(jnp.full(M, 1.5), jnp.zeros((M, M)), jnp.ones(M), 1, "hard")
    model = small_model()
    starts = jnp.ones((2, M))
    free = free_run(model.replace(core=wild), starts, 50, key=jax.random.key(0))
    assert (free.diverged_at > 0).all()
    box = Confined(wild, jnp.full(M, -2.0), jnp.full(M, 2.0))
    kept = free_run(model.replace(core=box), starts, 50, key=jax.random.key(0))
    assert (kept.diverged_at == 0).all()
    assert (kept.clipped > 0.9).all()
    assert not free.clipped.any()  # of a core without walls
    assert box.contains(jnp.array([[2.0] * M, [2.1] + [0.0] * (M - 1)])).tolist() == [True, False]
    assert float(jnp.abs(kept.states).max()) < 1.5 * 2 + 1 + 5


def test_the_box_is_the_range_of_filtered_states_and_its_margin():
    model, series = small_model(), standard_series()
    low, high = state_range(model, series, KAFFEE.filter)
    sampler = training_windows(series, len(series.recordings[0]), model.dtype)
    batch = sampler.sample(jax.random.key(0), 64)
    means = np.asarray(run_filter(model.exact(), batch.observations, batch.mask).mean)
    np.testing.assert_allclose(low, means.min(axis=(0, 1)), rtol=1e-6)
    np.testing.assert_allclose(high, means.max(axis=(0, 1)), rtol=1e-6)
    boxed = confine(model, series, KAFFEE.filter, margin=0.5)
    np.testing.assert_allclose(boxed.core.low, low - 0.5 * (high - low), rtol=1e-5)
    np.testing.assert_allclose(boxed.core.high, high + 0.5 * (high - low), rtol=1e-5)
    again = confine(boxed, series, KAFFEE.filter, margin=0.5)
    assert not isinstance(again.core.inner, Confined)


def test_a_filter_that_fails_leaves_the_core_unbounded():
    model, series = small_model(), standard_series()
    M = model.latent_dim
    broken = model.replace(core=ALRNN(jnp.full(M, jnp.nan), jnp.zeros((M, M)), jnp.zeros(M), 1, "hard"))
    core = confine(broken, series, KAFFEE.filter).core
    assert np.isneginf(core.low).all()
    assert np.isposinf(core.high).all()


def test_a_confined_model_survives_its_checkpoint(tmp_path):
    model = make_model("hard", dtype=np.float32)
    model = model.replace(core=Confined(model.core, *(jnp.asarray(edge, jnp.float32) for edge in BOX)))
    Reconstruction(model, Scaler(np.zeros(2), np.ones(2))).save(tmp_path)
    back = load(tmp_path).model
    assert isinstance(back.core, Confined)
    np.testing.assert_array_equal(flat(back), flat(model))


def test_custom_brings_its_own_jacobian(x64):
    class Own(eqx.Module):
        def __call__(self, z):
            return z**2

        def jacobian(self, z):
            return jnp.full((2, 2), 7.0)

    assert Custom(Own(), 2).jacobian(jnp.ones(2)).tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert as_core(lambda z: z**2, 2).jacobian(jnp.ones(2)).tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_as_core_passes_cores_through(x64):
    core = Linear(jnp.eye(2), jnp.zeros(2))
    assert as_core(core, 2) is core


def test_as_core_accepts_float64_weights_in_float64_mode(x64):
    weights = jnp.eye(3)
    assert as_core(lambda z: weights @ z, 3).latent_dim == 3


def test_as_core_refuses_what_is_no_map():
    with pytest.raises(ConfigError, match="must be callable"):
        as_core(3.0, 2)
    with pytest.raises(ConfigError, match=r"shape \(2,\) to \(1,\); it must return the same shape"):
        as_core(lambda z: z[:1], 2)
    with pytest.raises(ConfigError, match="to None"):
        as_core(lambda z: (z, z), 2)


def test_custom_cannot_be_rebuilt():
    with pytest.raises(NotImplementedError, match="Custom cannot be rebuilt"):
        as_core(lambda z: z, 2).hyperparameters()
    with pytest.raises(NotImplementedError, match="Custom cannot be rebuilt"):
        Custom.skeleton(latent_dim=2)
