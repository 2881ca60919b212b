"""Numbers and texts as JSON inside a page: small, valid for every value, and unable to end its own element."""

import json
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

DIGITS = 6
"""Significant digits of a number in a page; a screen shows three or four."""


def plain(values: ArrayLike, digits: int = DIGITS) -> list[float | int | None]:
    """An array as JSON numbers; what JSON does not have (NaN, infinities) becomes None.

    Rounded to `digits` significant digits, and to as many more as a large common offset eats up: time stamps stay
    apart.

    >>> plain([0.123456789, float("nan"), 2.0, float("-inf")])
    [0.123457, None, 2, None]
    >>> plain([1_700_000_000.25, 1_700_000_001.5])
    [1700000000.25, 1700000001.5]
    """
    array = np.asarray(values, np.float64).ravel()
    finite = array[np.isfinite(array)]
    if finite.size and digits < 17:
        # Halved, so that the range of the largest floats stays finite.
        spread, largest = finite.max() / 2 - finite.min() / 2, np.abs(finite).max() / 2
        if spread > 0:
            digits = min(digits + max(math.floor(math.log10(largest / spread)), 0), 17)
    return [_short(value, digits) if math.isfinite(value) else None for value in array.tolist()]


def _short(value: float, digits: int) -> float | int:
    rounded = float(f"{value:.{digits}g}")
    # Without the ".0" of whole numbers, of which there are many.
    return int(rounded) if abs(rounded) < 1e15 and rounded == int(rounded) else rounded


class Pool:
    """Arrays of one figure, each stored once: the curves of a figure often share their times.

    >>> pool = Pool()
    >>> pool.add([1.0, 2.0]), pool.add([3.0]), pool.add([1.0, 2.0])
    (0, 1, 0)
    """

    def __init__(self) -> None:
        self.arrays: list[list[float | int | None]] = []
        self._known: dict[bytes, int] = {}

    def add(self, values: ArrayLike) -> int:
        """The place of an array in `arrays`."""
        key = np.asarray(values, np.float64).ravel().tobytes()
        if key not in self._known:
            self._known[key] = len(self.arrays)
            self.arrays.append(plain(values))
        return self._known[key]


def script_json(data: Any) -> str:
    """JSON that may stand inside a script element: no text in it can close the element or open a comment.

    >>> print(script_json({"name": "</script><!--"}))
    {"name":"\\u003c/script\\u003e\\u003c!--"}
    """
    # ASCII only: also U+2028 and halves of surrogate pairs are escaped.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
