"""A surrogate of a recording without training: a kernel map in context, denoised by its own smoother.

    standardise > choose delays > [regress > smooth the context by the regression's tangents] x passes > regress

The result is a state-space model like any other: it filters, smooths, forecasts and runs freely.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial import cKDTree

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.foundation.denoising import CLEAN, LEAST_STD, Pairs, Smoothed, make_pairs, pad_process, smooth_context
from kaffee.foundation.embedding import choose_lags
from kaffee.model.kernel import KERNELS, KernelMap
from kaffee.model.observation import Projection
from kaffee.model.statespace import Climate, Shell, StateSpaceModel
from kaffee.training.kernel_regression import LENGTHS, KernelRegression, regress

FEWEST_PAIRS = 8
"""Complete pairs of neighbouring rows below which a context defines no map."""
MOST_STATES = 500
"""States of the context that free runs start from."""
RADIUS = 0.3
"""How far from the nearest row of the context the map is taken as it is, in root mean square distances of rows."""
NOISY_CENTRES = 400
"""Kernels that a map with noise needs at most: noise hides what more of them could tell."""
PROCESS = 1.5
"""Factor of the process noise that the context's likelihood finds: errors of a map are alike in successive steps, which
white noise is not. On 191 recordings of discovered systems 90 % bands cover 83 % with 1, 90 % with 2; a small trained
network was no better than a constant (`python -m benchmarks.incontext_training`)."""
NEIGHBOURS = 12
"""Rows over which the size of errors is averaged."""


@dataclass(frozen=True)
class ContextSettings:
    """How a context is read.

    Attributes:
        lags: Which readings the map reads, 0 is the newest; None: by the data.
        passes: Times that the context is denoised; none if it has no noise.
        kernels, lengths, block: Of the regression, see `regress`.
        process, observation: Factors of the standard deviations of the noise.
        max_centres: Rows of a context without noise that have a kernel; with noise `NOISY_CENTRES` are enough.
    """

    lags: tuple[int, ...] | None = None
    passes: int = 2
    kernels: tuple[str, ...] = tuple(KERNELS)
    lengths: tuple[float, ...] = LENGTHS
    block: int = 10
    process: float = PROCESS
    observation: float = 1.0
    max_centres: int = 1000

    def __post_init__(self) -> None:
        if self.passes < 0 or self.block < 1 or self.max_centres < FEWEST_PAIRS:
            raise ConfigError(
                f"passes = {self.passes}, block = {self.block}, max_centres = {self.max_centres}: at least 0, 1 and "
                f"{FEWEST_PAIRS} are needed."
            )


@dataclass(frozen=True, eq=False)
class ContextReading:
    """A context as it was read, standardised: what its model is made of.

    Attributes:
        states: Denoised readings.
        regression: On the pairs of these states.
        smoothed: The last pass over the context, whose noise levels are the model's.
    """

    scaler: Scaler
    lags: tuple[int, ...]
    passes: int
    states: list[Float[np.ndarray, "T N"]]
    pairs: Pairs
    regression: KernelRegression
    smoothed: Smoothed


def read_context(
    series: Series, settings: ContextSettings = ContextSettings(), *, scaler: Scaler | None = None
) -> Reconstruction:
    """Make a surrogate of recordings, without training.

    Args:
        series: In data units; several recordings and missing entries are fine.
        scaler: The units of the model; by default those of the series.
    """
    refuse_inputs(series)
    *_, reading = denoise(series, settings, scaler)
    regression = reading.regression
    model = build_model(reading, settings)
    facts = {"rows": series.num_steps, "passes": reading.passes, "lags": list(reading.lags)}
    facts |= {"kernel": regression.kernel, "length": regression.length, "ridge": regression.ridge}
    return Reconstruction(
        model, reading.scaler, series.columns, series.time_step or 1.0, "zero_shot", {"context": facts}
    )


def refuse_inputs(series: Series) -> None:
    """Refuse a series with known inputs, which models that read their context do not take."""
    if series.inputs is not None:
        raise ConfigError(
            f"{series.label}: a model that reads its context takes no inputs ({', '.join(series.inputs.columns)}). Fit "
            "one (kaffee fit --inputs, or Surrogate.fit(X, inputs=...)), or leave the inputs out."
        )


def denoise(series: Series, settings: ContextSettings, scaler: Scaler | None = None) -> Iterator[ContextReading]:
    """Choose delays, and denoise the context by the model that it defines; yield it as it is, then after each pass."""
    scaler = scaler or Scaler.fit(series)
    readings = [np.asarray(x, np.float64) for x in series.standardised(scaler).recordings]
    usable: list[Any] = [np.isfinite(x).all(axis=1) for x in readings]
    states = [_interpolate(x) for x in readings]
    lags = settings.lags or choose_lags(states, block=settings.block)
    noise: Float[np.ndarray, " N"] | None = None
    for number in range(settings.passes + 1):
        pairs, regression = _learn(states, usable, lags, settings, NOISY_CENTRES)
        if number < 2 or number < settings.passes:
            smoothed = smooth_context(readings, states, lags, regression, pairs, noise)
        clean = smoothed.observation_std.max() < CLEAN and all(map(np.all, usable))
        if clean and len(pairs.features) > NOISY_CENTRES:
            pairs, regression = _learn(states, usable, lags, settings, settings.max_centres, regression)
            smoothed = smooth_context(readings, states, lags, regression, pairs, noise)
        yield ContextReading(scaler, lags, number, states, pairs, regression, smoothed)
        if clean:
            return
        states, noise = smoothed.mean, smoothed.observation_std


def _learn(
    states: list[np.ndarray],
    usable: list[Bool[np.ndarray, " T"]],
    lags: tuple[int, ...],
    settings: ContextSettings,
    most: int,
    same: KernelRegression | None = None,
) -> tuple[Pairs, KernelRegression]:
    pairs = make_pairs(states, lags, usable)
    if len(pairs.features) < FEWEST_PAIRS:
        raise DataError(
            f"The context has {len(pairs.features)} complete pairs of neighbouring rows; at least {FEWEST_PAIRS} are "
            "needed to continue it. Give more rows, or rows with fewer gaps."
        )
    how: dict[str, Any] = {name: getattr(settings, name) for name in ("kernels", "lengths", "block")}
    return pairs, regress(pairs.features, pairs.targets, max_centres=min(most, settings.max_centres), same=same, **how)


def _interpolate(x: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Fill gaps by straight lines, for a first estimate of the states."""
    t, filled = np.arange(len(x)), x.copy()
    for column in filled.T:
        seen = np.isfinite(column)
        column[~seen] = np.interp(t[~seen], t[seen], column[seen]) if seen.any() else 0.0
    return filled


