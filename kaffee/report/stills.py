"""The figures of a fit: attractors, a coordinate under withheld observations, loss curves. All on plain arrays."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from kaffee.report.style import COLOURS, figure_style


def attractors(
    trajectories: Mapping[str, Float[np.ndarray, "T N"]], columns: tuple[str, ...], *, num_points: int = 6000
) -> Figure:
    """Free runs side by side in the plane of two coordinates (the first and the last), on common axes.

    Args:
        trajectories: By title; the first one is the reference and sets the limits. Missing values leave gaps.
    """
    with figure_style():
        figure = Figure(figsize=(3.1 * len(trajectories), 3.0))
        axes = figure.subplots(1, len(trajectories), sharex=True, sharey=True, squeeze=False)[0]
        reference = next(iter(trajectories.values()))
        one_dimensional = reference.shape[1] == 1
        for axis, (title, path) in zip(axes, trajectories.items(), strict=True):
            part = np.asarray(path[:num_points])
            # One coordinate: its delay plot.
            first, last = (part[:-1, 0], part[1:, 0]) if one_dimensional else (part[:, 0], part[:, -1])
            colour = next((c for key, c in COLOURS.items() if key in title.lower()), COLOURS["truth"])
            axis.plot(first, last, color=colour, linewidth=0.35, rasterized=True)
            axis.set_title(title)
            axis.set_xlabel(f"{columns[0]}(t)" if one_dimensional else columns[0], parse_math=False)
        axes[0].set_ylabel(f"{columns[0]}(t+1)" if one_dimensional else columns[-1], parse_math=False)
        for axis, k, setter in ((axes[0], 0, "set_xlim"), (axes[0], -1, "set_ylim")):
            values = reference[:num_points, k]
            values = values[np.isfinite(values)]
            if values.size:
                margin = 0.15 * (values.max() - values.min()) or 1.0
                getattr(axis, setter)(values.min() - margin, values.max() + margin)
        return figure


def withheld_coordinate(
    times: Float[np.ndarray, " T"],
    observed: Float[np.ndarray, " T"],
    used: Bool[np.ndarray, " T"],
    mean: Float[np.ndarray, " T"],
    std: Float[np.ndarray, " T"],
    *,
    column: str,
    withheld: tuple[float, float],
    truth: Float[np.ndarray, " T"] | None = None,
) -> Figure:
    """One coordinate with the belief about its noise-free value, while observations are withheld for a while.

    Args:
        used: Which observations the filter saw.
        withheld: The stretch of time without observations.
    """
    with figure_style():
        figure = Figure(figsize=(7.2, 2.9))
        axis = figure.subplots()
        axis.axvspan(*withheld, color="0.93", linewidth=0, label="no observations")
        low, high = mean - 1.645 * std, mean + 1.645 * std
        axis.fill_between(times, low, high, color=COLOURS["kaffee"], alpha=0.3, linewidth=0, label="90 % band")
        axis.plot(times, mean, color=COLOURS["kaffee"], label="mean")
        if truth is not None:
            axis.plot(times, truth, color=COLOURS["truth"], linewidth=0.9, linestyle="--", label="truth")
        axis.plot(times[used], observed[used], ".", color="0.4", markersize=3, label="observation")
        # An unbounded band would hide everything else.
        span = np.nanmax(observed) - np.nanmin(observed) or 1.0
        axis.set_ylim(np.nanmin(observed) - 0.4 * span, np.nanmax(observed) + 0.4 * span)
        axis.set_xlim(times[0], times[-1])
        axis.set_xlabel("time")
        axis.set_ylabel(column, parse_math=False)
        axis.legend(ncols=5, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1.4, columnspacing=1.2)
        return figure


def loss_curves(losses: Mapping[str, Float[np.ndarray, " T"]], labels: Mapping[str, str]) -> Figure:
    """The loss of each stage over its updates, with a running mean; skipped updates leave gaps.

    Args:
        labels: What the loss of each stage is, for its axis.
    """
    with figure_style():
        figure = Figure(figsize=(3.6 * len(losses), 2.6))
        axes = figure.subplots(1, len(losses), squeeze=False)[0]
        for axis, (title, values) in zip(axes, losses.items(), strict=True):
            updates = np.arange(1, len(values) + 1)
            colour = next((c for key, c in COLOURS.items() if key in title.lower()), COLOURS["prior"])
            axis.plot(updates, values, color=colour, alpha=0.25, linewidth=0.5, rasterized=True)
            width = max(len(values) // 50, 1)
            if np.isfinite(values).any() and len(values) > 2 * width:
                smooth = np.convolve(np.nan_to_num(values, nan=np.nanmean(values)), np.ones(width) / width, "valid")
                axis.plot(updates[width - 1 :], smooth, color=colour)
            if np.isfinite(values).any() and np.nanmin(values) > 0:
                axis.set_yscale("log")
            axis.set_title(title)
            axis.set_xlabel("update")
            axis.set_ylabel(labels[title])
        return figure
