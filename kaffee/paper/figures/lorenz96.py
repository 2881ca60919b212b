"""Draw the figures of Table 1: results (Fig. l96_results), forecast-skill spectrum (D.1) and taxonomy of failures."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from scipy.stats import bootstrap

from kaffee.errors import ConfigError, KaffeeError, unknown
from kaffee.paper.cells import ResultStore
from kaffee.paper.figures.assimilation import (
    LYAPUNOV_STEPS,
    AssimilationData,
    assimilate_test_data,
    assimilation_panels,
)
from kaffee.paper.figures.rows import LOOKS, DrawnRow, Spread
from kaffee.paper.recipe import CellSettings, Recipe, Row
from kaffee.paper.summary import LARGER_IS_BETTER, find_entry, judge
from kaffee.records import read_json, write_json
from kaffee.report.style import WIDTH, page_style

_SMALL = 6.2  # font size of annotations
_PAPER_COLOUR, _PAPER_OFFSET = "0.35", 0.28
_LOG_FROM = 30.0  # ratio of the largest to the smallest value from which an axis is logarithmic
_METRICS = {
    "nll": "a  NLL ↓",
    "d_stsp_core": r"b  $D_\mathrm{stsp}^\mathrm{core}$ ↓",
    "dh_core": r"c  $|\Delta h_\lambda^\mathrm{core}|$ ↓",
    "d_stsp_stoch": r"d  $D_\mathrm{stsp}^\mathrm{stoch}$ ↓",
}


# Rows whose name ends in _<arm> are another experiment, in figures of its own.
_ARMS = ("plus",)


def table1_drawings(store: ResultStore, arm: str | None, say: Callable[[str], None]) -> dict[str, Callable[[], Figure]]:
    """Return functions that draw the figures of the paper's rows, or of those of an arm, and the prior."""
    rows = _read_rows(store, arm)
    for row in _select_rows(store.recipe, arm):
        missing = store.recipe.num_seeds - len(store.read_finished(row.name))
        if missing:
            say(f"{row.name}: {missing} of {store.recipe.num_seeds} cells are not finished and not drawn.")
    return {
        "taxonomy": lambda: _draw_taxonomy(rows),
        "l96_forecast_skill_spectrum": lambda: _draw_spectrum(rows),
        "l96_forecast_skill_spectrum_filtered": lambda: _draw_spectrum(rows, "filtered"),
        "l96_results": lambda: _draw_results(
            rows,
            _read_true_exponents(rows[0].row.settings, store.folder / "reference.json"),
            assimilate_test_data(store, rows, say),
        ),
    }


def _select_rows(recipe: Recipe, arm: str | None = None) -> list[Row]:
    """Select the paper's rows, or those of an arm, in the order of the figures; the prior belongs to every arm."""
    if arm is not None and arm not in _ARMS:
        raise ConfigError(unknown("arm", arm, _ARMS))

    def belongs(row: Row) -> bool:
        wanted = row.reproduces if arm is None else row.name.endswith(f"_{arm}")
        return wanted or (row.reproduces and row.method == "prior")

    return sorted(filter(belongs, recipe.rows), key=lambda row: [*LOOKS, row.method].index(row.method))


def _read_rows(store: ResultStore, arm: str | None = None) -> list[DrawnRow]:
    """Read the rows of an arm that have finished cells; raise if there are none, or the prior's only for an arm."""
    rows = [row for row in (DrawnRow.read(store, row) for row in _select_rows(store.recipe, arm)) if row.records]
    if not rows or (arm is not None and all(row.method == "prior" for row in rows)):
        which = "" if arm is None else f" of the arm '{arm}'"
        remedy = "First: kaffee bench run; see also: kaffee bench status"
        none = f"{store.folder} holds no finished cells{which} made under the settings of this recipe."
        raise KaffeeError(f"{none} {remedy}")
    return rows


