"""Draw the still figures of a run with matplotlib, for papers and slides: attractors, filtering, losses."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from kaffee.certification.certificate import Certificate, Losses, Withheld
from kaffee.report.style import COLOURS, figure_style


def draw_stills(certificate: Certificate) -> dict[str, Figure]:
    """Draw what a certificate holds, by the name of the file."""
    stills = {}
    free = certificate.agreement
    if free is not None:
        names = {"truth": "truth", "data": "data", "prior": "prior", "core": certificate.about.get("method", "kaffee")}
        shown = [key for key in names if key in free.drawn and not (key == "data" and "truth" in free.drawn)]
        stills["attractor"] = _draw_attractors({names[key]: free.drawn[key] for key in shown}, free.shown)
    if certificate.withheld is not None:
        stills["filtering"] = _draw_withheld(certificate.withheld)
    losses = [each for each in certificate.training if len(each.values)]
    if losses:
        stills["training"] = _draw_losses(losses)
    return stills


def _draw_attractors(runs: Mapping[str, Float[np.ndarray, "T N"]], columns: Sequence[str]) -> Figure:
    """Draw runs side by side in the plane of the first and the last coordinate; one coordinate as its delay plot.

    Args:
        runs: By title; the first one sets the limits. Missing values leave gaps.
    """
    with figure_style():
        figure = Figure(figsize=(3.1 * len(runs), 3.0))
        axes = figure.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
        one = len(columns) == 1
        for axis, (title, path) in zip(axes, runs.items(), strict=True):
            first, last = (path[:-1, 0], path[1:, 0]) if one else (path[:, 0], path[:, -1])
            axis.plot(first, last, color=COLOURS.get(title, COLOURS["truth"]), linewidth=0.35, rasterized=True)
            axis.set_title(title)
            axis.set_xlabel(f"{columns[0]}(t)" if one else columns[0], parse_math=False)
        axes[0].set_ylabel(f"{columns[0]}(t+1)" if one else columns[-1], parse_math=False)
        reference = next(iter(runs.values()))
        for values, set_limits in ((reference[:, 0], axes[0].set_xlim), (reference[:, -1], axes[0].set_ylim)):
            values = values[np.isfinite(values)]
            if values.size:
                margin = 0.15 * (values.max() - values.min()) or 1.0
                set_limits(values.min() - margin, values.max() + margin)
        return figure


def _draw_withheld(found: Withheld) -> Figure:
    """Draw the belief about one coordinate while its readings are withheld."""
    with figure_style():
        figure = Figure(figsize=(7.2, 2.9))
        axis = figure.subplots()
        axis.axvspan(found.start, found.stop, color="0.93", linewidth=0, label="withheld")
        low, high = found.mean - 1.645 * found.std, found.mean + 1.645 * found.std
        axis.fill_between(found.times, low, high, color=COLOURS["kaffee"], alpha=0.3, linewidth=0, label="90 % band")
        axis.plot(found.times, found.mean, color=COLOURS["kaffee"], label="mean")
        if found.truth is not None:
            axis.plot(found.times, found.truth, color=COLOURS["truth"], linewidth=0.9, linestyle="--", label="truth")
        used = found.used
        axis.plot(found.times[used], found.observed[used], ".", color="0.4", markersize=3, label="reading")
        # An unbounded band would hide everything else.
        span = np.nanmax(found.observed) - np.nanmin(found.observed) or 1.0
        axis.set_ylim(np.nanmin(found.observed) - 0.4 * span, np.nanmax(found.observed) + 0.4 * span)
        axis.set_xlim(found.times[0], found.times[-1])
        axis.set_xlabel("time")
        axis.set_ylabel(found.column, parse_math=False)
        axis.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.4, columnspacing=1.2)
        return figure


def _draw_losses(losses: Sequence[Losses]) -> Figure:
    """Draw the loss of each stage over its updates; skipped updates leave gaps."""
    with figure_style():
        figure = Figure(figsize=(3.6 * len(losses), 2.6))
        axes = figure.subplots(1, len(losses), squeeze=False)[0]
        for axis, each in zip(axes, losses, strict=True):
            colour = COLOURS["prior" if each.stage == "Pretraining" else "kaffee"]
            axis.plot(each.updates, each.values, color=colour)
            if np.isfinite(each.values).any() and np.nanmin(each.values) > 0:
                axis.set_yscale("log")
            axis.set_title(each.stage)
            axis.set_xlabel("update")
            axis.set_ylabel(each.loss)
        return figure
