"""Running cells: in order, as they become ready, on worker processes of this machine that are pinned to cores."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from kaffee.errors import ConfigError, KaffeeError

if TYPE_CHECKING:
    from kaffee.paper.cells import Cell, ResultStore

# A cell that ends its worker this often is given up, and a run in which this many cells are given up stops.
MAX_DEATHS = 3


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(core: int) -> None:
    """Keep the calling thread, and those that it starts, on one core; JAX then sizes its pools for one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def perform_cell(arguments: tuple[Any, ...]) -> str:
    """What a worker is asked to do."""
    from kaffee.paper.work import run_cell

    return run_cell(*arguments)


class Engine(Protocol):
    """Whatever can run cells."""

    num_workers: int

    def run(
        self,
        todo: list["Cell"],
        arguments: Callable[["Cell"], tuple[Any, ...]],
        ready: Callable[["Cell"], bool],
        finished: Callable[["Cell"], None],
    ) -> None:
        """Run cells in order as they become ready. A worker that dies costs one cell, which is run again.

        Raises:
            KaffeeError: At the end, if a cell was given up or still waits for its prior.
        """


def _start_worker(core: int, lifeline: Connection) -> None:
    """Pin this worker, and end it with its runner even if that is killed."""
    pin(core)
    # Ctrl-C reaches the whole process group; only the runner answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        try:
            lifeline.recv()  # nothing is ever sent: this returns when the other end is closed
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Worker:
    """One worker process. A pool of its own, since a pool loses all its processes when one of them dies."""

    def __init__(self, core: int) -> None:
        self.core = core
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=(self.core, theirs))

    def submit(self, function: Callable[..., str], arguments: tuple[Any, ...]) -> Future[str]:
        try:
            return self._pool.submit(function, arguments)
        except BrokenProcessPool:  # it died since its last cell
            self.restart()
            return self._pool.submit(function, arguments)

    def restart(self) -> None:
        self.end()
        self._start()

    def end(self) -> None:
        """End the process at once, whatever it does."""
        self._lifeline.close()
        self._pool.shutdown()


class LocalEngine:
    """Worker processes on this machine, one per core unless told otherwise."""

    def __init__(
        self, num_workers: int | None = None, perform: Callable[[tuple[Any, ...]], str] = perform_cell
    ) -> None:
        if num_workers is not None and num_workers < 1:
            raise ConfigError(f"There must be at least one worker, not {num_workers}.")
        self.cores = usable_cores()
        self.num_workers = num_workers or len(self.cores)
        self.perform = perform

    def run(
        self,
        todo: list["Cell"],
        arguments: Callable[["Cell"], tuple[Any, ...]],
        ready: Callable[["Cell"], bool],
        finished: Callable[["Cell"], None],
    ) -> None:
        """See `Engine`."""
        waiting = list(todo)
        deaths: Counter[Cell] = Counter()
        hopeless: list[Cell] = []
        workers = [_Worker(self.cores[i % len(self.cores)]) for i in range(self.num_workers)]
        idle = list(workers)
        running: dict[Future[str], tuple[Cell, _Worker]] = {}
        try:
            while len(hopeless) < MAX_DEATHS:
                for cell in [c for c in waiting if ready(c)][: len(idle)]:
                    waiting.remove(cell)
                    worker = idle.pop(0)
                    running[worker.submit(self.perform, arguments(cell))] = cell, worker
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell, worker = running.pop(future)
                    idle.append(worker)
                    try:
                        future.result()
                    except BrokenProcessPool:
                        worker.restart()
                        deaths[cell] += 1
                        if deaths[cell] < MAX_DEATHS:
                            waiting.insert(0, cell)
                        else:
                            hopeless.append(cell)
                    else:
                        finished(cell)
        finally:
            for worker in workers:
                worker.end()
        raise_unfinished(hopeless, waiting)


def raise_unfinished(hopeless: list["Cell"], waiting: list["Cell"]) -> None:
    """A sentence for the cells that a run could not do, if there are any."""
    if hopeless:
        names = ", ".join(cell.name for cell in hopeless)
        raise KaffeeError(f"{names} ended the worker {MAX_DEATHS} times. Is there enough memory? Fewer --workers help.")
    if waiting:
        raise KaffeeError(
            f"{waiting[0].name} waits for its prior, which failed or was not run. "
            f"See: kaffee bench status, then: kaffee bench retry"
        )


def run_recipe(
    store: "ResultStore",
    engine: Engine,
    arguments: Callable[["Cell"], tuple[Any, ...]],
    *,
    only: list[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> int:
    """Run every cell that is not done yet; returns how many were run."""
    chosen = [cell for cell in store.cells() if only is None or cell.row in only or store.prior_of(cell) is None]
    todo = [cell for cell in chosen if store.read(cell) is None]
    done = len(chosen) - len(todo)
    start, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
    names: list[str] = []

    def ready(cell: "Cell") -> bool:
        prior = store.prior_of(cell)
        return prior is None or store.prior_store.is_done(prior)

    def finished(cell: "Cell") -> None:
        nonlocal done
        if store.read(cell) is None:
            raise KaffeeError(
                f"{cell.name} was run, but {store.cell_folder(cell)} holds no record of it under these settings. "
                f"Do all workers see this folder, and do they have the same version of kaffee?"
            )
        done += 1
        names.append(cell.name)
        store.note_wall_time(started, time.perf_counter() - start, engine.num_workers, names)
        if progress is not None:
            progress(done, len(chosen), cell.name)

    if todo:
        engine.run(todo, arguments, ready, finished)
    return len(todo)
