"""How far ahead forecasts are scored: in units of the time after which a series has forgotten its value."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from kaffee.data.series import Series

MAX_DECORRELATION = 100
MULTIPLES = (0.25, 0.5, 1.0, 2.0)
MAX_SHARE = 0.25
"""Of the longest held-out recording that the longest horizon may take: at least three starts do not overlap."""


def lagged_products(recordings: Sequence[Float[np.ndarray, "T N"]], lag: int) -> Float[np.ndarray, " N"]:
    """mean over t of x_t x_{t+lag} for every coordinate, over pairs that are both observed."""
    products = [x[lag:] * x[: len(x) - lag] for x in recordings if len(x) > lag]
    stacked = np.concatenate(products) if products else np.zeros((0, recordings[0].shape[1]))
    count = (~np.isnan(stacked)).sum(axis=0)
    return np.where(count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), np.nan)


def decorrelation_time(series: Series) -> int:
    """The first lag at which the autocorrelation, averaged over coordinates, falls below 1/e; at most 100 steps."""
    everything = series.concatenated()
    mean, std = np.nanmean(everything, axis=0), np.nanstd(everything, axis=0)
    standard = [(x - mean) / np.where(std > 0, std, 1.0) for x in series.recordings]
    longest = min(MAX_DECORRELATION, max(series.lengths) - 1)
    for lag in range(1, longest + 1):
        products = lagged_products(standard, lag)
        if np.isnan(products).all() or np.nanmean(products) < np.exp(-1.0):
            return lag
    return max(longest, 1)


def default_horizons(train: Series, test: Series) -> tuple[int, ...]:
    """1 and a quarter, half, one and two decorrelation times, in steps; bounded by the held-out recordings."""
    tau, longest = decorrelation_time(train), int(MAX_SHARE * max(test.lengths))
    wanted = {1, *(round(multiple * tau) for multiple in MULTIPLES)}
    return tuple(sorted(h for h in wanted if h == 1 or 1 < h <= longest))