def _read_true_exponents(settings: CellSettings, path: Path) -> Float[np.ndarray, " N"]:
    """Read the spectrum of the noise-free flow, that of `Reference.lyapunov`, or compute it once and write it.

    The cells keep only the sum of the positive exponents.
    """
    wanted = {"system": settings.data.system, "num_steps": settings.protocol.rollout_steps}
    if path.exists():
        known = read_json(path, "reference spectrum")
        if {key: known.get(key) for key in wanted} == wanted:
            return np.array(known["exponents"], np.float64)
    from kaffee.metrics.lyapunov import lyapunov_spectrum
    from kaffee.systems.catalogue import get_system

    spectrum = lyapunov_spectrum(get_system(settings.data.system), num_steps=settings.protocol.rollout_steps)
    write_json(path, {**wanted, "exponents": spectrum.exponents.tolist()})
    return spectrum.exponents


@page_style()
def _draw_results(rows: list[DrawnRow], truth: Float[np.ndarray, " N"], data: AssimilationData | None) -> Figure:
    """Draw panels a to g: the gap, the invariants (`truth` are the true Lyapunov exponents), the local uncertainty."""
    heights = [0.55 + 0.33 * len(rows), 2.4, 0.5 + 1.0 * (1 if data is None else len(data[0]))]
    figure = Figure(figsize=(WIDTH, sum(heights)))
    parts: Any = figure.subfigures(3, 1, height_ratios=heights)
    top, middle, bottom = parts
    axes = top.subplots(1, len(_METRICS), sharey=True)
    for axis, (metric, title) in zip(axes, _METRICS.items(), strict=True):
        _metric_panel(axis, rows, metric, title)
    marks: dict[str, Any] = {
        "median ± SE over seeds": {"marker": "o", "color": "0.1", "markersize": 4},
        "single seed": {"marker": ".", "color": "0.1", "alpha": 0.45, "markersize": 2},
        "paper ± SE": {"marker": "o", "color": _PAPER_COLOUR, "markerfacecolor": "white", "markersize": 4},
    }
    handles = [Line2D([], [], linestyle="", label=label, **look) for label, look in marks.items()]
    top.legend(handles=handles, loc="outside upper right", ncols=3)
    left, right = middle.subplots(1, 2, width_ratios=[1.35, 1.0])
    _exponents_panel(left, rows, truth, r"e  Positive Lyapunov exponents $\lambda_i$ of the core")
    _entropy_panel(right, rows, truth, r"f  KS entropy $h_\lambda^\mathrm{core}$")
    legend = {"ncols": 7, "handlelength": 1.8, "columnspacing": 1.2}
    middle.legend(*left.get_legend_handles_labels(), loc="outside lower center", **legend)
    assimilation_panels(bottom, data)
    return figure


