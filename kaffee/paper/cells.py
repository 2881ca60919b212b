"""Store results: one folder of small files per cell, written atomically, readable by anything.

results/table1/kaffee/07/cell.json        metrics, timings, settings hash, versions; or the error of a failed cell
results/table1/prior/07/model.json + ...  the pretrained core, from which the other rows of the seed start
results/table1/wall.json                  wall time of the runs that made it
results/table1/reference.json             the true Lyapunov exponents, once a figure has needed them
results/table2/kaffee/chua/07/cell.json   with a system in between, where a recipe has several
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kaffee.errors import ConfigError, unknown
from kaffee.paper.recipe import CellSettings, Recipe, Row, settings_hash
from kaffee.records import read_json, write_json


@dataclass(frozen=True)
class Cell:
    """One (row, seed) of a table, or (row, system, seed) of a table over several systems."""

    row: str
    seed: int
    system: str = ""

    @property
    def name(self) -> str:
        return "/".join(part for part in (self.row, self.system, f"{self.seed:02d}") if part)


@dataclass(frozen=True)
class ResultStore:
    """The cells of a recipe on disk."""

    root: Path
    recipe: Recipe

    @property
    def folder(self) -> Path:
        return self.root / self.recipe.name

    @property
    def _systems(self) -> tuple[str, ...]:
        return self.recipe.systems or ("",)

    def cells(self) -> list[Cell]:
        """List all cells: system by system, row by row, so that a worker compiles each program once; priors first."""
        rows = sorted(self.recipe.rows, key=lambda row: row.method != "prior")
        return [cell for system in self._systems for row in rows for cell in self.row_cells(row.name, system)]

    def row_cells(self, row: str, system: str | None = None) -> list[Cell]:
        """List the cells of a row, over all systems or in one, and over seeds."""
        systems = self._systems if system is None else (system,)
        return [Cell(row, seed, name) for name in systems for seed in range(self.recipe.num_seeds)]

    def select(
        self,
        rows: Iterable[str] | None = None,
        seeds: Iterable[int] | None = None,
        systems: Iterable[str] | None = None,
    ) -> list[Cell]:
        """List the cells of some rows, seeds and systems (None: of all) and the priors they need, as `cells` does."""
        names = None if rows is None else {self.recipe.row(row).name for row in rows}
        chosen = range(self.recipe.num_seeds) if seeds is None else set(seeds)
        for seed in chosen:
            if seed not in range(self.recipe.num_seeds):
                raise ConfigError(f"{self.recipe.name} has seeds 0 to {self.recipe.num_seeds - 1}, not {seed}.")
        wanted = self._systems if systems is None else set(systems)
        for system in wanted:
            if system not in self._systems:
                one = f"{self.recipe.name} has one system only; leave out --systems."
                raise ConfigError(unknown("system", system, self.recipe.systems) if self.recipe.systems else one)
        here = [cell for cell in self.cells() if cell.seed in chosen and cell.system in wanted]
        return [cell for cell in here if names is None or cell.row in names or self.find_prior(cell) is None]

    def cell_folder(self, cell: Cell) -> Path:
        return self.folder / cell.name

    @property
    def prior_store(self) -> "ResultStore":
        return self if self.recipe.priors is None else ResultStore(self.root, self.recipe.priors)

    def find_prior(self, cell: Cell) -> Cell | None:
        """Return the cell, in `prior_store`, that must be finished before this one."""
        prior = next((row.name for row in self.prior_store.recipe.rows if row.method == "prior"), None)
        own = self.recipe.priors is None
        return None if prior is None or (own and cell.row == prior) else replace(cell, row=prior)

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Read the record of a cell, finished or failed; None if there is none under the settings of this recipe."""
        path = self.cell_folder(cell) / "cell.json"
        if not path.exists():
            return None
        record = read_json(path, "cell")
        return record if record.get("settings_hash") == self._hash(cell) else None

    def read_finished(self, row: str, system: str | None = None) -> list[dict[str, Any]]:
        """Read the records of the finished cells of a row."""
        records = (self.read(cell) for cell in self.row_cells(row, system))
        return [record for record in records if record is not None and record.get("error") is None]

    def is_done(self, cell: Cell) -> bool:
        return (self.read(cell) or {"error": "not run"}).get("error") is None

    def failed(self) -> list[Cell]:
        """List the cells that keep an error."""
        return [cell for cell in self.cells() if (self.read(cell) or {}).get("error") is not None]

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        where = {"row": cell.row, "seed": cell.seed} | ({"system": cell.system} if cell.system else {})
        write_json(self.cell_folder(cell) / "cell.json", {**where, "settings_hash": self._hash(cell), **record})

    def forget(self, cell: Cell) -> None:
        """Remove the record of a cell, so that it is run again."""
        (self.cell_folder(cell) / "cell.json").unlink(missing_ok=True)

    def note_wall_time(self, started: str, seconds: float, workers: int, cells: list[str]) -> None:
        """Note how long the run that began at `started` took so far, and which cells it finished."""
        path = self.folder / "wall.json"
        runs = read_json(path, "wall times")["runs"] if path.exists() else {}
        runs[started] = {"seconds": round(seconds, 1), "workers": workers, "cells": cells}
        write_json(path, {"runs": runs, "total_seconds": round(sum(run["seconds"] for run in runs.values()), 1)})

    def row(self, cell: Cell) -> Row:
        return self.recipe.row(cell.row)

    def settings(self, cell: Cell) -> CellSettings:
        settings = self.row(cell).settings
        return replace(settings, data=replace(settings.data, system=cell.system)) if cell.system else settings

    def _hash(self, cell: Cell) -> str:
        return settings_hash(self.settings(cell))


# What a cell's record says of its making, not of its result.
_CIRCUMSTANCES = {"seconds", "versions", "machine"}


def compare_records(stored: Any, again: Any, where: str = "") -> list[str]:
    """List the entries in which two records differ, to the last bit, but for seconds, versions and the machine.

    >>> compare_records({"nll": 1.5, "extra": {"h": [1, 2]}}, {"nll": 1.5, "extra": {"h": [1, 3]}, "seconds": 2})
    ['extra.h: [1, 2] before, [1, 3] now']
    """
    if not (isinstance(stored, dict) and isinstance(again, dict)):
        return [] if stored == again else [f"{where}: {stored} before, {again} now"]
    names = [name for name in {**stored, **again} if name not in _CIRCUMSTANCES]
    parts = (compare_records(stored.get(n), again.get(n), f"{where}.{n}" if where else n) for n in names)
    return [line for part in parts for line in part]
