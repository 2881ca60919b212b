"""Build interactive figures with Plotly: for the page of a run, for comparisons and for notebooks.

A figure with several panels, such as one for each coordinate, has a menu to choose the one shown. Names are shown as
they are: markup in them is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy.typing import ArrayLike
from plotly.subplots import make_subplots

from kaffee.certification.certificate import Losses, Withheld
from kaffee.metrics.spectra import decorrelation_time
from kaffee.report.style import COLOURS, GREY, TEMPLATE

_CYCLE = ("kaffee", "prior", "frozen_core", "core_collapse", "noise_masking", "blind")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# What has one of these names has the same look in all figures; "truth" is black, or white in the dark.
_LOOKS = {
    "truth": ("truth", "dash"),
    "truth (largest)": ("truth", "dash"),
    "data": ("truth", "solid"),
    "prior core": ("prior", "longdash"),
    "kaffee": ("kaffee", "solid"),
    "kaffee core": ("kaffee", "solid"),
    "kaffee with noise": ("blind", "dot"),
    "ideal": (GREY, "dash"),
    "persistence": (GREY, "dash"),
    "climatology": (GREY, "dot"),
    "linear": ("prior", "dashdot"),
    "analogue": (GREY, "longdash"),
}
_BLUE: dict[str, Any] = {"color": COLOURS["kaffee"], "dash": "solid"}
_HEIGHT = 400
_MAX_COORDINATES = 6
MAX_NUMBERS = 75_000
"""Numbers in a drawing of attractors, which decide the size of a page: 0.4 megabytes."""

Curves = Mapping[str, tuple[ArrayLike, ArrayLike]]
_Path = Float[np.ndarray, "T N"]


class _Panel(NamedTuple):
    """Traces that are shown together, with the label and the limits of their y axis where these are its own."""

    traces: Sequence[Any]
    y: str = ""
    limits: tuple[float, float] | None = None


def _choose_look(name: str, i: int) -> tuple[str, str]:
    """Return the colour and the dash of a name, or else of a number."""
    colour, dash = _LOOKS.get(name, (_CYCLE[i % len(_CYCLE)], _DASHES[i % len(_DASHES)]))
    return COLOURS[colour], dash


def _fade(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.2f})"


def _shorten(values: ArrayLike) -> Float[np.ndarray, " T"]:
    """Return numbers in single precision, which keeps pages small; NaN, which leaves a gap, where one is not finite."""
    with np.errstate(over="ignore"):
        array = np.asarray(values, np.float64).astype(np.float32)
    return np.where(np.isfinite(array), array, np.float32(np.nan))


def _make_log_axis(curves: Sequence[ArrayLike] = ()) -> dict[str, Any]:
    """Return a logarithmic axis; one tick for each power of ten if the curves span several."""
    every = np.concatenate([np.zeros(0), *(np.ravel(_shorten(curve)) for curve in curves)])
    every = every[every > 0]
    wide = every.size > 0 and every.max() > 100 * every.min()
    return {"type": "log", "exponentformat": "power", "dtick": 1 if wide else None}


def _draw_line(name: str, x: ArrayLike, y: ArrayLike, i: int = 0, mode: str = "lines", **look: Any) -> Any:
    """Draw a curve; the name decides its look, or else its number `i`."""
    colour, dash = _choose_look(name, i)
    line = {"color": colour, "dash": dash, **look}
    return go.Scatter(x=np.asarray(x), y=_shorten(y), name=_escape(name), line=line, mode=mode)


def _draw_band(name: str, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str, opacity: float = 0.25) -> Any:
    """Draw the area between two curves."""
    line = {"width": 0, "color": colour}
    options: dict[str, Any] = {"x": np.asarray(x), "mode": "lines", "line": line, "legendgroup": name}
    return [
        go.Scatter(y=_shorten(low), name=f"{name}, low", showlegend=False, **options),
        go.Scatter(y=_shorten(high), name=name, fill="tonexty", fillcolor=_fade(colour, opacity), **options),
    ]


def _draw_points(name: str, x: ArrayLike, y: ArrayLike, i: int = 0, error: ArrayLike | None = None, **look: Any) -> Any:
    """Draw single values, with error bars if there are any."""
    bars = None if error is None else {"array": _shorten(error), "thickness": 1.5}
    marker = {"color": _choose_look(name, i)[0], "size": 7, **look}
    return go.Scatter(x=np.asarray(x), y=_shorten(y), mode="markers", name=_escape(name), error_y=bars, marker=marker)


def _plot_panels(
    panels: Mapping[str, _Panel],
    *,
    x: str,
    y: str = "",
    x_axis: Mapping[str, Any] | None = None,
    y_axis: Mapping[str, Any] | None = None,
    hover: str = "x unified",
) -> go.Figure:
    """Draw panels on one pair of axes with these labels and properties, and a menu that chooses the one shown."""
    figure = go.Figure()
    layouts: list[dict[str, Any]] = []
    for i, (name, panel) in enumerate(panels.items()):
        for trace in panel.traces:
            # The page makes its tables of numbers from these.
            trace.update(visible=i == 0, meta=name if len(panels) > 1 else None)
            figure.add_trace(trace)
        limits = {"yaxis.autorange": True} if panel.limits is None else {"yaxis.range": list(panel.limits)}
        layouts.append({"yaxis.title.text": _escape(panel.y) or y, **limits})
    _dress(figure, _HEIGHT, hover)
    figure.update_xaxes(title_text=x, **(x_axis or {}))
    first = next(iter(panels.values()))
    figure.update_yaxes(**{"title_text": layouts[0]["yaxis.title.text"], "range": first.limits, **(y_axis or {})})
    shares = [[name == other for other, each in panels.items() for _ in each.traces] for name in panels]
    return _add_menu(figure, list(panels), shares, layouts)


def _dress(figure: go.Figure, height: int, hover: str = "x unified") -> go.Figure:
    figure.layout.template = TEMPLATE  # in place of Plotly's own, which an update would only extend
    return figure.update_layout(height=height, hovermode=hover)


def _escape(text: str) -> str:
    return escape(text, quote=False)


def _add_menu(
    figure: go.Figure, names: Sequence[str], visible: Sequence[list[bool]], layouts: Sequence[dict[str, Any]]
) -> go.Figure:
    """Add a menu that chooses which traces are visible, if there are several choices."""
    if len(names) > 1:
        labels = [_escape(name if len(name) <= 24 else f"{name[:23]}…") for name in names]
        buttons = [
            {"label": label, "method": "update", "args": [{"visible": shown}, layout]}
            for label, shown, layout in zip(labels, visible, layouts, strict=True)
        ]
        place = {"x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 6}}
        figure.update_layout(updatemenus=[{"buttons": buttons, **place}])
    return figure


def plot_attractor(runs: Mapping[str, _Path], columns: Sequence[str]) -> go.Figure:
    """Draw trajectories side by side: three coordinates to be turned, two in a plane, or one against its past.

    Args:
        runs: By name; the first one sets the limits. Missing values leave gaps.
        columns: Names of the coordinates; with more than three a menu chooses neighbouring ones.
    """
    names = [str(column) for column in columns[:_MAX_COORDINATES]]
    # Every choice of coordinates has its own copy of the numbers.
    room = MAX_NUMBERS // (len(runs) * 3 * (1 if len(names) < 4 else len(names)))
    shown = {name: _shorten(run[:room, :_MAX_COORDINATES]) for name, run in runs.items()}
    if len(names) == 1:
        known = next(iter(shown.values()))
        known = known[np.isfinite(known)]
        delay = max(round(decorrelation_time([known[:, None]])), 1) if len(known) > 1 else 1
        shown = {name: np.concatenate([run[:-delay], run[delay:]], axis=1) for name, run in shown.items()}
        names = [names[0], f"{names[0]}, {delay} steps later"]
    N, flat = len(names), len(names) < 3
    choices = [(0, 1)] if flat else [tuple((k + d) % N for d in range(3)) for k in range(1 if N == 3 else N)]
    titles = [", ".join(names[j] for j in choice) for choice in choices]
    across = min(len(shown), 2)
    down = -(-len(shown) // across)
    specs = [[{"type": "xy" if flat else "scene"}] * across] * down
    space = dict(zip(("horizontal_spacing", "vertical_spacing"), (0.12, 0.16) if flat else (0.02, 0.06), strict=True))
    figure = make_subplots(down, across, specs=specs, subplot_titles=[_escape(name) for name in shown], **space)
    for i, (name, run) in enumerate(shown.items()):
        look = {"color": _choose_look(name, i)[0], "width": 1 if flat else 1.5}
        for k, (choice, title) in enumerate(zip(choices, titles, strict=True)):
            path = dict(zip("xyz", run[:, choice].T, strict=False))
            trace = (go.Scatter if flat else go.Scatter3d)(**path, name=_escape(name), mode="lines", line=look)
            trace.update(showlegend=False, visible=k == 0, meta=title if len(choices) > 1 else None)
            figure.add_trace(trace, row=i // across + 1, col=i % across + 1)
    _dress(figure, (360 if flat else 340) * down, "closest")
    limits = [list(find_limits(column)) for column in next(iter(shown.values())).T]
    if flat:
        figure.update_xaxes(title_text=_escape(names[0]), range=limits[0])
        return figure.update_yaxes(title_text=_escape(names[1]), range=limits[1])
    camera = {"eye": {"x": 0.8, "y": -1.95, "z": 0.5}, "center": {"x": 0, "y": 0, "z": -0.12}}
    figure.update_scenes(aspectmode="cube", camera=camera)
    scenes = ["scene", *(f"scene{i}" for i in range(2, len(shown) + 1))]
    layouts: list[dict[str, Any]] = [{} for _ in choices]
    for layout, choice in zip(layouts, choices, strict=True):
        for scene, (axis, j) in product(scenes, zip("xyz", choice, strict=True)):
            layout[f"{scene}.{axis}axis.title.text"] = _escape(names[j])
            layout[f"{scene}.{axis}axis.range"] = limits[j]
    figure.update_layout({key.replace(".", "_"): value for key, value in layouts[0].items()})
    shares = [[k == other for _ in shown for other in range(len(choices))] for k in range(len(choices))]
    return _add_menu(figure, titles, shares, layouts)


def find_limits(values: ArrayLike, margin: float = 0.1) -> tuple[float, float]:
    """Return limits around all finite values."""
    array = np.asarray(values, np.float64)
    array = array[np.isfinite(array)]
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 1.0)
    room = margin * (high - low) or 1.0
    return low - room, high + room


def plot_forecast(
    times: ArrayLike,
    quantiles: Mapping[float, _Path],
    columns: Sequence[str],
    *,
    history_times: ArrayLike,
    history: _Path,
    truth: _Path | None = None,
    x: str = "time",
) -> go.Figure:
    """Draw a fan: what was read, nested bands of what was forecast, and what came.

    Args:
        quantiles: By level, with the median; levels q and 1 - q form a band.
        history: Readings before the forecast, at `history_times`.
        truth: Readings at `times`.
    """
    levels = {round(float(level), 6): np.asarray(values) for level, values in quantiles.items()}
    lows = sorted(level for level in levels if level < 0.5)
    panels = {}
    for j, column in enumerate(columns):
        traces: list[Any] = []
        for depth, low in enumerate(lows):
            high, opacity = round(1 - low, 6), 0.16 + 0.16 * depth / max(len(lows) - 1, 1)
            edges = levels[low][:, j], levels[high][:, j]
            traces += _draw_band(f"{100 * (high - low):g} % band", times, *edges, COLOURS["kaffee"], opacity)
        traces.append(_draw_line("median", times, levels[0.5][:, j], **_BLUE))
        traces.append(_draw_line("history", history_times, history[:, j], color=COLOURS[GREY], dash="solid"))
        limits = None
        if truth is not None:
            traces.append(_draw_line("truth", times, truth[:, j]))
            # Bands may grow without bound; the readings decide what is shown.
            limits = find_limits(np.concatenate([levels[0.5][:1, j], history[:, j], truth[:, j]]), 0.4)
        panels[str(column)] = _Panel(traces, str(column), limits)
    return _plot_panels(panels, x=x)


def plot_coverage(levels: ArrayLike, shares: Mapping[str, ArrayLike]) -> go.Figure:
    """Draw the share of readings inside central bands over the level of the bands: on the diagonal if calibrated."""
    traces = [_draw_line("ideal", [0, 1], [0, 1])]
    traces += [_draw_line(name, levels, share, i, "lines+markers") for i, (name, share) in enumerate(shares.items())]
    labels = {"x": "level of the band", "y": "share of readings inside"}
    return _plot_panels({"": _Panel(traces)}, **labels, x_axis={"range": [0, 1]}, y_axis={"range": [0, 1]})


def plot_pit(density: ArrayLike, count: float) -> go.Figure:
    """Draw the histogram of the probability integral transform with the 95 % range of `count` independent readings."""
    heights = np.asarray(density, np.float64)
    edges = np.linspace(0.0, 1.0, len(heights) + 1)
    spread = 1.96 * np.sqrt((len(heights) - 1) / max(count, 1.0))
    sides = np.repeat(edges, 2)[1:-1]
    low, high = (np.full(len(sides), side) for side in (max(1.0 - spread, 0.0), 1.0 + spread))
    centres, width = (edges[:-1] + edges[1:]) / 2, 1 / len(heights)
    bars = go.Bar(x=centres, y=heights, width=width, name="readings", opacity=0.6, offsetgroup="0")
    bars.marker.color = COLOURS["kaffee"]
    traces = [
        bars,
        *_draw_band("expected (95 %)", sides, low, high, COLOURS[GREY]),
        _draw_line("ideal", [0, 1], [1, 1]),
    ]
    y = "density, uniform = 1"
    return _plot_panels({"": _Panel(traces)}, x="probability integral transform", y=y, x_axis={"range": [0, 1]})


def plot_calibration(levels: ArrayLike, shares: ArrayLike, density: ArrayLike, count: float) -> go.Figure:
    """Draw coverage and probability integral transform side by side, for notebooks."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=["Coverage of bands", "Probability integral transform"])
    for column, part in enumerate((plot_coverage(levels, {"kaffee": shares}), plot_pit(density, count)), start=1):
        figure.add_traces(list(part.data), rows=[1] * len(part.data), cols=[column] * len(part.data))
        figure.update_xaxes(title_text=part.layout.xaxis.title.text, row=1, col=column)
        figure.update_yaxes(title_text=part.layout.yaxis.title.text, row=1, col=column)
    return _dress(figure, _HEIGHT)


