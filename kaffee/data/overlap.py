"""Are held-out data really held out? Rows of them may stand in the training data, too."""

from typing import NamedTuple

import numpy as np

from kaffee.data.series import Series

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
