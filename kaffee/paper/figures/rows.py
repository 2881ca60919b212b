"""Look up how a row is drawn: short title, colour and marker, and medians over its seeds."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kaffee.paper.cells import ResultStore
from kaffee.paper.recipe import Row
from kaffee.paper.summary import find_entry, median_with_error
from kaffee.report.style import COLOURS

# Short title and marker by method, in the order in which figures show them.
LOOKS = {
    "kaffee": ("KAFFEE", "o"),
    "blind": ("No transport", "s"),
    "core_collapse": ("OL tied", "^"),
    "noise_masking": ("OL no transport", "v"),
    "frozen_core": ("Frozen core", "D"),
    "prior": ("Prior", "P"),
}


class Spread(NamedTuple):
    """A median over the seeds that have a value, with the robust standard error of appendix C.4; else NaN."""

    values: np.ndarray
    median: float
    se: float
    diverged: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> "Spread":
        """Take the median over the finite values.

        >>> spread = Spread.over([1.0, 2.0, 3.0, 4.0, 5.0, None])
        >>> spread.median, round(spread.se, 3), spread.note
        (3.0, 0.831, '1 of 6 diverged')
        """
        given = np.array(list(values), np.float64)  # None becomes NaN
        finite = given[np.isfinite(given)]
        median, se = median_with_error(finite.tolist()) if finite.size else (np.nan, np.nan)
        return cls(finite, median, se, len(given) - len(finite))

    @property
    def note(self) -> str:
        """How many seeds have no value, in words; empty if all have one."""
        return f"{self.diverged} of {len(self.values) + self.diverged} diverged" if self.diverged else ""


@dataclass(frozen=True)
class DrawnRow:
    """A row with its look and the records of its finished cells, in order of the seed."""

    row: Row
    title: str
    colour: str
    marker: str
    records: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, store: ResultStore, row: Row) -> "DrawnRow":
        title, marker = LOOKS.get(row.method, (row.title, "X"))
        return cls(row, title, COLOURS.get(row.method, "0.4"), marker, tuple(store.read_finished(row.name)))

    @property
    def method(self) -> str:
        return self.row.method

    def defines(self, metric: str) -> bool:
        """Tell whether a metric exists: a prior has no shell, so only the metrics of the core do."""
        return self.method != "prior" or metric.endswith("_core")

    def spread(self, metric: str, *path: str) -> Spread:
        """Take the median of a metric, or of an entry deeper in the record, such as `"extra", "spectrum", "2"`."""
        if not path and not self.defines(metric):
            return Spread.over([])
        return Spread.over(find_entry(record, metric, *path) for record in self.records)
