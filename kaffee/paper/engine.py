"""Run the cells of a recipe: in order, as they become ready, on workers of this machine or of a Dask cluster."""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from kaffee.errors import ConfigError, KaffeeError

if TYPE_CHECKING:
    from kaffee.paper.cells import Cell, ResultStore

# A cell that ends its worker this often is given up, and a run in which this many cells are given up stops.
_MAX_DEATHS = 3
# Importing JAX from a slow disk on a busy machine takes minutes.
_RESTART_SECONDS = 600
_CONTINUE = "Run the same command again to continue."

_Perform = Callable[[tuple[Any, ...]], str]


def run_recipe(
    store: "ResultStore",
    engine: "LocalEngine",
    arguments: Callable[["Cell"], tuple[Any, ...]],
    *,
    chosen: list["Cell"] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> int:
    """Run every cell, or every chosen one (`store.select`), that is not done yet; return how many were run."""
    chosen = store.cells() if chosen is None else chosen
    todo = [cell for cell in chosen if store.read(cell) is None]
    done = len(chosen) - len(todo)
    start, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
    names: list[str] = []

    def ready(cell: "Cell") -> bool:
        prior = store.find_prior(cell)
        return prior is None or store.prior_store.is_done(prior)

    def finished(cell: "Cell") -> None:
        nonlocal done
        if store.read(cell) is None:
            without = f"{cell.name} was run, but {store.cell_folder(cell)} holds no record of it under these settings."
            raise KaffeeError(f"{without} Do all workers see this folder, and do they have the same version of kaffee?")
        done += 1
        names.append(cell.name)
        store.note_wall_time(started, time.perf_counter() - start, engine.num_workers, names)
        if progress is not None:
            progress(done, len(chosen), cell.name)

    if todo:
        engine.run(todo, arguments, ready, finished)
    return len(todo)


def _perform_cell(arguments: tuple[Any, ...]) -> str:
    from kaffee.paper.measurements import run_cell

    return run_cell(*arguments)


def _usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _pin(core: int) -> None:
    """Keep the calling thread, and those that it starts, on one core; JAX then sizes its pools for one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def _start_process(core: int, lifeline: Connection) -> None:
    """Pin this worker, and end it with its runner even if that is killed."""
    _pin(core)
    # Ctrl-C reaches the whole process group; only the runner answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        try:
            lifeline.recv()  # nothing is ever sent: this returns when the other end is closed
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Process:
    """One worker process. A pool of its own, since a pool loses all its processes when one of them dies."""

    def __init__(self, core: int) -> None:
        self.core = core
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self._lifeline = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, _start_process, (self.core, theirs))

    def submit(self, perform: _Perform, arguments: tuple[Any, ...]) -> Future[str]:
        try:
            return self._pool.submit(perform, arguments)
        except BrokenProcessPool:  # it died in its last cell, or since
            self.end()
            self._start()
            return self._pool.submit(perform, arguments)

    def end(self) -> None:
        self._lifeline.close()  # ends the process at once, whatever it does
        self._pool.shutdown()


class LocalEngine:
    """Run cells on worker processes of this machine, one per core by default, each pinned to a core."""

    patience = _MAX_DEATHS  # how many deaths of its worker a cell may cause

    def __init__(self, num_workers: int | None = None, perform: _Perform = _perform_cell) -> None:
        if num_workers is not None and num_workers < 1:
            raise ConfigError(f"There must be at least one worker, not {num_workers}.")
        self.cores = _usable_cores()
        self.num_workers = num_workers or len(self.cores)
        self.perform = perform
        self._idle: list[_Process] = []
        self._busy: dict[Future[str], _Process] = {}

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
        waiting = list(todo)
        deaths: Counter[Cell] = Counter()
        given_up: list[Cell] = []
        running: dict[Any, Cell] = {}
        with self._workers():
            while len(given_up) < _MAX_DEATHS:
                for cell in [c for c in waiting if ready(c)][: self._count_free(len(running))]:
                    waiting.remove(cell)
                    running[self._submit(arguments(cell))] = cell
                if not running:
                    break
                future = self._wait(running)
                cell = running.pop(future)
                if self._complete(future, cell.name):
                    finished(cell)
                    continue
                deaths[cell] += 1
                if deaths[cell] < self.patience:
                    waiting.insert(0, cell)
                else:
                    given_up.append(cell)
        if given_up:
            names = ", ".join(cell.name for cell in given_up)
            remedy = "Is there enough memory? Fewer --workers help."
            raise KaffeeError(f"{names} ended the worker {_MAX_DEATHS} times. {remedy}")
        if waiting:
            remedy = "See: kaffee bench status, then: kaffee bench retry"
            raise KaffeeError(f"{waiting[0].name} waits for its prior, which failed or was not run. {remedy}")

    @contextmanager
    def _workers(self) -> Iterator[None]:
        self._idle = [_Process(self.cores[i % len(self.cores)]) for i in range(self.num_workers)]
        try:
            yield
        finally:
            for process in (*self._idle, *self._busy.values()):
                process.end()

    def _count_free(self, running: int) -> int:
        return len(self._idle)

    def _submit(self, arguments: tuple[Any, ...]) -> Any:
        process = self._idle.pop(0)
        future = process.submit(self.perform, arguments)
        self._busy[future] = process
        return future

    def _wait(self, running: Iterable[Any]) -> Any:
        return next(iter(wait(running, return_when=FIRST_COMPLETED).done))

    def _complete(self, future: Any, name: str) -> bool:
        """Raise the error of a cell that ended in one; return False if its worker died."""
        self._idle.append(self._busy.pop(future))
        try:
            future.result()
        except BrokenProcessPool:
            return False
        return True


def _perform_on_worker(perform: _Perform, arguments: tuple[Any, ...], cores: list[int] | None) -> str:
    """Perform a cell; the workers of a local cluster, named 0, 1, ..., are pinned to cores first."""
    from distributed import get_worker

    if cores:
        _pin(cores[int(get_worker().name) % len(cores)])
    return perform(arguments)


class DaskEngine(LocalEngine):
    """Run cells on the workers of a Dask scheduler, or of a cluster on this machine.

    Workers elsewhere need the same version of kaffee, the same folder of results under the same path, and one thread
    each (`dask worker tcp://... --nthreads 1`).
    """

    def __init__(
        self, scheduler: str | None = None, num_workers: int | None = None, perform: _Perform = _perform_cell
    ) -> None:
        try:
            import distributed
        except ImportError:
            raise KaffeeError("Dask is not installed: pip install 'kaffee[dask]'") from None
        super().__init__(num_workers, perform)
        if scheduler is not None:
            if num_workers is not None:
                remedy = "leave out --workers, or start them there."
                raise ConfigError(f"The cluster at {scheduler} has its own workers: {remedy}")
            self.patience = 1  # that scheduler runs the cell of a dead worker again, as often as its settings say
        self.scheduler, self._dask = scheduler, distributed

    @contextmanager
    def _workers(self) -> Iterator[None]:
        import dask

        # Dask drops a worker for good that takes longer to start again, and a run without workers would wait for ever.
        patience = {"distributed.deploy.lost-worker-timeout": f"{2 * _RESTART_SECONDS} s"}
        # A cell is not ended for its size while there is memory left, and deaths are counted here.
        local: Any = {"threads_per_worker": 1, "processes": True, "memory_limit": 0, "dashboard_address": None}
        local["scheduler_kwargs"] = {"allowed_failures": 0}
        with ExitStack() as stack:
            if self.scheduler is None:
                stack.enter_context(dask.config.set(patience))
                cluster = stack.enter_context(self._dask.LocalCluster(n_workers=self.num_workers, **local))
            try:
                self._client = self._dask.Client(self.scheduler or cluster)
            except (OSError, ValueError) as error:
                remedy = "Start one with: dask scheduler"
                raise KaffeeError(f"No Dask scheduler answers at {self.scheduler} ({error}). {remedy}") from error
            stack.enter_context(self._client)
            self._ended = self._dask.as_completed()
            yield

    def _count_free(self, running: int) -> int:
        # No more than there are workers: a cell that queues on a worker is blamed for its death, too.
        slots = max(sum(self._client.nthreads().values()), 1)
        self.num_workers = max(self.num_workers, slots) if self.scheduler is None else slots
        return max(slots - running, 0)

    def _submit(self, arguments: tuple[Any, ...]) -> Any:
        cores = self.cores if self.scheduler is None else None
        future = self._client.submit(_perform_on_worker, self.perform, arguments, cores, pure=False)
        self._ended.add(future)
        return future

    def _wait(self, running: Iterable[Any]) -> Any:
        return next(self._ended)

    def _complete(self, future: Any, name: str) -> bool:
        try:
            future.result()
        except self._dask.KilledWorker:
            if self.scheduler is None:
                self._await_restart()
            return False
        except CancelledError as error:
            raise KaffeeError(f"The Dask scheduler was lost while {name} ran. {_CONTINUE}") from error
        finally:
            future.release()  # else Dask would run a finished cell again if its worker died later
        return True

    def _await_restart(self) -> None:
        """Wait until a dead worker of a local cluster is back; without it the others go on."""
        try:
            self._client.wait_for_workers(self.num_workers, timeout=_RESTART_SECONDS)
        except TimeoutError:
            if not self._client.nthreads():
                raise KaffeeError(f"No worker of the local cluster came back. {_CONTINUE}") from None
