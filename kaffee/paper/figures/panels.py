"""Panels a to f of the Lorenz-96 figure: metrics over seeds, Lyapunov exponents, KS entropy."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kaffee.paper.figures.cycle import CycleData, cycle_panel
from kaffee.paper.figures.rows import DrawnRow, estimate
from kaffee.report.style import WIDTH, page_style

SMALL = 6.2
"""Font size of annotations."""
PAPER_COLOUR = "0.35"
PAPER_OFFSET = 0.28
LOG_FROM = 30.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""


def metric_panel(axis: Axes, rows: list[DrawnRow], metric: str, title: str, *, may_be_log: bool = True) -> None:
    """One metric for all rows: medians with standard errors, single seeds behind, the paper's value (hollow) below.

    Seeds without a value are counted at their row.
    """
    shown: list[float] = []
    for y, row in enumerate(rows):
        found = row.estimate(metric)
        # A fixed zigzag, so that seeds with close values can be told apart.
        jitter = 0.11 * (np.arange(len(found.values)) % 3 - 1)
        axis.plot(found.values, y + jitter, ".", color=row.colour, alpha=0.45, markersize=2, zorder=1, gid="seeds")
        if found.values.size:
            _point(axis, found.median, found.se, y, row.marker, row.colour, face=row.colour)
        paper = row.row.paper.get(metric)
        if paper is not None:
            _point(axis, *paper, y + PAPER_OFFSET, row.marker, PAPER_COLOUR, face="white")
        note = diverged_note(found.diverged, found.num_seeds) if row.defines(metric) else "no shell"
        if note:
            at = (0.99, y - 0.36 if row.defines(metric) else y)
            text = axis.annotate(note, at, xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=SMALL)
            text.set(in_layout=False, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})
        shown += [*found.values, *(paper[:1] if paper else ())]
    if may_be_log and shown and min(shown) > 0 and max(shown) / min(shown) > LOG_FROM:
        axis.set_xscale("log")
    row_axis(axis, rows)
    axis.set_title(title)


def diverged_note(diverged: int, num_seeds: int) -> str:
    """How many seeds have no value, in words; empty if all have one.

    >>> diverged_note(2, 20)
    '2 of 20 diverged'
    """
    return f"{diverged} of {num_seeds} diverged" if diverged else ""


def row_axis(axis: Axes, rows: list[DrawnRow]) -> None:
    """One line for each row, the first at the top."""
    axis.set_yticks(range(len(rows)), [row.title for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="0.9", linewidth=0.5)
    axis.set_axisbelow(True)


def _point(axis: Axes, median: float, se: float, y: float, marker: str, colour: str, face: str) -> None:
    axis.errorbar(
        median, y, xerr=se, fmt=marker, color=colour, markerfacecolor=face, markersize=4, capsize=1.8, elinewidth=1.0
    )


def legend_handles() -> list[Line2D]:
    """What the marks of the metric panels mean."""

    def mark(label: str, **look: Any) -> Line2D:
        return Line2D([], [], linestyle="", label=label, **look)

    return [
        mark("median ± SE over seeds", marker="o", color="0.1", markersize=4),
        mark("single seed", marker=".", color="0.1", alpha=0.45, markersize=2),
        mark("paper ± SE", marker="o", color=PAPER_COLOUR, markerfacecolor="white", markersize=4),
    ]


def exponents_of(row: DrawnRow, count: int) -> list[tuple[float, float]]:
    """Median and standard error over seeds of the leading exponents, as many as were computed up to `count`."""
    stored = [(record.get("extra") or {}).get("exponents_core") for record in row.records]
    spectra = [spectrum for spectrum in stored if spectrum]  # empty where the core diverged
    available = min((len(spectrum) for spectrum in spectra), default=0)
    found = [estimate([spectrum[i] for spectrum in spectra]) for i in range(min(count, available))]
    return [(one.median, one.se) for one in found]


def exponents_panel(axis: Axes, rows: list[DrawnRow], truth: Float[np.ndarray, " N"], title: str) -> None:
    """The reconstruction of the true positive Lyapunov exponents lambda_i, in order: medians, +-SE as bands.

    The axis ends at -lambda_1; rows that lie below as a whole are named with their leading exponent.
    """
    count = max(int((truth > 0).sum()), 1)
    axis.axhline(0.0, color="0.7", linewidth=0.6)
    index = np.arange(1, count + 1)
    axis.plot(index, truth[:count], "-", color="black", linewidth=1.6, marker="_", markersize=7, label="Truth")
    lowest, below = 0.0, []
    for row in rows:
        found = np.array(exponents_of(row, count))
        if not found.size:
            continue
        median, se = found.T
        shown = index[: len(found)]
        axis.fill_between(shown, median - se, median + se, color=row.colour, alpha=0.25, linewidth=0)
        axis.plot(shown, median, marker=row.marker, color=row.colour, markersize=3.2, label=row.title, zorder=3)
        lowest = min(lowest, np.nanmin(median - se))
        if median[0] < -truth[0]:
            below.append(rf"{row.title} {median[0]:.1f}".replace("-", "−"))
    axis.set_ylim(bottom=max(lowest * 1.05 - 0.05 * truth[0], -truth[0]))
    if below:
        lines = [", ".join(below[i : i + 3]) for i in range(0, len(below), 3)]
        note = axis.annotate(
            "\n".join([r"$\lambda_1$ below the axis:", *lines]), (0.02, 0.03), xycoords="axes fraction", fontsize=SMALL
        )
        note.set_in_layout(False)
    axis.set_xticks(index)
    axis.set_xlabel("index $i$")
    axis.set_ylabel(r"$\lambda_i$ per unit of time")
    axis.set_title(title)


def entropy_panel(axis: Axes, rows: list[DrawnRow], truth: Float[np.ndarray, " N"], title: str) -> None:
    """The KS entropy h, the sum of the positive exponents, beside the true one (the line)."""
    h = float(truth[truth > 0].sum())
    metric_panel(axis, rows, "h_core", f"{title} (line: truth, {h:.2f})", may_be_log=False)
    axis.axvline(h, color="black", linewidth=1.2, zorder=0)
    axis.set_xlim(left=min(-0.04 * h, axis.get_xlim()[0]), right=max(1.08 * h, axis.get_xlim()[1]))


# The Lorenz-96 figure of the paper (Fig. l96_results): the gap, the invariants, the local uncertainty.


METRICS = {
    "nll": "a  NLL ↓",
    "d_stsp_core": r"b  $D_\mathrm{stsp}^\mathrm{core}$ ↓",
    "dh_core": r"c  $|\Delta h_\lambda^\mathrm{core}|$ ↓",
    "d_stsp_stoch": r"d  $D_\mathrm{stsp}^\mathrm{stoch}$ ↓",
}


def results_figure(rows: list[DrawnRow], truth: Float[np.ndarray, " N"], cycle: CycleData | None) -> Figure:
    """Panels a to g.

    Args:
        truth: The true Lyapunov exponents, largest first.
        cycle: What panel g shows; None leaves a note in its place.
    """
    with page_style():
        num_cycles = 1 if cycle is None else len(cycle.bands)
        heights = [0.55 + 0.33 * len(rows), 2.4, 0.5 + 1.0 * num_cycles]
        figure = Figure(figsize=(WIDTH, sum(heights)))
        parts: Any = figure.subfigures(3, 1, height_ratios=heights)
        top, middle, bottom = parts
        axes = top.subplots(1, len(METRICS), sharey=True)
        for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
            metric_panel(axis, rows, metric, title)
        top.legend(handles=legend_handles(), loc="outside upper right", ncols=3)
        left, right = middle.subplots(1, 2, width_ratios=[1.35, 1.0])
        exponents_panel(left, rows, truth, r"e  Positive Lyapunov exponents $\lambda_i$ of the core")
        entropy_panel(right, rows, truth, r"f  KS entropy $h_\lambda^\mathrm{core}$")
        handles, labels = left.get_legend_handles_labels()
        middle.legend(handles, labels, loc="outside lower center", ncols=7, handlelength=1.8, columnspacing=1.2)
        _cycles(bottom, cycle, num_cycles)
        return figure


def _cycles(part: Any, cycle: CycleData | None, num_cycles: int) -> None:
    axes = part.subplots(num_cycles, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    axes[0].set_title("g  One coordinate: two Lyapunov times without observations (grey), then assimilation again")
    if cycle is None:
        axes[0].set_axis_off()
        axes[0].annotate("no trained model at hand", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    for axis, (row, band) in zip(axes, cycle.bands, strict=True):
        cycle_panel(axis, row, cycle.cycle, band, label="$x_1$")
    axes[-1].set_xlabel(f"time in Lyapunov times (seed {cycle.seed})")
    handles, labels = axes[-1].get_legend_handles_labels()
    part.legend(handles, labels, loc="outside lower center", ncols=4)
