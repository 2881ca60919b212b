"""Filling the gaps of recordings, with bands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kaffee.checkpoint import Reconstruction
from kaffee.data.series import Series
from kaffee.inference.columns import BAND, as_series, gaussian_columns, joined
from kaffee.inference.smoothed import Recordings, smooth


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
