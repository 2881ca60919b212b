"""Forecasts in data units: ensembles from the filtered belief."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint import Reconstruction
from kaffee.checks import filter_of
from kaffee.data.origin import NUMBERED, Origin
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.forecast import forecast_ensemble
from kaffee.inference.columns import BAND, as_series, check_levels, quantile_name
from kaffee.inference.counts import check_count
from kaffee.inference.matching import matched
from kaffee.inference.passes import belief_at, time_first
from kaffee.rollout import DIVERGENCE_BOUND


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
    belief = belief_at(model, filter_of(reconstruction), x, jnp.asarray(list(starts.values())))
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
