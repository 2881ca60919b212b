"""What a worker does: one cell, from its prior to its numbers."""

import time
import traceback
from pathlib import Path
from typing import Any

from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.measurements import (
    measure_card,
    measure_control,
    measure_gap,
    measure_in_context,
    measure_selection,
    measure_tangent,
)
from kaffee.paper.proxies import measure_proxies
from kaffee.paper.recipe import load_recipe
from kaffee.records import machine, versions

KINDS = {
    "table": measure_card,
    "selection": measure_selection,
    "gap": measure_gap,
    "context": measure_in_context,
    "tangent": measure_tangent,
    "control": measure_control,
    "proxies": measure_proxies,
}


def _run(store: ResultStore, cell: Cell) -> dict[str, Any]:
    start = time.perf_counter()
    measured = KINDS[store.recipe.kind](store, cell)
    return {
        "error": None,
        **measured.metrics,
        "training": measured.training,
        "seconds": {
            "training": round(measured.trained_at - start, 2),
            "evaluation": round(time.perf_counter() - measured.trained_at, 2),
        },
        "fingerprint": measured.fingerprint,
        "versions": versions(),
        "machine": machine(),
    }


def run_cell(root: str, name: str, preset: str | None, row: str, seed: int, system: str = "") -> str:
    """Run one cell and write its record; an error becomes the record of a failed cell. Returns the cell's name."""
    store = ResultStore(Path(root), load_recipe(name, preset))
    cell = Cell(row, seed, system)
    try:
        record = _run(store, cell)
    except Exception as error:  # a failed cell keeps its error and the others go on
        record = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    store.write(cell, record)
    return cell.name
