"""Build interactive figures with Plotly: for the page of a run, for comparisons and for notebooks.

All functions take plain arrays and return a `plotly.graph_objects.Figure`. A figure with several panels, such as one
for each coordinate, has a menu to choose the one shown. Names are shown as they are: markup in them is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy.typing import ArrayLike
from plotly.subplots import make_subplots

from kaffee.metrics.spectra import decorrelation_time
from kaffee.report.style import COLOURS, GREY, TEMPLATE

CYCLE = ("kaffee", "prior", "frozen_core", "core_collapse", "noise_masking", "blind")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
# What has one of these names has the same look in all figures; "truth" is black, or white in the dark.
LOOKS = {
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
}
HEIGHT = 400
MAX_COORDINATES = 6
MAX_NUMBERS = 75_000
"""Numbers in a drawing of attractors, which decide the size of a page: 0.4 megabytes."""

Curves = Mapping[str, tuple[ArrayLike, ArrayLike]]


class Panel(NamedTuple):
    """Traces that are shown together, with the label and the limits of their y axis where these are its own."""

    traces: Sequence[Any]
    y: str = ""
    limits: tuple[float, float] | None = None


def _look(name: str, i: int) -> tuple[str, str]:
    """Return the colour and the dash of a name, or else of a number."""
    colour, dash = LOOKS.get(name, (CYCLE[i % len(CYCLE)], DASHES[i % len(DASHES)]))
    return COLOURS[colour], dash


def _see_through(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:.2f})"


def _numbers(values: ArrayLike) -> Float[np.ndarray, " T"]:
    """Return numbers in single precision, which keeps pages small; NaN, which leaves a gap, where one is not finite."""
    with np.errstate(over="ignore"):
        array = np.asarray(values, np.float64).astype(np.float32)
    return np.where(np.isfinite(array), array, np.float32(np.nan))


def _log_axis(curves: Sequence[ArrayLike] = ()) -> dict[str, Any]:
    """Return a logarithmic axis; one tick for each power of ten if the curves span several."""
    every = np.concatenate([np.zeros(0), *(np.ravel(_numbers(curve)) for curve in curves)])
    every = every[every > 0]
    wide = every.size > 0 and every.max() > 100 * every.min()
    return {"type": "log", "exponentformat": "power", "dtick": 1 if wide else None}


def _line(name: str, x: ArrayLike, y: ArrayLike, i: int = 0, **options: Any) -> Any:
    """Draw a curve; the name decides its look, or else its number `i`."""
    colour, dash = _look(name, i)
    look = {"color": colour, "dash": dash, **options.pop("line", {})}
    options = {"mode": "lines", **options}
    return go.Scatter(x=np.asarray(x), y=_numbers(y), name=_label(name), line=look, **options)


def _band(name: str, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str, opacity: float = 0.25) -> list[Any]:
    """Draw the area between two curves."""
    options: dict[str, Any] = {"x": np.asarray(x), "mode": "lines", "line": {"width": 0, "color": colour}}
    options |= {"legendgroup": name}
    return [
        go.Scatter(y=_numbers(low), name=f"{name}, low", showlegend=False, **options),
        go.Scatter(y=_numbers(high), name=name, fill="tonexty", fillcolor=_see_through(colour, opacity), **options),
    ]


def _points(name: str, x: ArrayLike, y: ArrayLike, i: int = 0, error: ArrayLike | None = None, **options: Any) -> Any:
    """Draw single values, with error bars if there are any."""
    bars = None if error is None else {"array": _numbers(error), "thickness": 1.5}
    look = {"color": _look(name, i)[0], "size": 7, **options.pop("marker", {})}
    shown = {"name": _label(name), "error_y": bars, "marker": look, **options}
    return go.Scatter(x=np.asarray(x), y=_numbers(y), mode="markers", **shown)


def _plot_panels(
    panels: Mapping[str, Panel],
    *,
    x: str,
    y: str = "",
    x_axis: Mapping[str, Any] | None = None,
    y_axis: Mapping[str, Any] | None = None,
    hover: str = "x unified",
) -> go.Figure:
    """Draw panels on one pair of axes, with a menu that chooses the one shown.

    Args:
        x, y: Labels of the axes.
        x_axis, y_axis: More properties of the axes.
    """
    figure = go.Figure()
    for i, (name, panel) in enumerate(panels.items()):
        for trace in panel.traces:
            # The page makes its tables of numbers from these.
            trace.update(visible=i == 0, meta=name if len(panels) > 1 else None)
            figure.add_trace(trace)
    first = next(iter(panels.values()))
    _dress(figure, HEIGHT, hover)
    figure.update_xaxes(**{"title_text": x, **(x_axis or {})})
    figure.update_yaxes(**{"title_text": _label(first.y) or y, "range": first.limits, **(y_axis or {})})
    layouts: list[dict[str, Any]] = []
    for panel in panels.values():
        limits = {"yaxis.autorange": True} if panel.limits is None else {"yaxis.range": list(panel.limits)}
        layouts.append({"yaxis.title.text": _label(panel.y) or y, **limits})
    shares = [[name == other for other, each in panels.items() for _ in each.traces] for name in panels]
    return _add_menu(figure, list(panels), shares, layouts)


def _dress(figure: go.Figure, height: int, hover: str | bool = "x unified") -> go.Figure:
    figure.layout.template = TEMPLATE  # in place of Plotly's own, which an update would only extend
    return figure.update_layout(height=height, hovermode=hover)


def _label(text: str) -> str:
    return escape(text, quote=False)


def _add_menu(
    figure: go.Figure, names: Sequence[str], visible: Sequence[list[bool]], layouts: Sequence[dict[str, Any]]
) -> go.Figure:
    """Add a menu that chooses which traces are visible, if there are several choices."""
    buttons = [
        {
            "label": _label(name if len(name) <= 24 else f"{name[:23]}…"),
            "method": "update",
            "args": [{"visible": v}, each],
        }
        for name, v, each in zip(names, visible, layouts, strict=True)
    ]
    if len(buttons) > 1:
        place = {"x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 6}}
        figure.update_layout(updatemenus=[{"buttons": buttons, **place}])
    return figure


def plot_attractor(runs: Mapping[str, Float[np.ndarray, "T N"]], columns: Sequence[str]) -> go.Figure:
    """Draw trajectories side by side: three coordinates to be turned, two in a plane, or one against its past.

    Args:
        runs: By name; the first one sets the limits. Missing values leave gaps.
        columns: Names of the coordinates; with more than three a menu chooses neighbouring ones.
    """
    names = [str(column) for column in columns[:MAX_COORDINATES]]
    # Every choice of coordinates has its own copy of the numbers.
    room = MAX_NUMBERS // (len(runs) * 3 * (1 if len(names) < 4 else len(names)))
    shown = {name: _numbers(run[:room, :MAX_COORDINATES]) for name, run in runs.items()}
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
    figure = make_subplots(
        rows=down,
        cols=across,
        specs=[[{"type": "xy" if flat else "scene"}] * across] * down,
        subplot_titles=[_label(name) for name in shown],
        horizontal_spacing=0.12 if flat else 0.02,
        vertical_spacing=0.16 if flat else 0.06,
    )
    for i, (name, run) in enumerate(shown.items()):
        look = {"color": _look(name, i)[0], "width": 1 if flat else 1.5}
        for k, (choice, title) in enumerate(zip(choices, titles, strict=True)):
            trace = (go.Scatter if flat else go.Scatter3d)(
                **dict(zip("xyz", run[:, choice].T, strict=False)),
                name=_label(name),
                mode="lines",
                line=look,
                showlegend=False,
                visible=k == 0,
                meta=title if len(choices) > 1 else None,
            )
            figure.add_trace(trace, row=i // across + 1, col=i % across + 1)
    _dress(figure, (360 if flat else 340) * down, "closest")
    limits = [list(_limits(column)) for column in next(iter(shown.values())).T]
    if flat:
        figure.update_xaxes(title_text=_label(names[0]), range=limits[0])
        return figure.update_yaxes(title_text=_label(names[1]), range=limits[1])
    camera = {"eye": {"x": 0.8, "y": -1.95, "z": 0.5}, "center": {"x": 0, "y": 0, "z": -0.12}}
    figure.update_scenes(aspectmode="cube", camera=camera)
    layouts: list[dict[str, Any]] = [{} for _ in choices]
    for layout, choice in zip(layouts, choices, strict=True):
        for scene in ("scene", *(f"scene{i + 1}" for i in range(1, len(shown)))):
            for axis, j in zip("xyz", choice, strict=True):
                layout[f"{scene}.{axis}axis.title.text"] = _label(names[j])
                layout[f"{scene}.{axis}axis.range"] = limits[j]
    figure.update_layout({key.replace(".", "_"): value for key, value in layouts[0].items()})
    shares = [[k == other for _ in shown for other in range(len(choices))] for k in range(len(choices))]
    return _add_menu(figure, titles, shares, layouts)


def _limits(values: ArrayLike, margin: float = 0.1) -> tuple[float, float]:
    """Return limits around all finite values."""
    array = np.asarray(values, np.float64)
    array = array[np.isfinite(array)]
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 1.0)
    room = margin * (high - low) or 1.0
    return low - room, high + room


def plot_forecast(
    times: ArrayLike,
    quantiles: Mapping[float, Float[np.ndarray, "H N"]],
    columns: Sequence[str],
    *,
    history_times: ArrayLike = (),
    history: Float[np.ndarray, "P N"] | None = None,
    truth: Float[np.ndarray, "H N"] | None = None,
    x: str = "time",
) -> go.Figure:
    """Draw a fan: what was read, nested bands of what was forecast, and what came.

    Args:
        quantiles: By level; levels q and 1 - q form a band.
        history: Readings before the forecast, at `history_times`.
        truth: Readings at `times`.
    """
    levels = {round(float(level), 6): np.asarray(values) for level, values in quantiles.items()}
    lows = sorted(level for level in levels if level < 0.5 and round(1 - level, 6) in levels)
    panels = {}
    for j, column in enumerate(columns):
        traces: list[Any] = []
        for depth, low in enumerate(lows):
            high, opacity = round(1 - low, 6), 0.16 + 0.16 * depth / max(len(lows) - 1, 1)
            edges = levels[low][:, j], levels[high][:, j]
            traces += _band(f"{100 * (high - low):g} % band", times, *edges, COLOURS["kaffee"], opacity)
        if 0.5 in levels:
            traces.append(_line("median", times, levels[0.5][:, j], line={"color": COLOURS["kaffee"], "dash": "solid"}))
        known = [levels[0.5][:1, j]] if 0.5 in levels else []
        if history is not None and len(history):
            look = {"color": COLOURS[GREY], "dash": "solid"}
            traces.append(_line("history", history_times, history[:, j], line=look))
            known.append(history[:, j])
        if truth is not None:
            traces.append(_line("truth", times, truth[:, j]))
            known.append(truth[:, j])
        # Bands may grow without bound; the readings decide what is shown.
        limits = _limits(np.concatenate(known), 0.4) if truth is not None else None
        panels[str(column)] = Panel(traces, str(column), limits)
    return _plot_panels(panels, x=x)


def plot_coverage(levels: ArrayLike, shares: Mapping[str, ArrayLike]) -> go.Figure:
    """Draw the share of readings inside central bands over the level of the bands: on the diagonal if calibrated."""
    traces = [_line("ideal", [0, 1], [0, 1])]
    traces += [_line(name, levels, share, i, mode="lines+markers") for i, (name, share) in enumerate(shares.items())]
    axis = {"range": [0, 1]}
    panels = {"": Panel(traces)}
    return _plot_panels(panels, x="level of the band", y="share of readings inside", x_axis=axis, y_axis=axis)


def plot_pit(density: ArrayLike, count: float) -> go.Figure:
    """Draw the histogram of the probability integral transform with the 95 % range of `count` independent readings."""
    heights = np.asarray(density, np.float64)
    edges = np.linspace(0.0, 1.0, len(heights) + 1)
    spread = 1.96 * np.sqrt((len(heights) - 1) / max(count, 1.0))
    sides = np.repeat(edges, 2)[1:-1]
    low, high = (np.full(len(sides), side) for side in (max(1.0 - spread, 0.0), 1.0 + spread))
    bars = go.Bar(
        x=(edges[:-1] + edges[1:]) / 2, y=heights, width=1 / len(heights), name="readings", opacity=0.6, offsetgroup="0"
    )
    bars.marker.color = COLOURS["kaffee"]
    traces = [bars, *_band("expected (95 %)", sides, low, high, COLOURS[GREY]), _line("ideal", [0, 1], [1, 1])]
    y = "density, uniform = 1"
    return _plot_panels({"": Panel(traces)}, x="probability integral transform", y=y, x_axis={"range": [0, 1]})


def plot_calibration(levels: ArrayLike, shares: ArrayLike, density: ArrayLike, count: float) -> go.Figure:
    """Draw coverage and probability integral transform side by side, for notebooks."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=["Coverage of bands", "Probability integral transform"])
    for column, part in enumerate((plot_coverage(levels, {"kaffee": shares}), plot_pit(density, count)), start=1):
        figure.add_traces(list(part.data), rows=[1] * len(part.data), cols=[column] * len(part.data))
        figure.update_xaxes(title_text=part.layout.xaxis.title.text, row=1, col=column)
        figure.update_yaxes(title_text=part.layout.yaxis.title.text, row=1, col=column)
    return _dress(figure, HEIGHT)


