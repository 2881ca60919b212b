"""Filtering whole recordings in data units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from kaffee.checkpoint import Reconstruction
from kaffee.checks import filter_of
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.inference.columns import BAND, as_series, gaussian_columns, joined, state_names
from kaffee.inference.estimate import Estimate
from kaffee.inference.gate import gate_of
from kaffee.inference.matching import matched
from kaffee.inference.passes import filter_rows, time_first


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
    rows = jax.tree.map(np.asarray, filter_rows(model, filter_of(reconstruction), gate_of(gate, patience), x))
    estimates = [
        Estimate(jax.tree.map(lambda a, r=r, T=T: a[:T, r], rows), scaler) for r, T in enumerate(series.lengths)
    ]
    return FilteredRecordings(series, tuple(estimates))
