"""Draw beliefs while observations come and go: panel g of the Lorenz-96 figure, and the figure of Table 2.

Fig. dynamix_context_adaptation has panels for trade-off, calibration and the online filter.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kaffee.errors import CheckpointError, KaffeeError
from kaffee.filtering.likelihood import get_method
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.context_card import LEVELS, AssimilationRun, assimilate_sparsely, filter_held_out
from kaffee.paper.figures.rows import DrawnRow
from kaffee.paper.measurements import train_in_context
from kaffee.paper.models import reference_for, stored_model, trained_model
from kaffee.report.style import WIDTH, page_style

LYAPUNOV_STEPS = 15
"""Steps of a Lyapunov time: the paper's horizons 0.13, 0.27, 0.60 and 1.00 are 2, 4, 9 and 15 steps."""


def _assimilated_steps(available: int | None = None) -> Bool[np.ndarray, " T"]:
    """Alternate one Lyapunov time with observations and two without; end with observations if there are enough."""
    return np.repeat([True, False, False, True, False, False, True], LYAPUNOV_STEPS)[:available]


AssimilationData = tuple[list[tuple[DrawnRow, AssimilationRun]], int]
"""The data of panel g: predictions of the next observation by the models of one seed, and that seed."""


def assimilate_test_data(
    store: ResultStore, rows: list[DrawnRow], say: Callable[[str], None]
) -> AssimilationData | None:
    """Filter the first test data by the models of the first seed that all shown rows have; None without a model.

    All coordinates are assimilated or none. A model that is not on disk is trained again from its prior, which is
    part of the results.
    """
    shown = [row for row in rows if row.method in ("kaffee", "blind")]
    seeds = [{record["seed"] for record in row.records} for row in shown]
    common = set.intersection(*seeds) if seeds else set()
    if not common:
        return None
    seed, settings = min(common), shown[0].row.settings
    reference, warm_up = reference_for(settings.data, settings.protocol), settings.protocol.warm_up
    data = reference.test_observations
    seen = np.append(np.ones(warm_up + 1, bool), _assimilated_steps(len(data) - warm_up - 1))
    mask = np.repeat(seen[:, None], data.shape[1], axis=1)
    runs = []
    for row in shown:
        cell = Cell(row.row.name, seed)
        if stored_model(store, cell) is None:
            say(f"The model of {cell.name} is not on disk: training it again from its prior (about half a minute).")
        try:
            model = trained_model(store, cell, reference).model
        except CheckpointError as error:
            say(f"Panel g is drawn without {cell.name}. {error}")
            continue
        recursion = get_method(row.method).filter
        runs.append((row, filter_held_out(model, reference, recursion, mask, warm_up=warm_up, belief="predicted")))
    return (runs, seed) if runs else None


