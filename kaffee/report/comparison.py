"""Runs beside each other: their numbers in one table, their curves in one plot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kaffee.errors import ConfigError
from kaffee.report.interactive.marks import Band, Bars, Curve, Mark, Points
from kaffee.report.interactive.plot import Panel, Plot
from kaffee.report.interactive.styles import CYCLE
from kaffee.tables import Table

SHARED = ("truth", "data", "history", "ideal", "expected", "observation")
"""Names of what does not belong to a run: shown once."""


@dataclass(frozen=True)
class Metric:
    """A number of every run.

    Attributes:
        values: One for each run; None where there is none.
        best: "low", "high", or the value to be near to; None: none is better than another.
        error: Standard error of a difference. Runs whose difference is below two of them are alike.
    """

    name: str
    values: Sequence[float | None]
    best: str | float | None = "low"
    error: float = 0.0

    def winner(self) -> int | None:
        """Which run is better than all others that have the number, if one is.

        >>> Metric("nll", [0.5, 0.4]).winner(), Metric("cover 90", [0.89, 0.8], best=0.9).winner()
        (1, 0)
        >>> Metric("nll", [0.5, 0.4], error=0.1).winner() is None
        True
        """
        if self.best is None:
            return None
        ranked = sorted((self._badness(value), i) for i, value in enumerate(self.values))
        if len(ranked) < 2 or not math.isfinite(ranked[1][0]):
            return None
        return ranked[0][1] if ranked[1][0] - ranked[0][0] > 2 * self.error else None

    def _badness(self, value: float | None) -> float:
        if value is None or math.isnan(value):
            return math.inf
        if self.best in ("low", "high"):
            return value if self.best == "low" else -value
        if isinstance(self.best, str):
            raise ConfigError(f"The best of '{self.name}' is '{self.best}'. Allowed: low, high or a number.")
        return abs(value - float(self.best or 0.0))


def side_by_side(title: str, runs: Sequence[str], metrics: Sequence[Metric], *, note: str = "") -> Table:
    """Runs as columns, metrics as rows, and the better run of each by name: a mark that every format can show."""
    rows: list[list[Any]] = []
    for metric in metrics:
        if len(metric.values) != len(runs):
            raise ConfigError(
                f"'{metric.name}' has {len(metric.values)} values for {len(runs)} runs; give one for each."
            )
        winner = metric.winner()
        rows.append([metric.name, *metric.values, "–" if winner is None else runs[winner]])
    return Table(title, ("metric", *runs, "better"), rows, note=note)


def overlay(plots: Mapping[str, Plot], *, title: str | None = None, shared: Sequence[str] = SHARED) -> Plot:
    """The same plot of several runs in one: a colour for each run, and what all of them share drawn once.

    Args:
        plots: By name of the run; panels that not all of them have are left out.
        title: None: that of the first.
        shared: Names of marks that are the same in all runs.
    """
    if not plots:
        raise ConfigError("There is no plot to lay over another. Give the plots of two runs.")
    first = next(iter(plots.values()))
    panels = {run: panels_of(plot) for run, plot in plots.items()}
    keys = common_panels(plots)
    if not keys:
        raise ConfigError(f"The plots '{first.title}' of {', '.join(plots)} have no panel in common.")
    merged = {key: _merged({run: found[key] for run, found in panels.items()}, shared) for key in keys}
    if isinstance(first.panels, Mapping):
        return replace(first, title=title or first.title, panels=merged)
    return replace(first, title=title or first.title, panels=merged[""].marks)


def common_panels(plots: Mapping[str, Plot]) -> list[Any]:
    """The names of the panels that all plots have, in the order of the first."""
    first, *others = map(panels_of, plots.values())
    return [key for key in first if all(key in found for found in others)]


def panels_of(plot: Plot) -> dict[Any, Panel]:
    """The panels of a plot by name; one that has no name is called ""."""
    found = plot.panels if isinstance(plot.panels, Mapping) else {"": plot.panels}
    return {key: panel if isinstance(panel, Panel) else Panel(panel) for key, panel in found.items()}


def _merged(panels: Mapping[str, Panel], shared: Sequence[str]) -> Panel:
    marks: list[Mark] = []
    for i, (run, panel) in enumerate(panels.items()):
        for mark in panel.marks:
            if mark.name in shared or not isinstance(mark, Curve | Band | Points | Bars):
                if mark.name not in [other.name for other in marks]:
                    marks.append(mark)
                continue
            changes: dict[str, Any] = {"name": f"{run}: {mark.name}", "colour": CYCLE[i % len(CYCLE)]}
            if isinstance(mark, Curve):
                # Runs must also differ without their colours.
                changes["dash"] = None
            marks.append(replace(mark, **changes))
    return replace(next(iter(panels.values())), marks=marks)
