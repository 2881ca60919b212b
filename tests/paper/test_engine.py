"""Engines: the order of cells, pinning, workers that die, cells that fail, notes of the wall time."""

import os
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.engine import _MAX_DEATHS, DaskEngine, LocalEngine, _usable_cores, run_recipe
from kaffee.paper.recipe import CellSettings, Recipe, Row
from kaffee.records import read_json

from .chores import alive, children, notes, perform, until

try:
    import dask
    import distributed
except ImportError:
    dask = None
needs_dask = pytest.mark.skipif(dask is None, reason="the Dask engine needs: pip install 'kaffee[dask]'")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are watched through /proc and pinned")


def run(engine, folder, names, *, ready=lambda cell: True, finished=lambda cell: None):
    """Run chores by name, "row/seed"; returns the names of finished cells and the error, if there was one."""
    cells = [Cell(row, int(seed)) for row, seed in (name.split("/") for name in names)]
    done = []

    def note(cell):
        done.append(cell.name)
        finished(cell)

    try:
        engine.run(cells, lambda cell: (str(folder), f"{cell.row}/{cell.seed}"), ready, note)
    except KaffeeError as error:
        return done, str(error)
    return done, None


def run_local(folder, names, *, workers=1, **options):
    return run(LocalEngine(workers, perform), folder, names, **options)


# --- both engines: one run with everything that goes wrong ---


@pytest.fixture(scope="module", params=["local", pytest.param("dask", marks=needs_dask)])
def rough(request, tmp_path_factory):
    """(folder, finished, error, processes left); "late" waits for the first cell."""
    folder = tmp_path_factory.mktemp("rough")
    before = set(children(os.getpid(), "spawn_main"))
    local = request.param == "local"
    engine = LocalEngine(2, perform) if local else DaskEngine(num_workers=2, perform=perform)
    names = ["late/0", "fine/0", "dies-once/0", "dies/0", "fine/1", "dies-once/1", "fine/2"]
    seen = []
    # As on a slow machine: Dask itself would give up a worker that is not back at once.
    with nullcontext() if local else dask.config.set({"distributed.deploy.lost-worker-timeout": "10 ms"}):
        finished, error = run(
            engine,
            folder,
            names,
            ready=lambda cell: cell.row != "late" or "fine/00" in seen,
            finished=lambda cell: seen.append(cell.name),
        )
    return folder, finished, error, set(children(os.getpid(), "spawn_main")) - before


def test_a_dead_worker_costs_one_cell_which_is_run_again(rough):
    folder, finished, _, _ = rough
    assert [len(notes(folder, f"dies-once/{i}")) for i in range(2)] == [2, 2]
    assert {"dies-once/00", "dies-once/01"} <= set(finished)
    # nobody else's cell was lost with it
    assert [len(notes(folder, f"fine/{i}")) for i in range(3)] == [1, 1, 1]


def test_a_cell_that_always_kills_its_worker_is_named_and_the_others_are_done(rough):
    folder, finished, error, _ = rough
    assert len(notes(folder, "dies/0")) == _MAX_DEATHS
    assert error.startswith("dies/00 ended the worker 3 times. Is there enough memory?")
    assert sorted(finished) == ["dies-once/00", "dies-once/01", "fine/00", "fine/01", "fine/02", "late/00"]


def test_cells_begin_in_order_once_they_are_ready(rough, request):
    folder, _, _, _ = rough
    began = [name for name, _, _ in notes(folder)]
    if "dask" in request.node.name:  # whose workers are all up before the first cell
        assert set(began[:2]) == {"fine/0", "dies-once/0"}
    assert began.index("fine/0") < began.index("late/0")
    assert began.index("late/0") < began.index("fine/2")


def test_every_worker_has_a_core_of_its_own_also_after_a_death(rough):
    folder, _, _, _ = rough
    pinned = [cores for _, _, cores in notes(folder)]
    assert all(len(cores) == 1 for cores in pinned)
    assert {core for cores in pinned for core in cores} == set(_usable_cores()[:2])


def test_no_worker_is_left(rough):
    folder, _, _, left = rough
    workers = {pid for _, pid, _ in notes(folder)}
    assert left == set()
    assert len(workers) >= 5  # every death was that of another one
    assert not [pid for pid in workers if alive(pid)]
    assert os.getpid() not in workers


# --- workers of this machine ---


