"""Workers on this machine: the order of cells, pinning, workers that die, cells that fail, notes of the wall time."""

import os
import sys
import time

import pytest

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.engine import MAX_DEATHS, LocalEngine, run_recipe, usable_cores
from kaffee.paper.recipe import CellSettings, Recipe, Row
from kaffee.records import read_json

from .chores import alive, notes, perform

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are watched through /proc and pinned")


def run(folder, names, *, workers=1, ready=lambda cell: True, finished=None):
    """Run chores by name, "row/seed"; returns the names of finished cells and the error, if there was one."""
    cells = [Cell(*[kind(part) for kind, part in zip((str, int), name.split("/"), strict=True)]) for name in names]
    done = []

    def note(cell):
        done.append(cell.name)
        if finished is not None:
            finished(cell)

    engine = LocalEngine(workers, perform)
    try:
        engine.run(cells, lambda cell: (str(folder), f"{cell.row}/{cell.seed}"), ready, note)
    except KaffeeError as error:
        return done, str(error)
    return done, None


@pytest.fixture(scope="module")
def rough(tmp_path_factory):
    """One run with everything that goes wrong: (folder, finished, error)."""
    folder = tmp_path_factory.mktemp("rough")
    names = ["fine/0", "dies-once/0", "dies/0", "fine/1", "dies-once/1", "fine/2", "fine/3"]
    return folder, *run(folder, names, workers=2)


def test_a_dead_worker_costs_one_cell_which_is_run_again(rough):
    folder, finished, _ = rough
    assert [len(notes(folder, f"dies-once/{i}")) for i in range(2)] == [2, 2]
    assert {"dies-once/00", "dies-once/01"} <= set(finished)
    # nobody else's cell was lost with it
    assert [len(notes(folder, f"fine/{i}")) for i in range(4)] == [1, 1, 1, 1]


def test_a_cell_that_always_kills_its_worker_is_named_and_the_others_are_done(rough):
    folder, finished, error = rough
    assert len(notes(folder, "dies/0")) == MAX_DEATHS
    assert error.startswith("dies/00 ended the worker 3 times. Is there enough memory?")
    assert sorted(finished) == ["dies-once/00", "dies-once/01", "fine/00", "fine/01", "fine/02", "fine/03"]


def test_every_worker_has_a_core_of_its_own_also_after_a_death(rough):
    folder, _, _ = rough
    pinned = [cores for _, _, cores in notes(folder)]
    assert all(len(cores) == 1 for cores in pinned)
    assert {core for cores in pinned for core in cores} == set(usable_cores()[:2])


def test_no_worker_is_left(rough):
    folder, _, _ = rough
    workers = {pid for _, pid, _ in notes(folder)}
    assert len(workers) >= 5  # every death was that of another one
    assert not [pid for pid in workers if alive(pid)]
    assert os.getpid() not in workers


def test_cells_run_in_order_as_soon_as_they_are_ready(tmp_path):
    """One worker; the second cell waits for the fourth."""
    done = []
    names = ["fine/0", "fine/1", "fine/2", "fine/3", "fine/4"]
    finished, error = run(
        tmp_path,
        names,
        ready=lambda cell: cell.seed != 1 or "fine/03" in done,
        finished=lambda cell: done.append(cell.name),
    )
    assert error is None
    assert finished == ["fine/00", "fine/02", "fine/03", "fine/01", "fine/04"]
    assert [name for name, _, _ in notes(tmp_path)] == ["fine/0", "fine/2", "fine/3", "fine/1", "fine/4"]
    assert len({pid for _, pid, _ in notes(tmp_path)}) == 1  # one process, which compiles each program once


def test_cells_that_never_become_ready_are_named(tmp_path):
    finished, error = run(tmp_path, ["fine/0", "late/0"], ready=lambda cell: cell.row == "fine")
    assert finished == ["fine/00"]
    assert error.startswith("late/00 waits for its prior, which failed or was not run. See: kaffee bench status")


def test_when_cell_after_cell_kills_its_worker_the_run_stops(tmp_path):
    finished, error = run(tmp_path, [f"dies/{i}" for i in range(MAX_DEATHS)] + ["fine/0"])
    assert finished == []
    assert error.startswith("dies/00, dies/01, dies/02 ended the worker")
    assert notes(tmp_path, "fine/0") == []