def plot_autocorrelation(lags: ArrayLike, values: _Path, bands: _Path, columns: Sequence[str]) -> go.Figure:
    """Draw autocorrelations of innovations with the 95 % band of white noise, for each coordinate."""
    panels = {}
    for j, column in enumerate(columns):
        expected = _draw_band("white noise, 95 %", lags, -bands[:, j], bands[:, j], COLOURS[GREY])
        panels[str(column)] = _Panel([*expected, _draw_points("innovations", lags, values[:, j])])
    return _plot_panels(panels, x="lag (steps)", y="autocorrelation", x_axis={"rangemode": "tozero"})


def plot_curves(
    panels: Mapping[str, Curves], *, x: str, y: str = "", log_x: bool = False, log_y: bool = False
) -> go.Figure:
    """Draw named curves, (x, y) each, in one or several panels."""
    drawn = {
        str(title): _Panel([_draw_line(name, *curve, i) for i, (name, curve) in enumerate(curves.items())])
        for title, curves in panels.items()
    }
    every = [curve for curves in panels.values() for curve in curves.values()]
    x_axis = _make_log_axis([curve[0] for curve in every]) if log_x else None
    y_axis = _make_log_axis([curve[1] for curve in every]) if log_y else None
    return _plot_panels(drawn, x=x, y=y, x_axis=x_axis, y_axis=y_axis)


