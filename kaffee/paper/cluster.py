"""Running cells beyond one machine: a Dask cluster."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper.engine import MAX_DEATHS, perform_cell, pin, raise_unfinished, usable_cores

if TYPE_CHECKING:
    from kaffee.paper.cells import Cell

# Importing JAX from a slow disk on a busy machine takes minutes.
RESTART_SECONDS = 600


def _perform_on_worker(
    perform: Callable[[tuple[Any, ...]], str], arguments: tuple[Any, ...], cores: list[int] | None
) -> str:
    """Perform a cell; the workers of a local cluster, named 0, 1, ..., are pinned to cores first."""
    from distributed import get_worker

    if cores:
        pin(cores[int(get_worker().name) % len(cores)])
    return perform(arguments)


class DaskEngine:
    """The workers of a Dask scheduler, or of a cluster on this machine.

    Workers elsewhere need the same version of kaffee, the same folder of results under the same path, and one thread
    each (`dask worker tcp://... --nthreads 1`).
    """

    def __init__(
        self,
        scheduler: str | None = None,
        num_workers: int | None = None,
        perform: Callable[[tuple[Any, ...]], str] = perform_cell,
    ) -> None:
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise KaffeeError("Dask is not installed: pip install 'kaffee[dask]'") from None
        if num_workers is not None and num_workers < 1:
            raise ConfigError(f"There must be at least one worker, not {num_workers}.")
        if scheduler is not None and num_workers is not None:
            raise ConfigError(
                f"The cluster at {scheduler} has its own workers: leave out --workers, or start them there."
            )
        self.scheduler = scheduler
        self.perform = perform
        self.num_workers = num_workers or len(usable_cores())

    @contextmanager
    def _client(self) -> Iterator[Any]:
        """A client that is closed at the end, with its cluster if that is ours."""
        import dask
        import distributed

        if self.scheduler is None:
            with (
                # Dask drops a worker for good that takes longer to start again, and a run without workers would wait
                # for ever.
                dask.config.set({"distributed.deploy.lost-worker-timeout": f"{2 * RESTART_SECONDS} s"}),
                distributed.LocalCluster(
                    n_workers=self.num_workers,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,  # what a cell takes is no reason to end it while there is memory left
                    dashboard_address=None,
                    scheduler_kwargs={"allowed_failures": 0},  # deaths are counted here
                ) as cluster,
                distributed.Client(cluster) as client,
            ):
                yield client
            return
        try:
            client = distributed.Client(self.scheduler)
        except (OSError, ValueError) as error:
            raise KaffeeError(
                f"No Dask scheduler answers at {self.scheduler} ({error}). Start one with: dask scheduler"
            ) from error
        with client:
            yield client

    def _await_restart(self, client: Any) -> None:
        """Wait until a dead worker of a local cluster is back; without it the others go on."""
        try:
            client.wait_for_workers(self.num_workers, timeout=RESTART_SECONDS)
        except TimeoutError:
            if not client.nthreads():
                raise KaffeeError(
                    "No worker of the local cluster came back. Run the same command again to continue."
                ) from None

    def run(
        self,
        todo: list["Cell"],
        arguments: Callable[["Cell"], tuple[Any, ...]],
        ready: Callable[["Cell"], bool],
        finished: Callable[["Cell"], None],
    ) -> None:
        """See `Engine`.

        A scheduler elsewhere runs the cell of a dead worker again by itself, as often as its settings say.
        """
        import distributed

        waiting = list(todo)
        deaths: Counter[Cell] = Counter()
        hopeless: list[Cell] = []
        running: dict[Any, Cell] = {}
        cores = usable_cores() if self.scheduler is None else None
        with self._client() as client:
            results = distributed.as_completed()
            while len(hopeless) < MAX_DEATHS:
                # No more than there are workers: a cell that queues on a worker is blamed for its death, too.
                slots = max(sum(client.nthreads().values()), 1)
                self.num_workers = max(self.num_workers, slots) if self.scheduler is None else slots
                for cell in [c for c in waiting if ready(c)][: max(slots - len(running), 0)]:
                    waiting.remove(cell)
                    future = client.submit(_perform_on_worker, self.perform, arguments(cell), cores, pure=False)
                    running[future] = cell
                    results.add(future)
                if not running:
                    break
                future = next(results)
                cell = running.pop(future)
                try:
                    future.result()
                except distributed.KilledWorker:
                    deaths[cell] += 1
                    if self.scheduler is not None or deaths[cell] == MAX_DEATHS:
                        hopeless.append(cell)
                    else:
                        waiting.insert(0, cell)
                        self._await_restart(client)
                except CancelledError as error:
                    raise KaffeeError(
                        f"The Dask scheduler was lost while {cell.name} ran. Run the same command again to continue."
                    ) from error
                else:
                    finished(cell)
                finally:
                    # Dask makes lost results again as long as somebody holds on to them: a finished cell would be
                    # run once more if its worker died later.
                    future.release()
        raise_unfinished(hopeless, waiting)
