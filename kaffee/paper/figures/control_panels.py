"""What the figures of the controls share: looks of the objectives, panels of losses, eigenvalues and rollouts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.controls.spiral import SpiralSettings, attenuated_radius, spiral_summary, spiral_truth
from kaffee.paper.controls.van_der_pol import VanDerPolSettings, van_der_pol_truth
from kaffee.paper.measurements import VAN_DER_POL, spiral_noise
from kaffee.report.style import COLOURS, WIDTH, page_style

ControlCell = Mapping[str, Any]


class Look(NamedTuple):
    """How an objective, or the truth, is drawn."""

    title: str
    colour: str
    marker: str
    line: Literal["-", "--", "-.", ":"]


LOOKS = {
    "truth": Look("Truth", COLOURS["truth"], "x", "-"),
    "noisy_state_1": Look("Noisy state, H = 1", COLOURS["core_collapse"], "s", "--"),
    "noisy_state_5": Look("Noisy state, H = 5", COLOURS["prior"], "^", "-."),
    "noisy_state_20": Look("Noisy state, H = 20", COLOURS["noise_masking"], "v", ":"),
    "kaffee": Look("KAFFEE", COLOURS["kaffee"], "o", "-"),
}
COMPARED = ("noisy_state_1", "kaffee")
"""The objectives of the paper's figures."""


def with_curves(cells: Mapping[str, ControlCell], names: tuple[str, ...] = COMPARED) -> list[tuple[Look, ControlCell]]:
    """The cells of these objectives with their looks."""
    for name in names:
        if "curves" not in cells.get(name, {}):
            raise ConfigError(f"The figure needs the cell of '{name}' with its curves (`curves=True`).")
    return [(LOOKS[name], cells[name]) for name in names]


def loss_panel(axis: Axes, rows: list[tuple[Look, ControlCell]]) -> None:
    """The training loss; the two objectives are different functions, so only the shapes compare."""
    for look, cell in rows:
        losses = np.array(cell["curves"]["losses"], float)
        axis.plot(cell["curves"]["updates"], losses, look.line, color=look.colour)
    axis.set_xlabel("update")
    axis.set_ylabel("NLL per entry (nats)")


def eigenvalue_panel(
    axis: Axes, truth: ControlCell, rows: list[tuple[Look, ControlCell]], *, size: float, every: int = 1
) -> None:
    """Eigenvalues in the complex plane, with the unit circle; `every` thins those along a path."""
    angle = np.linspace(0, 2 * np.pi, 400)
    axis.plot(np.cos(angle), np.sin(angle), color="0.75", linewidth=0.7, zorder=0)
    for look, cell in [*rows, (LOOKS["truth"], truth)]:
        values = np.array(cell.get("curves", {}).get("eigenvalues", cell.get("eigenvalues")), float)[::every].reshape(
            -1, 2
        )
        edge: Any = {"linewidths": 0.8} if look.marker == "x" else {"linewidths": 0.0, "alpha": 0.7}
        axis.scatter(values[:, 0], values[:, 1], s=size, marker=look.marker, color=look.colour, **edge)
    axis.set_xlabel("Re λ")
    axis.set_ylabel("Im λ")


def rollout_panel(
    axis: Axes, truth: ControlCell, rows: list[tuple[Look, ControlCell]], kind: str, start: tuple[float, float]
) -> None:
    """Free runs in the plane of the two coordinates, all from the same start."""
    for look, cell in [(LOOKS["truth"], truth), *rows]:
        path = np.array([start, *cell["curves"][kind]], float)
        width = (2.0 if look.title == "Truth" else 1.0) if kind == "core" else 0.7
        axis.plot(*path.T, "-" if kind == "stochastic" else look.line, color=look.colour, linewidth=width, alpha=0.85)
    axis.plot(*start, "o", color="white", markeredgecolor="black", markersize=4, zorder=5)


def shared_legend(figure: Figure, names: tuple[str, ...], **markers: Any) -> None:
    """One legend below all panels."""
    lines = [
        Line2D([], [], color=LOOKS[n].colour, linestyle=LOOKS[n].line, marker=LOOKS[n].marker, markersize=4)
        for n in names
    ]
    figure.legend(lines, [LOOKS[n].title for n in names], loc="outside lower center", ncols=len(names), **markers)


def letter(axes: Any) -> None:
    """Panels are a, b, c, ..."""
    for index, axis in enumerate(axes):
        axis.set_title(f"{chr(ord('a') + index)}  {axis.get_title('left')}")


