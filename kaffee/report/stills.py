"""Draw the still figures of a run with matplotlib, for papers and slides: attractors, filtering, losses."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from kaffee.certification.certificate import Certificate, Losses, Withheld
from kaffee.report.figures import find_limits
from kaffee.report.style import COLOURS, figure_style

_MOST_PANELS = 6


def draw_stills(certificate: Certificate) -> dict[str, Figure]:
    """Draw what a certificate holds, by the name of the file."""
    stills = {}
    free = certificate.agreement
    with figure_style():
        if free is not None:
            method = certificate.about.get("method", "kaffee")
            titles = {"truth": "truth", "data": "data", "prior": "prior", "core": method}
            if "truth" in free.drawn:
                del titles["data"]
            runs = {title: free.drawn[key] for key, title in titles.items() if key in free.drawn}
            stills["attractor"] = _draw_attractors(runs, free.shown)
        if certificate.withheld is not None:
            stills["filtering"] = _draw_withheld(certificate.withheld)
        if losses := [each for each in certificate.training if len(each.values)]:
            stills["training"] = _draw_losses(losses)
    return stills


def _draw_attractors(runs: Mapping[str, Float[np.ndarray, "T N"]], columns: Sequence[str]) -> Figure:
    """Draw runs side by side in the plane of the first and the last coordinate; one coordinate as its delay plot.

    Args:
        runs: By title; the first one sets the limits. Missing values leave gaps.
    """
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
    axes[0].set(xlim=find_limits(reference[:, 0], 0.15), ylim=find_limits(reference[:, -1], 0.15))
    return figure


def _draw_withheld(withheld: Withheld) -> Figure:
    """Draw the belief about one coordinate while its readings are withheld."""
    figure = Figure(figsize=(7.2, 2.9))
    axis = figure.subplots()
    axis.axvspan(withheld.start, withheld.stop, color="0.93", linewidth=0, label="withheld")
    times, used, colour = withheld.times, withheld.used, COLOURS["kaffee"]
    low, high = withheld.mean - 1.645 * withheld.std, withheld.mean + 1.645 * withheld.std
    axis.fill_between(times, low, high, color=colour, alpha=0.3, linewidth=0, label="90 % band")
    axis.plot(times, withheld.mean, color=colour, label="mean")
    if withheld.truth is not None:
        axis.plot(times, withheld.truth, color=COLOURS["truth"], linewidth=0.9, linestyle="--", label="truth")
    axis.plot(times[used], withheld.observed[used], ".", color="0.4", markersize=3, label="reading")
    # An unbounded band would hide everything else.
    axis.set(xlim=(times[0], times[-1]), ylim=find_limits(withheld.observed, 0.4), xlabel="time")
    axis.set_ylabel(withheld.column, parse_math=False)
    axis.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.4, columnspacing=1.2)
    return figure


def draw_forecast(
    times: Float[np.ndarray, " H"],
    quantiles: Mapping[float, Float[np.ndarray, "H N"]],
    columns: Sequence[str],
    *,
    history_times: Float[np.ndarray, " P"],
    history: Float[np.ndarray, "P N"],
) -> Figure:
    """Draw readings and nested bands of what is forecast, of the first coordinates; the median is a line."""
    shown = columns[:_MOST_PANELS]
    with figure_style():
        figure = Figure(figsize=(7.2, 1.0 + 1.5 * len(shown)))
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for j, (axis, column) in enumerate(zip(axes, shown, strict=True)):
            for low in sorted(level for level in quantiles if level < 0.5):
                edges = quantiles[low][:, j], quantiles[round(1 - low, 6)][:, j]
                name = f"{100 * (1 - 2 * low):.0f} % band"
                axis.fill_between(times, *edges, color=COLOURS["kaffee"], alpha=0.25, linewidth=0, label=name)
            axis.plot(times, quantiles[0.5][:, j], color=COLOURS["kaffee"], label="median")
            axis.plot(history_times, history[:, j], color="0.4", label="readings")
            axis.set_ylabel(column, parse_math=False)
        axes[-1].set_xlabel("time")
        axes[0].legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.4, columnspacing=1.2)
    return figure


def _draw_losses(losses: Sequence[Losses]) -> Figure:
    """Draw the loss of each stage over its updates; skipped updates leave gaps."""
    figure = Figure(figsize=(3.6 * len(losses), 2.6))
    axes = figure.subplots(1, len(losses), squeeze=False)[0]
    for axis, each in zip(axes, losses, strict=True):
        colour = COLOURS["prior" if each.stage == "Pretraining" else "kaffee"]
        axis.plot(each.updates, each.values, color=colour)
        if np.isfinite(each.values).any() and np.nanmin(each.values) > 0:
            axis.set_yscale("log")
        axis.set(title=each.stage, xlabel="update", ylabel=each.loss)
    return figure