def plot_autocorrelation(
    lags: Sequence[int],
    values: Float[np.ndarray, "K N"],
    bands: Float[np.ndarray, "K N"],
    columns: Sequence[str],
) -> go.Figure:
    """Draw autocorrelations of innovations with the 95 % band of white noise, for each coordinate."""
    panels = {}
    for j, column in enumerate(columns):
        expected = _band("white noise, 95 %", lags, -bands[:, j], bands[:, j], COLOURS[GREY])
        panels[str(column)] = Panel([*expected, _points("innovations", lags, values[:, j])], "autocorrelation")
    return _plot_panels(panels, x="lag (steps)", x_axis={"rangemode": "tozero"})


def plot_curves(
    panels: Mapping[str, Curves], *, x: str, y: str = "", log_x: bool = False, log_y: bool = False
) -> go.Figure:
    """Draw named curves, (x, y) each, in one or several panels."""
    drawn = {
        str(title): Panel([_line(name, *curve, i) for i, (name, curve) in enumerate(curves.items())])
        for title, curves in panels.items()
    }
    every = [curve for curves in panels.values() for curve in curves.values()]
    x_axis = _log_axis([curve[0] for curve in every]) if log_x else None
    y_axis = _log_axis([curve[1] for curve in every]) if log_y else None
    return _plot_panels(drawn, x=x, y=y, x_axis=x_axis, y_axis=y_axis)


