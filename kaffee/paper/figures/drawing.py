"""Drawing and writing all figures of a recipe."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kaffee.errors import ConfigError, KaffeeError, unknown
from kaffee.paper.cells import ResultStore
from kaffee.paper.figures.control_panels import control_drawings
from kaffee.paper.figures.cycle import cycle_data
from kaffee.paper.figures.in_context import context_figure, context_rows
from kaffee.paper.figures.panels import results_figure
from kaffee.paper.figures.rows import rows_of, rows_to_draw, true_exponents
from kaffee.paper.figures.spectrum import spectrum_figure
from kaffee.paper.figures.taxonomy import taxonomy_figure
from kaffee.records import write_atomically
from kaffee.report.style import page_style

FORMATS = ("svg", "png", "pdf")
# Without the time of day the same results give the same file.
_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def make_figures(
    store: ResultStore,
    folder: Path,
    *,
    format: str = "svg",
    arm: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Path]:
    """Draw what the finished cells of a recipe allow, and yield each file when it is written.

    Args:
        arm: Rows with this suffix, and the prior, in files with this suffix.
        say: Told what takes time, and what is missing.

    Raises:
        KaffeeError: There are no finished cells.
    """
    if format not in FORMATS:
        raise ConfigError(unknown("format", format, FORMATS))
    recipe = store.recipe.name.split("-")[0]  # under any preset
    if recipe not in DRAWINGS:
        raise ConfigError(
            f"There are no figures of '{store.recipe.name}'. Recipes with figures: {', '.join(DRAWINGS)}."
        )
    drawings = DRAWINGS[recipe](store, folder, arm, say)
    suffix = "" if arm is None else f"_{arm}"
    for name, draw in drawings.items():
        try:
            figure = draw()
        except KaffeeError as error:
            say(f"{name} is left out. {error}")
            continue
        path = folder / f"{name}{suffix}.{format}"
        write_atomically(path, rendered(figure, format))
        yield path


Drawings = dict[str, Callable[[], Figure]]


def _table1(store: ResultStore, folder: Path, arm: str | None, say: Callable[[str], None]) -> Drawings:
    rows = rows_to_draw(store, arm)
    _tell_missing(store, arm, say)
    return {
        "taxonomy": lambda: taxonomy_figure(rows),
        "l96_forecast_skill_spectrum": lambda: spectrum_figure(rows),
        "l96_forecast_skill_spectrum_filtered": lambda: spectrum_figure(rows, "filtered"),
        "l96_results": lambda: results_figure(
            rows,
            true_exponents(rows[0].row.settings, store.folder / "reference.json"),
            cycle_data(store, rows, say),
        ),
    }


def _table2(store: ResultStore, folder: Path, arm: str | None, say: Callable[[str], None]) -> Drawings:
    if arm is not None:
        raise ConfigError(f"'{store.recipe.name}' has no arms; leave out --arm.")
    context_rows(store)  # are there any?
    return {"dynamix_context_adaptation": lambda: context_figure(store, say)}


def _controls(store: ResultStore, folder: Path, arm: str | None, say: Callable[[str], None]) -> Drawings:
    if arm is not None:
        raise ConfigError(f"'{store.recipe.name}' has no arms; leave out --arm.")
    return control_drawings(store)


DRAWINGS: dict[str, Callable[[ResultStore, Path, str | None, Callable[[str], None]], Drawings]] = {
    "table1": _table1,
    "table2": _table2,
    "controls": _controls,
}
"""Recipes that have figures."""


def rendered(figure: Figure, format: str) -> bytes:
    """A figure as the content of a file."""
    buffer = io.BytesIO()
    with page_style():
        figure.savefig(buffer, format=format, dpi=300, metadata=_METADATA[format])
    return buffer.getvalue()


def _tell_missing(store: ResultStore, arm: str | None, say: Callable[[str], None]) -> None:
    total = store.recipe.num_seeds
    for row in rows_of(store.recipe, arm):
        missing = sum(not store.is_done(cell) for cell in store.cells_of(row.name))
        if missing:
            say(f"{row.name}: {missing} of {total} cells are not finished and not drawn.")
