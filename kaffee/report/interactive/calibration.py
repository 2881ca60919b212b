"""Whether stated uncertainty is right: PIT histograms and coverage. And estimates with their error bars."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kaffee.errors import DataError
from kaffee.report.interactive.marks import Band, Bars, Curve, Mark, Points
from kaffee.report.interactive.plot import VALUE, Axis, Plot


def pit_histogram(
    title: str,
    caption: str,
    counts: Mapping[str, ArrayLike],
    *,
    band: tuple[ArrayLike, ArrayLike] | Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    choice: str = "coordinate",
    colour: str = "kaffee",
) -> Plot:
    """Histograms of the probability integral transform; a calibrated forecast fills all bins alike.

    Args:
        caption: One sentence on what to see.
        counts: Values in equal bins of [0, 1], by coordinate or model.
        band: Where a calibrated forecast's bars would lie, as multiples of the expected count: (low, high), of all
            bins or of each, for all panels or by panel. None: 95 % of independent values; successive errors of a
            forecast are not independent, so give a band that knows how much they depend on each other.
        choice: What the panels are.
    """
    panels: dict[str, list[Mark]] = {}
    for name, given in counts.items():
        values = np.asarray(given, np.float64).ravel()
        total = values.sum()
        if not len(values) or not total > 0:
            raise DataError(f"The PIT histogram '{name}' has no values. Leave it out.")
        edges = np.linspace(0.0, 1.0, len(values) + 1)
        found = band.get(name) if isinstance(band, Mapping) else band
        low, high = independent_band(total, len(values)) if found is None else found
        # A band has a width over the whole bin: twice each of its edges.
        x = np.repeat(edges, 2)[1:-1]
        low, high = (np.repeat(np.broadcast_to(np.asarray(side, np.float64), len(values)), 2) for side in (low, high))
        panels[name] = [
            Bars("share", edges, len(values) * values / total, colour),
            Band("expected", x, low, high, "grey", 0.3),
            Curve("ideal", [0.0, 1.0], [1.0, 1.0], "grey", "dashed"),
        ]
    return Plot(
        title,
        caption,
        panels,
        Axis("probability integral transform", limits=(0.0, 1.0)),
        Axis("share of values, relative to uniform"),
        choices=(choice,),
        zoom=False,
    )


def independent_band(total: float, num_bins: int) -> tuple[float, float]:
    """Where 95 % of the bars of independent, uniform values lie, as multiples of the expected count.

    >>> low, high = independent_band(1000, 10)
    >>> round(low, 2), round(high, 2)
    (0.81, 1.19)
    """
    spread = 1.96 * np.sqrt((num_bins - 1) / total)
    return max(1.0 - float(spread), 0.0), 1.0 + float(spread)


def coverage(
    title: str,
    caption: str,
    nominal: ArrayLike,
    observed: Mapping[str, Mapping[str, ArrayLike]],
    *,
    bands: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    choice: str = "coordinate",
) -> Plot:
    """The share of values inside the intervals, over the share that should be: on the diagonal if calibrated.

    Args:
        caption: One sentence on what to see.
        nominal: Levels of the intervals, in [0, 1].
        observed: Shares inside, by panel and model.
        bands: By panel, where a calibrated model would lie: (low, high) at each level.
        choice: What the panels are.
    """
    panels = {}
    for panel, models in observed.items():
        marks: list[Mark] = []
        if bands is not None and panel in bands:
            marks.append(Band("expected", nominal, *bands[panel], "grey", 0.25))
        marks.append(Curve("ideal", [0.0, 1.0], [0.0, 1.0], "grey", "dashed"))
        for model, shares in models.items():
            marks += [Curve(model, nominal, shares), Points(model, nominal, shares)]
        panels[panel] = marks
    axes = Axis("nominal level", limits=(0.0, 1.0)), Axis("share inside", limits=(0.0, 1.0))
    return Plot(title, caption, panels, *axes, choices=(choice,))


def estimates(
    title: str,
    caption: str,
    categories: Sequence[str],
    values: Mapping[str, ArrayLike],
    errors: Mapping[str, Any] | None = None,
    *,
    x: str = "",
    y: Axis = VALUE,
) -> Plot:
    """Estimates with error bars, those of several models beside each other, such as Lyapunov exponents.

    Args:
        caption: One sentence on what to see; say what the bars are.
        categories: Names of what is estimated.
        values: By model, one for each category; NaN where there is none.
        errors: By model, half the length of each error bar.
        x: Label of the categories' axis.
    """
    errors = errors or {}
    places = np.arange(len(categories), dtype=np.float64)
    width = min(0.16, 0.7 / max(len(values), 1))
    marks: list[Mark] = []
    for i, (model, given) in enumerate(values.items()):
        found = np.asarray(given, np.float64).ravel()
        ends: dict[str, Any] = {}
        if model in errors:
            half = np.broadcast_to(np.asarray(errors[model], np.float64), found.shape)
            ends = {"low": found - half, "high": found + half}
        shift = width * (i - (len(values) - 1) / 2)
        marks.append(Points(model, places + shift, found, **ends))
    axis = Axis(x, categories=categories, limits=(-0.5, max(len(categories), 1) - 0.5))
    return Plot(title, caption, marks, axis, y, zoom=False)