def plot_spread(curves: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> go.Figure:
    """Draw the mean squared error over the predicted variance, in bins, by horizon: on the line if spread is error."""
    panels = {}
    for horizon, (variance, error) in curves.items():
        both = np.concatenate([np.ravel(variance), np.ravel(error)])
        both = both[both > 0]
        ends = [both.min(), both.max()] if both.size else [1.0, 1.0]
        panels[horizon] = Panel([_line("ideal", ends, ends), _points("bins", variance, error)])
    labels = {"x": "predicted variance", "y": "mean squared error"}
    return _plot_panels(panels, **labels, x_axis=_log_axis(), y_axis=_log_axis(), hover="closest")


def plot_exponents(exponents: Mapping[str, tuple[ArrayLike, ArrayLike]], truth: float | None = None) -> go.Figure:
    """Draw Lyapunov exponents by rank with bars of two standard errors."""
    traces = []
    for i, (name, (values, errors)) in enumerate(exponents.items()):
        ranks = np.arange(1, len(np.ravel(values)) + 1) + 0.12 * (i - (len(exponents) - 1) / 2)
        traces.append(_points(name, ranks, values, i, 2.0 * _numbers(errors)))
    if truth is not None:
        traces.append(_points("truth (largest)", [1], [truth], marker={"symbol": "line-ew-open", "size": 18}))
    axis = {"dtick": 1}
    return _plot_panels({"": Panel(traces)}, x="rank", y="exponent (per unit of time)", x_axis=axis, hover="closest")


def plot_withheld(
    times: Float[np.ndarray, " T"],
    observed: Float[np.ndarray, " T"],
    used: ArrayLike,
    mean: Float[np.ndarray, " T"],
    std: Float[np.ndarray, " T"],
    *,
    column: str,
    withheld: tuple[float, float],
    truth: Float[np.ndarray, " T"] | None = None,
) -> go.Figure:
    """Draw the belief about one coordinate while its readings are withheld.

    Args:
        used: Which readings the filter saw.
        withheld: The stretch of time without readings.
    """
    seen = np.asarray(used, bool)
    traces = _band("90 % band", times, mean - 1.645 * std, mean + 1.645 * std, COLOURS["kaffee"], 0.3)
    traces.append(_line("mean", times, mean, line={"color": COLOURS["kaffee"], "dash": "solid"}))
    if truth is not None:
        traces.append(_line("truth", times, truth))
    traces.append(_points("reading", times[seen], observed[seen], marker={"color": COLOURS[GREY], "size": 4}))
    figure = _plot_panels({"": Panel(traces, column, _limits(observed, 0.4))}, x="time")
    colour = _see_through(COLOURS[GREY], 0.15)
    label = {"text": "withheld", "textposition": "top center"}
    figure.add_shape(
        type="rect",
        x0=withheld[0],
        x1=withheld[1],
        y0=0,
        y1=1,
        yref="paper",
        fillcolor=colour,
        line_width=0,
        label=label,
    )
    return figure


def plot_losses(losses: Mapping[str, tuple[str, ArrayLike, ArrayLike]]) -> go.Figure:
    """Draw the loss of each stage over its updates; (name of the loss, updates, values) by stage."""
    panels = {}
    for stage, (label, updates, values) in losses.items():
        colour = COLOURS["prior" if "pretraining" in stage.lower() else "kaffee"]
        panels[stage] = Panel([_line(label, updates, values, line={"color": colour, "dash": "solid"})], label)
    every = np.concatenate([_numbers(values).ravel() for _, _, values in losses.values()])
    positive = np.isfinite(every).any() and np.nanmin(every) > 0
    return _plot_panels(panels, x="update", y_axis=_log_axis([every]) if positive else None)
