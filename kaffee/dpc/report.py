"""What a gap log says: a table and a picture of the trade-off."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kaffee.dpc.gaps import Entry, Gap, find_gaps, overall_gaps
from kaffee.report.style import COLOURS, figure_style
from kaffee.tables import Table

SCORE, GAP = COLOURS["kaffee"], COLOURS["core_collapse"]


def log_table(entries: Sequence[Entry], *, title: str = "Score and certification losses") -> Table:
    """One row per entry."""
    names = list(entries[0].losses)
    rows = [[str(e.update), e.score, *[m.value for m in e.losses.values()]] for e in entries]
    note = "S_H: the run's own objective on fixed windows. D: certification losses. Lower is better in every column."
    return Table(title, ("update", "S_H", *names), rows, note=note)


def describe(entries: Sequence[Entry], *, significance: float = 2.0) -> list[str]:
    """Sentences: what happened over the whole run, and in which steps a DPC gap opened."""
    if len(entries) < 2:
        return ["Two entries are needed to speak of a step; log more often."]
    first, last = entries[0], entries[-1]
    moved = "improved" if last.score < first.score else "did not improve"
    lines = [f"S_H {moved}: {first.score:.4f} -> {last.score:.4f} over {last.update - first.update} updates."]
    whole = overall_gaps(entries, significance=significance)
    if whole:
        losses = ", ".join(f"{g.loss} by {g.loss_change:.3f}" for g in whole)
        lines.append(f"DPC gap over the whole run: S_H fell while these rose: {losses}.")
    elif last.score < first.score:
        lines.append(
            f"No DPC gap over the whole run: no certification loss rose by more than {significance:g} standard errors."
        )
    else:
        worse = [n for n, m in last.losses.items() if m.value > first.losses[n].value]
        tail = f" although {', '.join(worse)} rose" if worse else ""
        lines.append(f"No DPC gap by definition 1: the score itself did not improve{tail}.")
    for gap in find_gaps(entries, significance=significance):
        lines.append(
            f"updates {gap.before}-{gap.after}: S_H {gap.score_change:+.4f}, {gap.loss} {gap.loss_change:+.3f} "
            f"(± {gap.loss_change_se:.3f})"
        )
    return lines


def tradeoff_figure(entries: Sequence[Entry], *, significance: float = 2.0) -> Figure:
    """Above: S_H and each D along the run, gaps shaded. Below: each D against S_H, gap steps as red arrows."""
    names = list(entries[0].losses)
    gaps = find_gaps(entries, significance=significance)
    updates = [e.update for e in entries]
    scores = [e.score for e in entries]
    with figure_style():
        figure = Figure(figsize=(2.5 * max(len(names), 2), 5.0))
        axes = figure.subplots(2, max(len(names), 2), squeeze=False)
        for column, name in enumerate(names):
            mine = [gap for gap in gaps if gap.loss == name]
            values = np.array([e.losses[name].value for e in entries])
            errors = np.array([e.losses[name].se for e in entries])
            shown = np.where(np.isfinite(values), values, np.nan)
            above, below = axes[0, column], axes[1, column]
            above.plot(updates, shown, color="black", marker="o", markersize=3, label="D")
            above.fill_between(updates, shown - errors, shown + errors, color="black", alpha=0.2, linewidth=0)
            for gap in mine:
                above.axvspan(gap.before, gap.after, color=GAP, alpha=0.2, linewidth=0)
            above.set_title(name)
            above.set_xlabel("update")
            twin = above.twinx()
            twin.plot(updates, scores, color=SCORE, linestyle="--", label="S_H")
            twin.tick_params(axis="y", colors=SCORE)
            if column == 0:
                above.set_ylabel("D (solid)")
            if column == len(names) - 1:
                twin.set_ylabel("$S_H$ (dashed)", color=SCORE)
            _tradeoff(below, scores, shown, mine, updates)
            below.set_xlabel("$S_H$")
            if column == 0:
                below.set_ylabel("D")
        for axis in axes[:, len(names) :].ravel():
            axis.axis("off")
        figure.supxlabel(
            "Orange: steps in which $S_H$ fell while D rose (definition 1). Blue dot: before the first update.",
            fontsize=9,
        )
        return figure


def _tradeoff(axis: Axes, scores: Sequence[float], values: np.ndarray, gaps: Sequence[Gap], updates: list[int]) -> None:
    opened = {(gap.before, gap.after) for gap in gaps}
    for i in range(len(scores) - 1):
        if not np.isfinite(values[i : i + 2]).all():
            continue
        colour = GAP if (updates[i], updates[i + 1]) in opened else "0.5"
        axis.annotate(
            "",
            xy=(scores[i + 1], values[i + 1]),
            xytext=(scores[i], values[i]),
            # Without shrinking: matplotlib fails on an arrow that is shorter than its shrunk ends.
            arrowprops={
                "arrowstyle": "->",
                "color": colour,
                "linewidth": 1.3 if colour == GAP else 0.8,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            annotation_clip=True,
        )
    axis.plot(scores, values, ".", color="black", markersize=3)
    axis.plot(scores[0], values[0], "o", color=SCORE, markersize=5)
