"""Free runs: the bare core, the noise of the shell, transients, divergence."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import LATENT, MAPS, OBSERVED, iterate, make_model, matrix_of

import kaffee.filtering.rollout
from kaffee.filtering.rollout import describe_divergence, free_run, mask_diverged
from kaffee.model.alrnn import ALRNN
from kaffee.model.maps import Linear
from kaffee.model.statespace import Climate, Shell
from kaffee.model.wrappers import Confined


@pytest.mark.parametrize("observation", MAPS)
def test_without_noise_it_iterates_the_core(observation, x64):
    model = make_model("smooth", observation)
    start = np.random.default_rng(0).standard_normal((2, LATENT))
    run = free_run(model, jnp.asarray(start), 6)
    assert (run.states.shape, run.observations.shape) == ((2, 6, LATENT), (2, 6, OBSERVED))
    for s in range(2):
        states = iterate(model.core, start[s], 6)
        np.testing.assert_allclose(run.states[s], states, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(run.observations[s], states @ matrix_of(model.observation).T, atol=1e-11)
    assert run.diverged_at.tolist() == [0, 0]
    later = free_run(model, jnp.asarray(start), 4, transient=2)
    np.testing.assert_array_equal(later.states, run.states[:, 2:])


def test_hard_gates_are_used_exactly(x64):
    """The trained core steps through its surrogate only in gradients; a free run is that of the ReLU network."""
    model = make_model("straight_through")
    start = jnp.asarray(np.random.default_rng(0).standard_normal((2, LATENT)))
    surrogate, exact = free_run(model, start, 50), free_run(model.exact(), start, 50)
    np.testing.assert_array_equal(surrogate.states, exact.states)
    core = model.core
    hard = ALRNN(core.A, core.W, core.h, core.num_gates, "hard")
    np.testing.assert_allclose(exact.states[0, :10], iterate(hard, start[0], 10), rtol=1e-10, atol=1e-11)


def test_noise_has_the_variance_of_the_shell(x64):
    """A core that forgets everything: states are process noise, observations add the other."""
    process, noise = np.linspace(0.2, 1.0, LATENT), np.array([0.5, 1.5])
    model = make_model("linear").replace(
        core=Linear(jnp.zeros((LATENT, LATENT)), jnp.zeros(LATENT)), shell=Shell.from_std(process, noise, np.float64)
    )
    n = 40 * 500
    run = free_run(model, jnp.zeros((40, LATENT)), 500, key=jax.random.key(3))
    z, x = np.asarray(run.states).reshape(n, -1), np.asarray(run.observations).reshape(n, -1)
    error = 5 * np.sqrt(2 / n)  # five standard errors of a relative variance
    np.testing.assert_allclose(z.var(axis=0), process**2, rtol=error)
    np.testing.assert_allclose(x.var(axis=0), process[:OBSERVED] ** 2 + noise**2, rtol=error)
    np.testing.assert_allclose((x - z[:, :OBSERVED]).var(axis=0), noise**2, rtol=error)
    # independent in time, between coordinates, between runs and between the two kinds of noise
    independent = np.concatenate([z, x - z[:, :OBSERVED]], axis=1)
    correlation = np.corrcoef(independent.T) - np.eye(LATENT + OBSERVED)
    lagged = [np.corrcoef(run.states[:, 1:, i].ravel(), run.states[:, :-1, i].ravel())[0, 1] for i in range(LATENT)]
    between = [np.corrcoef(run.states[0, :, i], run.states[1, :, i])[0, 1] for i in range(LATENT)]
    assert np.abs(correlation).max() < 5 / np.sqrt(n)
    assert np.abs(lagged).max() < 5 / np.sqrt(n)
    assert np.abs(between).max() < 5 / np.sqrt(500)


def test_key_alone_decides(x64):
    model = make_model("smooth")
    start = jnp.zeros((2, LATENT))
    one, two, other = (free_run(model, start, 5, key=jax.random.key(k)) for k in (0, 0, 1))
    np.testing.assert_array_equal(one.observations, two.observations)
    assert np.abs(one.observations - other.observations).max() > 1e-3
    later = free_run(model, start, 3, key=jax.random.key(0), transient=2)
    np.testing.assert_array_equal(later.states, one.states[:, 2:])


@pytest.mark.parametrize("transient", [0, 3, 8])
def test_divergence_is_dated(transient):
    """Doubling from 1, 1e-9 and NaN with a bound of 100: the 7th step is the first beyond, also in a transient."""
    core = Linear(2.0 * jnp.eye(LATENT), jnp.zeros(LATENT))
    model = make_model("linear", dtype=np.float32).replace(core=core)
    start = jnp.asarray([1.0, 1e-9, np.nan])[:, None] * jnp.ones(LATENT)
    run = free_run(model, start, 6, transient=transient, bound=100.0)
    assert run.diverged_at.tolist() == [7 if transient + 6 >= 7 else 0, 0, 1]
    assert run.diverged_at.dtype == np.int32


def test_divergence_in_words():
    assert describe_divergence(jnp.array([0, 0, 0])) == "none of 3 rollouts diverged"
    assert describe_divergence(jnp.array([9, 0, 4])) == "2 of 3 rollouts diverged, the first at step 4"
    held = describe_divergence(jnp.array([0, 0, 4]), jnp.array([0.6, 0.001, 0.9]))
    assert held.endswith("first at step 4; 1 of 3 lives at the wall of the data's region, up to 60 % of its steps")
    assert describe_divergence(jnp.array([0]), jnp.array([0.01])).endswith("diverged; up to 1 % of steps at the wall")
    model = make_model("linear", dtype=np.float32)
    climate = Climate.from_moments(np.zeros(LATENT), np.eye(LATENT), states=np.zeros((1, LATENT)))
    model = model.replace(core=Confined(model.core, -jnp.ones(LATENT), jnp.ones(LATENT)), climate=climate)
    returning = describe_divergence(jnp.array([0, 0]), jnp.array([0.05, 0.001]), model)
    assert returning.endswith("1 of 2 lives at the wall of the data's region, up to 5 % of its steps")
    assert describe_divergence(jnp.array([0]), jnp.array([0.0])) == "none of 1 rollouts diverged"
    assert doctest.testmod(kaffee.filtering.rollout).failed == 0
    assert mask_diverged(np.array([[1.0], [2e3], [0.0]])).tolist() == [False, True, True]
