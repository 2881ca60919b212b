"""The whole chain by the command line, at the `tiny` preset: killed, interrupted, robbed of a worker, and continued.

All runs share JAX's cache of compiled programs, so that only the first one pays for compiling.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaffee.cli.main import app

from .chores import alive, children, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are watched through /proc")

RUN = ("run", "table1", "--preset", "tiny", "--rows", "kaffee")
CELLS = ("kaffee/00", "kaffee/01", "prior/00", "prior/01")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Start a command in a process group of its own, as a terminal does."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    # A shell that runs the tests in the background makes its children ignore interrupts; a terminal does not.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from kaffee.cli.main import run; run()"
    started = []

    def call(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, "bench", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **cache},
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def finish(start):
    """Run a command to its end; returns what it printed."""

    def call(*arguments):
        process = start(*arguments)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return output

    return call


def table(results):
    result = CliRunner().invoke(
        app, ["bench", "table", "table1", "--preset", "tiny", "--results", str(results), "--json"]
    )
    return json.loads(result.stdout)


def records(results):
    """What was measured in every cell, by name; not how long it took."""
    found = {}
    for path in (results / "table1-tiny").rglob("cell.json"):
        record = json.loads(path.read_text())
        record.pop("seconds")
        record["training"].pop("seconds")
        found["/".join(path.parts[-3:-1])] = record
    return found


@pytest.fixture(scope="module")
def undisturbed(finish, tmp_path_factory):
    """(table, records) of a run by one worker that nobody stopped."""
    results = tmp_path_factory.mktemp("undisturbed")
    assert finish(*RUN, "--results", results, "--workers", 1).startswith("4 cells run, 0 failed.")
    return table(results), records(results)


def ignored_signals(pid):
    """The line of /proc that says which signals a process ignores."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "SigIgn 0"
    return next(line for line in lines if line.startswith("SigIgn"))


def first_cell(process):
    """Wait until a run reports a finished cell; returns its worker processes."""
    for line in process.stderr:
        if line.startswith("["):
            break
    assert process.poll() is None
    workers = children(process.pid, "spawn_main")
    assert len(workers) == 2
    return workers


def test_an_undisturbed_run_measures_everything(undisturbed):
    found, cells = undisturbed
    assert sorted(cells) == sorted(CELLS)
    kaffee = found["rows"]["kaffee"]
    assert all(entry["n"] + entry["diverged"] == 2 for entry in kaffee.values())
    assert all(entry["n"] == 2 for name, entry in kaffee.items() if name in ("nll", "crps", "g_tan"))
    assert {entry["n"] for entry in found["rows"]["blind"].values()} == {0}


def test_a_killed_run_ends_as_if_nothing_had_happened(start, finish, undisturbed, tmp_path):
    command = (*RUN, "--results", tmp_path, "--workers", 2)
    killed = start(*command)
    workers = first_cell(killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    until(lambda: not [pid for pid in workers if alive(pid)])
    assert 1 <= len(records(tmp_path)) < len(CELLS)

    assert ", 0 failed." in finish(*command)
    assert (table(tmp_path), records(tmp_path)) == undisturbed
    runs = json.loads((tmp_path / "table1-tiny" / "wall.json").read_text())["runs"].values()
    noted = [name for run in runs for name in run["cells"]]
    # the first run may have been killed after a cell was written and before it was noted
    assert len(set(noted)) == len(noted) >= len(CELLS) - 2


def workers_of(process):
    """The two worker processes of a run, as soon as they are there."""
    return until(lambda: len(found := children(process.pid, "spawn_main")) == 2 and found)


def test_an_interrupt_ends_the_run_and_its_workers_with_one_sentence(start, tmp_path):
    process = start(*RUN, "--results", tmp_path, "--workers", 2)
    workers = workers_of(process)
    until(lambda: all("SigIgn" in line and int(line.split()[1], 16) & 2 for line in map(ignored_signals, workers)))
    os.killpg(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; run the same command again to continue" in message
    assert "Traceback" not in message
    assert not [pid for pid in workers if alive(pid)]


def test_a_dask_worker_killed_in_the_middle_costs_nothing_but_time(start, undisturbed, tmp_path):
    pytest.importorskip("distributed", reason="the Dask engine needs: pip install 'kaffee[dask]'")
    process = start(*RUN, "--results", tmp_path, "--dask", "--workers", 2)
    workers = first_cell(process)
    os.kill(workers[0], signal.SIGKILL)
    until(lambda: set(children(process.pid, "spawn_main")) - set(workers))  # another one takes its place
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert output.startswith("4 cells run, 0 failed.")
    assert (table(tmp_path), records(tmp_path)) == undisturbed


def test_the_workers_of_a_killed_dask_run_end_with_it(start, tmp_path):
    pytest.importorskip("distributed", reason="the Dask engine needs: pip install 'kaffee[dask]'")
    process = start(*RUN, "--results", tmp_path, "--dask", "--workers", 2)
    workers = workers_of(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not [pid for pid in workers if alive(pid)])
    assert records(tmp_path) == {}
