"""What the figures of the controls share: looks of the objectives, panels of losses, eigenvalues and rollouts."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kaffee.errors import ConfigError
from kaffee.report.style import COLOURS

Cell = Mapping[str, Any]


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


def with_curves(cells: Mapping[str, Cell], names: tuple[str, ...] = COMPARED) -> list[tuple[Look, Cell]]:
    """The cells of these objectives with their looks."""
    for name in names:
        if "curves" not in cells.get(name, {}):
            raise ConfigError(f"The figure needs the cell of '{name}' with its curves (`curves=True`).")
    return [(LOOKS[name], cells[name]) for name in names]


def loss_panel(axis: Axes, rows: list[tuple[Look, Cell]]) -> None:
    """The training loss; the two objectives are different functions, so only the shapes compare."""
    for look, cell in rows:
        losses = np.array(cell["curves"]["losses"], float)
        axis.plot(cell["curves"]["updates"], losses, look.line, color=look.colour)
    axis.set_xlabel("update")
    axis.set_ylabel("NLL per entry (nats)")


def eigenvalue_panel(axis: Axes, truth: Cell, rows: list[tuple[Look, Cell]], *, size: float, every: int = 1) -> None:
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
    axis: Axes, truth: Cell, rows: list[tuple[Look, Cell]], kind: str, start: tuple[float, float]
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