def assimilation_panels(part: Any, data: AssimilationData | None) -> None:
    """Draw panel g: for each row the first coordinate with its +-2 sigma band, stretches without data in grey."""
    runs, seed = data or ([], 0)
    axes = part.subplots(max(len(runs), 1), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    axes[0].set_title("g  One coordinate: two Lyapunov times without observations (grey), then assimilation again")
    if not runs:
        axes[0].set_axis_off()
        axes[0].annotate("no trained model at hand", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    for axis, (row, run) in zip(axes, runs, strict=True):
        _prediction_panel(axis, row, run)
    axes[-1].set_xlabel(f"time in Lyapunov times (seed {seed})")
    part.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4)


def _prediction_panel(axis: Axes, row: DrawnRow, run: AssimilationRun) -> None:
    """Draw truth, assimilated observations, and a row's predictive mean with its +-2 sigma band."""
    times, truth = np.arange(len(run.truth)) / LYAPUNOV_STEPS, run.truth[:, 0]
    change = np.diff(np.concatenate([[True], run.seen[:, 0], [True]]).astype(int))
    for first, after in zip(np.flatnonzero(change == -1), np.flatnonzero(change == 1), strict=True):
        axis.axvspan((first - 0.5) / LYAPUNOV_STEPS, (after - 0.5) / LYAPUNOV_STEPS, color="0.93", linewidth=0)
    _draw_belief(axis, times, run, row.colour, 2.0, r"prediction $\pm2\sigma$", "predictive mean")
    # A band without bounds would hide everything else.
    span = np.ptp(truth) or 1.0
    axis.set(ylim=(truth.min() - 0.5 * span, truth.max() + 0.5 * span), ylabel="$x_1$")
    axis.annotate(row.title, (0.005, 0.97), xycoords="axes fraction", va="top", weight="bold")


def _draw_belief(
    axis: Axes, times: Float[np.ndarray, " T"], run: AssimilationRun, colour: str, width: float, *labels: str
) -> None:
    """Draw the first coordinate: truth, what the filter saw of it, mean and band of `width` standard deviations."""
    mean, half, seen = run.mean[:, 0], width * run.std[:, 0], run.seen[:, 0]
    axis.fill_between(times, mean - half, mean + half, color=colour, alpha=0.35, linewidth=0, label=labels[0])
    axis.plot(times, mean, color=colour, label=labels[1])
    axis.plot(times, run.truth[:, 0], "--", color="black", linewidth=0.9, label="truth")
    observed, label = run.observations[seen, 0], "assimilated observation"
    axis.plot(times[seen], observed, ".", color="0.35", markersize=3, label=label)
    axis.set_xlim(times[0], times[-1])


# The online filter of the paper: its system, and which steps it sees.
_FILTERED, _SHOWN_STEPS, _EVERY, _HIDDEN = "lorenz63", 400, 10, (2,)
# Rows beyond the paper that share a method with one of its rows.
_OWN_LOOKS: dict[str, Any] = {
    "kaffee_full": {"title": "KAFFEE, full J", "marker": "*", "colour": "#332288"},
    "kaffee_calibrated": {"title": "KAFFEE, calibrated", "marker": "X", "colour": "#882255"},
}


def context_drawings(store: ResultStore, say: Callable[[str], None]) -> dict[str, Callable[[], Figure]]:
    """Return a function that draws all rows with finished cells; those beyond the paper have looks of their own."""
    rows = [replace(DrawnRow.read(store, row), **_OWN_LOOKS.get(row.name, {})) for row in store.recipe.rows]
    finished = [row for row in rows if row.records]
    if not finished:
        raise KaffeeError(f"{store.folder} holds no finished cells. First: kaffee bench run {store.recipe.name}")
    return {"dynamix_context_adaptation": lambda: _draw_context(finished, _filter_online(store, finished, say))}


def _filter_online(
    store: ResultStore, rows: list[DrawnRow], say: Callable[[str], None]
) -> tuple[DrawnRow, AssimilationRun, float] | None:
    """Adapt KAFFEE's model of the first seed again, and filter two coordinates of Lorenz-63, sparsely observed.

    Return the row, the run and the time step; None if there is no such row or system.
    """
    by_name = {row.row.name: row for row in rows}
    row = by_name.get("kaffee_calibrated") or by_name.get("kaffee")
    if row is None or _FILTERED not in store.recipe.systems:
        say("Panel c is empty: it needs a row of KAFFEE on Lorenz-63.")
        return None
    say("Adapting DynaMix on Lorenz-63 for panel c ...")
    settings = store.settings(Cell(row.row.name, 0, _FILTERED))
    reference, model, _ = train_in_context(settings, row.method, seed=0)
    warm_up = settings.protocol.warm_up
    steps = min(_SHOWN_STEPS, len(reference.test_observations) - warm_up - 1)
    sparse: Any = {"num_steps": steps, "warm_up": warm_up, "every": _EVERY, "hidden": _HIDDEN}
    run = assimilate_sparsely(model, reference, get_method(row.method).filter, **sparse)
    return row, run, reference.system.dt


@page_style()
def _draw_context(rows: list[DrawnRow], online: tuple[DrawnRow, AssimilationRun, float] | None) -> Figure:
    """Draw panels a (NLL against core drift), b (coverage over all systems), c (one coordinate filtered online)."""
    figure = Figure(figsize=(WIDTH, 5.0))
    layout = figure.add_gridspec(2, 2, height_ratios=(1.0, 0.9))
    _tradeoff_panel(figure.add_subplot(layout[0, 0]), rows)
    _coverage_panel(figure.add_subplot(layout[0, 1]), rows)
    axis = figure.add_subplot(layout[1, :])
    if online is None:
        axis.set_axis_off()
    else:
        _filter_panel(axis, *online)
    return figure


def _tradeoff_panel(axis: Axes, rows: list[DrawnRow]) -> None:
    """Draw the median one-step NLL against the drift of the core, with standard errors over systems and seeds."""
    for row in rows:
        nll, drift = row.spread("nll_standard"), row.spread("d_stsp_ratio")
        if np.isfinite(nll.median):
            look: Any = {"fmt": row.marker, "color": row.colour, "markersize": 5, "elinewidth": 0.8, "label": row.title}
            axis.errorbar(nll.median, drift.median, xerr=nll.se, yerr=drift.se, **look)
    axis.axhline(1.0, color="0.6", linewidth=0.7, linestyle=":", zorder=0)
    axis.set(xlabel="one-step NLL (units of the context, median)", title="a  Probabilistic gain against core drift")
    axis.set_ylabel(r"$D_\mathrm{stsp}$ of the core / that of the base")
    axis.legend(loc="best")


def _coverage_panel(axis: Axes, rows: list[DrawnRow]) -> None:
    """Draw the coverage of one-step bands: the medians over all cells, at every level."""
    for row in rows:
        shares = [row.spread(f"coverage_{round(100 * level)}").median for level in LEVELS]
        if np.isfinite(shares[0]):
            axis.plot(LEVELS, shares, marker=row.marker, color=row.colour, label=row.title)
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=0.7, linestyle=":")
    axis.set(xlim=(0.4, 1.0), ylim=(0.2, 1.0), xlabel="nominal coverage", ylabel="measured coverage (median)")
    axis.set_title("b  One-step bands on held-out data")


def _filter_panel(axis: Axes, row: DrawnRow, run: AssimilationRun, dt: float) -> None:
    """Draw the first coordinate with its 95 % band."""
    _draw_belief(axis, dt * np.arange(len(run.truth)), run, row.colour, 1.96, "95 % band", "filtered mean")
    share = f"{100 * run.coverage(0.95):.0f} % of true states in the band"
    axis.set(xlabel="time", ylabel="x of Lorenz-63")
    axis.set_title(f"c  Online filter ({row.title}): x and y every {_EVERY} steps, z never; {share}")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.2 * (high - low), high)  # room for the legend
    axis.legend(loc="lower right", ncols=4)
