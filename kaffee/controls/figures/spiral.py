"""Figure nochaos_exp1_main: attenuation on a noisy linear spiral."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from kaffee.controls.figures.panels import (
    COMPARED,
    LOOKS,
    Cell,
    eigenvalue_panel,
    letter,
    loss_panel,
    rollout_panel,
    shared_legend,
    with_curves,
)
from kaffee.controls.spiral import SpiralSettings
from kaffee.report.style import WIDTH, page_style


def nochaos_exp1_main(truth: Cell, cells: Mapping[str, Cell], settings: SpiralSettings | None = None) -> Figure:
    """Optimisation traces, eigenvalues, free runs with the shell off and on.

    Args:
        truth: Of `spiral_truth`.
        cells: By objective, of one seed at the main noise level, with curves.
    """
    settings = settings or SpiralSettings()
    rows = with_curves(cells)
    with page_style():
        figure = Figure(figsize=(WIDTH, 2.6))
        grid = figure.add_gridspec(2, 4, width_ratios=(1, 0.8, 1.15, 1.15))
        losses, radii = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
        eigenvalues, core, noisy = (figure.add_subplot(grid[:, column]) for column in (1, 2, 3))
        loss_panel(losses, rows)
        losses.set(xlabel="", ylabel="NLL (nats)")
        losses.tick_params(labelbottom=False)
        losses.set_title("Optimisation")
        for look, cell in rows:
            radii.plot(cell["curves"]["updates"], cell["curves"]["radii"], look.line, color=look.colour)
        radii.axhline(truth["spectral_radius"], color=LOOKS["truth"].colour, linewidth=0.8)
        radii.set(xlabel="update", ylabel="radius ρ")
        eigenvalue_panel(eigenvalues, truth, rows, size=28)
        eigenvalues.set(xlim=(0.65, 1.05), ylim=(-0.4, 0.4), title="Eigenvalues")
        for axis, kind, title in ((core, "core", "Free run, shell off"), (noisy, "stochastic", "Free run, shell on")):
            rollout_panel(axis, truth, rows, kind, settings.start)
            axis.set(xlabel="$z_1$ (data units)", ylabel="$z_2$ (data units)", title=title)
            axis.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
        letter([losses, eigenvalues, core, noisy])
        shared_legend(figure, ("truth", *COMPARED))
        return figure
