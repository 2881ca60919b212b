"""Stretches of recordings without gaps, for what cannot do with gaps."""

import numpy as np
from jaxtyping import Bool, Float, Int

from kaffee.data.series import Series

MAX_PIECES = 10


def complete(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "K N"]:
    """The rows without those that miss a value."""
    return values[~np.isnan(values).any(axis=1)]


def bounds(values: Float[np.ndarray, "T N"]) -> list[tuple[int, int]]:
    """First and last-plus-one row of every run of complete rows."""
    present = np.concatenate([[False], ~np.isnan(values).any(axis=1), [False]])
    edges = np.flatnonzero(np.diff(present.astype(int)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def stretches(values: Float[np.ndarray, "T N"]) -> list[Float[np.ndarray, "T N"]]:
    """The longest runs of complete rows.

    >>> [len(part) for part in stretches(np.array([[1.0], [np.nan], [2.0], [3.0]]))]
    [1, 2]
    """
    return [values[start:stop] for start, stop in bounds(values)]


def complete_rows(series: Series) -> Float[np.ndarray, "T N"]:
    """The rows of all recordings without those that miss a value."""
    return np.concatenate([complete(values) for values in series.recordings])


def longest_stretch(series: Series) -> Float[np.ndarray, "T N"]:
    """Of all recordings; without rows if no row is complete."""
    found = [part for values in series.recordings for part in stretches(values)]
    return max(found, key=len, default=np.zeros((0, series.num_coordinates)))


def pieces(series: Series, length: int, *, gaps: bool = False) -> list[Float[np.ndarray, "T N"]]:
    """Up to ten pieces of so many rows that do not overlap: complete ones, or with gaps but half of each column."""
    found = [
        part[i : i + length]
        for values in series.recordings
        for part in ([values] if gaps else stretches(values))
        for i in range(0, len(part) - length + 1, length)
    ]
    found = [part for part in found if (np.isnan(part).mean(axis=0) <= 0.5).all()]
    return found[:: -(-len(found) // MAX_PIECES)] if found else []


def evenly(total: int, count: int) -> Int[np.ndarray, " K"]:
    """`count` evenly spaced indices below `total`."""
    return np.linspace(0, total - 1, count).round().astype(int)


def constant_columns(values: Float[np.ndarray, "T N"]) -> Bool[np.ndarray, " N"]:
    """Which coordinates do not vary, up to rounding."""
    return values.std(axis=0) <= 1e-12 * np.maximum(np.abs(values).max(axis=0), 1e-300)
