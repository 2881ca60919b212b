"""Gradients of DynaMix: against automatic differentiation, and against finite differences of what they claim to be."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, OBSERVED, WINDOWS, flat, inner, make_belief, make_problem, random_direction

from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.recursion import Recursion, scan_terms
from kaffee.model.core import Core

from . import oracle
from .compiled import pull_back_mean, pull_back_moments, weights

SWITCHES = [(tangent, train) for tangent in ("mixture", "full") for train in (False, True)]
NOISE = np.random.default_rng(0).standard_normal((WINDOWS, OBSERVED))


def paired(core, z, P, mean_bar, P_bar):
    mean, covariance = core.predict_moments(z, P)
    return jnp.sum(mean_bar * mean) + jnp.sum(P_bar * covariance)


@pytest.mark.parametrize(
    ("tangent", "train_gate", "noisy"), [(*switches, True) for switches in SWITCHES] + [("mixture", False, False)]
)
def test_cotangents_are_those_of_autodiff_and_of_the_right_structure(core, tangent, train_gate, noisy):
    core = core.with_tangent(tangent, train_gate=train_gate)
    noise = jnp.asarray(NOISE) if noisy else None
    noisy_core = core.with_noise(noise) if noisy else core
    z, P = make_belief()
    mean_bar, P_bar = make_belief(seed=1)
    arrays, static = eqx.partition(core, eqx.is_inexact_array)

    def rebuilt(a):
        again = eqx.combine(a, static)
        return again.with_noise(noise) if noisy else again

    gradient = jax.jit(jax.grad(lambda a, z, P: paired(rebuilt(a), z, P, mean_bar, P_bar), argnums=(0, 1, 2)))
    expected = gradient(arrays, z, P)
    ours = pull_back_moments(noisy_core, z, P, mean_bar, P_bar, True)
    assert jax.tree.structure(ours.core.without_noise()) == jax.tree.structure(arrays)
    np.testing.assert_allclose(flat(ours), flat(expected), rtol=1e-11, atol=1e-12)
    alone = pull_back_moments(noisy_core, z, P, mean_bar, P_bar, False)
    assert alone.core is None
    np.testing.assert_allclose(flat(alone), flat(ours[1:]), rtol=1e-12, atol=1e-13)

    gradient = jax.jit(jax.grad(lambda a, z: jnp.sum(mean_bar * rebuilt(a).predict_mean(z)), argnums=(0, 1)))
    expected = gradient(arrays, z)
    ours = pull_back_mean(noisy_core, z, mean_bar, True)
    assert jax.tree.structure(ours[0].without_noise()) == jax.tree.structure(arrays)
    np.testing.assert_allclose(flat(ours), flat(expected), rtol=1e-11, atol=1e-12)
    alone = pull_back_mean(noisy_core, z, mean_bar, False)
    assert alone[0] is None
    np.testing.assert_allclose(alone[1], ours[1], rtol=1e-12, atol=1e-13)


def test_noise_can_be_taken_off_a_cotangent_of_the_default_kind(core):
    z, mean_bar = make_belief().mean, make_belief(seed=1).mean
    noisy = core.with_noise(jnp.asarray(NOISE))
    core_bar, _ = eqx.filter_jit(lambda *args: Core.pull_back_mean(*args, with_core=True))(noisy, z, mean_bar)
    stripped = core_bar.without_noise()
    assert jax.tree.structure(stripped) == jax.tree.structure(eqx.filter(core, eqx.is_inexact_array))
    np.testing.assert_allclose(
        flat(stripped), flat(pull_back_mean(noisy, z, mean_bar, True)[0]), rtol=1e-12, atol=1e-14
    )


def moved(core, z, direction, h):
    """The core and the states a step h along a direction of (experts, gate, z)."""
    d_experts, d_gating, d_z = direction
    experts = [a + h * d for a, d in zip((core.A, core.W, core.h), d_experts, strict=True)]
    gating = jax.tree.map(lambda a, d: a + h * d, core.gating, d_gating)
    core = eqx.tree_at(lambda c: (c.A, c.W, c.h, c.gating), core, (*experts, gating))
    return core, z + h * d_z


@pytest.mark.parametrize(("tangent", "train_gate"), SWITCHES)
def test_gradients_are_finite_differences_of_what_they_claim_to_be(core, tangent, train_gate):
    """Where a gradient does not flow, the difference quotient is taken with that part frozen."""
    core = core.with_tangent(tangent, train_gate=train_gate).with_noise(jnp.asarray(NOISE))
    (z, P), (mean_bar, P_bar) = (tuple(map(np.asarray, make_belief(seed=seed))) for seed in (0, 1))
    frozen = [oracle_weights(core, row, b) for b, row in enumerate(z)]
    direction = random_direction(((core.A, core.W, core.h), core.gating, z), seed=3)
    jitted = eqx.filter_jit(paired)

    def value(h):
        there, z_there = moved(core, z, direction, h)
        gate = there if train_gate else eqx.tree_at(lambda c: c.gating, there, core.gating)
        if tangent == "full":
            return float(jitted(gate, z_there, P, mean_bar, P_bar))
        total = 0.0
        for b in range(len(z)):
            w = oracle_weights(gate, z[b], b) if train_gate else frozen[b]
            total += mean_bar[b] @ oracle.mixture(there, w, np.asarray(z_there[b]))
            J = jacobian_of(there, frozen[b], z_there[b])
            total += np.sum(P_bar[b] * (J @ P[b] @ J.T))
        return float(total)

    h = 1e-6
    expected = (value(h) - value(-h)) / (2 * h)
    bar = pull_back_moments(core, z, P, mean_bar, P_bar, True)
    got = inner(((bar.core.A, bar.core.W, bar.core.h), bar.core.gating, bar.mean), direction)
    assert got == pytest.approx(expected, rel=1e-6)


def oracle_weights(core, z, b):
    return np.asarray(weights(core.with_noise(jnp.asarray(NOISE[b])), z))


def jacobian_of(core, w, z):
    """The mixture Jacobian for given weights."""
    d = np.where(np.arange(LATENT) >= LATENT - core.num_gates, np.asarray(z) > 0, 1.0)
    A, W = np.asarray(core.A), np.asarray(core.W)
    return sum(w[k] * (np.diag(A[k]) + W[k] * d) for k in range(core.num_experts))


@pytest.mark.parametrize(("tangent", "train_gate"), SWITCHES)
def test_what_is_held_fixed_gets_no_gradient(core, tangent, train_gate):
    core = core.with_tangent(tangent, train_gate=train_gate).with_noise(jnp.asarray(NOISE))
    z, P = make_belief()
    bar = pull_back_moments(core, z, P, *make_belief(seed=1), True).core
    assert not flat(bar.context).any()
    assert not flat(bar.B).any()
    assert not flat((bar.gating.conv_weight, bar.gating.conv_bias)).any()
    assert flat(bar.gating).any() == train_gate
    assert all(flat(part).all() for part in (bar.A, bar.h))


@pytest.mark.parametrize(
    ("tangent", "switches"),
    [("mixture", Recursion()), ("full", Recursion()), ("mixture", Recursion(transport=False))],
)
def test_the_adjoint_of_the_filter_is_autodiff(core, tangent, switches):
    dynamics, observations = make_problem(core.with_tangent(tangent, train_gate=True))

    def loss(terms):
        return lambda d: jnp.sum(terms(d).nll)

    gradient = [
        eqx.filter_jit(eqx.filter_grad(loss(terms)))
        for terms in (
            lambda d: adjoint_terms(d, switches, observations),
            lambda d: scan_terms(switches, d, observations),
        )
    ]
    ours, expected = (f(dynamics) for f in gradient)
    for part in ("core", "process_variance", "observation_variance"):
        np.testing.assert_allclose(flat(getattr(ours, part)), flat(getattr(expected, part)), rtol=1e-8, atol=1e-9)
