"""Results as plain values that JSON can hold."""

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

EXACT = 200
"""Numbers in an array that is written to the last digit; larger ones are there for figures, to six digits."""


def plain(value: Any) -> Any:
    """Dictionaries, lists, strings and numbers; None for numbers that are not finite.

    >>> plain({"a": np.array([1.0, np.nan]), "b": np.int64(2)})
    {'a': [1.0, None], 'b': 2}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray) and value.size > EXACT:
        short = [float(f"{x:.6g}") for x in value.ravel()]
        return plain(np.reshape(short, value.shape).tolist())
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value
