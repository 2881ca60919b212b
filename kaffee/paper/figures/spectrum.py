"""The forecast-skill spectrum (appendix D.1, Fig. l96_forecast_skill_spectrum): scores over the horizon."""

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kaffee.errors import KaffeeError
from kaffee.paper.figures.cycle import LYAPUNOV_STEPS
from kaffee.paper.figures.panels import diverged_note
from kaffee.paper.figures.rows import DrawnRow, Estimate, bootstrap_band
from kaffee.report.style import WIDTH, page_style

Start = Literal["embedding", "filtered"]


def spectrum_figure(rows: list[DrawnRow], start: Start = "embedding") -> Figure:
    """NLL, CRPS and G_tan^(H) of the probabilistic rows over the horizon H, in Lyapunov times.

    Lines are medians over seeds, bands the bootstrap 95 % intervals of these medians.

    Args:
        start: Of the forecasts: the embedded observation (the paper's) or the filtered belief. G_tan^(H) always
            starts at the filtered belief.

    Raises:
        KaffeeError: No cell holds scores over horizons.
    """
    drawn = [row for row in rows if horizons_of(row)]
    if not drawn:
        raise KaffeeError("No finished cell of a probabilistic row holds a forecast-skill spectrum.")
    panels = {
        "a  NLL ↓": (start, "nll"),
        "b  CRPS at the endpoint ↓": (start, "crps"),
        r"c  $G_\mathrm{tan}^{(H)}$ ↑": ("g_tan",),
    }
    with page_style():
        figure = Figure(figsize=(WIDTH, 2.7))
        axes = figure.subplots(1, 3)
        for axis, (title, path) in zip(axes, panels.items(), strict=True):
            for row in drawn:
                _line(axis, row, path)
            _horizon_axis(axis, sorted({h for row in drawn for h in horizons_of(row)}))
            axis.set_title(title)
        axes[2].axhline(0.0, color="0.7", linewidth=0.6, zorder=0)
        handles = axes[0].get_legend_handles_labels()[0]
        labels = [_label(row, list(panels.values())) for row in drawn]
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        return figure


def horizons_of(row: DrawnRow) -> list[int]:
    """The horizons, in steps, that the finished cells of a row hold."""
    found = [(record.get("extra") or {}).get("spectrum") or {} for record in row.records]
    return sorted({int(h) for spectrum in found for h in spectrum})


def at_horizon(row: DrawnRow, horizon: int, path: tuple[str, ...]) -> Estimate:
    """One score of a row at a horizon, over seeds."""
    return row.estimate("extra", "spectrum", str(horizon), *path)


def _line(axis: Axes, row: DrawnRow, path: tuple[str, ...]) -> None:
    found = {h / LYAPUNOV_STEPS: at_horizon(row, h, path) for h in horizons_of(row)}
    median = [one.median for one in found.values()]
    band = [bootstrap_band(one.values) if one.values.size else (np.nan, np.nan) for one in found.values()]
    axis.fill_between(list(found), *np.transpose(band), color=row.colour, alpha=0.22, linewidth=0)
    axis.plot(list(found), median, marker=row.marker, markersize=3.5, color=row.colour, label=row.title)


def _label(row: DrawnRow, paths: list[tuple[str, ...]]) -> str:
    counts = [at_horizon(row, h, path) for h in horizons_of(row) for path in paths]
    worst = max(counts, key=lambda one: one.diverged)
    note = diverged_note(worst.diverged, worst.num_seeds)
    return f"{row.title} ({note})" if note else row.title


def _horizon_axis(axis: Axes, horizons: list[int]) -> None:
    axis.set_xticks([h / LYAPUNOV_STEPS for h in horizons], [f"{h / LYAPUNOV_STEPS:.2f}" for h in horizons])
    axis.tick_params(axis="x", labelsize=6.5)
    axis.set_xlabel(r"horizon $H$ in Lyapunov times")
    axis.grid(axis="y", color="0.9", linewidth=0.5)
    axis.set_axisbelow(True)
