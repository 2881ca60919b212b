"""Draw and write all figures of a recipe."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kaffee.errors import ConfigError, KaffeeError, unknown
from kaffee.paper.cells import ResultStore
from kaffee.paper.figures.assimilation import context_drawings
from kaffee.paper.figures.control_panels import control_drawings
from kaffee.paper.figures.lorenz96 import table1_drawings
from kaffee.records import write_atomically
from kaffee.report.style import page_style

# Without the time of day the same results give the same file.
FORMATS: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}

_Say = Callable[[str], None]
_Drawings = dict[str, Callable[[], Figure]]


def make_figures(
    store: ResultStore, folder: Path, *, format: str = "svg", arm: str | None = None, say: _Say = lambda text: None
) -> Iterator[Path]:
    """Draw what the finished cells of a recipe allow, and yield each file when it is written.

    Args:
        arm: Rows with this suffix, and the prior, in files with this suffix.
        say: Told what takes time, and what is missing.
    """
    if format not in FORMATS:
        raise ConfigError(unknown("format", format, FORMATS))
    recipe = store.recipe.name.split("-")[0]  # under any preset
    if recipe not in _DRAWINGS:
        known = ", ".join(_DRAWINGS)
        raise ConfigError(f"There are no figures of '{store.recipe.name}'. Recipes with figures: {known}.")
    if arm is not None and recipe != "table1":
        raise ConfigError(f"'{store.recipe.name}' has no arms; leave out --arm.")
    suffix = "" if arm is None else f"_{arm}"
    for name, draw in _DRAWINGS[recipe](store, arm, say).items():
        try:
            figure = draw()
        except KaffeeError as error:
            say(f"{name} is left out. {error}")
            continue
        path = folder / f"{name}{suffix}.{format}"
        write_atomically(path, _render(figure, format))
        yield path


_DRAWINGS: dict[str, Callable[[ResultStore, str | None, _Say], _Drawings]] = {
    "table1": table1_drawings,
    "table2": lambda store, arm, say: context_drawings(store, say),
    "controls": lambda store, arm, say: control_drawings(store),
}


@page_style()
def _render(figure: Figure, format: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, dpi=300, metadata=FORMATS[format])
    return buffer.getvalue()
