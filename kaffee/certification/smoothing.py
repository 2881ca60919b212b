"""Symmetric moving averages, which take noise out of regressors before tangents are estimated from them.

Noise in x_t pulls the slopes of a regression on x_t towards zero (errors in variables); a short average around t has
less of it, at the price of a bias that grows with the signal's curvature.
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float


@lru_cache
def hann(width: int) -> tuple[float, ...]:
    """Weights of a Hann window of 2 width + 1 points, which sum to 1.

    >>> hann(1)
    (0.25, 0.5, 0.25)
    """
    k = np.arange(1, 2 * width + 2)
    w = np.sin(np.pi * k / (2 * width + 2)) ** 2
    return tuple((w / w.sum()).round(15).tolist())


def smoothed(values: Float[np.ndarray, "T N"], width: int) -> Float[np.ndarray, "T N"]:
    """The average around every row; NaN where a value in its window is missing, also at both ends."""
    found = np.full_like(values, np.nan)
    rows = len(values) - 2 * width
    if rows > 0:
        found[width : width + rows] = sum(w * values[i : i + rows] for i, w in enumerate(hann(width)))
    return found
