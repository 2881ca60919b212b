"""DynaMix as a core: its step, its two Jacobians, its cotangents, its noise, its checkpoint."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, OBSERVED, WINDOWS, finite_jacobian, flat, make_belief

from kaffee.certification.fidelity import Protocol
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.filtering.rollout import free_run
from kaffee.metrics.lyapunov import lyapunov_spectrum
from kaffee.model.dynamix import DynaMix
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import Confined

from . import oracle
from .compiled import derivative, in_context, jacobian, predict_mean, predict_moments, pull_back_mean, step, weights
from .conftest import make_core

SWITCHES = [(tangent, train) for tangent in ("mixture", "full") for train in (False, True)]
TANGENTS = ["mixture", "full"]
rng = np.random.default_rng(0)
STATES = rng.standard_normal((3, LATENT))
NOISE = rng.standard_normal((WINDOWS, OBSERVED))


@pytest.mark.parametrize(
    ("M", "N", "E", "P", "H", "T"), [(5, 2, 4, 3, 6, 12), (4, 4, 1, 0, 2, 3), (3, 1, 2, 3, 1, 7), (7, 3, 5, 1, 5, 40)]
)
def test_a_step_is_that_of_the_equations(M, N, E, P, H, T, x64):
    context = rng.standard_normal((T, N))
    sizes = {"num_observed": N, "num_experts": E, "num_gates": P, "hidden_dim": H}
    core = in_context(make_core(latent_dim=M, num_frames=0, **sizes), context)
    for z in rng.standard_normal((3, M)):
        for eps in (np.zeros(N), rng.standard_normal(N)):
            noisy = core.with_noise(jnp.asarray(eps))
            w = oracle.expert_weights(core, context, z, eps)
            np.testing.assert_allclose(weights(noisy, z), w, rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(step(noisy, z), oracle.mixture(core, w, z), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(step(core.with_noise(jnp.zeros(N)), z), step(core, z), rtol=1e-14)


def test_far_states_attend_to_the_nearest_frame_without_overflow():
    core, z = make_core(np.float32), jnp.full(LATENT, 1e6, jnp.float32)
    assert np.isfinite(step(core, z)).all()
    assert float(weights(core, z).sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("tangent", TANGENTS)
@pytest.mark.parametrize("noisy", [False, True])
def test_jacobians_are_the_derivatives_that_they_claim_to_be(core, tangent, noisy):
    core = core.with_tangent(tangent)
    core = core.with_noise(jnp.asarray(NOISE[0])) if noisy else core
    for z in STATES:
        frozen = np.asarray(weights(core, z))
        moving = partial(step, core) if tangent == "full" else partial(oracle.mixture, core, frozen)
        J = jacobian(core, z)
        np.testing.assert_allclose(J, finite_jacobian(moving, z), atol=1e-8)
        np.testing.assert_allclose(J, derivative(core, z), rtol=1e-12, atol=1e-13)


def test_the_two_jacobians_differ_and_exact_is_the_full_one(core):
    for z in STATES:
        assert np.abs(jacobian(core, z) - jacobian(core.exact(), z)).max() > 1e-3
    assert core.tangent == "mixture"
    assert core.exact().tangent == "full"
    assert core.surrogate() is core


def test_hard_gates_are_the_ones_it_has_and_its_jacobian_stays(core):
    """They are hard already: `protocol.gates` must not exchange the Jacobian, of a confined core neither."""
    low, high = -np.ones(LATENT), np.ones(LATENT)
    for tangent in ("mixture", "full"):
        chosen = core.with_tangent(tangent)
        assert chosen.with_hard_gates().tangent == tangent
        assert Confined(chosen, low, high).with_hard_gates().inner.tangent == tangent
        for z in STATES:
            np.testing.assert_array_equal(jacobian(chosen, z), jacobian(chosen.with_hard_gates(), z))
        for gates in ("hard", "surrogate"):
            assert Protocol(gates=gates).apply_gates(make_dynamix_model(chosen)).core.tangent == tangent


@pytest.mark.parametrize("noisy", [False, True])
def test_values_do_not_depend_on_the_switches(core, noisy):
    z, P = make_belief()
    core = core.with_noise(jnp.asarray(NOISE)) if noisy else core
    expected = predict_mean(core, z)
    for tangent, train in SWITCHES:
        other = core.with_tangent(tangent, train_gate=train)
        np.testing.assert_allclose(predict_mean(other, z), expected, rtol=1e-14)
        np.testing.assert_allclose(predict_moments(other, z, P)[0], expected, rtol=1e-13)


@pytest.mark.parametrize("tangent", TANGENTS)
def test_a_batch_is_one_state_at_a_time_with_its_own_noise(core, tangent):
    core = core.with_tangent(tangent)
    z, P = make_belief()
    batch = core.with_noise(jnp.asarray(NOISE))
    singles = [core.with_noise(jnp.asarray(eps)) for eps in NOISE]
    expected = np.stack([step(single, row) for single, row in zip(singles, z, strict=True)])
    np.testing.assert_allclose(predict_mean(batch, z), expected, rtol=1e-13)
    np.testing.assert_allclose(eqx.filter_jit(batch.stepper())(z), expected, rtol=1e-13)
    mean, covariance = predict_moments(batch, z, P)
    np.testing.assert_allclose(mean, expected, rtol=1e-13)
    for b, single in enumerate(singles):
        J = jacobian(single, z[b])
        np.testing.assert_allclose(covariance[b], J @ P[b] @ J.T, rtol=1e-12, atol=1e-13)
    shared = core.with_noise(jnp.asarray(NOISE[0]))
    np.testing.assert_allclose(predict_mean(shared, z), np.stack([step(singles[0], row) for row in z]), rtol=1e-13)
    assert np.abs(predict_mean(batch, z) - predict_mean(core, z)).max() > 1e-4


def test_a_confined_dynamix_passes_its_noise_on(core):
    box = Confined(core, jnp.full(LATENT, -0.8), jnp.full(LATENT, 0.6))
    z = make_belief().mean
    noisy = box.with_noise(jnp.asarray(NOISE))
    assert box.noise_dim == OBSERVED
    clipped = predict_mean(core.with_noise(jnp.asarray(NOISE)), jnp.clip(z, -0.8, 0.6))
    np.testing.assert_allclose(predict_mean(noisy, z), clipped, rtol=1e-13)
    bar, _ = pull_back_mean(noisy, z, z, True)
    assert jax.tree.structure(bar.without_noise()) == jax.tree.structure(eqx.filter(box, eqx.is_inexact_array))
    assert noisy.without_noise().inner.noise is None


def make_dynamix_model(core):
    M, N = core.latent_dim, core.num_observed
    shell = Shell.from_std(np.full(M, 0.1), np.full(N, 0.1), core.h.dtype)
    return StateSpaceModel(core, shell, Projection(N, M), core.B.T)


def test_the_initial_state_is_that_of_a_model_with_its_embedding(core):
    x = jnp.asarray(rng.standard_normal((4, OBSERVED)))
    z = core.initial_state(x)
    np.testing.assert_array_equal(z, make_dynamix_model(core).embed(x))
    np.testing.assert_array_equal(z[:, :OBSERVED], x)


def test_free_runs_and_lyapunov_exponents_work_on_it():
    core = make_core(np.float32)
    model = make_dynamix_model(core)
    runs = free_run(model, jnp.zeros((2, LATENT), jnp.float32), 20)
    assert runs.observations.shape == (2, 20, OBSERVED)
    np.testing.assert_allclose(runs.states[0, 1], step(core, runs.states[0, 0]), rtol=1e-5, atol=1e-6)
    spectrum = lyapunov_spectrum(core.exact(), jnp.zeros(LATENT, jnp.float32), num_steps=50)
    assert np.isfinite(spectrum.exponents).all()


@pytest.mark.parametrize("frames", [0, 12])
def test_an_adapted_model_survives_its_checkpoint(tmp_path, frames):
    core = make_core(np.float32, num_frames=frames).with_tangent("full", train_gate=True)
    core = eqx.tree_at(lambda c: c.W, core, core.W + 0.01)
    model = make_dynamix_model(core)
    Reconstruction(model, Scaler(np.zeros(2), np.ones(2))).save(tmp_path)
    back = load(tmp_path).model.core
    assert isinstance(back, DynaMix)
    assert back.hyperparameters() == core.hyperparameters()
    assert jax.tree.structure(back) == jax.tree.structure(core)
    np.testing.assert_array_equal(flat(back), flat(core))
    if frames:
        z = jnp.ones(LATENT, jnp.float32)
        np.testing.assert_array_equal(step(back, z), step(core, z))


def test_noise_is_not_saved(tmp_path):
    core = make_core(np.float32)
    model = make_dynamix_model(core.with_noise(jnp.zeros(OBSERVED, jnp.float32)))
    with pytest.raises(CheckpointError, match="without_noise"):
        Reconstruction(model, Scaler(np.zeros(2), np.ones(2))).save(tmp_path)


def test_a_context_is_needed():
    core = make_core(np.float32, num_frames=0)
    with pytest.raises(ConfigError, match="in_context"):
        core(jnp.zeros(LATENT, jnp.float32))


BAD_CONTEXTS = {
    "at least 3 frames": np.random.default_rng(0).standard_normal((2, 2)),
    "Coordinate 1 of the context is constant": np.stack([np.arange(9.0), np.full(9, 2.5)], axis=1),
    "1 missing or infinite values, the first in row 4, coordinate 0": np.where(
        np.arange(18) == 8, np.nan, 1.0 * np.arange(18)
    ).reshape(9, 2),
    r"shape \(T, 2\).*given \(9, 3\)": np.random.default_rng(0).standard_normal((9, 3)),
    r"shape \(T, 2\).*given \(9,\)": np.arange(9.0),
    "values of type <U1": np.full((9, 2), "a"),
}


@pytest.mark.parametrize("message", BAD_CONTEXTS)
def test_contexts_that_cannot_be_used_are_clear_errors(message):
    with pytest.raises(DataError, match=message):
        make_core(np.float32).in_context(BAD_CONTEXTS[message])


def test_a_context_can_be_read_within_jit():
    core, context = make_core(np.float32), np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    inside = in_context(core, context)
    np.testing.assert_allclose(flat(inside.context), flat(core.in_context(context).context), rtol=1e-5, atol=1e-6)
    with pytest.raises(DataError, match=r"shape \(T, 2\)"):
        in_context(core, context[:, :1])


@pytest.mark.parametrize("shape", [(), (3,), (4, 3), (1, 4, 2)])
def test_noise_of_a_wrong_shape_is_a_clear_error(shape):
    with pytest.raises(ConfigError, match=r"shape \(2,\), or \(W, 2\)"):
        make_core(np.float32).with_noise(jnp.zeros(shape, jnp.float32))


def test_noise_must_have_a_row_for_each_window():
    core = make_core(np.float32).with_noise(jnp.zeros((4, 2), jnp.float32))
    for call in (core.predict_mean, core.linearise):
        with pytest.raises(ConfigError, match=r"\(4, 2\) does not fit states of shape \(3, 5\)"):
            call(jnp.zeros((3, LATENT), jnp.float32))
    with pytest.raises(ConfigError, match="does not fit"):
        core(jnp.zeros(LATENT, jnp.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tangent": "ful"}, "Did you mean 'full'"),
        ({"num_gates": 6}, "between 0 and latent_dim = 5"),
        ({"A": jnp.zeros((3, 5))}, r"A has shape \(3, 5\); .* must be \(4, 5\)"),
        ({"B": jnp.zeros((2, 4))}, r"B has shape \(2, 4\)"),
    ],
)
def test_cores_that_cannot_be_are_clear_errors(change, message):
    core = make_core(np.float32)
    fields = {name: getattr(core, name) for name in ("A", "W", "h", "gating", "B", "num_gates")}
    with pytest.raises(ConfigError, match=message):
        DynaMix(**{**fields, **change})


def test_more_observed_than_latent_coordinates_are_a_clear_error():
    with pytest.raises(ConfigError, match="num_observed = 6"):
        DynaMix.create(5, num_observed=6, key=jax.random.key(0))
