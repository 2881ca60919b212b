"""Cells on disk: done, failed, stale, retried; and a cell that fails keeps its error."""

import json
from dataclasses import replace

import pytest

from kaffee import records as files
from kaffee.certification.fidelity import Protocol
from kaffee.errors import CheckpointError, KaffeeError
from kaffee.paper import measurements
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.recipe import CellSettings, Recipe, Row, load_recipe

KAFFEE, PRIOR = Cell("kaffee", 0), Cell("prior", 0)


def make_store(root, settings=None, num_seeds=2):
    rows = tuple(Row(name, name.title(), name, settings or CellSettings()) for name in ("kaffee", "prior"))
    return ResultStore(root, Recipe("toy", "Toy", num_seeds, ("nll",), rows))


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path)


def test_cells_have_names_and_folders(store, tmp_path):
    assert [cell.name for cell in store.cells()] == ["prior/00", "prior/01", "kaffee/00", "kaffee/01"]
    assert store.cell_folder(Cell("kaffee", 7)) == tmp_path / "toy" / "kaffee" / "07"
    assert store.find_prior(Cell("kaffee", 1)) == Cell("prior", 1)
    assert store.find_prior(PRIOR) is None


def test_a_cell_is_done_when_its_record_says_so(store):
    assert store.read(KAFFEE) is None
    assert not store.is_done(KAFFEE)
    store.write(KAFFEE, {"error": None, "nll": 1.5})
    assert store.is_done(KAFFEE)
    record = store.read(KAFFEE)
    assert (record["row"], record["seed"], record["nll"]) == ("kaffee", 0, 1.5)
    assert not store.is_done(Cell("kaffee", 1))


def test_a_failed_cell_keeps_its_error_until_it_is_forgotten(store):
    store.write(KAFFEE, {"error": "ValueError: no"})
    assert store.read(KAFFEE)["error"] == "ValueError: no"
    assert not store.is_done(KAFFEE)
    assert store.failed() == [KAFFEE]
    store.forget(KAFFEE)
    assert store.failed() == []
    assert store.read(KAFFEE) is None
    store.forget(KAFFEE)  # twice is no error


def test_a_record_under_other_settings_does_not_count(store, tmp_path):
    store.write(KAFFEE, {"error": None})
    store.write(Cell("kaffee", 1), {"error": "no"})
    other = make_store(tmp_path, replace(CellSettings(), protocol=Protocol(num_members=10)))
    assert other.read(KAFFEE) is None
    assert not other.is_done(KAFFEE)
    assert other.failed() == []
    assert store.is_done(KAFFEE)


def test_a_crash_while_writing_leaves_the_old_record(store, monkeypatch):
    store.write(KAFFEE, {"error": None, "nll": 1.0})

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", crash)
    for cell in (KAFFEE, PRIOR):
        with pytest.raises(KeyboardInterrupt):
            store.write(cell, {"error": None, "nll": 2.0})
    assert store.read(KAFFEE)["nll"] == 1.0
    assert store.read(PRIOR) is None
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == ["cell.json"]


def test_records_are_plain_json_without_nan(store):
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        store.write(KAFFEE, {"error": None, "nll": float("nan")})
    assert store.read(KAFFEE) is None


def test_a_damaged_record_is_named(store):
    store.write(KAFFEE, {"error": None})
    path = store.cell_folder(KAFFEE) / "cell.json"
    path.write_text(path.read_text()[:-10])
    with pytest.raises(CheckpointError, match=r"kaffee/00/cell.json is not a readable cell"):
        store.read(KAFFEE)


def test_wall_times_of_runs_add_up_and_a_run_replaces_its_own_note(store):
    store.note_wall_time("2026-01-01T00:00:00.000", 10.04, 2, ["prior/00"])
    store.note_wall_time("2026-01-01T00:00:00.000", 20.06, 2, ["prior/00", "prior/01"])
    store.note_wall_time("2026-01-02T00:00:00.000", 5.0, 1, ["kaffee/00"])
    found = json.loads((store.folder / "wall.json").read_text())
    assert found["total_seconds"] == 25.1
    first = found["runs"]["2026-01-01T00:00:00.000"]
    assert first == {"seconds": 20.1, "workers": 2, "cells": ["prior/00", "prior/01"]}
    assert found["runs"]["2026-01-02T00:00:00.000"]["workers"] == 1


# --- what a worker writes ---


@pytest.mark.parametrize("error", [KaffeeError("no such thing"), MemoryError(), ZeroDivisionError("x / 0")])
def test_an_error_becomes_the_record_of_its_cell(error, tmp_path, monkeypatch):
    def fail(store, cell):
        raise error

    monkeypatch.setattr(measurements, "_measure_cell", fail)
    assert measurements.run_cell(str(tmp_path), "table1", "tiny", "kaffee", 1) == "kaffee/01"
    store = ResultStore(tmp_path, load_recipe("table1", "tiny"))
    record = store.read(Cell("kaffee", 1))
    assert record["error"] == f"{type(error).__name__}: {error}"
    assert "Traceback" in record["traceback"]
    assert store.failed() == [Cell("kaffee", 1)]


def test_an_interrupt_is_not_the_cells_fault(tmp_path, monkeypatch):
    def stop(store, cell):
        raise KeyboardInterrupt

    monkeypatch.setattr(measurements, "_measure_cell", stop)
    with pytest.raises(KeyboardInterrupt):
        measurements.run_cell(str(tmp_path), "table1", "tiny", "kaffee", 1)
    assert list(tmp_path.rglob("cell.json")) == []
