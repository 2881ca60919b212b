"""Draw the figures of the non-chaotic controls (appendix D.2, Figs. nochaos_exp1_* and nochaos_exp2_*)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.stats import t as student

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.controls import (
    SpiralSettings,
    VanDerPolSettings,
    attenuated_radius,
    spiral_truth,
    van_der_pol_truth,
)
from kaffee.paper.measurements import VAN_DER_POL, spiral_noise
from kaffee.report.style import COLOURS, WIDTH, page_style

_Record = Mapping[str, Any]


class _Look(NamedTuple):
    """How an objective, or the truth, is drawn."""

    title: str
    colour: str
    marker: str
    line: Literal["-", "--", "-.", ":"]


_Drawn = list[tuple[_Look, _Record]]
_LOOKS = {
    "truth": _Look("Truth", COLOURS["truth"], "x", "-"),
    "noisy_state_1": _Look("Noisy state, H = 1", COLOURS["core_collapse"], "s", "--"),
    "noisy_state_5": _Look("Noisy state, H = 5", COLOURS["prior"], "^", "-."),
    "noisy_state_20": _Look("Noisy state, H = 20", COLOURS["noise_masking"], "v", ":"),
    "kaffee": _Look("KAFFEE", COLOURS["kaffee"], "o", "-"),
}
_TRUTH = _LOOKS["truth"]
_COMPARED = ("noisy_state_1", "kaffee")
"""The objectives of the paper's figures."""


def control_drawings(store: ResultStore) -> dict[str, Callable[[], Figure]]:
    """Return functions that draw the four figures; each needs the first seed of the objectives it compares."""
    settings = store.recipe.settings
    spiral, cycle = settings.spiral or SpiralSettings(), settings.van_der_pol or VanDerPolSettings()
    main = next((name for name in store.recipe.systems if spiral_noise(name) == spiral.main_noise), "")

    names = [row.name for row in store.recipe.rows]

    def first_seed(system: str) -> dict[str, Any]:
        cells = {name: store.read(Cell(name, 0, system)) for name in names if store.is_done(Cell(name, 0, system))}
        if not cells:
            raise KaffeeError(f"There are no finished cells of {system}. First: kaffee bench run {store.recipe.name}")
        return cells

    def sweep() -> list[dict[str, Any]]:
        systems = [name for name in store.recipe.systems if spiral_noise(name) is not None]
        return [cell for system in systems for name in names for cell in store.read_finished(name, system)]

    return {
        "nochaos_exp1_main": lambda: _draw_spiral(spiral_truth(spiral), first_seed(main), spiral.start),
        "nochaos_exp1_sweep": lambda: _draw_sweep(spiral_truth(spiral), sweep()),
        "nochaos_exp2_rollout": lambda: _draw_cycle(van_der_pol_truth(cycle), first_seed(VAN_DER_POL), cycle.start),
        "nochaos_exp2_var20": lambda: _draw_gains(van_der_pol_truth(cycle), first_seed(VAN_DER_POL)),
    }


@page_style()
def _draw_spiral(truth: _Record, cells: Mapping[str, _Record], start: tuple[float, float]) -> Figure:
    """Draw attenuation on a noisy spiral: optimisation, eigenvalues, free runs with the shell off and on."""
    rows = _check_curves(cells)
    figure = Figure(figsize=(WIDTH, 2.6))
    grid = figure.add_gridspec(2, 4, width_ratios=(1, 0.8, 1.15, 1.15))
    losses, radii = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    eigenvalues, core, noisy = (figure.add_subplot(grid[:, column]) for column in (1, 2, 3))
    _training_panel(losses, rows, "losses")
    losses.set(xlabel="", ylabel="NLL (nats)", title="Optimisation")
    losses.tick_params(labelbottom=False)
    _training_panel(radii, rows, "radii")
    radii.axhline(truth["spectral_radius"], color=_TRUTH.colour, linewidth=0.8)
    radii.set(ylabel="radius ρ")
    _eigenvalue_panel(eigenvalues, truth, rows, size=28)
    eigenvalues.set(xlim=(0.65, 1.05), ylim=(-0.4, 0.4), title="Eigenvalues")
    for axis, kind in ((core, "core"), (noisy, "stochastic")):
        _free_run_panel(axis, kind, truth, rows, start, ("$z_1$", "$z_2$"))
        axis.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    _finish(figure, (losses, eigenvalues, core, noisy), _COMPARED)
    return figure