def _metric_panel(axis: Axes, rows: list[DrawnRow], metric: str, title: str, *, may_be_log: bool = True) -> None:
    """Draw medians with standard errors, seeds behind, the paper's value (hollow) below; count seeds without one."""
    shown: list[float] = []
    for y, row in enumerate(rows):
        spread = row.spread(metric)
        # A fixed zigzag, so that seeds with close values can be told apart.
        jitter = 0.11 * (np.arange(len(spread.values)) % 3 - 1)
        axis.plot(spread.values, y + jitter, ".", color=row.colour, alpha=0.45, markersize=2, zorder=1, gid="seeds")
        paper = row.row.paper.get(metric)
        look: Any = {"fmt": row.marker, "markersize": 4, "capsize": 1.8, "elinewidth": 1.0}
        if spread.values.size:
            axis.errorbar(spread.median, y, xerr=spread.se, color=row.colour, markerfacecolor=row.colour, **look)
        if paper is not None:
            look |= {"color": _PAPER_COLOUR, "markerfacecolor": "white"}
            axis.errorbar(paper[0], y + _PAPER_OFFSET, xerr=paper[1], **look)
        note = spread.note if row.defines(metric) else "no shell"
        if note:
            at = (0.99, y - 0.36 if row.defines(metric) else y)
            text = axis.annotate(note, at, xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=_SMALL)
            text.set(in_layout=False, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})
        shown += [*spread.values, *(paper[:1] if paper else ())]
    if may_be_log and shown and min(shown) > 0 and max(shown) / min(shown) > _LOG_FROM:
        axis.set_xscale("log")
    axis.set_yticks(range(len(rows)), [row.title for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    _add_grid(axis, "x")
    axis.set_title(title)


def _add_grid(axis: Axes, direction: Literal["x", "y"]) -> None:
    axis.grid(axis=direction, color="0.9", linewidth=0.5)
    axis.set_axisbelow(True)


def _exponents_panel(axis: Axes, rows: list[DrawnRow], truth: Float[np.ndarray, " N"], title: str) -> None:
    """Draw the true positive Lyapunov exponents lambda_i and those of the cores: medians, +-SE as bands.

    The axis ends at -lambda_1; rows that lie below as a whole are named with their leading exponent.
    """
    count = max(int((truth > 0).sum()), 1)
    axis.axhline(0.0, color="0.7", linewidth=0.6)
    index = np.arange(1, count + 1)
    axis.plot(index, truth[:count], "-", color="black", linewidth=1.6, marker="_", markersize=7, label="Truth")
    lowest, below = 0.0, []
    for row in rows:
        stored = [find_entry(record, "extra", "exponents_core") for record in row.records]
        leading = list(zip(*filter(None, stored), strict=False))[:count]  # empty where the core diverged
        if not leading:
            continue
        median, se = np.array([Spread.over(values)[1:3] for values in leading]).T
        shown = index[: len(leading)]
        axis.fill_between(shown, median - se, median + se, color=row.colour, alpha=0.25, linewidth=0)
        axis.plot(shown, median, marker=row.marker, color=row.colour, markersize=3.2, label=row.title, zorder=3)
        lowest = min(lowest, np.nanmin(median - se))
        if median[0] < -truth[0]:
            below.append(rf"{row.title} {median[0]:.1f}".replace("-", "−"))
    axis.set_ylim(bottom=max(lowest * 1.05 - 0.05 * truth[0], -truth[0]))
    if below:
        lines = [r"$\lambda_1$ below the axis:", *[", ".join(below[i : i + 3]) for i in range(0, len(below), 3)]]
        note = axis.annotate("\n".join(lines), (0.02, 0.03), xycoords="axes fraction", fontsize=_SMALL)
        note.set_in_layout(False)
    axis.set_xticks(index)
    axis.set(xlabel="index $i$", ylabel=r"$\lambda_i$ per unit of time", title=title)


def _entropy_panel(axis: Axes, rows: list[DrawnRow], truth: Float[np.ndarray, " N"], title: str) -> None:
    """Draw the KS entropy h, the sum of the positive exponents, beside the true one (the line)."""
    h = float(truth[truth > 0].sum())
    _metric_panel(axis, rows, "h_core", f"{title} (line: truth, {h:.2f})", may_be_log=False)
    axis.axvline(h, color="black", linewidth=1.2, zorder=0)
    axis.set_xlim(left=min(-0.04 * h, axis.get_xlim()[0]), right=max(1.08 * h, axis.get_xlim()[1]))


@page_style()
def _draw_spectrum(rows: list[DrawnRow], start: Literal["embedding", "filtered"] = "embedding") -> Figure:
    """Draw NLL, CRPS and G_tan^(H) of the probabilistic rows over the horizon H, in Lyapunov times.

    Lines are medians over seeds, bands the bootstrap 95 % intervals of these medians. Forecasts start at the embedded
    observation (the paper's) or at the filtered belief, G_tan^(H) always at the latter.
    """
    spectra: dict[str, list[int]] = {}
    for row in rows:
        stored = (find_entry(record, "extra", "spectrum") or {} for record in row.records)
        spectra[row.title] = sorted({int(h) for spectrum in stored for h in spectrum})
    drawn = [row for row in rows if spectra[row.title]]
    if not drawn:
        raise KaffeeError("No finished cell of a probabilistic row holds a forecast-skill spectrum.")
    panels = {
        "a  NLL ↓": (start, "nll"),
        "b  CRPS at the endpoint ↓": (start, "crps"),
        r"c  $G_\mathrm{tan}^{(H)}$ ↑": ("g_tan",),
    }
    all_times = [h / LYAPUNOV_STEPS for h in sorted({h for horizons in spectra.values() for h in horizons})]
    worst = {row.title: Spread.over([]) for row in drawn}
    figure = Figure(figsize=(WIDTH, 2.7))
    axes = figure.subplots(1, 3)
    for axis, (title, path) in zip(axes, panels.items(), strict=True):
        for row in drawn:
            spreads = [row.spread("extra", "spectrum", str(h), *path) for h in spectra[row.title]]
            times = [h / LYAPUNOV_STEPS for h in spectra[row.title]]
            band = np.transpose([_bootstrap_band(spread.values) for spread in spreads])
            axis.fill_between(times, *band, color=row.colour, alpha=0.22, linewidth=0)
            look: Any = {"marker": row.marker, "markersize": 3.5, "color": row.colour, "label": row.title}
            axis.plot(times, [spread.median for spread in spreads], **look)
            worst[row.title] = max(worst[row.title], *spreads, key=lambda spread: spread.diverged)
        axis.set_xticks(all_times, [f"{time:.2f}" for time in all_times])
        axis.tick_params(axis="x", labelsize=6.5)
        _add_grid(axis, "y")
        axis.set(xlabel=r"horizon $H$ in Lyapunov times", title=title)
    axes[2].axhline(0.0, color="0.7", linewidth=0.6, zorder=0)
    handles = axes[0].get_legend_handles_labels()[0]
    labels = [title + (f" ({spread.note})" if spread.note else "") for title, spread in worst.items()]
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def _bootstrap_band(values: Float[np.ndarray, " S"], *, level: float = 0.95) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of a median (bands of the forecast-skill spectrum, appendix D.1).

    >>> _bootstrap_band(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    (1.0, 5.0)
    """
    if len(values) < 2:
        return (float(values[0]),) * 2 if len(values) else (np.nan, np.nan)
    options: Any = {"n_resamples": 10_000, "method": "percentile", "rng": np.random.default_rng(0)}
    low, high = bootstrap((values,), np.median, confidence_level=level, **options).confidence_interval
    return float(low), float(high)


# Where a method stands in the taxonomy (column, line from the top), and the paper's word for what becomes of it.
_BOXES = {
    "prior": (0, 0, "no uncertainty"),
    "frozen_core": (0, 1, "inherits the prior's core"),
    "noise_masking": (1, 0, "noise masking"),
    "core_collapse": (1, 1, "core collapse"),
    "blind": (2, 0, "blind uncertainty"),
    "kaffee": (2, 1, "grounded, consistent"),
}
_COLUMNS = ("Core as pretrained", "Open-loop objective", "Filtered objective")
_LINES = ("No transport", "Tied transport")
_BOX_WIDTH = 0.94
# Left ends of the columns; the names of the lines stand before the second.
_LEFT = (0.02, 1.15, 2.15)
_SIGNATURE = {
    "g_tan": r"$G_\mathrm{tan}$",
    "d_stsp_core": r"$D_\mathrm{stsp}^\mathrm{core}$",
    "dh_core": r"$|\Delta h_\lambda^\mathrm{core}|$",
    "nll": "NLL",
}
_EXPLANATION = (
    "Median ± SE over seeds; × as a multiple of the prior's. ✓ better, ✗ worse than the prior by more than two "
    "standard\nerrors, ≈ neither; NLL and $G_\\mathrm{tan}$ against the frozen core, which is the prior with a shell. "
    "[Brackets]: what the paper reports."
)
_MARKS = {"better": ("✓", "#0072B2"), "worse": ("✗", "#D55E00"), "same": ("≈", "0.35"), "": ("", "0.1")}


@page_style()
def _draw_taxonomy(rows: list[DrawnRow]) -> Figure:
    """Set objective against transport, with the prior and the frozen core beside: signatures as medians ± SE."""
    by_method = {row.method: row for row in rows if row.method in _BOXES}
    figure = Figure(figsize=(WIDTH, 3.8))
    axis = figure.subplots()
    axis.set(xlim=(0.0, _LEFT[-1] + _BOX_WIDTH + 0.02), ylim=(2.0, -0.16))
    axis.set_axis_off()
    for left, title in zip(_LEFT, _COLUMNS, strict=True):
        axis.text(left + _BOX_WIDTH / 2, -0.04, title, ha="center", va="bottom", weight="bold", fontsize=8.5)
    for line, title in enumerate(_LINES):
        axis.text(_LEFT[1] - 0.06, line + 0.49, title, rotation=90, ha="center", va="center", weight="bold")
    for method in _BOXES:
        _draw_box(axis, method, by_method)
    figure.supxlabel(_EXPLANATION, fontsize=7)
    return figure


def _compare_spreads(value: Spread, baseline: Spread, *, larger_is_better: bool) -> str:
    """Judge a value: 'better', 'worse' (also if all seeds diverged) or 'same' as the baseline, '' without seeds."""
    if not baseline.values.size or not (value.values.size or value.diverged):
        return ""
    if not value.values.size:
        return "worse"
    return judge(value.median - baseline.median, (value.se, baseline.se), larger_is_better=larger_is_better)


def _read_signature(row: DrawnRow, by_method: dict[str, DrawnRow]) -> list[tuple[str, Spread, str, float]]:
    """List the metrics that show what became of a row: name, spread, verdict, and ratio to the prior or NaN."""
    lines = []
    for metric, name in _SIGNATURE.items():
        if not row.defines(metric):
            continue
        spread = row.spread(metric)
        baseline = by_method.get("prior" if metric.endswith("_core") else "frozen_core")
        against = Spread.over([]) if baseline is None or baseline is row else baseline.spread(metric)
        verdict = _compare_spreads(spread, against, larger_is_better=metric in LARGER_IS_BETTER)
        ratio = spread.median / against.median if metric == "d_stsp_core" else math.nan
        lines.append((name, spread, verdict, ratio))
    return lines


def _draw_box(axis: Axes, method: str, by_method: dict[str, DrawnRow]) -> None:
    column, line, mode = _BOXES[method]
    left, top, row = _LEFT[column], line + 0.04, by_method.get(method)

    def write(x: float, y: float, text: str, size: float, **look: Any) -> None:
        axis.text(left + x, top + y, text, fontsize=size, va="center", **look)

    frame = FancyBboxPatch((left, top), _BOX_WIDTH, 0.9, boxstyle="round,pad=0,rounding_size=0.04", linewidth=1.8)
    frame.set(facecolor="white", edgecolor="0.7" if row is None else row.colour)
    axis.add_patch(frame)
    write(0.05, 0.12, LOOKS[method][0], 9.5, weight="bold")
    write(0.05, 0.25, f"[{mode}]", 8, style="italic", color="0.3")
    if row is None:
        write(0.05, 0.45, "no finished cells", 8, color="0.4")
        return
    signature = _read_signature(row, by_method)
    worst = max((spread for _, spread, _, _ in signature), key=lambda spread: spread.diverged)
    write(_BOX_WIDTH - 0.03, 0.16, worst.note.replace(" diverged", "\ndiverged"), 6.5, ha="right", color="0.3")
    for k, (name, spread, verdict, ratio) in enumerate(signature):
        y, (mark, ink) = 0.42 + 0.13 * k, _MARKS[verdict]
        value = f"{spread.median:.3f}±{spread.se:.3f}".replace("-", "−") if spread.values.size else "–"
        write(0.05, y, name, 8)
        write(0.29, y, value, 8, color=ink)
        write(_BOX_WIDTH - 0.12, y, f"{ratio:.2f}×" if math.isfinite(ratio) else "", 7, ha="right", color=ink)
        write(_BOX_WIDTH - 0.03, y, mark, 10, ha="right", color=ink, weight="bold")