def plot_spread(curves: Curves) -> go.Figure:
    """Draw the mean squared error over the predicted variance, in bins, by horizon: on the line if spread is error."""
    panels = {}
    for horizon, (variance, error) in curves.items():
        both = np.concatenate([np.ravel(variance), np.ravel(error)])
        both = both[both > 0]
        ends = [both.min(), both.max()] if both.size else [1.0, 1.0]
        panels[horizon] = _Panel([_draw_line("ideal", ends, ends), _draw_points("bins", variance, error)])
    labels = {"x": "predicted variance", "y": "mean squared error"}
    return _plot_panels(panels, **labels, x_axis=_make_log_axis(), y_axis=_make_log_axis(), hover="closest")


def plot_exponents(exponents: Curves, truth: float | None = None) -> go.Figure:
    """Draw Lyapunov exponents by rank with bars of two standard errors."""
    traces = []
    for i, (name, (values, errors)) in enumerate(exponents.items()):
        ranks = np.arange(1, len(np.ravel(values)) + 1) + 0.12 * (i - (len(exponents) - 1) / 2)
        traces.append(_draw_points(name, ranks, values, i, 2.0 * _shorten(errors)))
    if truth is not None:
        traces.append(_draw_points("truth (largest)", [1], [truth], symbol="line-ew-open", size=18))
    y = "exponent (per unit of time)"
    return _plot_panels({"": _Panel(traces)}, x="rank", y=y, x_axis={"dtick": 1}, hover="closest")


