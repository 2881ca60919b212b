"""Choose the rows that figures show: their order, short titles, colours and markers, and medians over their seeds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import bootstrap

from kaffee.errors import ConfigError, KaffeeError, unknown
from kaffee.paper.cells import ResultStore
from kaffee.paper.recipe import CellSettings, Recipe, Row
from kaffee.paper.summary import find_entry, median_with_error
from kaffee.records import read_json, write_json
from kaffee.report.style import COLOURS

# Rows whose name ends in _<arm> are another experiment, in figures of its own.
_ARMS = ("plus",)
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

    @property
    def note(self) -> str:
        """How many seeds have no value, in words; empty if all have one."""
        return f"{self.diverged} of {len(self.values) + self.diverged} diverged" if self.diverged else ""


def spread_over_seeds(values: list[float | None]) -> Spread:
    """Take the median over the finite values.

    >>> spread = spread_over_seeds([1.0, 2.0, 3.0, 4.0, 5.0, None])
    >>> spread.median, round(spread.se, 3), spread.note
    (3.0, 0.831, '1 of 6 diverged')
    """
    finite = np.array([value for value in values if value is not None and np.isfinite(value)], np.float64)
    median, se = median_with_error(finite.tolist()) if finite.size else (np.nan, np.nan)
    return Spread(finite, median, se, len(values) - len(finite))


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

    def defines(self, metric: str) -> bool:
        """Tell whether a metric exists: a prior has no shell, so only the metrics of the core do."""
        return self.method != "prior" or metric.endswith("_core")

    def spread(self, metric: str, *path: str) -> Spread:
        """Take the median of a metric, or of an entry deeper in the record, such as `"extra", "spectrum", "2"`."""
        if not path and not self.defines(metric):
            return spread_over_seeds([])
        return spread_over_seeds([find_entry(record, metric, *path) for record in self.records])


def select_rows(recipe: Recipe, arm: str | None = None) -> list[Row]:
    """Select the paper's rows, or those of an arm, in the order of the figures; the prior belongs to every arm."""
    if arm is not None and arm not in _ARMS:
        raise ConfigError(unknown("arm", arm, _ARMS))

    def belongs(row: Row) -> bool:
        wanted = row.reproduces if arm is None else row.name.endswith(f"_{arm}")
        return wanted or (row.reproduces and row.method == "prior")

    return sorted(filter(belongs, recipe.rows), key=lambda row: [*LOOKS, row.method].index(row.method))


def read_row(store: ResultStore, row: Row) -> DrawnRow:
    """Read the finished cells of a row."""
    title, marker = LOOKS.get(row.method, (row.title, "X"))
    return DrawnRow(row, title, COLOURS.get(row.method, "0.4"), marker, tuple(store.read_finished(row.name)))


def read_rows(store: ResultStore, arm: str | None = None) -> list[DrawnRow]:
    """Read the rows of an arm that have finished cells; raise if there are none, or the prior's only for an arm."""
    rows = [row for row in (read_row(store, row) for row in select_rows(store.recipe, arm)) if row.records]
    if not rows or (arm is not None and all(row.method == "prior" for row in rows)):
        which = "" if arm is None else f" of the arm '{arm}'"
        remedy = "First: kaffee bench run; see also: kaffee bench status"
        none = f"{store.folder} holds no finished cells{which} made under the settings of this recipe."
        raise KaffeeError(f"{none} {remedy}")
    return rows


def bootstrap_band(values: Float[np.ndarray, " S"], *, level: float = 0.95) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of a median (bands of the forecast-skill spectrum, appendix D.1).

    >>> bootstrap_band(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    (1.0, 5.0)
    """
    if len(values) < 2:
        return (float(values[0]),) * 2 if len(values) else (np.nan, np.nan)
    options: Any = {"n_resamples": 10_000, "method": "percentile", "rng": np.random.default_rng(0)}
    low, high = bootstrap((values,), np.median, confidence_level=level, **options).confidence_interval
    return float(low), float(high)


def read_true_exponents(settings: CellSettings, path: Path) -> Float[np.ndarray, " N"]:
    """Read the spectrum of the noise-free flow, that of `Reference.lyapunov`, or compute it once and write it.

    The cells keep only the sum of the positive exponents.
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