@page_style()
def _draw_sweep(truth: _Record, cells: Iterable[_Record]) -> Figure:
    """Draw the spectral radius against the noise, with its theory kappa rho, and its error; means with intervals."""
    mean, half = _summarise_spirals(cells)
    noises = mean.index.unique("noise").sort_values()
    names = [name for name in _LOOKS if name in mean.index]
    figure = Figure(figsize=(WIDTH, 2.7))
    radius, error = figure.subplots(1, 2)
    for name in names:
        look, mine, width = _LOOKS[name], mean.loc[name], half.loc[name]
        style: Any = {"color": look.colour, "marker": look.marker, "linestyle": look.line, "elinewidth": 0.9}
        for axis, quantity in ((radius, "spectral_radius"), (error, "radius_error")):
            axis.errorbar(mine.index, mine[quantity], yerr=width[quantity], markersize=3.5, capsize=2, **style)
    radius.axhline(truth["spectral_radius"], color=_TRUTH.colour, linewidth=1.2)
    fine = np.geomspace(noises[0], noises[-1], 100)
    radius.plot(fine, [attenuated_radius(noise) for noise in fine], color="0.6", linewidth=2.5, zorder=0)
    radius.annotate("theory: κρ ", (0.7, attenuated_radius(0.7)), color="0.4", ha="right", va="top")
    radius.set(ylabel="spectral radius ρ", ylim=(0, 1.08), title="Learned damping")
    error.set(ylabel="|ρ − ρ of the truth|", yscale="log", title="Error")
    for axis in (radius, error):
        axis.set(xscale="log", xlabel="observation noise σ (standard deviations of z)")
        axis.set_xticks(noises, [f"{noise:g}" for noise in noises])
        axis.set_xticks([], minor=True)
    _finish(figure, (radius, error), names)
    return figure


