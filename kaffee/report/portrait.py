"""Show an analysis: tables and sentences for the terminal, and a page with the phase portrait and the basins."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kaffee.metrics.spectra import decorrelation_time
from kaffee.report.figures import MAX_NUMBERS, find_limits, plot_exponents
from kaffee.report.page import Picture, Report, Section
from kaffee.report.style import COLOURS, GREY, TEMPLATE
from kaffee.tables import Table, number
from kaffee.theory.analysis import Analysis, Spread, compare_analyses
from kaffee.theory.basins import DIVERGED, MOVING, OUTSIDE

_SHOWN_COLUMNS, _SHOWN_CYCLES = 6, 40
# Colour and symbol of what is stable, and of what is not.
_LOOKS = {
    "stable": (COLOURS["frozen_core"], "circle"),
    "saddle": (COLOURS["core_collapse"], "x"),
    "unstable": (COLOURS["noise_masking"], "diamond"),
}
_ENDS = {MOVING: COLOURS["kaffee"], OUTSIDE: COLOURS[GREY], DIVERGED: COLOURS["truth"]}
_CYCLE_COLOURS = tuple(COLOURS[name] for name in ("frozen_core", "prior", "noise_masking", "blind", "core_collapse"))
_PLACES: Any = {"l": 10, "r": 10, "t": 20, "b": 10}


def tabulate_cycles(analysis: Analysis) -> Table:
    """List fixed points and cycles: place of the first state in data units, and stability."""
    shown = analysis.columns[:_SHOWN_COLUMNS]
    rows = []
    for name, cycle in list(zip(analysis.names, analysis.cycles, strict=True))[:_SHOWN_CYCLES]:
        place = analysis.observe(cycle.states[0])[: len(shown)].tolist()
        kind = f"{cycle.stability}, {cycle.num_unstable} of {analysis.latent_dim} grow"
        rows.append([name, *place, kind, cycle.radius, "yes" if cycle.inside else "no", cycle.residual])
    columns = ["", *shown, "stability", "|eigenvalue|", "in region", "residual"]
    return Table("Fixed points and cycles", columns, rows, note=_describe_search(analysis))


def _describe_search(analysis: Analysis) -> str:
    if analysis.method == "newton":
        return "By Newton's method from many starts: there may be others. Data units."
    complete = [str(order) for order, done in analysis.complete.items() if done]
    rest = [str(order) for order, done in analysis.complete.items() if not done]
    words = f"By linear regions; all regions tried for order {', '.join(complete)}" if complete else "By linear regions"
    more = f"; searched from orbits and drawn regions for order {', '.join(rest)}" if rest else ""
    return f"{words}{more}. Data units."


def tabulate_exponents(analysis: Analysis) -> Table:
    """List the leading Lyapunov exponents with standard errors."""
    spectrum = analysis.spectrum
    rows = []
    if spectrum is not None:
        pairs = zip(spectrum.exponents, spectrum.standard_errors, strict=True)
        rows = [[f"lambda {i}", value, error] for i, (value, error) in enumerate(pairs, start=1)][:10]
    note = "Per unit of time; errors from the spread of 20 blocks of the run."
    return Table("Lyapunov exponents", ["", "exponent", "standard error"], rows, note=note)


def tabulate_ends(analysis: Analysis) -> Table:
    """List what runs end on, from states of training data and from the grid."""
    grid = {} if analysis.basins is None else analysis.basins.shares()
    names = [*analysis.ends, *(name for name in grid if name not in analysis.ends)]
    rows = [[name, analysis.ends.get(name, 0.0), grid.get(name, 0.0) if grid else None] for name in names]
    return Table("Where runs end", ["", "share of training states", "share of the slice"], rows)


def tabulate_spread(spread: Spread, columns: Sequence[str]) -> tuple[Table, Table]:
    """Set fits beside each other: a row for each, and one for each fixed point that they share."""
    facts = (spread.num_fixed_points, spread.num_stable, spread.num_cycles, spread.leading, spread.dimensions)
    rows: list[list[Any]] = [
        [f"fit {i}", *row, end] for i, (*row, end) in enumerate(zip(*facts, spread.ends, strict=True), start=1)
    ]
    with np.errstate(invalid="ignore"):
        values = np.array(facts, np.float64)
        rows.append(["mean", *values.mean(axis=1), "–"])
        rows.append(["standard deviation", *(values.std(axis=1, ddof=1) if values.shape[1] > 1 else [None] * 5), "–"])
    head = ["", "fixed points", "stable", "cycles", "lambda 1", "Kaplan-Yorke dim.", "most runs end on"]
    fits = Table("Refits", head, rows, note="Fixed points and cycles in the data's region.")
    shown = columns[:_SHOWN_COLUMNS]
    count, places = len(spread.ends), []
    for i, point in enumerate(spread.points, start=1):
        where = [f"{number(m)} ± {number(s)}" for m, s in zip(point.mean, point.std, strict=True)][: len(shown)]
        unstable = ", ".join(map(str, sorted(set(point.unstable))))
        places.append([f"point {i}", f"{point.found} of {count}", *where, unstable, float(np.mean(point.radius))])
    head = ["", "found", *shown, "unstable directions", "|eigenvalue|"]
    note = "Mean ± standard deviation over the fits that have the point; data units."
    return fits, Table("Fixed points over refits", head, places, note=note)


def describe_analysis(analysis: Analysis) -> list[str]:
    """Write sentences about what was found."""
    fixed, cycles = analysis.fixed_points, [c for c in analysis.cycles if c.order > 1 and c.inside]
    stable = sum(cycle.stability == "stable" for cycle in (*fixed, *cycles))
    outside = sum(not cycle.inside for cycle in analysis.cycles)
    beyond = f"; {outside} more outside of it, which free runs do not see" if outside else ""
    lines = [
        f"{_count(len(fixed), 'fixed point')} and {_count(len(cycles), 'cycle')} in the data's region, "
        f"{stable} of them stable{beyond}."
    ]
    end, share = next(iter(analysis.ends.items()))
    lines.append(f"{100 * share:.0f} % of runs from training states end on: {end}.")
    spectrum = analysis.spectrum
    if spectrum is None:
        return [*lines, "There are no Lyapunov exponents: runs diverge."]
    value, error = spectrum.maximal, float(spectrum.standard_errors[0])
    word = "chaotic" if value > 2 * error else "contracting" if value < -2 * error else "neutral: a cycle or a torus"
    dimension = f"; Kaplan-Yorke dimension {number(spectrum.kaplan_yorke_dimension)}"
    lines.append(f"The largest exponent on the {analysis.measured} is {value:.3f} ± {error:.3f} ({word}){dimension}.")
    return lines


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def plot_portrait(analysis: Analysis) -> go.Figure:
    """Draw the free run with fixed points and cycles: three coordinates, two, or one against its past."""
    names, run = list(analysis.columns[:3]), analysis.free_run
    delay = 0
    if len(names) == 1:
        delay = max(round(decorrelation_time([run])), 1) if len(run) > 2 and np.ptp(run) > 0 else 1
        names = [names[0], f"{names[0]}, {delay} steps later"]

    def place(path: np.ndarray, closed: bool) -> dict[str, np.ndarray]:
        values = path[:, :3]
        if delay:
            later = np.roll(values, -delay, axis=0) if closed else values[delay:]
            values = np.concatenate([values[: len(later)], later], axis=1)
        return dict(zip("xyz", values.astype(np.float32).T, strict=False))

    figure, draw = go.Figure(), go.Scatter if len(names) == 2 else go.Scatter3d
    line = {"color": COLOURS[GREY], "width": 1}
    figure.add_trace(draw(**place(run[: MAX_NUMBERS // 6], False), mode="lines", name="free run", line=line))
    for stability, (colour, symbol) in _LOOKS.items():
        own = [cycle for cycle in analysis.fixed_points if cycle.stability == stability]
        if own:
            spots = [place(analysis.observe(cycle.states), True) for cycle in own]
            joined = {axis: np.concatenate([spot[axis] for spot in spots]) for axis in spots[0]}
            marker = {"color": colour, "symbol": symbol, "size": 9 if len(names) == 2 else 6}
            figure.add_trace(draw(**joined, mode="markers", name=f"fixed point, {stability}", marker=marker))
    cycles = [(n, c) for n, c in zip(analysis.names, analysis.cycles, strict=True) if c.order > 1 and c.inside]
    for name, cycle in cycles[:_SHOWN_CYCLES]:
        colour, symbol = _LOOKS[cycle.stability]
        closed = place(analysis.observe(cycle.states), True)
        closed = {axis: np.append(values, values[0]) for axis, values in closed.items()}
        look = {"mode": "lines+markers", "line": {"color": colour, "width": 2}, "marker": {"size": 4, "symbol": symbol}}
        figure.add_trace(draw(**closed, name=f"{name}, {cycle.stability}", **look))
    titles = [escape(name, quote=False) for name in names]
    figure.layout.template = TEMPLATE
    if len(names) == 2:
        figure.update_layout(height=460, hovermode="closest", margin=_PLACES)
        return figure.update_xaxes(title_text=titles[0]).update_yaxes(title_text=titles[1])
    axes = {f"{axis}axis": {"title": {"text": title}} for axis, title in zip("xyz", titles, strict=True)}
    return figure.update_layout(height=560, hovermode="closest", scene={**axes, "aspectmode": "cube"}, margin=_PLACES)


def plot_basins(analysis: Analysis) -> go.Figure:
    """Draw the grid of starts in the colours of what their runs end on."""
    basins, figure = analysis.basins, go.Figure()
    assert basins is not None
    x, y = np.meshgrid(basins.x, basins.y)
    # Squares that touch each other in a figure 700 pixels wide.
    size = max(min(620 / len(basins.x), 400 / len(basins.y)), 2.0)
    for i, name in enumerate(basins.names):
        own, colour = basins.labels == i, _ENDS.get(name, _CYCLE_COLOURS[i % len(_CYCLE_COLOURS)])
        marker = {"symbol": "square", "size": size, "color": colour, "opacity": 0.75}
        places = {"x": x[own].astype(np.float32), "y": y[own].astype(np.float32)}
        figure.add_trace(go.Scatter(**places, mode="markers", name=name, marker=marker))
    figure.layout.template = TEMPLATE
    figure.update_layout(height=480, hovermode="closest", margin=_PLACES)
    figure.update_xaxes(title_text=escape(basins.plane[0], quote=False), range=find_limits(basins.x, 0.02))
    return figure.update_yaxes(title_text=escape(basins.plane[1], quote=False), range=find_limits(basins.y, 0.02))


def build_portrait_page(analysis: Analysis, title: str, provenance: Mapping[str, Any]) -> Report:
    """Build the page of an analysis."""
    portrait = Picture(
        "Phase portrait",
        "The noise-free run of the core with its fixed points and cycles, in data units"
        + (", the first three coordinates." if len(analysis.columns) > 3 else "."),
        plot_portrait(analysis),
    )
    sections = [
        Section(
            "Fixed points and cycles", " ".join(describe_analysis(analysis)), [tabulate_cycles(analysis)], [portrait]
        )
    ]
    if analysis.spectrum is not None:
        values = analysis.spectrum.exponents[:10], analysis.spectrum.standard_errors[:10]
        picture = Picture("Spectrum", "Bars are two standard errors.", plot_exponents({"kaffee core": values}))
        sections.append(Section("Lyapunov exponents", "", [tabulate_exponents(analysis)], [picture]))
    pictures = []
    if analysis.basins is not None:
        where = f"Starts at {' and '.join(analysis.basins.plane)}, the other coordinates at the mean of the data."
        pictures.append(Picture("Basins on a slice", where, plot_basins(analysis)))
    sections.append(Section("Where runs end", "", [tabulate_ends(analysis)], pictures))
    if analysis.refits:
        spread = compare_analyses([analysis, *analysis.refits])
        text = "The same data fitted with other seeds: what these fits share is learned from the data."
        sections.append(Section("Refits", text, tabulate_spread(spread, analysis.columns)))
    return Report(title, sections, subtitle="What the model has learned.", provenance=provenance)
