"""A Dask cluster: the same promises as the workers of this machine, and that nothing of it is left behind."""

import os
import subprocess
import sys

import pytest

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.cells import Cell
from kaffee.paper.cluster import DaskEngine
from kaffee.paper.engine import MAX_DEATHS, usable_cores

from .chores import alive, children, notes, perform, until

dask = pytest.importorskip("dask", reason="the Dask engine needs: pip install 'kaffee[dask]'")
distributed = pytest.importorskip("distributed", reason="the Dask engine needs: pip install 'kaffee[dask]'")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are watched through /proc and pinned")


def run(engine, folder, names):
    """Run chores by name, "row/seed"; returns the names of finished cells and the error, if there was one."""
    cells = [Cell(row, int(seed)) for row, seed in (name.split("/") for name in names)]
    finished = []
    try:
        engine.run(
            cells,
            lambda cell: (str(folder), f"{cell.row}/{cell.seed}"),
            lambda cell: cell.row != "late" or "fine/00" in finished,
            lambda cell: finished.append(cell.name),
        )
    except KaffeeError as error:
        return finished, str(error)
    return finished, None


@pytest.fixture(scope="module")
def rough(tmp_path_factory):
    """One run on a local cluster with everything that goes wrong: (folder, finished, error, processes left)."""
    folder = tmp_path_factory.mktemp("rough")
    before = set(children(os.getpid(), "spawn_main"))
    engine = DaskEngine(num_workers=2, perform=perform)
    names = ["late/0", "fine/0", "dies-once/0", "dies/0", "fine/1", "fine/2"]
    # As on a slow machine: Dask itself would give up a worker that is not back at once.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "10 ms"}):
        finished, error = run(engine, folder, names)
    return folder, finished, error, set(children(os.getpid(), "spawn_main")) - before


def test_a_dead_worker_costs_one_cell_which_is_run_again(rough):
    folder, finished, _, _ = rough
    assert len(notes(folder, "dies-once/0")) == 2
    assert "dies-once/00" in finished
    assert [len(notes(folder, f"fine/{i}")) for i in range(3)] == [1, 1, 1]


def test_a_cell_that_always_kills_its_worker_is_named_and_the_others_are_done(rough):
    folder, finished, error, _ = rough
    assert len(notes(folder, "dies/0")) == MAX_DEATHS
    assert error.startswith("dies/00 ended the worker 3 times. Is there enough memory?")
    assert sorted(finished) == ["dies-once/00", "fine/00", "fine/01", "fine/02", "late/00"]


def test_cells_begin_in_order_once_they_are_ready(rough):
    folder, _, _, _ = rough
    began = [name for name, _, _ in notes(folder)]
    assert set(began[:2]) == {"fine/0", "dies-once/0"}
    assert began.index("late/0") < began.index("fine/2")


def test_workers_are_pinned_like_those_of_the_local_engine(rough):
    folder, _, _, _ = rough
    pinned = [cores for _, _, cores in notes(folder)]
    assert all(len(cores) == 1 for cores in pinned)
    assert {core for cores in pinned for core in cores} == set(usable_cores()[:2])


def test_the_cluster_is_closed(rough):
    folder, _, _, left = rough
    assert left == set()
    assert not [pid for _, pid, _ in notes(folder) if alive(pid)]


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


def test_a_scheduler_elsewhere_brings_its_own_workers(scheduler, tmp_path):
    engine = DaskEngine(scheduler, perform=perform)
    assert run(engine, tmp_path, ["fine/0", "fine/1", "late/0"]) == (["fine/00", "fine/01", "late/00"], None)
    assert engine.num_workers == 1
    workers = {pid for _, pid, _ in notes(tmp_path)}
    assert len(workers) == 1
    assert all(alive(pid) for pid in workers)  # it is not ours to end
    assert all(cores == usable_cores() for _, _, cores in notes(tmp_path))  # nor to pin


def test_an_error_outside_a_cell_is_raised_as_it_is(scheduler, tmp_path):
    with pytest.raises(ValueError, match="raises/0 cannot be written"):
        run(DaskEngine(scheduler, perform=perform), tmp_path, ["raises/0"])
    assert len(notes(tmp_path)) == 1  # it is not tried again


def test_workers_are_not_added_to_a_cluster_elsewhere():
    with pytest.raises(ConfigError, match=r"The cluster at tcp://far:8786 has its own workers: leave out --workers"):
        DaskEngine("tcp://far:8786", 4)
    with pytest.raises(ConfigError, match="at least one worker, not 0"):
        DaskEngine(num_workers=0)


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
