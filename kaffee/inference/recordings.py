"""Filtering whole recordings in data units."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.columns import BAND, as_series, gaussian_columns, joined, state_names
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.gated import gate_of
from kaffee.filtering.smoother import smooth_rows
from kaffee.filtering.sweep import filter_rows, time_first
from kaffee.inference.matching import matched
from kaffee.inference.results import Estimate


@dataclass(frozen=True)
class FilteredRecordings:
    """What the filter knew at every row.

    Attributes:
        series: The recordings, with the model's columns.
        estimates: For each recording, arrays with a row for every one of its rows.
    """

    series: Series
    estimates: tuple[Estimate, ...]

    def to_series(self, levels: Sequence[float] = BAND, *, latent: bool = False) -> Series:
        """A table beside the recordings' times.

        For every coordinate x: `x_mean`, `x_std` and quantiles `x_q05` of the signal given all readings so far,
        `x_predicted_mean` and `x_predicted_std` of the reading given those before it; then `log_likelihood` and `nis`.
        """
        if max(self.series.lengths) < 2:
            raise DataError(
                f"{self.series.label}: one row anchors the filter, so two are the least that it can filter."
            )
        return as_series(
            [self._table(estimate, levels, latent) for estimate in self.estimates],
            self.series.times,
            f"{self.series.name} filtered".strip(),
            self.series.origin,
        )

    def _table(self, estimate: Estimate, levels: Sequence[float], latent: bool) -> dict[str, np.ndarray]:
        names = self.series.columns
        tables = [
            gaussian_columns(names, estimate.mean, estimate.std, levels),
            gaussian_columns(_predicted(names), estimate.predicted_mean, estimate.predicted_std),
        ]
        if latent:
            states = state_names(estimate.state_mean.shape[1])
            tables += [
                gaussian_columns(states, estimate.state_mean, estimate.state_std),
                gaussian_columns(_predicted(states), estimate.predicted_state_mean, estimate.predicted_state_std),
            ]
        return joined(*tables, {"log_likelihood": estimate.log_likelihood, "nis": estimate.nis})

    def describe(self) -> dict[str, Any]:
        """JSON values: sums over all recordings."""
        scored = [~np.isnan(estimate.log_likelihood) for estimate in self.estimates]
        entries = sum(int(e.accepted[s].sum()) for e, s in zip(self.estimates, scored, strict=True))
        total = sum(float(np.nansum(estimate.log_likelihood)) for estimate in self.estimates)
        return {
            "recordings": self.series.num_recordings,
            "steps": self.series.num_steps,
            "log_likelihood": total,
            "log_likelihood_per_entry": total / entries if entries else None,
            "rejected": sum(int(estimate.rejected.sum()) for estimate in self.estimates),
            "restarts": sum(int(estimate.restarted[1:].sum()) for estimate in self.estimates),
        }


def _predicted(names: Sequence[str]) -> list[str]:
    return [f"{name}_predicted" for name in names]


def filter_recordings(
    reconstruction: Reconstruction,
    series: Series,
    *,
    gate: float | None = None,
    patience: int = 10,
    any_step: bool = False,
) -> FilteredRecordings:
    """Filter recordings by the recursion of the model's own method (Eqs. kf_predict_mean to kf_update_cov).

    Args:
        series: In data units; several recordings of unequal length, missing entries and gaps are fine.
        gate: Reject readings whose squared normalised innovation exceeds this chi-square quantile, such as 0.9999.
        patience: Rejections in a row after which a coordinate is believed again.
        any_step: Accept a time step that is not the model's.
    """
    series = matched(reconstruction, series, any_step=any_step)
    model, scaler = reconstruction.model, reconstruction.scaler
    x = time_first(series.standardised(scaler), model.dtype)
    rows = jax.tree.map(np.asarray, filter_rows(model, reconstruction.filter, gate_of(gate, patience), x))
    estimates = [
        Estimate(jax.tree.map(lambda a, r=r, T=T: a[:T, r], rows), scaler) for r, T in enumerate(series.lengths)
    ]
    return FilteredRecordings(series, tuple(estimates))


# Smoothing whole recordings in data units.


Recordings = tuple[Float[np.ndarray, "T K"], ...]


@dataclass(frozen=True)
class SmoothedRecordings:
    """What is known of every row given the whole recording, one array for each recording.

    Attributes:
        series: The recordings, with the model's columns.
        mean, std: Of the signal B z, in data units.
        reading_std: Of a reading of it, observation noise included.
        state_mean, state_std: Of the latent state, in the model's standardised coordinates.
    """

    series: Series
    mean: Recordings
    std: Recordings
    reading_std: Recordings
    state_mean: Recordings
    state_std: Recordings

    def to_series(self, levels: Sequence[float] = BAND, *, latent: bool = False) -> Series:
        """A table beside the recordings' times: `x_mean`, `x_std` and quantiles `x_q05` of every signal."""
        tables = []
        for r in range(self.series.num_recordings):
            table = gaussian_columns(self.series.columns, self.mean[r], self.std[r], levels)
            if latent:
                names = state_names(self.state_mean[r].shape[1])
                table = joined(table, gaussian_columns(names, self.state_mean[r], self.state_std[r]))
            tables.append(table)
        return as_series(tables, self.series.times, f"{self.series.name} smoothed".strip(), self.series.origin)

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {"recordings": self.series.num_recordings, "steps": self.series.num_steps}


