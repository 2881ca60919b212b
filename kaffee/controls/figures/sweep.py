"""Figure nochaos_exp1_sweep: the spectral radius against the observation noise."""

from collections.abc import Iterable

import numpy as np
from matplotlib.figure import Figure

from kaffee.controls.figures.panels import LOOKS, Cell, letter, shared_legend
from kaffee.controls.spiral import attenuated_radius
from kaffee.controls.summary import spiral_summary
from kaffee.report.style import WIDTH, page_style


def nochaos_exp1_sweep(truth: Cell, cells: Iterable[Cell]) -> Figure:
    """Means over seeds with 95 % intervals: the radius with its theory kappa rho, and its absolute error.

    Args:
        truth: Of `spiral_truth`.
        cells: Of all objectives, noise levels and seeds.
    """
    summary = spiral_summary(cells)
    names = tuple(name for name in LOOKS if name in summary)
    with page_style():
        figure = Figure(figsize=(WIDTH, 2.7))
        radius, error = figure.subplots(1, 2)
        for name in names:
            look, by_noise = LOOKS[name], summary[name]
            noises = np.array(sorted(by_noise))
            for axis, quantity in ((radius, "spectral_radius"), (error, "radius_error")):
                mean, half = np.array([by_noise[noise][quantity] for noise in noises]).T
                style = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
                axis.errorbar(noises, mean, yerr=half, markersize=3.5, capsize=2, elinewidth=0.9, **style)
        radius.axhline(truth["spectral_radius"], color=LOOKS["truth"].colour, linewidth=1.2)
        all_noises = sorted({noise for by_noise in summary.values() for noise in by_noise})
        fine = np.geomspace(all_noises[0], all_noises[-1], 100)
        radius.plot(fine, [attenuated_radius(noise) for noise in fine], color="0.6", linewidth=2.5, zorder=0)
        radius.annotate("theory: κρ ", (0.7, attenuated_radius(0.7)), color="0.4", ha="right", va="top")
        radius.set(ylabel="spectral radius ρ", ylim=(0, 1.08), title="Learned damping")
        error.set(ylabel="|ρ − ρ of the truth|", yscale="log", title="Error")
        for axis in (radius, error):
            axis.set(xscale="log", xlabel="observation noise σ (standard deviations of z)")
            axis.set_xticks(all_noises, [f"{noise:g}" for noise in all_noises])
            axis.set_xticks([], minor=True)
        letter([radius, error])
        shared_legend(figure, ("truth", *names))
        return figure
