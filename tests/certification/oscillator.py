"""A nonlinear system whose true model is known: Van der Pol's oscillator with noise, in units that need no scaling."""

import jax
import jax.numpy as jnp
import numpy as np

from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import as_core

KICK, NOISE = 0.03, 0.1


def oscillator(z):
    """One step of Euler's."""
    x, y = z
    return z + 0.1 * jnp.stack([y, (1.0 - x**2) * y - x])


def simulated(num_steps):
    """States, and noisy readings of them."""
    rng = np.random.default_rng(0)
    step, z, rows = jax.jit(oscillator), np.array([1.0, 0.0], np.float32), []
    for _ in range(num_steps):
        rows.append(z)
        z = np.asarray(step(z)) + np.float32(KICK) * rng.standard_normal(2).astype(np.float32)
    states = np.array(rows, np.float64)
    return states, states + NOISE * rng.standard_normal(states.shape)


def true_model():
    return StateSpaceModel(
        core=as_core(oscillator, 2),
        shell=Shell.from_std([KICK, KICK], [NOISE, NOISE]),
        observation=Projection(2, 2),
        embedding=jnp.eye(2),
    )
