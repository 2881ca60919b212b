"""Exact moments of mixed experts, and the filter "moments" through a DynaMix core."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, OBSERVED, SWITCHES, WINDOWS, inner, make_belief, make_data, make_model, make_problem

from kaffee.filtering.filters import parse_filter
from kaffee.filtering.gated import make_gate
from kaffee.filtering.likelihood import window_nll
from kaffee.filtering.recursion import Recursion, scan_terms
from kaffee.filtering.sweep import sweep
from kaffee.model.alrnn import ALRNN

from .compiled import predict_mean, predict_moments, weights
from .conftest import make_core

SAMPLES = 200_000
propagate = eqx.filter_jit(lambda core, *belief: core.propagate_gaussian(*belief))
terms_of = eqx.filter_jit(scan_terms)


def draw(belief, w, rng):
    root = np.linalg.cholesky(belief.covariance[w])
    return np.asarray(belief.mean[w]) + rng.standard_normal((SAMPLES, LATENT)) @ root.T


def mixed(core, w, z):
    """sum_k w_k f_k(z), rows of z, expert by expert."""
    A, W, h = (np.asarray(part) for part in (core.A, core.W, core.h))
    split = LATENT - core.num_gates
    phi = np.concatenate([z[:, :split], np.maximum(z[:, split:], 0.0)], axis=1)
    return sum(w[k] * (A[k] * z + phi @ W[k].T + h[k]) for k in range(len(w)))


def deviation(values, mean, covariance):
    """Compute the largest error of mean and covariance in standard errors of the samples."""
    away = values - values.mean(axis=0)
    products = away[:, :, None] * away[:, None, :]
    of_mean = (np.asarray(mean) - values.mean(axis=0)) / (values.std(axis=0) / np.sqrt(SAMPLES))
    errors = products.std(axis=0) / np.sqrt(SAMPLES)
    return np.abs(of_mean).max(), np.abs((np.asarray(covariance) - products.mean(axis=0)) / errors).max()


@pytest.mark.parametrize("num_gates", [0, 1, 3])
def test_moments_of_mixed_experts_are_those_of_samples(num_gates, x64):
    """Within five standard errors of 200 000 samples, which the linearisation misses by far where there are gates."""
    core, belief, rng = make_core(num_gates=num_gates), make_belief(), np.random.default_rng(5)
    means, covariances = propagate(core, *belief)
    linear_means, linear_covariances = predict_moments(core, *belief)
    for b in range(WINDOWS):
        w = np.asarray(weights(core, belief.mean[b]))
        values = mixed(core, w, draw(belief, b, rng))
        assert max(deviation(values, means[b], covariances[b])) < 5.0
        if num_gates:
            assert max(deviation(values, linear_means[b], linear_covariances[b])) > 25.0


def test_one_expert_is_an_alrnn(x64):
    """With noise of the gate or without: its weight is 1."""
    core, belief = make_core(num_experts=1), make_belief()
    noisy = core.with_noise(jnp.asarray(np.random.default_rng(1).standard_normal((WINDOWS, OBSERVED))))
    single = ALRNN(core.A[0], core.W[0], core.h[0], core.num_gates, "hard")
    for one in (core, noisy, core.with_tangent("full")):
        for ours, expected in zip(propagate(one, *belief), propagate(single, *belief), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("tangent", ["mixture", "full"])
def test_certain_states_move_as_the_linearisation_says(tangent, x64):
    core = make_core().with_tangent(tangent)
    core = core.with_noise(jnp.asarray(np.random.default_rng(1).standard_normal((WINDOWS, OBSERVED))))
    z, P = make_belief()
    mean, covariance = propagate(core, z, 1e-12 * P)
    np.testing.assert_allclose(mean, predict_mean(core, z), rtol=0, atol=1e-9)
    np.testing.assert_allclose(1e12 * covariance, predict_moments(core, z, P)[1], rtol=1e-6, atol=1e-8)


def test_with_the_full_tangent_the_covariance_knows_the_gate(x64):
    """Against samples of the step itself: constant weights leave most of the error."""
    core, rng, errors = make_core(), np.random.default_rng(6), {"mixture": [], "full": []}
    belief = make_belief()
    belief = belief._replace(covariance=0.01 * belief.covariance)
    for b in range(WINDOWS):
        true = np.cov(predict_mean(core, jnp.asarray(draw(belief, b, rng))).T)
        for tangent, found in errors.items():
            found.append(np.linalg.norm(propagate(core.with_tangent(tangent), *belief)[1][b] - true))
            found[-1] /= np.linalg.norm(true)
    assert np.mean(errors["full"]) < 0.5 * np.mean(errors["mixture"])


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize("tangent", ["mixture", "full"])
def test_the_filter_runs_batched_and_alone(switches, tangent, x64):
    """A window alone is that of a batch, and moments are not the Jacobian's where they are transported."""
    dynamics, observations = make_problem(make_core().with_tangent(tangent))
    recursion = Recursion(switches.assimilate, switches.transport, parse_filter("moments"))
    together = terms_of(recursion, dynamics, observations)
    assert np.isfinite(together.nll).all()
    alone = dynamics._replace(initial=jax.tree.map(lambda a: a[1:2], dynamics.initial))
    single = observations._replace(x=observations.x[:, 1:2], mask=observations.mask[:, 1:2])
    np.testing.assert_allclose(terms_of(recursion, alone, single).nll[:, 0], together.nll[:, 1], rtol=1e-9)
    linear = terms_of(Recursion(switches.assimilate, switches.transport), dynamics, observations)
    assert np.array_equal(linear.nll, together.nll) != switches.transport


