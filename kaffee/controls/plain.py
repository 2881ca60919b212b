"""Arrays as short JSON: lists of rounded numbers, None where not finite."""

import math
from typing import Any

import numpy as np

DIGITS = 5


def plain(value: Any) -> Any:
    """A number or an array of any shape as JSON, with five significant digits.

    >>> plain(np.array([[1.0 / 3.0, float("nan")]]))
    [[0.33333, None]]
    """
    if (isinstance(value, np.ndarray) and value.ndim) or isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None


def pairs(eigenvalues: np.ndarray) -> Any:
    """Complex numbers as [real, imaginary]."""
    return plain(np.stack([eigenvalues.real, eigenvalues.imag], axis=-1))
