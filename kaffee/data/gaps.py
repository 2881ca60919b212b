"""Gaps in recordings: stretches and pieces without them, and rows that two series have in common."""

import numpy as np
from jaxtyping import Bool, Int

from kaffee.data.series import Series
from kaffee.data.validation import Values

_MAX_PIECES = 10
# Common rows up to which no warning is given.
_FEW = 5
# Share of stretches of rows that must be unique, and lengths of stretches to try.
_UNIQUE, _STRETCHES = 0.98, (1, 2, 4, 8, 16)


def complete(values: Values) -> Values:
    """Drop the rows that miss a value."""
    return values[~np.isnan(values).any(axis=1)]


def stretches(values: Values) -> list[Values]:
    """Split into the longest runs of complete rows."""
    edges = np.flatnonzero(np.diff(~np.isnan(values).any(axis=1), prepend=False, append=False))
    return [values[start:stop] for start, stop in edges.reshape(-1, 2)]


def complete_rows(series: Series) -> Values:
    """Stack the complete rows of all recordings."""
    return np.concatenate([complete(values) for values in series.recordings])


def longest_stretch(series: Series) -> Values:
    """Find the longest run of complete rows in all recordings; without rows if no row is complete."""
    runs = [part for values in series.recordings for part in stretches(values)]
    return max(runs, key=len, default=np.zeros((0, series.num_coordinates)))


def pieces(series: Series, length: int, *, gaps: bool = False) -> list[Values]:
    """Cut up to ten pieces of `length` rows that do not overlap: complete, or with `gaps` in up to half of a column."""
    parts = [
        part[i : i + length]
        for values in series.recordings
        for part in ([values] if gaps else stretches(values))
        for i in range(0, len(part) - length + 1, length)
    ]
    parts = [part for part in parts if (np.isnan(part).mean(axis=0) <= 0.5).all()]
    return parts[:: -(-len(parts) // _MAX_PIECES)] if parts else []


def evenly(total: int, count: int) -> Int[np.ndarray, " K"]:
    """Choose `count` evenly spaced indices below `total`."""
    return np.linspace(0, total - 1, count).round().astype(int)


def constant_columns(values: Values) -> Bool[np.ndarray, " N"]:
    """Find the coordinates that do not vary, up to rounding."""
    return values.std(axis=0) <= 1e-12 * np.maximum(np.abs(values).max(axis=0), 1e-300)


def _overlap(train: Series, test: Series) -> tuple[int, int, float]:
    """Count complete rows of the test data: in the training data as well, all, and common by chance if independent.

    Coarse readings are alike without being the same: where rows of the training data repeat, stretches of several rows
    are compared, as many as it takes for them to differ.
    """
    for length in _STRETCHES:
        known, tested = _pack_stretches(train, length), _pack_stretches(test, length)
        if not len(known) or not len(tested):
            break
        values, counts = np.unique(known, return_counts=True)
        repeated = 1.0 - (counts == 1).sum() / len(known)
        if repeated <= 1.0 - _UNIQUE:
            return int(np.isin(tested, values).sum()), len(tested), 2.0 * repeated * len(tested)
    return 0, test.num_steps, 0.0


def training_rows_note(train: Series, test: Series) -> str:
    """Warn if test rows also occur in the training data; empty otherwise."""
    common, total, by_chance = _overlap(train, test)
    if common <= _FEW + by_chance:
        return ""
    return (
        f"{common} of {total} complete rows of {test.name or test.label} stand in the training data as well: they are "
        "not held out, and the numbers are too good. Certify on rows that the run was not fitted to."
    )


def _pack_stretches(series: Series, length: int) -> np.ndarray:
    """Pack every stretch of complete rows into one value of bytes."""
    packed = [np.empty(0, np.dtype((np.void, 8 * length * series.num_coordinates)))]
    for values in (values for values in series.recordings if len(values) >= length):
        windows = np.lib.stride_tricks.sliding_window_view(values + 0.0, length, axis=0)  # -0.0 becomes 0.0
        rows = windows[~np.isnan(windows).any(axis=(1, 2))].reshape(-1, length * series.num_coordinates)
        packed.append(rows.view(packed[0].dtype).ravel())
    return np.concatenate(packed)