@pytest.mark.parametrize("train_gate", [False, True])
def test_its_gradient_is_finite_differences(train_gate, x64):
    """Of experts, states and noise with the full tangent; the gate's where it is trained."""
    core = make_core().with_tangent("full", train_gate=train_gate)
    dynamics, observations = make_problem(core)
    recursion = Recursion(filter=parse_filter("moments"))

    @eqx.filter_jit
    def loss(given):
        return jnp.sum(scan_terms(recursion, given, observations).nll)

    arrays = eqx.filter(dynamics, eqx.is_inexact_array)
    rng = np.random.default_rng(3)
    direction = jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), arrays)
    direction = direction._replace(initial=jax.tree.map(jnp.zeros_like, arrays.initial))
    still = jax.tree.map(jnp.zeros_like, (arrays.core.context, arrays.core.gating))
    direction = eqx.tree_at(lambda d: d.core.context, direction, still[0])
    if not train_gate:
        direction = eqx.tree_at(lambda d: d.core.gating, direction, still[1])
    ours = inner(eqx.filter_jit(eqx.filter_grad(loss))(dynamics), direction)
    h = 1e-6
    high, low = (loss(eqx.apply_updates(dynamics, jax.tree.map(lambda d, s=s: s * d, direction))) for s in (h, -h))
    assert ours == pytest.approx(float(high - low) / (2 * h), rel=2e-5, abs=1e-6)


def test_inference_and_training_take_it():
    """The same calls as those of the filter contract: windows, sweep with gate and starts, draws."""
    model, recursion = make_model(make_core(np.float32), dtype=np.float32), Recursion(filter=parse_filter("moments"))
    x, mask = make_data(rows=12, dtype=np.float32)
    assert np.isfinite(eqx.filter_jit(window_nll)(model, x, mask, recursion, burn_in=2).loss)
    rows = jnp.swapaxes(jnp.where(mask, x, jnp.nan), 0, 1)
    starts = (np.array([0, 1]), np.array([5, 7]))
    swept = sweep(model, recursion, rows, gate=make_gate(0.9999), starts=starts)
    assert np.isfinite(swept.rows.state_mean).all()
    assert np.isfinite(swept.beliefs.draw(jax.random.key(0), 4)).all()
