"""The figure of the in-context table (Fig. dynamix_context_adaptation): trade-off, online filter, calibration."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kaffee.errors import KaffeeError
from kaffee.filtering.likelihood import get_method
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.context_card import LEVELS, SparseRun, assimilate_sparsely
from kaffee.paper.figures.rows import DrawnRow, drawn_row
from kaffee.paper.measurements import adapted, conditioned, context_reference
from kaffee.paper.recipe import Row
from kaffee.report.style import WIDTH, page_style

FILTERED = "lorenz63"
"""The system of panel b, as in the paper."""
SHOWN_STEPS = 400
EVERY, HIDDEN = 10, (2,)


# Rows beyond the paper that share a method with one of its rows: title, marker, colour.
_OWN_LOOKS = {
    "kaffee_full": ("KAFFEE, full J", "*", "#332288"),
    "kaffee_calibrated": ("KAFFEE, calibrated", "X", "#882255"),
}


def context_rows(store: ResultStore) -> list[DrawnRow]:
    """All rows with finished cells; those beyond the paper have looks of their own."""
    rows = [_distinct(drawn_row(store, row)) for row in store.recipe.rows]
    found = [row for row in rows if row.records]
    if not found:
        raise KaffeeError(f"{store.folder} holds no finished cells. First: kaffee bench run {store.recipe.name}")
    return found


def _distinct(row: DrawnRow) -> DrawnRow:
    if row.row.name not in _OWN_LOOKS:
        return row
    title, marker, colour = _OWN_LOOKS[row.row.name]
    return replace(row, title=title, marker=marker, colour=colour)


def online_filter(store: ResultStore, row: Row, seed: int = 0) -> SparseRun:
    """Adapt the model of a row on its context again, and let it filter sparse observations of two coordinates."""
    cell = Cell(row.name, seed, FILTERED)
    settings = store.settings(cell)
    reference = context_reference(settings, seed)
    zero_shot, context = conditioned(settings, reference)
    model = adapted(settings, reference, zero_shot, context, row.method, seed).model
    steps = min(SHOWN_STEPS, len(reference.test_observations) - settings.protocol.warm_up - 1)
    return assimilate_sparsely(
        model,
        reference,
        get_method(row.method).filter,
        num_steps=steps,
        warm_up=settings.protocol.warm_up,
        every=EVERY,
        hidden=HIDDEN,
    )


def context_figure(store: ResultStore, say: Callable[[str], None] = lambda text: None) -> Figure:
    """Panels a (NLL against core drift), b (coverage over all systems), c (one coordinate filtered online)."""
    rows = context_rows(store)
    with page_style():
        figure = Figure(figsize=(WIDTH, 5.0))
        layout = figure.add_gridspec(2, 2, height_ratios=(1.0, 0.9))
        tradeoff_panel(figure.add_subplot(layout[0, 0]), rows)
        coverage_panel(figure.add_subplot(layout[0, 1]), rows)
        axis = figure.add_subplot(layout[1, :])
        by_name = {row.row.name: row for row in rows}
        kaffee = by_name.get("kaffee_calibrated") or by_name.get("kaffee")
        if kaffee is None or FILTERED not in store.recipe.systems:
            say("Panel c is empty: it needs a row of KAFFEE on Lorenz-63.")
            axis.set_axis_off()
        else:
            say("Adapting DynaMix on Lorenz-63 for panel c ...")
            filter_panel(axis, kaffee, online_filter(store, kaffee.row), _dt(store, kaffee.row))
        return figure


def _dt(store: ResultStore, row: Row) -> float:
    return context_reference(store.settings(Cell(row.name, 0, FILTERED)), 0).system.dt


def tradeoff_panel(axis: Axes, rows: list[DrawnRow]) -> None:
    """Median one-step NLL against the drift of the core, with standard errors over systems and seeds."""
    for row in rows:
        nll, drift = row.estimate("nll_standard"), row.estimate("d_stsp_ratio")
        if np.isfinite(nll.median):
            axis.errorbar(
                nll.median,
                drift.median,
                xerr=nll.se,
                yerr=drift.se,
                fmt=row.marker,
                color=row.colour,
                markersize=5,
                elinewidth=0.8,
                label=row.title,
            )
    axis.axhline(1.0, color="0.6", linewidth=0.7, linestyle=":", zorder=0)
    axis.set_xlabel("one-step NLL (units of the context, median)")
    axis.set_ylabel(r"$D_\mathrm{stsp}$ of the core / that of the base")
    axis.set_title("a  Probabilistic gain against core drift")
    axis.legend(loc="best")


def coverage_panel(axis: Axes, rows: list[DrawnRow]) -> None:
    """Coverage of one-step bands: the medians over all cells, at every level."""
    nominal = np.array(LEVELS)
    for row in rows:
        found = [row.estimate(f"coverage_{round(100 * level)}") for level in LEVELS]
        if np.isfinite(found[0].median):
            axis.plot(nominal, [f.median for f in found], marker=row.marker, color=row.colour, label=row.title)
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.7, linestyle=":")
    axis.set_xlim(0.4, 1.0)
    axis.set_ylim(0.2, 1.0)
    axis.set_xlabel("nominal coverage")
    axis.set_ylabel("measured coverage (median)")
    axis.set_title("b  One-step bands on held-out data")


def filter_panel(axis: Axes, row: DrawnRow, run: SparseRun, dt: float) -> None:
    """The first coordinate: truth, what the filter saw of it, and its 95 % band."""
    time = dt * np.arange(len(run.truth))
    mean, std = run.mean[:, 0], run.std[:, 0]
    axis.fill_between(
        time, mean - 1.96 * std, mean + 1.96 * std, color=row.colour, alpha=0.3, linewidth=0, label="95 % band"
    )
    axis.plot(time, mean, color=row.colour, label="filtered mean")
    axis.plot(time, run.truth[:, 0], "--", color="black", linewidth=0.9, label="truth")
    seen = run.seen[:, 0]
    axis.plot(time[seen], run.observations[seen, 0], ".", color="0.3", markersize=4, label="assimilated observation")
    axis.set_xlabel("time")
    axis.set_ylabel("x of Lorenz-63")
    axis.set_xlim(time[0], time[-1])
    share = f"{100 * run.coverage(0.95):.0f} % of true states in the band"
    axis.set_title(f"c  Online filter ({row.title}): x and y every {EVERY} steps, z never; {share}")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.2 * (high - low), high)  # room for the legend
    axis.legend(loc="lower right", ncols=4)
