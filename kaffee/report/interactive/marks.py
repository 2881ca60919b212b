"""What a plot is made of: curves, bands, points, bars and marked stretches, each with a name in the legend.

In all of them the colour is what it stands for in kaffee's figures (`truth`, `prior`, `kaffee`, ... or `grey`); None
takes it from the name, or the next free one. Missing and infinite values leave gaps.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kaffee.errors import DataError
from kaffee.report.interactive.embed import Pool
from kaffee.report.interactive.styles import DASHES, SYMBOLS, Styles, check_choice, colour_names


class Mark(Protocol):
    """Something drawn in a plot."""

    @property
    def name(self) -> str: ...

    def to_data(self, pool: Pool, styles: Styles) -> dict[str, Any]:
        """What the page's script draws it from."""
        ...


@dataclass(frozen=True, eq=False)
class Curve:
    """A line through its samples.

    Attributes:
        dash: solid, dashed, dotted, dashdot or longdash; None: the next one that no other curve has.
        frame: Whether the axis must show all of it. Not for curves that may leave for infinity.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    colour: str | None = None
    dash: str | None = None
    frame: bool = True

    def to_data(self, pool: Pool, styles: Styles) -> dict[str, Any]:
        check_choice("dash", self.dash, DASHES)
        x, (y,) = _samples(self.name, self.x, y=self.y)
        return {
            **_head("line", self.name, self.colour, styles),
            "dash": styles.dash(self.name, self.dash),
            "frame": self.frame,
            "x": pool.add(x),
            "y": pool.add(y),
        }


@dataclass(frozen=True, eq=False)
class Band:
    """The area between two curves; an axis shows at most half a height of it beyond the curves.

    Attributes:
        opacity: How strong its colour is; nested bands: the wider, the weaker.
    """

    name: str
    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    colour: str | None = None
    opacity: float = 0.25

    def to_data(self, pool: Pool, styles: Styles) -> dict[str, Any]:
        x, (low, high) = _samples(self.name, self.x, low=self.low, high=self.high)
        return {
            **_head("band", self.name, self.colour, styles),
            "opacity": float(self.opacity),
            "x": pool.add(x),
            "low": pool.add(low),
            "high": pool.add(high),
        }


@dataclass(frozen=True, eq=False)
class Points:
    """Single values, with or without error bars.

    Attributes:
        low, high: Ends of the error bars, both or neither.
        symbol: circle, square, triangle, diamond or cross; None: the next one that no other points have.
        size: Radius in pixels.
    """

    name: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    colour: str | None = None
    symbol: str | None = None
    size: float = 4.0

    def to_data(self, pool: Pool, styles: Styles) -> dict[str, Any]:
        check_choice("symbol", self.symbol, SYMBOLS)
        values = {"y": self.y}
        if (self.low is None) != (self.high is None):
            raise DataError(f"Points '{self.name}' have one end of their error bars. Give low and high, or neither.")
        if self.low is not None and self.high is not None:
            values |= {"low": self.low, "high": self.high}
        # Points may come in any order; the cursor goes from left to right.
        order = np.argsort(np.asarray(self.x, np.float64).ravel(), kind="stable")
        values = {key: _in_order(self.name, key, value, order) for key, value in values.items()}
        x, found = _samples(self.name, np.asarray(self.x, np.float64).ravel()[order], **values)
        return {
            **_head("points", self.name, self.colour, styles),
            "symbol": styles.symbol(self.name, self.symbol),
            "size": float(self.size),
            "x": pool.add(x),
            **{key: pool.add(value) for key, value in zip(values, found, strict=True)},
        }


@dataclass(frozen=True, eq=False)
class Bars:
    """A histogram: one bar between each two neighbouring edges."""

    name: str
    edges: ArrayLike
    heights: ArrayLike
    colour: str | None = None

    def to_data(self, pool: Pool, styles: Styles) -> dict[str, Any]:
        edges = _ordered(self.name, self.edges)
        heights = np.asarray(self.heights, np.float64).ravel()
        if len(edges) != len(heights) + 1:
            raise DataError(
                f"Bars '{self.name}' have {len(edges)} edges and {len(heights)} heights; give one edge more."
            )
        head = _head("bars", self.name, self.colour, styles)
        return {**head, "x": pool.add(edges), "y": pool.add(heights)}


@dataclass(frozen=True)
class Span:
    """A marked stretch of the x axis, such as one without observations."""

    name: str
    start: float
    stop: float

    def to_data(self, pool: Pool, styles: Styles) -> dict[str, Any]:
        ends = _ordered(self.name, [self.start, self.stop])
        return {"type": "span", "name": str(self.name), "colour": "grey", "x": pool.add(ends)}


def _head(kind: str, name: str, colour: str | None, styles: Styles) -> dict[str, Any]:
    check_choice("colour", colour, colour_names())
    return {"type": kind, "name": str(name), "colour": styles.colour(str(name), colour)}


def _in_order(name: str, key: str, values: ArrayLike, order: np.ndarray) -> np.ndarray:
    array = np.asarray(values, np.float64).ravel()
    if len(array) != len(order):
        raise DataError(f"'{name}' has {len(order)} x and {len(array)} {key}; give as many of each.")
    return array[order]


def _ordered(name: str, x: ArrayLike) -> np.ndarray:
    array = np.asarray(x, np.float64).ravel()
    if not np.isfinite(array).all() or (np.diff(array) < 0).any():
        raise DataError(f"The x of '{name}' must be finite and must not decrease; sort the samples first.")
    return array


def _samples(name: str, x: ArrayLike, **values: ArrayLike) -> tuple[np.ndarray, list[np.ndarray]]:
    """Checked x and values of equal length."""
    places = _ordered(name, x)
    same = np.arange(len(places))
    return places, [_in_order(name, key, value, same) for key, value in values.items()]
