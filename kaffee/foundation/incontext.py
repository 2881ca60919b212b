"""A surrogate of a recording without training: a kernel map in context, denoised by its own smoother."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.foundation.denoising import Pairs, Smoothed, make_pairs, smooth_context
from kaffee.model.kernel import KernelMap
from kaffee.model.observation import Projection
from kaffee.model.statespace import Climate, Shell, StateSpaceModel
from kaffee.training.kernel_regression import KernelRegression, regress

_LEAST_STD = 1e-4
_STATES = 500


@dataclass(frozen=True)
class ContextSettings:
    """How a context is read.

    Attributes:
        lags: Which readings the map reads, 0 is the newest; None: by the data.
        passes: Times that the context is denoised.
        kernels, lengths, ridges, block: Of the regression, see `regress`.
        max_centres: Rows of the context that have a kernel.
        process, observation: Factors of the standard deviations of the noise.
    """

    lags: tuple[int, ...] | None = None
    passes: int = 2
    kernels: tuple[str, ...] = ("matern32", "matern52", "gaussian")
    lengths: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    block: int = 10
    firmness: float = 1.0
    local: bool = False
    max_centres: int = 1000
    process: float = 1.0
    observation: float = 1.0


def read_context(series: Series, settings: ContextSettings = ContextSettings()) -> Reconstruction:
    """Make a surrogate of a recording."""
    scaler = Scaler.fit(series)
    readings = [np.asarray(x, np.float64) for x in series.standardised(scaler).recordings]
    lags = settings.lags or (0,)
    usable = [np.isfinite(x).all(axis=1) for x in readings]
    states = [_interpolate(x) for x in readings]

    def learn(states: list[np.ndarray], usable: list[Any]) -> tuple[Pairs, KernelRegression]:
        pairs = make_pairs(states, lags, usable)
        how: Any = {"kernels": settings.kernels, "lengths": settings.lengths, "block": settings.block, "firmness": settings.firmness}
        return pairs, regress(pairs.features, pairs.targets, max_centres=settings.max_centres, **how)

    pairs, regression = learn(states, usable)
    smoothed: Smoothed | None = None
    for _ in range(settings.passes):
        noise = None if smoothed is None else smoothed.observation_std
        smoothed = smooth_context(readings, states, lags, regression, pairs, noise)
        states = smoothed.mean
        pairs, regression = learn(states, usable)
    assert smoothed is not None
    model = _build(regression, pairs, lags, states, smoothed, settings)
    return Reconstruction(model, scaler, series.columns, series.time_step or 1.0, provenance={"nll": smoothed.nll})


def _interpolate(x: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    t, out = np.arange(len(x)), x.copy()
    for column in out.T:
        seen = np.isfinite(column)
        column[~seen] = np.interp(t[~seen], t[seen], column[seen]) if seen.any() else 0.0
    return out


def _build(
    regression: KernelRegression,
    pairs: Pairs,
    lags: tuple[int, ...],
    states: list[np.ndarray],
    smoothed: Smoothed,
    settings: ContextSettings,
) -> StateSpaceModel:
    N = pairs.targets.shape[1]
    f32 = jnp.float32
    M = N * (lags[-1] + 1)
    from scipy.spatial import cKDTree

    errors = np.mean(regression.left_out**2 / np.mean(regression.left_out**2, axis=0), axis=1)
    tree = cKDTree(pairs.features)
    distances, _ = tree.query(regression.centres, k=min(12, len(pairs.features)))
    bandwidth = float(np.median(distances[:, -1])) + 1e-6
    _, near = cKDTree(regression.centres).query(pairs.features)
    spread = np.bincount(near, errors, len(regression.centres)) / np.maximum(
        np.bincount(near, minlength=len(regression.centres)), 1
    )
    extent = np.sqrt(np.sum(pairs.features.var(axis=0)))
    core = KernelMap(
        *(jnp.asarray(a, f32) for a in (regression.centres, regression.weights, regression.linear, regression.offset)),
        length=jnp.asarray(regression.length, f32),
        radius=jnp.asarray(0.5 * extent, f32),
        spread=jnp.asarray(spread if settings.local else np.ones_like(spread), f32),
        bandwidth=jnp.asarray(bandwidth, f32),
        kernel=regression.kernel,
        num_observed=N,
        lags=lags,
    )
    process = np.maximum(settings.process * smoothed.process_std, _LEAST_STD)
    shell = Shell.from_std(
        np.concatenate([process, np.full(M - N, _LEAST_STD)]), np.maximum(settings.observation * smoothed.observation_std, _LEAST_STD)
    )
    registers = np.concatenate(
        [
            np.concatenate([x[lags[-1] - lag : len(x) - lag] for lag in range(lags[-1] + 1)], axis=1)
            for x in states
            if len(x) > lags[-1]
        ]
    )
    some = registers[np.unique(np.linspace(0, len(registers) - 1, _STATES).round().astype(int))]
    climate = Climate.from_moments(registers.mean(axis=0), np.cov(registers.T).reshape(M, M), states=some)
    embedding = jnp.zeros((M, N), f32).at[:N].set(jnp.eye(N, dtype=f32))
    return StateSpaceModel(core, shell, Projection(N, M), embedding, climate)
