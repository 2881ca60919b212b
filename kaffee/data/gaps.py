"""Stretches of recordings without gaps, for what cannot do with gaps."""

from typing import NamedTuple

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


# Are held-out data really held out? Rows of them may stand in the training data, too.


FEW = 5
"""Common rows up to which nobody is warned."""
UNIQUE = 0.98
STRETCHES = (1, 2, 4, 8, 16)


class Overlap(NamedTuple):
    """Rows (or stretches of rows) of the test data.

    Attributes:
        common: Those that stand in the training data as well.
        total: All of them that are complete.
        by_chance: How many would be common if both were alike and nothing else.
    """

    common: int
    total: int
    by_chance: float


def overlap(train: Series, test: Series) -> Overlap:
    """Look for rows of the test data among those of the training data.

    Coarse readings are alike without being the same. Where rows of the training data repeat themselves, stretches of
    several rows are looked for, as long as it takes for them to differ.
    """
    for length in STRETCHES:
        known, found = _stretches(train, length), _stretches(test, length)
        if not len(known) or not len(found):
            break
        values, counts = np.unique(known, return_counts=True)
        repeated = 1.0 - (counts == 1).sum() / len(known)
        if repeated <= 1.0 - UNIQUE:
            return Overlap(int(np.isin(found, values).sum()), len(found), 2.0 * repeated * len(found))
    return Overlap(0, test.num_steps, 0.0)


def training_rows_note(train: Series, test: Series) -> str:
    """A sentence if a good deal of the test data was trained on; else empty."""
    found = overlap(train, test)
    if found.common <= FEW + found.by_chance:
        return ""
    return (
        f"{found.common} of {found.total} complete rows of {test.label} stand in the training data as well: they are "
        "not held out, and the numbers are too good. Certify on rows that the run was not fitted to."
    )


def _stretches(series: Series, length: int) -> np.ndarray:
    """The bytes of every stretch of complete rows, as one value each."""
    found = []
    for values in series.recordings:
        if len(values) < length:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(values + 0.0, length, axis=0)  # -0.0 becomes 0.0
        complete = ~np.isnan(windows).any(axis=(1, 2))
        if complete.any():
            rows = windows[complete].reshape(int(complete.sum()), -1)
            found.append(rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize))).ravel())
    return np.concatenate(found) if found else np.empty(0)
