"""Free runs that rest, or circle in a small part of the attractor: core collapse, seen without the true system."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float

TRAPPED = 0.5
"""A run is trapped if it varies by less than this share of the quietest piece of data that is as long."""


def spread(values: Float[np.ndarray, "T N"]) -> float:
    """The standard deviation, averaged over coordinates; missing values do not count."""
    return float(np.nanstd(values, axis=0).mean())


def trapped(runs: Float[np.ndarray, "S T N"], pieces: Iterable[Float[np.ndarray, "T N"]]) -> Bool[np.ndarray, " S"]:
    """Which runs are, beside pieces of data in the same units; none where there is nothing to compare with.

    >>> wave = np.sin(np.arange(60.0)).reshape(3, 20, 1)
    >>> trapped(wave * np.array([1.0, 0.6, 0.1])[:, None, None], wave).tolist()
    [False, False, True]
    """
    quietest = min(map(spread, pieces), default=0.0)
    return np.array([spread(run) < TRAPPED * quietest for run in runs], bool)
