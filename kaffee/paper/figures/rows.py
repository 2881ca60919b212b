"""The rows that figures show: one place for their order, short titles, colours and markers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from kaffee.errors import ConfigError, KaffeeError, unknown
from kaffee.paper.cells import ResultStore
from kaffee.paper.recipe import CellSettings, Recipe, Row
from kaffee.paper.summary import median_with_error
from kaffee.records import read_json, write_json
from kaffee.report.style import COLOURS

ARMS = ("plus",)
"""Rows whose name ends in _<arm> are another experiment, in figures of its own."""

# By method, in the order in which figures show them: short title, marker.
_LOOKS = {
    "kaffee": ("KAFFEE", "o"),
    "blind": ("No transport", "s"),
    "core_collapse": ("OL tied", "^"),
    "noise_masking": ("OL no transport", "v"),
    "frozen_core": ("Frozen core", "D"),
    "prior": ("Prior", "P"),
}


def short_title(method: str) -> str:
    """What a figure calls the row of a method.

    >>> short_title("core_collapse")
    'OL tied'
    """
    return _LOOKS[method][0]


class Estimate(NamedTuple):
    """A median over seeds.

    Attributes:
        values: Of the seeds that have one.
        median, se: Theirs, with the robust standard error of appendix C.4; NaN if there are none.
        diverged: Finished seeds without a value.
    """

    values: np.ndarray
    median: float
    se: float
    diverged: int

    @property
    def num_seeds(self) -> int:
        return len(self.values) + self.diverged


@dataclass(frozen=True)
class DrawnRow:
    """A row with its look and the records of its finished cells, in order of the seed."""

    row: Row
    title: str
    colour: str
    marker: str
    records: tuple[dict[str, Any], ...]

    @property
    def method(self) -> str:
        return self.row.method

    @property
    def is_probabilistic(self) -> bool:
        return self.method != "prior"

    def defines(self, metric: str) -> bool:
        """A prior has no shell, so only the metrics of the core exist."""
        return self.is_probabilistic or metric.endswith("_core")

    def estimate(self, metric: str, *path: str) -> Estimate:
        """The median of a metric, or of an entry deeper in the record, such as `"extra", "spectrum", "2", "g_tan"`."""
        if not path and not self.defines(metric):
            return estimate([])
        return estimate([_entry(record, metric, *path) for record in self.records])


def estimate(values: list[float | None]) -> Estimate:
    """The median over the finite values.

    >>> found = estimate([1.0, 2.0, 3.0, 4.0, 5.0, None])
    >>> found.median, round(found.se, 3), found.diverged
    (3.0, 0.831, 1)
    """
    finite = np.array([value for value in values if value is not None and np.isfinite(value)], np.float64)
    median, se = median_with_error(finite.tolist()) if finite.size else (np.nan, np.nan)
    return Estimate(finite, median, se, len(values) - len(finite))


def _entry(record: dict[str, Any], metric: str, *path: str) -> float | None:
    if not path and metric not in record:
        path, metric = (metric,), "extra"
    value: Any = record.get(metric)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def rows_of(recipe: Recipe, arm: str | None = None) -> list[Row]:
    """The paper's rows, or those of an arm, in the order of the figures; the prior belongs to every arm."""
    if arm is not None and arm not in ARMS:
        raise ConfigError(unknown("arm", arm, ARMS))

    def belongs(row: Row) -> bool:
        wanted = row.reproduces if arm is None else row.name.endswith(f"_{arm}")
        return wanted or (row.reproduces and row.method == "prior")

    order = list(_LOOKS)
    chosen = [row for row in recipe.rows if belongs(row)]
    return sorted(chosen, key=lambda row: order.index(row.method) if row.method in order else len(order))


def rows_to_draw(store: ResultStore, arm: str | None = None) -> list[DrawnRow]:
    """The rows of an arm that have finished cells.

    Raises:
        KaffeeError: There are none, or those of the prior only when an arm was asked for.
    """
    found = [row for row in (drawn_row(store, row) for row in rows_of(store.recipe, arm)) if row.records]
    if not found or (arm is not None and not any(row.is_probabilistic for row in found)):
        which = "" if arm is None else f" of the arm '{arm}'"
        raise KaffeeError(
            f"{store.folder} holds no finished cells{which} made under the settings of this recipe. "
            "First: kaffee bench run; see also: kaffee bench status"
        )
    return found


def drawn_row(store: ResultStore, row: Row) -> DrawnRow:
    """A row with the records of its finished cells."""
    cells = store.cells_of(row.name)
    records = tuple(store.read(cell) or {} for cell in cells if store.is_done(cell))
    title, marker = _LOOKS.get(row.method, (row.title, "X"))
    return DrawnRow(row, title, COLOURS.get(row.method, "0.4"), marker, records)


# How far a median over seeds can be trusted.


def bootstrap_band(
    values: ArrayLike, *, level: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a median (the bands of the forecast-skill spectrum, appendix D.1).

        values*_b = S draws from the S values with replacement,    b = 1..num_resamples
        band      = the (1 -/+ level)/2 quantiles of median(values*_b)

    >>> bootstrap_band([1.0, 2.0, 3.0, 4.0, 5.0])
    (1.0, 5.0)

    Args:
        values: One finite number for each seed.
        level: Coverage that is aimed at; few seeds reach less.
        seed: Of the resampling, so that a figure can be drawn twice.

    Raises:
        ValueError: There are no values, or some are not finite.
    """
    given = np.asarray(values, np.float64)
    if given.ndim != 1 or not given.size or not np.isfinite(given).all():
        raise ValueError(f"A band needs one finite value for each seed; given {given.tolist()}.")
    if not 0 < level < 1:
        raise ValueError(f"A band needs a level between 0 and 1; given {level}.")
    drawn = np.random.default_rng(seed).integers(0, given.size, (num_resamples, given.size))
    low, high = np.quantile(np.median(given[drawn], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# The true Lyapunov exponents, computed once and kept beside the cells.


def true_exponents(settings: CellSettings, path: Path) -> Float[np.ndarray, " N"]:
    """The spectrum of the noise-free flow over as many steps as the protocol's free runs, largest first.

    It is that of `Reference.lyapunov`, from which the cells keep only the sum of the positive exponents.

    Args:
        path: A JSON file that is read if it holds this spectrum, and written if not.
    """
    wanted = {"system": settings.data.system, "num_steps": settings.protocol.rollout_steps}
    if path.exists():
        known = read_json(path, "reference spectrum")
        if {key: known.get(key) for key in wanted} == wanted:
            return np.array(known["exponents"], np.float64)
    from kaffee.metrics.lyapunov import lyapunov_spectrum
    from kaffee.systems.catalogue import get_system

    spectrum = lyapunov_spectrum(get_system(settings.data.system), num_steps=settings.protocol.rollout_steps)
    write_json(path, {**wanted, "exponents": spectrum.exponents.tolist()})
    return spectrum.exponents