def test_an_error_outside_a_cell_ends_the_run_and_its_workers(tmp_path):
    """Such as a full disk: it is the worker's own error that is raised, not another one about it."""
    start = time.monotonic()
    with pytest.raises(ValueError, match="raises/0 cannot be written"):
        run(tmp_path, ["raises/0", "waits/0"], workers=2)
    assert time.monotonic() - start < 30  # the other cell would have waited for a minute
    assert not [pid for _, pid, _ in notes(tmp_path) if alive(pid)]


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_no_engine(workers):
    with pytest.raises(ConfigError, match=f"at least one worker, not {workers}"):
        LocalEngine(workers)


def test_one_worker_per_core_by_default():
    assert LocalEngine().num_workers == len(usable_cores())
    assert LocalEngine(5).num_workers == 5


# --- recipes ---


class Inline:
    """An engine in this process; `broken` cells fail as cells do, `silent` ones leave no record."""

    num_workers = 1

    def __init__(self, store, broken=(), silent=()):
        self.store, self.broken, self.silent, self.ran = store, broken, silent, []

    def run(self, todo, arguments, ready, finished):
        waiting = list(todo)
        while cell := next((c for c in waiting if ready(c)), None):
            waiting.remove(cell)
            self.ran.append(arguments(cell))
            if cell.name not in self.silent:
                self.store.write(cell, {"error": "it broke" if cell.name in self.broken else None})
            finished(cell)
        self.left = waiting


@pytest.fixture
def store(tmp_path):
    rows = tuple(Row(name, name, name, CellSettings()) for name in ("kaffee", "prior", "blind"))
    return ResultStore(tmp_path, Recipe("toy", "Toy", 2, ("nll",), rows))


def go(store, engine, **options):
    return run_recipe(store, engine, lambda cell: cell.name, **options)


def test_priors_run_first_and_row_by_row(store):
    engine = Inline(store)
    assert go(store, engine) == 6
    assert engine.ran == ["prior/00", "prior/01", "kaffee/00", "kaffee/01", "blind/00", "blind/01"]


def test_done_cells_are_not_run_again_and_progress_counts_them(store):
    store.write(Cell("prior", 0), {"error": None})
    engine, seen = Inline(store), []
    assert go(store, engine, only=["blind"], progress=lambda *now: seen.append(now)) == 3
    assert engine.ran == ["prior/01", "blind/00", "blind/01"]
    assert seen == [(2, 4, "prior/01"), (3, 4, "blind/00"), (4, 4, "blind/01")]
    assert go(store, Inline(store), only=["blind"]) == 0


def test_a_failed_cell_keeps_its_error_and_the_others_go_on(store):
    engine = Inline(store, broken=["prior/01", "kaffee/00"])
    go(store, engine)
    assert [cell.name for cell in store.failed()] == ["prior/01", "kaffee/00"]
    assert [cell.name for cell in engine.left] == ["kaffee/01", "blind/01"]  # nothing to start from
    assert store.is_done(Cell("blind", 0))
    again = Inline(store)
    go(store, again)
    assert again.ran == []  # it failed; only `retry` forgets that


def test_a_cell_without_a_record_is_noticed(store):
    """Workers on another machine that write to a folder of their own, or have another version."""
    with pytest.raises(KaffeeError, match=r"kaffee/00 was run, but .*toy/kaffee/00 holds no record .* same version"):
        go(store, Inline(store, silent=["kaffee/00"]))


def test_wall_time_is_noted_for_every_run(store):
    go(store, Inline(store), only=["kaffee"])
    go(store, Inline(store))
    found = read_json(store.folder / "wall.json", "wall times")
    first, second = found["runs"].values()
    assert first["cells"] == ["prior/00", "prior/01", "kaffee/00", "kaffee/01"]
    assert second["cells"] == ["blind/00", "blind/01"]
    assert first["workers"] == second["workers"] == 1
    assert found["total_seconds"] == pytest.approx(first["seconds"] + second["seconds"], abs=0.11)
    assert list(found["runs"]) == sorted(found["runs"])
