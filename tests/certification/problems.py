"""A linear Gaussian system whose true model is known, and models that are wrong in one way each."""

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np

from kaffee.certification.innovations import choose_starts, filter_pass
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel

COLUMNS = ("left", "right")
SCALER = Scaler(mean=[10.0, -200.0], scale=[3.0, 40.0])
DT = 0.5
N, M = 2, 3
# A slow rotation of what is observed, and a hidden coordinate that drives it; spectral radius 0.95.
A = np.array([[0.9, -0.3, 0.2], [0.3, 0.9, 0.0], [0.0, 0.0, 0.6]])
GAMMA, LAMBDA = np.array([0.25, 0.25, 0.3]), np.array([0.3, 0.2])


def single(values):
    return jnp.asarray(np.asarray(values), jnp.float32)


def linear_model(matrix=A, process=GAMMA, observation=LAMBDA):
    """z' = A z + noise, of which the first two coordinates are read."""
    return StateSpaceModel(
        core=Linear(single(matrix), jnp.zeros(M, jnp.float32)),
        shell=Shell.from_std(process, observation),
        observation=Projection(N, M),
        embedding=single(np.eye(M, N)),
    )


def reconstruct(model, scaler=SCALER, method="kaffee"):
    return Reconstruction(model, scaler, COLUMNS, DT, method)


def simulated(num_steps, seed):
    """Readings of the true model in data units."""
    rng = np.random.default_rng(seed)
    z, rows = np.zeros(M), []
    for _ in range(100 + num_steps):
        z = A @ z + GAMMA * rng.standard_normal(M)
        rows.append(z[:N] + LAMBDA * rng.standard_normal(N))
    return SCALER.inverse(np.array(rows[100:]))


def series_of(*recordings, name="demo"):
    times = [DT * np.arange(len(values)) for values in recordings]
    return Series.from_arrays(list(recordings), columns=COLUMNS, times=times, name=name)


def with_gaps(values, share=0.2, seed=0):
    """A share of the entries missing, one gap of whole rows; the first row stays."""
    rng = np.random.default_rng(seed)
    holes = rng.uniform(size=values.shape) < share
    holes[40:45] = True
    holes[0] = False
    return np.where(holes, np.nan, values)


@cache
def train_series():
    return series_of(simulated(1500, 1), simulated(500, 2), name="train")


@cache
def held_out_series():
    """Of these shapes are all held-out data: compiling for others takes longer than all else. One is too short."""
    return series_of(simulated(2000, 3), simulated(400, 4), simulated(3, 8), name="test")


@cache
def gappy_series():
    """A fifth of the entries missing; of the second recording one coordinate for good."""
    second = with_gaps(simulated(400, 6))
    second[1:, 1] = np.nan
    return series_of(with_gaps(simulated(2000, 5)), second, simulated(3, 7), name="gappy")


def true_reconstruction():
    return reconstruct(linear_model())


def overconfident():
    """Right dynamics and gain; all variances a quarter of the true ones."""
    return reconstruct(linear_model(process=GAMMA / 2, observation=LAMBDA / 2))


def biased():
    """Right, but for the origin of the first coordinate: half a standard deviation away."""
    return reconstruct(linear_model(), replace(SCALER, mean=SCALER.mean + np.array([0.8 * 3.0, 0.0])))


def wrong_dynamics():
    """No rotation and no memory beyond a step, with the process noise that makes up for it."""
    return reconstruct(linear_model(0.1 * np.eye(M), process=np.array([0.85, 0.8, 0.3])))


@cache
def passed(which=true_reconstruction, series=held_out_series, starts=400):
    """A filter pass; `which` and `series` are functions, so that each is made once."""
    return filter_pass(which(), series(), choose_starts(series(), starts))