def _summarise_spirals(cells: Iterable[_Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Average spectral radius and its absolute error over seeds, by objective and noise level.

    Return also half the widths of the 95 % confidence intervals (Student's t), NaN for a single seed.
    """
    groups = pd.DataFrame(list(cells)).groupby(["objective", "noise"])[["spectral_radius", "radius_error"]]
    return groups.mean(), groups.sem().mul(student.ppf(0.975, groups.size() - 1), axis=0)


@page_style()
def _draw_cycle(truth: _Record, cells: Mapping[str, _Record], start: tuple[float, float]) -> Figure:
    """Draw the noisy Van der Pol cycle: optimisation, Jacobian eigenvalues along the true orbit, free runs."""
    rows = _check_curves(cells)
    figure = Figure(figsize=(WIDTH, 2.4))
    losses, eigenvalues, core, noisy = figure.subplots(1, 4)
    _training_panel(losses, rows, "losses")
    losses.set(ylabel="NLL per entry (nats)", title="Optimisation")
    _eigenvalue_panel(eigenvalues, truth, rows, size=9, every=3)
    eigenvalues.set(xlim=(-0.05, 1.35), ylim=(-0.42, 0.42), title="Jacobian eigenvalues")
    _free_run_panel(core, "core", truth, rows, start, ("x", "v"))
    _free_run_panel(noisy, "stochastic", truth, rows, start, ("x", "v"))
    rested = cells["noisy_state_1"]
    if rested["at_rest"]:
        core.plot(*rested["last_state"], "*", color="white", markeredgecolor="black", markersize=9, zorder=6)
        arrow = {"arrowstyle": "-", "linewidth": 0.6, "shrinkB": 4}
        core.annotate("at rest", rested["last_state"], xytext=(0.9, 1.4), ha="center", arrowprops=arrow)
    _finish(figure, (losses, eigenvalues, core, noisy), _COMPARED)
    return figure


@page_style()
def _draw_gains(truth: _Record, cells: Mapping[str, _Record]) -> Figure:
    """Draw where an isotropic covariance grows or shrinks, over a cloud of states: truth, noisy state, KAFFEE.

    One row for each horizon, on common colours that span the values of the truth; darker is more contraction.
    """
    rows = [(_TRUTH, truth), *_check_curves(cells)]
    states = np.array(truth["cloud"], float)
    horizons = list(truth["curves"]["gains"])
    figure = Figure(figsize=(WIDTH, 2.1 * len(horizons) + 0.3))
    grid = figure.subplots(len(horizons), len(rows), sharex=True, sharey=True, squeeze=False)
    for axes, horizon in zip(grid, horizons, strict=True):
        gains = [np.log10(np.array(cell["curves"]["gains"][horizon], float)) for _, cell in rows]
        low, high = np.quantile(gains[0], [0.01, 0.99])
        for axis, (look, _), gain in zip(axes, rows, gains, strict=True):
            dots = axis.scatter(*states.T, c=gain, s=5, linewidths=0, cmap="viridis", vmin=low, vmax=high)
            axis.set_title(f"{look.title}\nmedian × {10 ** np.nanmedian(gain):.2g}")
        axes[0].set_ylabel(f"after {horizon} step{'s' if int(horizon) > 1 else ''}\nv (data units)")
        label = f"log$_{{10}}$ tr Σ$_{{{horizon}}}$ / tr Σ$_0$"
        figure.colorbar(dots, ax=list(axes), label=label, extend="both", pad=0.01, fraction=0.03)
    for axis in grid[-1]:
        axis.set_xlabel("x (data units)")
    return figure


def _check_curves(cells: Mapping[str, _Record]) -> _Drawn:
    """Return the cells of the compared objectives with their looks."""
    for name in _COMPARED:
        if "curves" not in cells.get(name, {}):
            raise ConfigError(f"The figure needs the cell of '{name}' with its curves (`curves=True`).")
    return [(_LOOKS[name], cells[name]) for name in _COMPARED]


def _training_panel(axis: Axes, rows: _Drawn, curve: str) -> None:
    """Draw a curve of the training; losses are of different functions, so only their shapes compare."""
    for look, cell in rows:
        axis.plot(cell["curves"]["updates"], np.array(cell["curves"][curve], float), look.line, color=look.colour)
    axis.set_xlabel("update")


def _eigenvalue_panel(axis: Axes, truth: _Record, rows: _Drawn, *, size: float, every: int = 1) -> None:
    """Draw eigenvalues in the complex plane, with the unit circle; `every` thins those along a path."""
    angle = np.linspace(0, 2 * np.pi, 400)
    axis.plot(np.cos(angle), np.sin(angle), color="0.75", linewidth=0.7, zorder=0)
    for look, cell in [*rows, (_TRUTH, truth)]:
        pairs = cell["curves"].get("eigenvalues", cell.get("eigenvalues"))
        edge: Any = {"linewidths": 0.8} if look.marker == "x" else {"linewidths": 0.0, "alpha": 0.7}
        real, imaginary = np.array(pairs, float)[::every].reshape(-1, 2).T
        axis.scatter(real, imaginary, s=size, marker=look.marker, color=look.colour, **edge)
    axis.set(xlabel="Re λ", ylabel="Im λ")


def _free_run_panel(
    axis: Axes, kind: str, truth: _Record, rows: _Drawn, start: tuple[float, float], names: tuple[str, str]
) -> None:
    """Draw free runs in the plane of the two coordinates, all from the same start; "core": with the shell off."""
    shell_off = kind == "core"
    for look, cell in [(_TRUTH, truth), *rows]:
        path = np.array([start, *cell["curves"][kind]], float)
        width = (2.0 if look is _TRUTH else 1.0) if shell_off else 0.7
        axis.plot(*path.T, look.line if shell_off else "-", color=look.colour, linewidth=width, alpha=0.85)
    axis.plot(*start, "o", color="white", markeredgecolor="black", markersize=4, zorder=5)
    axis.set(xlabel=f"{names[0]} (data units)", ylabel=f"{names[1]} (data units)")
    axis.set_title(f"Free run, shell {'off' if shell_off else 'on'}")


def _finish(figure: Figure, axes: Iterable[Axes], names: Iterable[str]) -> None:
    """Letter the panels a, b, c, ..., and draw one legend below all of them."""
    for index, axis in enumerate(axes):
        axis.set_title(f"{chr(ord('a') + index)}  {axis.get_title('left')}")
    looks = [_LOOKS[name] for name in ("truth", *names)]
    lines = [Line2D([], [], color=k.colour, linestyle=k.line, marker=k.marker, markersize=4) for k in looks]
    figure.legend(lines, [look.title for look in looks], loc="outside lower center", ncols=len(looks))