def smooth(reconstruction: Reconstruction, series: Series, *, any_step: bool = False) -> SmoothedRecordings:
    """Smooth recordings: the state at every row given all readings before and after it.

    A Rauch-Tung-Striebel pass back over the filter of the model's own method; see `kaffee.filtering.smoother`.
    """
    series = matched(reconstruction, series, any_step=any_step)
    model, scaler = reconstruction.model, reconstruction.scaler
    x = time_first(series.standardised(scaler), model.dtype)
    rows = smooth_rows(model, reconstruction.filter, x, jnp.asarray(series.lengths))
    found = jax.tree.map(lambda a: np.asarray(a, np.float64), rows)
    noise = np.asarray(model.shell.observation_variance(), np.float64)

    def cut(values: np.ndarray) -> Recordings:
        return tuple(values[:T, r] for r, T in enumerate(series.lengths))

    return SmoothedRecordings(
        series=series,
        mean=cut(scaler.inverse(found.signal_mean)),
        std=cut(scaler.inverse_std(found.signal_std)),
        reading_std=cut(scaler.inverse_std(np.sqrt(found.signal_std**2 + noise))),
        state_mean=cut(found.state_mean),
        state_std=cut(found.state_std),
    )


# Filling the gaps of recordings, with bands.


@dataclass(frozen=True)
class ImputedRecordings:
    """Recordings without gaps.

    Attributes:
        series: As recorded, with the model's columns.
        values: The readings where there are any, bit for bit; the smoothed mean elsewhere.
        std: Of the reading that is missing, observation noise included; 0 where one was recorded.
    """

    series: Series
    values: Recordings
    std: Recordings

    @property
    def filled(self) -> Series:
        """The recordings with their gaps filled."""
        return replace(self.series, recordings=self.values, notes=())

    def to_series(self, levels: Sequence[float] = BAND) -> Series:
        """A table beside the recordings' times: `x`, `x_std` and quantiles `x_q05`, which meet where x was recorded."""
        tables = []
        for values, std in zip(self.values, self.std, strict=True):
            filled = dict(zip(self.series.columns, values.T, strict=True))
            bands = gaussian_columns(self.series.columns, values, std, levels)
            tables.append(joined(filled, {name: bands[name] for name in bands if not name.endswith("_mean")}))
        return as_series(tables, self.series.times, f"{self.series.name} imputed".strip(), self.series.origin)

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "recordings": self.series.num_recordings,
            "steps": self.series.num_steps,
            "imputed": sum(int(np.isnan(values).sum()) for values in self.series.recordings),
            "imputed_fraction": self.series.missing_fraction,
        }


def impute(reconstruction: Reconstruction, series: Series, *, any_step: bool = False) -> ImputedRecordings:
    """Fill gaps with the smoothed mean and the band of the reading that is missing.

    x_missing ~ N(B z_s, B P_s B' + Lambda) given all readings of the recording.
    """
    smoothed = smooth(reconstruction, series, any_step=any_step)
    recorded = smoothed.series
    seen = recorded.mask
    pairs = zip(recorded.recordings, seen, smoothed.mean, smoothed.reading_std, strict=True)
    filled = [(np.where(m, x, mean), np.where(m, 0.0, std)) for x, m, mean, std in pairs]
    return ImputedRecordings(recorded, tuple(values for values, _ in filled), tuple(std for _, std in filled))
