"""Running cells: worker processes pinned to cores on one machine, or Dask beyond it."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from typing import Any

from kaffee.bench.store import Cell, ResultStore
from kaffee.errors import KaffeeError

MAX_DEATHS_PER_CELL = 3


def usable_cores() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _start_worker(cores: Any, parent: int) -> None:
    """Pin this worker to one core, and end with its parent even if that is killed."""
    core = cores.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _perform(arguments: tuple[Any, ...]) -> str:
    from kaffee.bench.work import run_cell

    return run_cell(*arguments)


class LocalEngine:
    """Worker processes on this machine."""

    def __init__(self, num_workers: int | None = None) -> None:
        self.cores = usable_cores()
        self.num_workers = num_workers or len(self.cores)

    def _pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        cores = context.Queue()
        for i in range(self.num_workers):
            cores.put(self.cores[i % len(self.cores)])
        return ProcessPoolExecutor(
            self.num_workers, mp_context=context, initializer=_start_worker, initargs=(cores, os.getpid())
        )

    def run(
        self,
        todo: list[Cell],
        arguments: Callable[[Cell], tuple[Any, ...]],
        ready: Callable[[Cell], bool],
        finished: Callable[[Cell], None],
    ) -> None:
        """Run cells in order as they become ready; a dead worker costs one cell, which is run again."""
        waiting, deaths = list(todo), dict.fromkeys(todo, 0)
        while waiting:
            running: dict[Future[str], Cell] = {}
            pool = self._pool()
            try:
                while waiting or running:
                    for cell in [c for c in waiting if ready(c)][: self.num_workers - len(running)]:
                        waiting.remove(cell)
                        running[pool.submit(_perform, arguments(cell))] = cell
                    if not running:
                        raise KaffeeError(f"{waiting[0].name} waits for a cell that failed. See: kaffee bench status")
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                        finished(running.pop(future))
            except BrokenProcessPool:
                lost = list(running.values())
                for cell in lost:
                    deaths[cell] += 1
                    if deaths[cell] >= MAX_DEATHS_PER_CELL:
                        raise KaffeeError(f"{cell.name} killed its worker {deaths[cell]} times (memory?).") from None
                waiting = lost + waiting
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


class DaskEngine:
    """A Dask cluster: a scheduler's address, or local workers."""

    def __init__(self, scheduler: str | None = None, num_workers: int | None = None) -> None:
        try:
            import distributed
        except ImportError:
            raise KaffeeError("Dask is not installed: pip install 'kaffee[dask]'") from None
        if scheduler is not None:
            self.client = distributed.Client(scheduler)
        else:
            cluster = distributed.LocalCluster(
                n_workers=num_workers, threads_per_worker=1, processes=True, dashboard_address=None
            )
            self.client = distributed.Client(cluster)
        self.num_workers = max(len(self.client.scheduler_info()["workers"]), 1)

    def run(
        self,
        todo: list[Cell],
        arguments: Callable[[Cell], tuple[Any, ...]],
        ready: Callable[[Cell], bool],
        finished: Callable[[Cell], None],
    ) -> None:
        """Submit cells as they become ready; Dask runs the cell of a dead worker again."""
        from distributed import as_completed

        waiting = list(todo)
        running: dict[Any, Cell] = {}
        results = as_completed()

        def submit() -> None:
            for cell in [c for c in waiting if ready(c)]:
                waiting.remove(cell)
                future = self.client.submit(_perform, arguments(cell), pure=False, retries=MAX_DEATHS_PER_CELL)
                running[future] = cell
                results.add(future)

        submit()
        while running:
            future = next(results)
            future.result()
            finished(running.pop(future))
            submit()
        if waiting:
            raise KaffeeError(f"{waiting[0].name} waits for a cell that failed. See: kaffee bench status")


def run_recipe(
    store: ResultStore,
    engine: LocalEngine | DaskEngine,
    arguments: Callable[[Cell], tuple[Any, ...]],
    *,
    only: list[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> int:
    """Run every cell that is not done yet; returns how many were run."""
    chosen = [cell for cell in store.cells() if only is None or cell.row in only or store.prior_of(cell) is None]
    todo = [cell for cell in chosen if store.read(cell) is None]
    done = len(chosen) - len(todo)
    start, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    names: list[str] = []

    def ready(cell: Cell) -> bool:
        prior = store.prior_of(cell)
        return prior is None or store.is_done(prior)

    def finished(cell: Cell) -> None:
        nonlocal done
        done += 1
        names.append(cell.name)
        store.note_wall_time(started, time.perf_counter() - start, engine.num_workers, names)
        if progress is not None:
            progress(done, len(chosen), cell.name)

    engine.run(todo, arguments, ready, finished)
    return len(todo)
