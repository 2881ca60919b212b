"""Mackey and Glass' delay equation as a map of its last rows, read in one coordinate; chaotic, or on a cycle."""

import jax.numpy as jnp
import numpy as np

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import as_core

DELAY, CHAOTIC, PERIODIC = 17, 10.0, 7.5
NOISE = 0.1
"""Of readings, in standard deviations of the signal."""


def simulate_glass(num_steps, power=CHAOTIC, seed=0):
    """x_{t+1} = 0.9 x_t + 0.2 x_{t-17} / (1 + x_{t-17}^power), without its first steps."""
    x = list(1.0 + 0.1 * np.random.default_rng(seed).standard_normal(DELAY + 1))
    for _ in range(num_steps + 2000):
        x.append(0.9 * x[-1] + 0.2 * x[-1 - DELAY] / (1.0 + x[-1 - DELAY] ** power))
    return np.array(x[-num_steps:])[:, None]


def read_glass(num_train, num_test, seed=0):
    """Training and held-out readings."""
    clean = simulate_glass(num_train + num_test, seed=seed)
    noisy = clean + NOISE * clean.std() * np.random.default_rng(seed + 1).standard_normal(clean.shape)
    return tuple(Series.from_arrays(part, columns=("x",)) for part in np.split(noisy, [num_train]))


def glass_surrogate(train, power, process=1e-3):
    """The map with some power, in standardised coordinates: the last 18 rows, the newest first."""
    rows = train.recordings[0]
    scaler = Scaler(rows.mean(axis=0), rows.std(axis=0))
    mean, scale = float(scaler.mean[0]), float(scaler.scale[0])

    def step(z):
        x = mean + scale * z
        late = jnp.maximum(x[-1], 0.0)
        new = 0.9 * x[0] + 0.2 * late / (1.0 + late**power)
        return jnp.concatenate([(new[None] - mean) / scale, z[:-1]])

    M = DELAY + 1
    shell = Shell.from_std([process, *[1e-4] * DELAY], [NOISE])
    model = StateSpaceModel(as_core(step, M), shell, Projection(1, M), jnp.ones((M, 1)))
    return Reconstruction(model, scaler, ("x",), 1.0, "kaffee")
