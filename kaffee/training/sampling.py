"""Which windows training draws from, also when values are missing."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.data.series import Series
from kaffee.data.windows import WindowSampler


def training_windows(series: Series, length: int, dtype: Any = jnp.float32) -> WindowSampler:
    """Windows that start at a fully observed row, unless such rows are rare.

    The first row anchors the mean of a window, so a complete one is better. With many coordinates and scattered
    gaps hardly any row is complete; then every window is used, and the missing entries of its first row start at the
    mean of the data (0 in standardised units), which the burn-in forgets.
    """
    complete = np.concatenate([mask.all(axis=1) for mask in series.mask])
    return WindowSampler.from_series(series, length, require_observed_start=bool(complete.mean() > 0.2), dtype=dtype)


def padded(series: Series, dtype: Any = jnp.float32) -> tuple[Float[Array, "R T N"], Bool[Array, "R T N"]]:
    """All recordings as one batch: padded with missing values to the longest."""
    longest = max(series.lengths)
    values = np.full((series.num_recordings, longest, series.num_coordinates), np.nan)
    for i, recording in enumerate(series.recordings):
        values[i, : len(recording)] = recording
    mask = ~np.isnan(values)
    return jnp.asarray(np.where(mask, values, 0.0), dtype), jnp.asarray(mask)
