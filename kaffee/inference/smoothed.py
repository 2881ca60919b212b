"""Smoothing whole recordings in data units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint import Reconstruction
from kaffee.checks import filter_of
from kaffee.data.series import Series
from kaffee.inference.columns import BAND, as_series, gaussian_columns, joined, state_names
from kaffee.inference.matching import matched
from kaffee.inference.passes import time_first
from kaffee.inference.rts import smooth_rows

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

    A Rauch-Tung-Striebel pass back over the filter of the model's own method; see `kaffee.inference.rts`.
    """
    series = matched(reconstruction, series, any_step=any_step)
    model, scaler = reconstruction.model, reconstruction.scaler
    x = time_first(series.standardised(scaler), model.dtype)
    rows = smooth_rows(model, filter_of(reconstruction), x, jnp.asarray(series.lengths))
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
