"""Small data, settings and fits that several test files share; the same shapes everywhere, since compiling is slow."""

from functools import cache

import equinox as eqx
import jax
import numpy as np

from kaffee.data.series import Series
from kaffee.fitting.config import override
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings
from kaffee.model.alrnn import ALRNN
from kaffee.model.observation import LinearObservation, Projection
from kaffee.model.statespace import Shell, StateSpaceModel

LATENT, OBSERVED = 4, 2
DT = 0.25

SETTINGS = (
    "core.latent_dim=4",
    "pretraining.window=6",
    "pretraining.forcing.interval=3",
    "pretraining.schedule.num_updates=12",
    "pretraining.schedule.batch_size=4",
    "pretraining.schedule.report_every=4",
    "pretraining.schedule.save_every=8",
    "adaptation.scored=5",
    "adaptation.burn_in=2",
    "adaptation.schedule.num_updates=6",
    "adaptation.schedule.batch_size=4",
    "adaptation.schedule.report_every=2",
    "adaptation.schedule.save_every=4",
)


def rotation(num_steps, *, seed=0, noise=0.1, phase=0.0):
    """Simulate a noisy rotation (T, 2), far from standard units."""
    rng = np.random.default_rng(seed)
    angle = 0.3 * np.arange(num_steps) + phase
    clean = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    return 10.0 + 3.0 * (clean + noise * rng.standard_normal(clean.shape))


def gappy_series():
    """Build three recordings of unequal length with times, 30 % of the entries missing."""
    rng = np.random.default_rng(1)
    recordings = [rotation(n, seed=n, phase=n) for n in (90, 60, 25)]
    for values in recordings:
        values[rng.uniform(size=values.shape) < 0.3] = np.nan
    times = [DT * np.arange(len(values)) for values in recordings]
    return Series.from_arrays(recordings, columns=["left", "right"], times=times, name="gappy")


def standard_series(num_steps=60):
    """Build one complete recording in standardised units."""
    values = rotation(num_steps)
    return Series.from_arrays((values - values.mean(axis=0)) / values.std(axis=0))


def small_model(*, dtype=np.float32, B=None):
    """Build an AL-RNN of the usual size from NumPy arrays, so that nothing has to be compiled for it."""
    rng = np.random.default_rng(0)

    def place(values):
        return jax.device_put(np.asarray(values, dtype))

    def draw(*shape, scale=0.3):
        return place(scale * rng.standard_normal(shape))

    return StateSpaceModel(
        core=ALRNN(0.5 + draw(LATENT), draw(LATENT, LATENT), draw(LATENT), num_gates=2),
        shell=Shell(draw(LATENT) - 2, draw(OBSERVED) - 2),
        observation=Projection(OBSERVED, LATENT) if B is None else LinearObservation(place(B)),
        embedding=draw(LATENT, OBSERVED),
    )


def small_settings(*more):
    return override(FitSettings(), [*SETTINGS, *more])


@cache
def gappy_fit():
    """Fit once, in memory and without interruption."""
    return fit(gappy_series(), small_settings())


def same_arrays(a, b):
    """Tell whether two pytrees hold bit-identical arrays of the same types."""
    leaves = [jax.tree.leaves(eqx.filter(tree, eqx.is_array)) for tree in (a, b)]
    return all(x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True) for x, y in zip(*leaves, strict=True))