def build_model(reading: ContextReading, settings: ContextSettings) -> StateSpaceModel:
    """Put the regression into a core, and noise levels and denoised states around it."""
    regression, features, smoothed, lags = reading.regression, reading.pairs.features, reading.smoothed, reading.lags
    N, dtype = reading.pairs.targets.shape[1], jnp.float32
    learnt = {name: getattr(regression, name) for name in ("centres", "weights", "linear", "offset", "length")}
    learnt["radius"] = RADIUS * np.sqrt(2.0 * features.var(axis=0).sum()) + LEAST_STD
    arrays: dict[str, Any] = {
        name: jnp.asarray(value, dtype) for name, value in {**learnt, **_localise_errors(regression, features)}.items()
    }
    core = KernelMap(**arrays, kernel=regression.kernel, num_observed=N, lags=lags)
    process = pad_process(np.maximum(settings.process * smoothed.process_std, LEAST_STD), core)
    shell = Shell.from_std(process, np.maximum(settings.observation * smoothed.observation_std, LEAST_STD))
    M = core.latent_dim
    registers = _fill_registers(reading.states, lags[-1])
    some = registers[np.unique(np.linspace(0, len(registers) - 1, MOST_STATES).round().astype(int))]
    covariance = np.cov(registers.T).reshape(M, M) if len(registers) > 1 else np.eye(M)
    climate = Climate.from_moments(registers.mean(axis=0), covariance, states=some)
    embedding = jnp.tile(jnp.eye(N, dtype=dtype), (lags[-1] + 1, 1))
    return StateSpaceModel(core, shell, Projection(N, M), embedding, climate)


def _localise_errors(regression: KernelRegression, features: Float[np.ndarray, "P D"]) -> dict[str, Any]:
    """Assign the squared errors of left-out rows, over their mean, to the nearest centres."""
    squares = regression.left_out**2
    relative = np.mean(squares / np.maximum(squares.mean(axis=0), 1e-30), axis=1)
    tree, K = cKDTree(regression.centres), len(regression.centres)
    distances, near = tree.query(features, k=min(NEIGHBOURS, K))
    near = near.reshape(len(features), -1)[:, 0]
    # Half of what all rows have on average: single rows say little.
    sums, counts = np.bincount(near, relative, K), np.bincount(near, minlength=K)
    bandwidth = float(np.median(distances.reshape(len(features), -1)[:, -1])) + LEAST_STD
    return {
        "spread": (sums + 1.0) / (counts + 1.0),
        "bandwidth": bandwidth,
    }


def _fill_registers(states: list[np.ndarray], longest: int) -> Float[np.ndarray, "T M"]:
    """Stack every row with those before it, newest first."""
    parts = [
        np.concatenate([x[longest - lag : len(x) - lag] for lag in range(longest + 1)], axis=1)
        for x in states
        if len(x) > longest
    ]
    return np.concatenate(parts)
