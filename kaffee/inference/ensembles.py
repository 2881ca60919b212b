"""Forecasts in data units: ensembles from the filtered belief."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.columns import BAND, as_series, check_levels, quantile_name
from kaffee.data.series import Series
from kaffee.data.timeaxis import NUMBERED, Origin
from kaffee.data.validation import check_count
from kaffee.errors import DataError, KaffeeError
from kaffee.filtering.rollout import DIVERGENCE_BOUND, describe_divergence, forecast_ensemble, free_run
from kaffee.filtering.sweep import belief_at, time_first
from kaffee.inference.matching import matched, model_columns


@dataclass(frozen=True)
class EnsembleForecast:
    """Sampled futures of every recording, in data units.

    Attributes:
        columns: Names of the coordinates.
        members: Sampled trajectories; NaN from where one left the attractor for good.
        times: Of the forecast rows of each recording, the first one step after the row it starts from.
        recordings: Which recordings of the series these are.
        num_diverged: Members that left the attractor.
        origin: How times and recordings were written.
    """

    columns: tuple[str, ...]
    members: Float[np.ndarray, "K R H N"]
    times: Float[np.ndarray, "R H"]
    recordings: tuple[int, ...]
    num_diverged: int
    origin: Origin = NUMBERED

    @property
    def mean(self) -> Float[np.ndarray, "R H N"]:
        """Of the members."""
        return np.nanmean(self.members, axis=0)

    @property
    def std(self) -> Float[np.ndarray, "R H N"]:
        """Of the members."""
        return np.nanstd(self.members, axis=0, ddof=1)

    def quantile(self, level: float) -> Float[np.ndarray, "R H N"]:
        """Of the members."""
        return np.nanquantile(self.members, level, axis=0)

    def to_series(self, levels: Sequence[float] = (BAND[0], 0.5, BAND[1])) -> Series:
        """A table for each recording: `x_mean`, `x_std` and quantiles `x_q05` of every coordinate, with times."""
        levels = check_levels(levels)
        found = {"mean": self.mean, "std": self.std} | {quantile_name(p): self.quantile(p) for p in levels}
        tables = [
            {f"{name}_{kind}": values[r, :, n] for n, name in enumerate(self.columns) for kind, values in found.items()}
            for r in range(len(self.recordings))
        ]
        return as_series(tables, list(self.times), "forecast", self.origin)

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "recordings": list(self.recordings),
            "steps": self.members.shape[2],
            "members": self.members.shape[0],
            "diverged": self.num_diverged,
            "first_times": self.times[:, 0].tolist(),
        }


def forecast(
    reconstruction: Reconstruction,
    series: Series,
    num_steps: int,
    *,
    at: float | None = None,
    members: int = 500,
    seed: int = 0,
    observation_noise: bool = True,
    any_step: bool = False,
) -> EnsembleForecast:
    """Filter each recording, draw states from its last belief and let the surrogate run, process noise and all.

    Args:
        num_steps: Steps to forecast.
        at: Start after the row at this time instead of the last one; later rows are not used. Without a time column
            the first row is at time 0. Recordings that do not cover it are left out.
        members: Size of the ensemble, for each recording.
        observation_noise: Forecast readings; without it the signal behind them.
        any_step: Accept a time step that is not the model's.
    """
    num_steps, members = check_count("num_steps", num_steps, 1), check_count("members", members, 2)
    seed = check_count("seed", seed, 0)
    series = matched(reconstruction, series, any_step=any_step)
    model, scaler = reconstruction.model, reconstruction.scaler
    starts = _start_rows(series, reconstruction.dt, at)
    x = time_first(series.standardised(scaler), model.dtype)
    x = x[: max(starts.values()) + 1, jnp.asarray(list(starts))]
    belief = belief_at(model, reconstruction.filter, x, jnp.asarray(list(starts.values())))
    ensemble = forecast_ensemble(
        model, belief, num_steps, members, key=jax.random.key(seed), observation_noise=observation_noise
    )
    values = np.asarray(ensemble, np.float64)
    away = np.logical_or.accumulate(~(np.abs(values) < DIVERGENCE_BOUND).all(axis=3), axis=2)
    if ((~away).sum(axis=0) < 2).any():
        raise DataError(
            f"All {members} members of the forecast left the attractor (beyond {DIVERGENCE_BOUND:g} standard "
            "deviations of the training data) within its horizon. Forecast fewer steps."
        )
    ahead = (series.time_step or reconstruction.dt) * np.arange(1, num_steps + 1)
    origins = np.array([_times(series, r, reconstruction.dt)[row] for r, row in starts.items()])
    return EnsembleForecast(
        columns=series.columns,
        members=scaler.inverse(np.where(away[..., None], np.nan, values)),
        times=origins[:, None] + ahead,
        recordings=tuple(starts),
        num_diverged=int(away[:, :, -1].sum()),
        origin=series.origin.of(list(starts)),
    )


def _times(series: Series, recording: int, dt: float) -> Float[np.ndarray, " T"]:
    if series.times is not None:
        return series.times[recording]
    return dt * np.arange(series.lengths[recording])


def _start_rows(series: Series, dt: float, at: float | None) -> dict[int, int]:
    """The recordings to forecast, each with the row it starts from."""
    if at is None:
        return {r: length - 1 for r, length in enumerate(series.lengths)}
    found, spans = {}, []
    half = 0.5 * (series.time_step or dt)
    for r in range(series.num_recordings):
        times = _times(series, r, dt)
        row = int(np.argmin(np.abs(times - at)))
        if abs(times[row] - at) <= half:
            found[r] = row
        spans.append(f"{times[0]:g} to {times[-1]:g}")
    if not found:
        raise DataError(
            f"{series.label}: no recording covers the time {at:g}; they span {', '.join(spans[:5])}"
            f"{', ...' if len(spans) > 5 else ''}."
        )
    return found


# Free runs in data units.


@dataclass(frozen=True)
class FreeRuns:
    """The surrogate on its own.

    Attributes:
        series: One recording for each run, in data units; missing from where a run left the attractor.
        states: Latent states, in the model's standardised coordinates.
        diverged_at: Step (from 1, transient included) at which each run left; 0 if it did not.
    """

    series: Series
    states: Float[np.ndarray, "S T M"]
    diverged_at: Int[np.ndarray, " S"]

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "runs": self.series.num_recordings,
            "steps": self.series.lengths[0],
            "diverged_at": self.diverged_at.tolist(),
            "divergence": describe_divergence(jnp.asarray(self.diverged_at)),
        }


def simulate(
    reconstruction: Reconstruction,
    num_steps: int,
    *,
    shell: bool = True,
    core_noise: bool = True,
    start: Float[np.ndarray, "S N"] | None = None,
    runs: int = 1,
    transient: int = 1000,
    seed: int = 0,
) -> FreeRuns:
    """Let a trained surrogate run freely: no observation is assimilated.

    Args:
        shell: Process noise at every step and observation noise on the output; without it the bare core runs.
        core_noise: Draw the noise inside the core, where it has any (DynaMix's gate).
        start: Observations to start from, (N,) or one row for each run; by default drawn from a normal distribution
            with the moments of the training data.
        runs: How many, if `start` does not say so.
        transient: Steps before the first that is kept.
        seed: Of everything random.
    """
    num_steps, runs = check_count("num_steps", num_steps, 1), check_count("runs", runs, 1)
    transient, seed = check_count("transient", transient, 0), check_count("seed", seed, 0)
    model, scaler = reconstruction.model, reconstruction.scaler
    key_start, key_shell, key_core = jax.random.split(jax.random.key(seed), 3)
    if start is None:
        first = jax.random.normal(key_start, (runs, model.num_observed), model.dtype)
    else:
        first = jnp.asarray(_simulation_starts(reconstruction, start), model.dtype)
    run = free_run(
        model,
        model.embed(first),
        num_steps,
        key=key_shell if shell else None,
        core_key=key_core if core_noise else None,
        transient=transient,
    )
    values, diverged_at = scaler.inverse(np.asarray(run.observations, np.float64)), np.asarray(run.diverged_at)
    for run_values, step in zip(values, diverged_at, strict=True):
        if step:
            run_values[max(step - 1 - transient, 0) :] = np.nan
    if np.isnan(values).all():
        raise KaffeeError(
            f"The free run left the attractor (beyond {DIVERGENCE_BOUND:g} standard deviations of the training data) "
            f"at step {diverged_at.max()}, before the first that is kept. Start from an observation, with a shorter "
            "transient."
        )
    columns, times = model_columns(reconstruction), reconstruction.dt * np.arange(1, num_steps + 1)
    series = Series(tuple(values), columns, (times,) * len(values), "free run")
    return FreeRuns(series, np.asarray(run.states, np.float64), diverged_at)


def _simulation_starts(reconstruction: Reconstruction, start: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S N"]:
    rows = np.atleast_2d(np.asarray(start, np.float64))
    N = reconstruction.model.num_observed
    if rows.ndim != 2 or rows.shape[1] != N or not np.isfinite(rows).all():
        raise DataError(
            f"start has shape {np.shape(start)}; it must be ({N},), or one row of {N} finite numbers for each run."
        )
    return reconstruction.scaler.transform(rows)
