"""A recording of Lorenz-63 so short that its pieces are far from each other; its true core, and one at rest."""

import jax.numpy as jnp
import numpy as np

from kaffee.data.series import Series
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.shell import Shell
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import as_core
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

ROWS, PIECE = 1200, 240
SYSTEM = get_system("lorenz63")


def readings():
    return simulate(SYSTEM, ROWS, observation_noise=0.1).observations


def recording():
    return Series.from_arrays(readings(), times=SYSTEM.dt * np.arange(ROWS))


def lorenz(z):
    """One step of Runge and Kutta's."""

    def flow(z):
        x, y, w = z
        return jnp.stack([10.0 * (y - x), x * (28.0 - w) - y, x * y - 8.0 / 3.0 * w])

    h = SYSTEM.dt
    k1 = flow(z)
    k2 = flow(z + 0.5 * h * k1)
    k3 = flow(z + 0.5 * h * k2)
    k4 = flow(z + h * k3)
    return z + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def _model(core):
    return StateSpaceModel(core, Shell.from_std(np.full(3, 0.1), np.full(3, 0.8)), Projection(3, 3), jnp.eye(3))


def moving():
    return _model(as_core(lorenz, 3))


def at_rest():
    """Every run ends in the mean of the data."""
    return _model(Linear(0.5 * jnp.eye(3), jnp.asarray(0.5 * readings().mean(axis=0), jnp.float32)))
