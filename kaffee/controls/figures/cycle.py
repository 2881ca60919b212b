"""Figure nochaos_exp2_rollout: the noisy Van der Pol cycle."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from kaffee.controls.figures.panels import (
    COMPARED,
    Cell,
    eigenvalue_panel,
    letter,
    loss_panel,
    rollout_panel,
    shared_legend,
    with_curves,
)
from kaffee.controls.van_der_pol import VanDerPolSettings
from kaffee.report.style import WIDTH, page_style


def nochaos_exp2_rollout(truth: Cell, cells: Mapping[str, Cell], settings: VanDerPolSettings | None = None) -> Figure:
    """Optimisation traces, Jacobian eigenvalues along the true orbit, free runs with the shell off and on.

    Args:
        truth: Of `van_der_pol_truth`.
        cells: By objective, of one seed, with curves.
    """
    settings = settings or VanDerPolSettings()
    rows = with_curves(cells)
    with page_style():
        figure = Figure(figsize=(WIDTH, 2.4))
        losses, eigenvalues, core, noisy = figure.subplots(1, 4)
        loss_panel(losses, rows)
        losses.set_title("Optimisation")
        eigenvalue_panel(eigenvalues, truth, rows, size=9, every=3)
        eigenvalues.set(xlim=(-0.05, 1.35), ylim=(-0.42, 0.42), title="Jacobian eigenvalues")
        for axis, kind, title in ((core, "core", "Free run, shell off"), (noisy, "stochastic", "Free run, shell on")):
            rollout_panel(axis, truth, rows, kind, settings.start)
            axis.set(xlabel="x (data units)", ylabel="v (data units)", title=title)
        rested = cells["noisy_state_1"]
        if rested["at_rest"]:
            core.plot(*rested["last_state"], "*", color="white", markeredgecolor="black", markersize=9, zorder=6)
            arrow = {"arrowstyle": "-", "linewidth": 0.6, "shrinkB": 4}
            core.annotate("at rest", rested["last_state"], xytext=(0.9, 1.4), ha="center", arrowprops=arrow)
        letter([losses, eigenvalues, core, noisy])
        shared_legend(figure, ("truth", *COMPARED))
        return figure
