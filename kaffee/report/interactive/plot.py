"""A plot with axes: one or several panels of marks, of which the reader chooses the one shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kaffee.errors import ConfigError
from kaffee.report.interactive.embed import Pool, plain
from kaffee.report.interactive.marks import Mark
from kaffee.report.interactive.styles import Styles


@dataclass(frozen=True)
class Axis:
    """An axis with its label.

    Attributes:
        unit: Shown in brackets after the label.
        log: Whether the axis is logarithmic; what is not positive leaves a gap.
        limits: Lowest and highest value shown; None: what the marks need.
        categories: Names at 0, 1, 2, ... instead of numbers.
    """

    label: str
    unit: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    categories: Sequence[str] = ()

    def to_data(self) -> dict[str, Any]:
        label = f"{self.label} ({self.unit})" if self.unit else self.label
        limits = None if self.limits is None else plain(self.limits)
        if limits is not None:
            low, high = limits
            if low is None or high is None or not low < high or (self.log and low <= 0):
                positive = "positive, " if self.log else ""
                raise ConfigError(
                    f"The axis '{self.label}' has limits {self.limits}; give {positive}finite, rising ones."
                )
        return {
            "label": label,
            "log": self.log,
            "limits": limits,
            "categories": [str(name) for name in self.categories],
        }


TIME, VALUE = Axis("time"), Axis("value")


@dataclass(frozen=True)
class Panel:
    """Marks that are shown together, with axes of their own where they differ from the plot's."""

    marks: Sequence[Mark]
    x: Axis | None = None
    y: Axis | None = None


Key = str | tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """An interactive figure with axes: a cursor that reads values, a legend that hides, zoom, a table of the numbers.

    >>> from kaffee.report.interactive.marks import Curve
    >>> curves = {"x": [Curve("truth", [0, 1], [1, 2])], "y": [Curve("truth", [0, 1], [3, 4])]}
    >>> plot = Plot("A run", "Both coordinates.", curves, Axis("time", "s"), Axis("value"), choices=("coordinate",))
    >>> plot.to_data()["choices"]
    [{'label': 'coordinate', 'options': ['x', 'y']}]

    Attributes:
        caption: One sentence on what to see.
        panels: Marks; or panels by what the reader chooses, as a name or, for several choices, a tuple of names:
            then there must be a panel for every combination.
        choices: What is chosen, such as ("coordinate", "start"); one for each part of the panels' names.
        x: Axis of all panels that have none of their own.
        y: Likewise.
        zoom: Whether a stretch of the x axis can be magnified.
    """

    title: str
    caption: str
    panels: Sequence[Mark] | Mapping[Any, Panel | Sequence[Mark]]
    x: Axis
    y: Axis
    choices: Sequence[str] = ("panel",)
    zoom: bool = True

    def to_data(self) -> dict[str, Any]:
        pool, styles = Pool(), Styles()
        panels, choices = self._ordered()
        drawn = [
            {
                "x": (panel.x or self.x).to_data(),
                "y": (panel.y or self.y).to_data(),
                "marks": [mark.to_data(pool, styles) for mark in panel.marks],
            }
            for panel in panels
        ]
        return {"kind": "plot", "choices": choices, "panels": drawn, "zoom": self.zoom, "arrays": pool.arrays}

    def _ordered(self) -> tuple[list[Panel], list[dict[str, Any]]]:
        """Panels in the order of all combinations of the choices, and these."""
        if not isinstance(self.panels, Mapping):
            return [Panel(self.panels)], []
        if not self.panels:
            raise ConfigError(f"The plot '{self.title}' has no panel. Give it one, or leave the plot out.")
        named = {_tuple(key): _panel(value) for key, value in self.panels.items()}
        wrong = [key for key in named if len(key) != len(self.choices)]
        if wrong:
            raise ConfigError(
                f"The plot '{self.title}' has {len(self.choices)} choices ({', '.join(self.choices)}); "
                f"name every panel by as many parts, not {wrong[0]}."
            )
        options = [list(dict.fromkeys(parts)) for parts in zip(*named, strict=True)]
        combinations = list(product(*options))
        missing = [key for key in combinations if key not in named]
        if missing:
            raise ConfigError(f"The plot '{self.title}' has no panel {missing[0]}. Give one for every combination.")
        choices = [{"label": label, "options": names} for label, names in zip(self.choices, options, strict=True)]
        return [named[key] for key in combinations], choices


def _tuple(key: Key) -> tuple[str, ...]:
    return tuple(str(part) for part in key) if isinstance(key, tuple) else (str(key),)


def _panel(value: Panel | Sequence[Mark]) -> Panel:
    return value if isinstance(value, Panel) else Panel(value)