def test_cells_run_in_order_as_soon_as_they_are_ready(tmp_path):
    """One worker; the second cell waits for the fourth."""
    done = []
    names = ["fine/0", "fine/1", "fine/2", "fine/3", "fine/4"]
    finished, error = run_local(
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
    finished, error = run_local(tmp_path, ["fine/0", "late/0"], ready=lambda cell: cell.row == "fine")
    assert finished == ["fine/00"]
    assert error.startswith("late/00 waits for its prior, which failed or was not run. See: kaffee bench status")


def test_when_cell_after_cell_kills_its_worker_the_run_stops(tmp_path):
    finished, error = run_local(tmp_path, [f"dies/{i}" for i in range(_MAX_DEATHS)] + ["fine/0"])
    assert finished == []
    assert error.startswith("dies/00, dies/01, dies/02 ended the worker")
    assert notes(tmp_path, "fine/0") == []


def test_an_error_outside_a_cell_ends_the_run_and_its_workers(tmp_path):
    """Such as a full disk: it is the worker's own error that is raised, not another one about it."""
    start = time.monotonic()
    with pytest.raises(ValueError, match="raises/0 cannot be written"):
        run_local(tmp_path, ["raises/0", "waits/0"], workers=2)
    assert time.monotonic() - start < 30  # the other cell would have waited for a minute
    assert not [pid for _, pid, _ in notes(tmp_path) if alive(pid)]


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_no_engine(workers):
    with pytest.raises(ConfigError, match=f"at least one worker, not {workers}"):
        LocalEngine(workers)


def test_one_worker_per_core_by_default():
    assert LocalEngine().num_workers == len(_usable_cores())
    assert LocalEngine(5).num_workers == 5


# --- a Dask scheduler elsewhere ---


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """The address of a scheduler in a process of its own, with one worker, as on a cluster."""
    folder = tmp_path_factory.mktemp("scheduler")
    file = folder / "scheduler.json"
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    options = ["--no-dashboard", "--scheduler-file", str(file)]
    common = {"cwd": folder, "env": here, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "dask"]
    host = ["--host", "127.0.0.1", "--port", "0"]
    processes = [subprocess.Popen([*dask, "scheduler", *host, *options], **common)]
    try:
        until(lambda: file.exists() and file.stat().st_size)
        worker = ["worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--scheduler-file", str(file)]
        processes.append(subprocess.Popen([*dask, *worker], **common))
        with distributed.Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(1, timeout=60)
            address = client.scheduler.address
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


@needs_dask
def test_a_scheduler_elsewhere_brings_its_own_workers(scheduler, tmp_path):
    engine = DaskEngine(scheduler, perform=perform)
    assert run(engine, tmp_path, ["fine/0", "fine/1"]) == (["fine/00", "fine/01"], None)
    assert engine.num_workers == 1
    workers = {pid for _, pid, _ in notes(tmp_path)}
    assert len(workers) == 1
    assert all(alive(pid) for pid in workers)  # it is not ours to end
    assert all(cores == _usable_cores() for _, _, cores in notes(tmp_path))  # nor to pin


@needs_dask
def test_an_error_outside_a_cell_is_raised_as_it_is(scheduler, tmp_path):
    with pytest.raises(ValueError, match="raises/0 cannot be written"):
        run(DaskEngine(scheduler, perform=perform), tmp_path, ["raises/0"])
    assert len(notes(tmp_path)) == 1  # it is not tried again


@needs_dask
def test_workers_are_not_added_to_a_cluster_elsewhere():
    with pytest.raises(ConfigError, match=r"The cluster at tcp://far:8786 has its own workers: leave out --workers"):
        DaskEngine("tcp://far:8786", 4)
    with pytest.raises(ConfigError, match="at least one worker, not 0"):
        DaskEngine(num_workers=0)


@needs_dask
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x"])
def test_no_scheduler_at_an_address_is_said(address, tmp_path):
    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):
        finished, error = run(DaskEngine(address, perform=perform), tmp_path, ["fine/0"])
    assert finished == []
    assert error.startswith(f"No Dask scheduler answers at {address} (")
    assert error.endswith("Start one with: dask scheduler")


def test_without_dask_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(KaffeeError, match=r"Dask is not installed: pip install 'kaffee\[dask\]'"):
        DaskEngine()


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
    assert go(store, engine, chosen=store.select(["blind"]), progress=lambda *now: seen.append(now)) == 3
    assert engine.ran == ["prior/01", "blind/00", "blind/01"]
    assert seen == [(2, 4, "prior/01"), (3, 4, "blind/00"), (4, 4, "blind/01")]
    assert go(store, Inline(store), chosen=store.select(["blind"])) == 0


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
    go(store, Inline(store), chosen=store.select(["kaffee"]))
    go(store, Inline(store))
    found = read_json(store.folder / "wall.json", "wall times")
    first, second = found["runs"].values()
    assert first["cells"] == ["prior/00", "prior/01", "kaffee/00", "kaffee/01"]
    assert second["cells"] == ["blind/00", "blind/01"]
    assert first["workers"] == second["workers"] == 1
    assert found["total_seconds"] == pytest.approx(first["seconds"] + second["seconds"], abs=0.11)
    assert list(found["runs"]) == sorted(found["runs"])
