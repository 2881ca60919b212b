"""The taxonomy of failure modes (Fig. taxonomy, right), filled with what was measured."""

import math
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from kaffee.paper.figures.panels import diverged_note
from kaffee.paper.figures.rows import DrawnRow, Estimate, estimate, short_title
from kaffee.paper.summary import LARGER_IS_BETTER
from kaffee.report.style import WIDTH, page_style


class Box(NamedTuple):
    """Where a method stands (column, line from the top), and the paper's word for what becomes of it."""

    column: int
    line: int
    mode: str


BOXES = {
    "prior": Box(0, 0, "no uncertainty"),
    "frozen_core": Box(0, 1, "inherits the prior's core"),
    "noise_masking": Box(1, 0, "noise masking"),
    "core_collapse": Box(1, 1, "core collapse"),
    "blind": Box(2, 0, "blind uncertainty"),
    "kaffee": Box(2, 1, "grounded, consistent"),
}
COLUMNS = ("Core as pretrained", "Open-loop objective", "Filtered objective")
LINES = ("No transport", "Tied transport")
BOX_WIDTH = 0.94
LEFT = (0.02, 1.15, 2.15)
"""Left ends of the columns; the names of the lines stand before the second."""
SIGNATURE = {
    "g_tan": r"$G_\mathrm{tan}$",
    "d_stsp_core": r"$D_\mathrm{stsp}^\mathrm{core}$",
    "dh_core": r"$|\Delta h_\lambda^\mathrm{core}|$",
    "nll": "NLL",
}
EXPLANATION = (
    "Median ± SE over seeds; × as a multiple of the prior's. ✓ better, ✗ worse than the prior by more than two "
    "standard\nerrors, ≈ neither; NLL and $G_\\mathrm{tan}$ against the frozen core, which is the prior with a shell. "
    "[Brackets]: what the paper reports."
)
MARKS = {"better": ("✓", "#0072B2"), "worse": ("✗", "#D55E00"), "same": ("≈", "0.35"), "": ("", "0.1")}


def judgement(value: Estimate, baseline: Estimate, *, larger_is_better: bool) -> str:
    """'better' or 'worse' than the baseline by more than two combined standard errors, else 'same'.

    Empty if there is nothing to compare; seeds that all diverged are worse than any that did not.
    """
    if not baseline.values.size or not value.num_seeds:
        return ""
    if not value.values.size:
        return "worse"
    difference = value.median - baseline.median
    if abs(difference) <= 2.0 * math.hypot(value.se, baseline.se):
        return "same"
    return "better" if (difference > 0) == larger_is_better else "worse"


def taxonomy_figure(rows: list[DrawnRow]) -> Figure:
    """Objective against transport, with the prior and the frozen core beside: signatures as medians ± SE.

    Values of the core are judged against the prior; it has no shell, so NLL and G_tan are judged against the frozen
    core, which is the prior with a calibrated shell.
    """
    by_method = {row.method: row for row in rows if row.method in BOXES}
    with page_style():
        figure = Figure(figsize=(WIDTH, 3.8))
        axis = figure.subplots()
        axis.set(xlim=(0.0, LEFT[-1] + BOX_WIDTH + 0.02), ylim=(2.0, -0.16))
        axis.set_axis_off()
        for left, title in zip(LEFT, COLUMNS, strict=True):
            axis.text(left + BOX_WIDTH / 2, -0.04, title, ha="center", va="bottom", weight="bold", fontsize=8.5)
        for line, title in enumerate(LINES):
            axis.text(LEFT[1] - 0.06, line + 0.49, title, rotation=90, ha="center", va="center", weight="bold")
        for method, box in BOXES.items():
            _draw_box(axis, method, box, by_method)
        figure.supxlabel(EXPLANATION, fontsize=7)
        return figure


class Line(NamedTuple):
    """One metric in a box; `ratio` to the prior is NaN where it is not shown."""

    name: str
    found: Estimate
    verdict: str
    ratio: float


def signature_lines(row: DrawnRow, by_method: dict[str, DrawnRow]) -> list[Line]:
    """The metrics that show what became of a row, each with its judgement."""
    lines = []
    for metric, name in SIGNATURE.items():
        if not row.defines(metric):
            continue
        found = row.estimate(metric)
        baseline = by_method.get("prior" if metric.endswith("_core") else "frozen_core")
        against = estimate([]) if baseline is None or baseline is row else baseline.estimate(metric)
        verdict = judgement(found, against, larger_is_better=metric in LARGER_IS_BETTER)
        ratio = found.median / against.median if metric == "d_stsp_core" else math.nan
        lines.append(Line(name, found, verdict, ratio))
    return lines


def _draw_box(axis: Axes, method: str, box: Box, by_method: dict[str, DrawnRow]) -> None:
    left, top, row = LEFT[box.column], box.line + 0.04, by_method.get(method)
    frame = FancyBboxPatch((left, top), BOX_WIDTH, 0.9, boxstyle="round,pad=0,rounding_size=0.04", linewidth=1.8)
    frame.set(facecolor="white", edgecolor="0.7" if row is None else row.colour)
    axis.add_patch(frame)
    axis.text(left + 0.05, top + 0.12, short_title(method), weight="bold", fontsize=9.5, va="center")
    axis.text(left + 0.05, top + 0.25, f"[{box.mode}]", style="italic", fontsize=8, va="center", color="0.3")
    if row is None:
        axis.text(left + 0.05, top + 0.45, "no finished cells", fontsize=8, va="center", color="0.4")
        return
    lines = signature_lines(row, by_method)
    worst = max((line.found for line in lines), key=lambda found: found.diverged)
    note = diverged_note(worst.diverged, worst.num_seeds).replace(" diverged", "\ndiverged")
    axis.text(left + BOX_WIDTH - 0.03, top + 0.16, note, fontsize=6.5, va="center", ha="right", color="0.3")
    for k, line in enumerate(lines):
        y, (mark, ink) = top + 0.42 + 0.13 * k, MARKS[line.verdict]
        value = f"{line.found.median:.3f}±{line.found.se:.3f}".replace("-", "−") if line.found.values.size else "–"
        ratio = f"{line.ratio:.2f}×" if math.isfinite(line.ratio) else ""
        axis.text(left + 0.05, y, line.name, fontsize=8, va="center")
        axis.text(left + 0.29, y, value, fontsize=8, va="center", color=ink)
        axis.text(left + BOX_WIDTH - 0.12, y, ratio, fontsize=7, va="center", ha="right", color=ink)
        axis.text(left + BOX_WIDTH - 0.03, y, mark, fontsize=10, va="center", ha="right", color=ink, weight="bold")