def plot_withheld(withheld: Withheld) -> go.Figure:
    """Draw the belief about one coordinate while its readings are withheld."""
    times, mean, width = withheld.times, withheld.mean, 1.645 * withheld.std
    traces = _draw_band("90 % band", times, mean - width, mean + width, COLOURS["kaffee"], 0.3)
    traces.append(_draw_line("mean", times, mean, **_BLUE))
    if withheld.truth is not None:
        traces.append(_draw_line("truth", times, withheld.truth))
    readings = times[withheld.used], withheld.observed[withheld.used]
    traces.append(_draw_points("reading", *readings, color=COLOURS[GREY], size=4))
    figure = _plot_panels({"": _Panel(traces, withheld.column, find_limits(withheld.observed, 0.4))}, x="time")
    look = {"fillcolor": _fade(COLOURS[GREY], 0.15), "line_width": 0}
    label = {"text": "withheld", "textposition": "top center"}
    sides = {"x0": withheld.start, "x1": withheld.stop, "y0": 0, "y1": 1, "yref": "paper"}
    return figure.add_shape(type="rect", **sides, **look, label=label)


def plot_losses(losses: Sequence[Losses]) -> go.Figure:
    """Draw the loss of each stage over its updates."""
    panels = {}
    for each in losses:
        colour = COLOURS["prior" if "pretraining" in each.stage.lower() else "kaffee"]
        curve = _draw_line(each.loss, each.updates, each.values, color=colour, dash="solid")
        panels[each.stage] = _Panel([curve], each.loss)
    every = np.concatenate([_shorten(each.values) for each in losses])
    positive = np.isfinite(every).any() and np.nanmin(every) > 0
    return _plot_panels(panels, x="update", y_axis=_make_log_axis([every]) if positive else None)
