"""Beliefs as JSON lines, fast: one template for all rows, and care only where a number is not finite."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from kaffee.inference.columns import check_levels, quantile_name
from kaffee.inference.estimate import Estimate
from kaffee.outcome import QUANTITIES

DIGITS = {"float32": 9, "float64": 17}
"""Significant digits that bring every number of a type back."""


class LineWriter:
    """Writes the rows of estimates as flat JSON objects whose keys are the columns of `kaffee filter`.

    Beside them, only where there is something to say: `rejected`, the names of readings that were not believed;
    `restarted`, true where the belief started anew; `fault`, why.

    Args:
        levels: Quantiles of the signal that are written, too.
    """

    def __init__(self, columns: Sequence[str], dtype: str, levels: Sequence[float] = ()) -> None:
        self.columns = tuple(columns)
        self.levels = check_levels(levels)
        kinds = ["mean", "std", *map(quantile_name, self.levels), "predicted_mean", "predicted_std"]
        keys = [f"{name}_{kind}" for name in columns for kind in kinds] + ["log_likelihood", "nis"]
        self._keys = [json.dumps(key) for key in keys]
        self._number = f"%.{DIGITS[dtype]}g"
        self._template = ", ".join(f"{key.replace('%', '%%')}: {self._number}" for key in self._keys)

    def encode(self, estimate: Estimate) -> Iterator[str]:
        """The fields of every row, without the braces around them."""
        quantiles = [estimate.mean + ndtri(level) * estimate.std for level in self.levels]
        predicted = [estimate.predicted_mean, estimate.predicted_std]
        fields = np.stack([estimate.mean, estimate.std, *quantiles, *predicted], axis=-1)
        tail = np.stack([estimate.log_likelihood, estimate.nis], axis=-1)
        table = np.concatenate([fields.reshape(len(fields), -1), tail], axis=1)
        plain = np.isfinite(table).all(axis=1) & ~estimate.rejected.any(axis=1) & ~estimate.restarted
        for i, (row, is_plain) in enumerate(zip(table.tolist(), plain.tolist(), strict=True)):
            yield self._template % tuple(row) if is_plain else self._careful(row, estimate, i)

    def _careful(self, row: list[float], estimate: Estimate, i: int) -> str:
        numbers = [self._number % value if np.isfinite(value) else "null" for value in row]
        parts = [f"{key}: {number}" for key, number in zip(self._keys, numbers, strict=True)]
        notes: dict[str, Any] = {}
        if estimate.rejected[i].any():
            notes["rejected"] = [name for name, bad in zip(self.columns, estimate.rejected[i], strict=True) if bad]
        if estimate.restarted[i]:
            notes["restarted"] = True
        if estimate.faults[i]:
            notes["fault"] = QUANTITIES[estimate.faults[i]]
        return ", ".join(parts + [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in notes.items()])
