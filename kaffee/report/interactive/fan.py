"""Forecast fans: history, truth, median and nested bands, by coordinate and start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.errors import ConfigError, DataError
from kaffee.report.interactive.marks import Band, Curve, Mark
from kaffee.report.interactive.plot import TIME, VALUE, Axis, Panel, Plot

LEVELS = (0.95, 0.8, 0.5)
"""Shares of the distribution between the edges of the bands, the widest first: it lies below the others."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """What was foreseen from one start.

    Attributes:
        label: Of the start, for the reader's choice.
        times: Of the forecast, (H,).
        quantiles: Arrays (H, N) by level, such as 0.025, 0.1, 0.25, 0.5, 0.75, 0.9 and 0.975.
        truth: What happened, (H, N), if that is known.
        history_times: Before the start.
        history: What was seen then, (h, N).
    """

    label: str
    times: Any
    quantiles: Mapping[float, Any]
    truth: Any = None
    history_times: Any = ()
    history: Any = None

    @classmethod
    def from_samples(cls, label: str, times: Any, samples: Any, **options: Any) -> "Forecast":
        """From an ensemble (members, H, N); members that diverged are left out where they did.

        >>> forecast = Forecast.from_samples("t = 0", [1.0], np.arange(101.0).reshape(101, 1, 1))
        >>> [(level, forecast.quantiles[level].item()) for level in (0.025, 0.5, 0.975)]
        [(0.025, 2.5), (0.5, 50.0), (0.975, 97.5)]
        """
        members = np.asarray(samples, np.float64)
        if members.ndim != 3 or not len(members):
            raise DataError(f"The ensemble '{label}' has shape {members.shape}; give (members, steps, coordinates).")
        members = np.where(np.isfinite(members), members, np.nan)
        levels = sorted({0.5, *(round(0.5 + sign * level / 2, 6) for level in LEVELS for sign in (-1, 1))})
        # Steps without any finite member stay missing, without NumPy's warning about them.
        lost = np.isnan(members).all(axis=0)
        found = np.nanquantile(np.where(lost, 0.0, members), levels, axis=0)
        found = np.where(lost, np.nan, found)
        return cls(label, times, dict(zip(levels, found, strict=True)), **options)


def fan(
    title: str,
    caption: str,
    forecasts: Sequence[Forecast],
    columns: Sequence[str],
    *,
    time: Axis = TIME,
    units: Sequence[str] = (),
    colour: str = "kaffee",
) -> Plot:
    """A fan for every coordinate and start.

    Args:
        caption: One sentence on what to see.
        columns: Names of the N coordinates.
        units: Of the coordinates, for their axes.
        colour: What made the forecast.
    """
    if not forecasts:
        raise ConfigError(f"The fan '{title}' has no forecast. Give one, or leave the figure out.")
    axes = [Axis(name, unit) for name, unit in zip(columns, units or [""] * len(columns), strict=True)]
    panels = {
        (str(column), str(forecast.label)): Panel(_marks(forecast, i, colour), y=axes[i])
        for i, column in enumerate(columns)
        for forecast in forecasts
    }
    return Plot(title, caption, panels, time, VALUE, choices=("coordinate", "start"))


def _marks(forecast: Forecast, i: int, colour: str) -> list[Mark]:
    quantiles = {round(float(level), 6): np.asarray(values)[:, i] for level, values in forecast.quantiles.items()}
    lows = sorted(level for level in quantiles if level < 0.5 and round(1 - level, 6) in quantiles)
    marks: list[Mark] = []
    for depth, low in enumerate(lows):
        high = round(1 - low, 6)
        name = f"{100 * (high - low):g} %"
        opacity = 0.16 + 0.16 * depth / max(len(lows) - 1, 1)
        marks.append(Band(name, forecast.times, quantiles[low], quantiles[high], colour, opacity))
    if 0.5 in quantiles:
        marks.append(Curve("median", forecast.times, quantiles[0.5], colour, "solid", frame=False))
    if forecast.history is not None and len(forecast.history_times):
        marks.append(Curve("history", forecast.history_times, np.asarray(forecast.history)[:, i], "grey", "solid"))
    if forecast.truth is not None:
        marks.append(Curve("truth", forecast.times, np.asarray(forecast.truth)[:, i], "truth", "dashed"))
    return marks
