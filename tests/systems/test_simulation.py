"""Simulation: the definition of appendix C.3, seeds, divergence, caching."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError, KaffeeError
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.systems.system import System


def test_without_noise_it_is_rk4_iteration(x64):
    system = get_system("lorenz63")
    states = simulate(system, 50, burn_in=0).states
    np.testing.assert_array_equal(states[0], system.initial_state)
    np.testing.assert_allclose(states[1:], jax.jit(jax.vmap(system))(jnp.array(states[:-1])), rtol=1e-14)
    np.testing.assert_allclose(simulate(system, 20, burn_in=30).states, states[30:], rtol=1e-14)


@pytest.mark.parametrize("name", ["lorenz96", "lorenz63"])
def test_noise_follows_its_definition(name, x64):
    system, T, proc, obs = get_system(name), 10_000, 0.1, 0.2
    simulation = simulate(system, T, process_noise=proc, observation_noise=obs)
    z, x = simulation.states, simulation.observations
    kicks = z[1:] - jax.jit(jax.vmap(system))(jnp.array(z[:-1]))
    kicks = kicks / (proc * np.sqrt(system.dt) * simulation.reference_scale)
    errors = (x - z) / (obs * z.std(axis=0))
    tolerance = 4 / np.sqrt(2 * T)  # four standard errors of a standard deviation, per coordinate
    for standard in (kicks, errors):
        np.testing.assert_allclose(np.std(standard, axis=0), 1.0, atol=tolerance)
        np.testing.assert_allclose(np.mean(standard, axis=0), 0.0, atol=4 / np.sqrt(T))
    assert abs(np.corrcoef(kicks[:, 0], errors[1:, 0])[0, 1]) < 4 / np.sqrt(T)
    # s_ref is a property of the clean system, near to but not the same as the scale of this run
    np.testing.assert_allclose(simulation.reference_scale, z.std(axis=0), rtol=0.2)
    assert not np.allclose(simulation.reference_scale, z.std(axis=0), rtol=1e-4)


def test_lorenz96_scale():
    simulation = simulate(get_system("lorenz96"), 20_000)
    assert simulation.states.mean() == pytest.approx(2.33, abs=0.05)
    assert simulation.observation_scale.mean() == pytest.approx(3.64, abs=0.05)


def test_seeds():
    system, noise = get_system("chen"), {"process_noise": 0.1, "observation_noise": 0.1}
    first, again, other = (simulate(system, 100, seed=s, **noise) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.observations, again.observations)
    assert not np.allclose(first.states, other.states)
    # the latent trajectory does not depend on how it is observed
    np.testing.assert_array_equal(simulate(system, 100, seed=1, process_noise=0.1).states, first.states)


def test_burn_in_is_noisy():
    a, b = (simulate(get_system("linear_spiral"), 1, seed=s, process_noise=0.1, burn_in=9) for s in (0, 1))
    assert not np.allclose(a.states, b.states)


def test_float64_whatever_jax_is_set_to():
    narrow = simulate(get_system("lorenz63"), 500, process_noise=0.1, observation_noise=0.1)
    with jax.enable_x64(True):
        wide = simulate(get_system("lorenz63"), 500, process_noise=0.1, observation_noise=0.1)
    assert narrow.states.dtype == narrow.observations.dtype == np.float64
    np.testing.assert_array_equal(narrow.observations, wide.observations)
    assert jnp.zeros(1).dtype == jnp.float32


def test_partial_observation_and_training_scale():
    system = get_system("lorenz63")
    full = simulate(system, 400, observation_noise=0.1)
    part = simulate(system, 400, observation_noise=0.1, observed=[2, 0])
    np.testing.assert_array_equal(part.observations, full.observations[:, [2, 0]])
    assert (part.states.shape, part.observed) == ((400, 3), (2, 0))
    train = simulate(system, 400, observation_noise=0.1, num_train_steps=300)
    np.testing.assert_array_equal(train.observation_scale, train.states[:300].std(axis=0))


def test_record():
    simulation = simulate(get_system("aizawa"), 5, seed=3, burn_in=2, initial_state=[0.1, 0.2, 0.3])
    np.testing.assert_allclose(simulation.times, [0, 0.02, 0.04, 0.06, 0.08])
    assert (simulation.seed, simulation.burn_in, simulation.dt) == (3, 2, 0.02)
    assert simulation.initial_state == (0.1, 0.2, 0.3)
    assert simulation.reference_scale is None
    np.testing.assert_array_equal(simulation.observations, simulation.states)


def test_compiles_once_for_equal_systems():
    traces = 0

    def f(z, rate):
        nonlocal traces
        traces += 1
        return -rate * z

    def run(rate, seed):
        system = System(f, [1.0, 2.0], 0.1, parameters={"rate": rate}, reference_scale=[1.0, 1.0])
        before = traces  # after construction, which traces for validation
        simulate(system, 17, seed=seed, process_noise=0.1)
        return traces - before

    assert run(1.0, 0) > 0
    assert run(1.0, 1) == 0
    assert run(2.0, 0) > 0


def test_divergence_says_where_and_what_to_do():
    blow_up = System(lambda z: z**2, [1.0], dt=0.1, name="blow_up", burn_in=5)
    with pytest.raises(KaffeeError, match=r"'blow_up' diverged at step 1\d of 54 \(in the recorded part\)"):
        simulate(blow_up, 50)
    with pytest.raises(KaffeeError, match=r"in the burn-in\)\. Try a smaller dt \(now 0.1\) or another initial"):
        simulate(blow_up, 50, burn_in=100)
    with pytest.raises(KaffeeError, match=r"less process noise \(now 300\)"):
        simulate(get_system("lorenz96"), 100, process_noise=300)


def test_noise_without_scale_is_refused():
    decay = System(lambda z: -z, [1.0, 2.0], dt=0.1, name="decay")
    with pytest.raises(KaffeeError, match=r"'decay' comes to rest.*reference_scale"):
        simulate(decay, 10, process_noise=0.1)
    with pytest.raises(KaffeeError, match="does not vary"):
        simulate(System(lambda z: 0 * z, [1.0], dt=0.1), 10, observation_noise=0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_steps": 0}, "num_steps = 0 is too few; use 1 or more"),
        ({"burn_in": -1}, "burn_in = -1"),
        ({"num_train_steps": 11}, "from 1 to 10"),
        ({"process_noise": -0.1}, "process_noise = -0.1"),
        ({"observation_noise": float("nan")}, "observation_noise = nan"),
        ({"initial_state": [1.0]}, "has 1 coordinates, the system has 3"),
        ({"observed": [0, 3]}, r"observed = \[0, 3\]. Give different indices of coordinates from 0 to 2"),
        ({"observed": [1, 1]}, "different indices"),
        ({"observed": []}, "different indices"),
    ],
)
def test_errors_say_what_is_allowed(arguments, words):
    with pytest.raises(ConfigError, match=words):
        simulate(get_system("lorenz63"), **{"num_steps": 10} | arguments)
