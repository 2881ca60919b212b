"""The Lorenz-96 figure of the paper (Fig. l96_results): the gap, the invariants, the local uncertainty."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from kaffee.bench.figures.cycle import cycle_panel
from kaffee.bench.figures.models import CycleData
from kaffee.bench.figures.panels import entropy_panel, exponents_panel, legend_handles, metric_panel
from kaffee.bench.figures.rows import DrawnRow
from kaffee.report.style import WIDTH, page_style

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