# Figure nochaos_exp1_main: attenuation on a noisy linear spiral.


def nochaos_exp1_main(
    truth: ControlCell, cells: Mapping[str, ControlCell], settings: SpiralSettings | None = None
) -> Figure:
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


# Figure nochaos_exp1_sweep: the spectral radius against the observation noise.


def nochaos_exp1_sweep(truth: ControlCell, cells: Iterable[ControlCell]) -> Figure:
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


# Figure nochaos_exp2_rollout: the noisy Van der Pol cycle.


def nochaos_exp2_rollout(
    truth: ControlCell, cells: Mapping[str, ControlCell], settings: VanDerPolSettings | None = None
) -> Figure:
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


# Figure nochaos_exp2_var20: where a reference covariance grows or shrinks.


def nochaos_exp2_var20(truth: ControlCell, cells: Mapping[str, ControlCell]) -> Figure:
    """Trace of a transported isotropic covariance over a cloud of states: truth, noisy state, KAFFEE.

    One row for each horizon, on common colours that span what the truth does; darker is more contraction.

    Args:
        truth: Of `van_der_pol_truth`.
        cells: By objective, of one seed, with curves.
    """
    rows = [(LOOKS["truth"], truth), *with_curves(cells, COMPARED)]
    states = np.array(truth["cloud"], float)
    horizons = list(truth["curves"]["gains"])
    with page_style():
        figure = Figure(figsize=(WIDTH, 2.1 * len(horizons) + 0.3))
        grid = figure.subplots(len(horizons), len(rows), sharex=True, sharey=True, squeeze=False)
        for axes, horizon in zip(grid, horizons, strict=True):
            reference = _log_gain(truth, horizon)
            low, high = np.quantile(reference, [0.01, 0.99])
            for axis, (look, cell) in zip(axes, rows, strict=True):
                gain = _log_gain(cell, horizon)
                dots = axis.scatter(*states.T, c=gain, s=5, linewidths=0, cmap="viridis", vmin=low, vmax=high)
                median = np.nanmedian(gain)
                axis.set_title(f"{look.title}\nmedian × {10**median:.2g}")
            axes[0].set_ylabel(f"after {horizon} step{'s' if int(horizon) > 1 else ''}\nv (data units)")
            label = f"log$_{{10}}$ tr Σ$_{{{horizon}}}$ / tr Σ$_0$"
            figure.colorbar(dots, ax=list(axes), label=label, extend="both", pad=0.01, fraction=0.03)
        for axis in grid[-1]:
            axis.set_xlabel("x (data units)")
        return figure


def _log_gain(cell: ControlCell, horizon: str) -> np.ndarray:
    return np.log10(np.array(cell["curves"]["gains"][horizon], float))


# The figures of the non-chaotic controls from their cells.


def control_drawings(store: ResultStore) -> dict[str, Callable[[], Figure]]:
    """All four figures; each needs the first seed of the objectives it compares."""
    settings = store.recipe.settings
    spiral = settings.spiral or SpiralSettings()
    main = next((name for name in store.recipe.systems if spiral_noise(name) == spiral.main_noise), "")

    def first_seed(system: str) -> dict[str, Any]:
        found = {row.name: store.read(Cell(row.name, 0, system)) for row in store.recipe.rows}
        cells = {name: cell for name, cell in found.items() if cell is not None and cell["error"] is None}
        if not cells:
            raise KaffeeError(f"There are no finished cells of {system}. First: kaffee bench run {store.recipe.name}")
        return cells

    def sweep() -> list[dict[str, Any]]:
        cells = [cell for cell in store.cells() if spiral_noise(cell.system) is not None and store.is_done(cell)]
        return [record for cell in cells if (record := store.read(cell)) is not None]

    return {
        "nochaos_exp1_main": lambda: nochaos_exp1_main(spiral_truth(spiral), first_seed(main), spiral),
        "nochaos_exp1_sweep": lambda: nochaos_exp1_sweep(spiral_truth(spiral), sweep()),
        "nochaos_exp2_rollout": lambda: nochaos_exp2_rollout(
            van_der_pol_truth(settings.van_der_pol), first_seed(VAN_DER_POL), settings.van_der_pol
        ),
        "nochaos_exp2_var20": lambda: nochaos_exp2_var20(
            van_der_pol_truth(settings.van_der_pol), first_seed(VAN_DER_POL)
        ),
    }
