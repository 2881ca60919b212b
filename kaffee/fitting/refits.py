"""Refits: fit a run with several seeds, next to each other if wanted, and keep the best by held-back rows.

run/refits/refits.json   the seeds and their scores
run/refits/seed-K/       a run of its own, without certificate
"""

import math
import multiprocessing
import shutil
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from kaffee.certification.stability import Candidate
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.validation import check_count
from kaffee.errors import CheckpointError, ConfigError, KaffeeError
from kaffee.fitting.ladder import score_rung
from kaffee.fitting.run import Loaded, Run, Source
from kaffee.fitting.settings import FitSettings
from kaffee.fitting.stages import Stage
from kaffee.records import jsonable, read_json, write_json
from kaffee.training.loop import Watcher

FOLDER, RECORD = "refits", "refits.json"
BESIDE = "analysis"
"""Folder of refits that were made to analyse a run, and not to choose it."""
LAST_LOSSES = 0.1
"""Share of the updates of adaptation, the last ones, whose loss stands for a fit that holds no rows back."""
_GOODBYE = 30.0
"""Seconds in which a process may save its state before it is ended."""
_Watch = Callable[[str, int], Watcher]


def fit_refits(run: Run, count: int, *, jobs: int = 1, watcher: _Watch | None = None) -> list[Candidate]:
    """Fit a run with `count` seeds in a row, beginning with its own, and make the best of them the run itself.

        run = Run.start("run", settings, Source(paths=("data.csv",)), Loaded(series))
        candidates = fit_refits(run, 5, jobs=2)
        run.fit  # as of an ordinary run: the best

    The best has the smallest NLL of held-back rows (`score_rung`). A fit from scratch holds none back; there it is the
    mean loss of the last tenth of the updates of adaptation. Whatever is finished is not repeated, and a fit that was
    interrupted goes on, with more seeds as well; what an ordinary fit has left in the folder is the first of them.

    Args:
        jobs: Processes that fit at the same time; 1: this one. A script that asks for more needs the usual
            `if __name__ == "__main__":`, since each of them imports it.
        watcher: Called with the title of a stage, which names the seed, and its number of updates.
    """
    count, jobs = check_count("seeds", count, 1), check_count("jobs", jobs, 1)
    first = run.settings.seed
    refits = {seed: _start(run, replace(run.settings, seed=seed)) for seed in range(first, first + count)}
    if not (run.path / FOLDER / RECORD).exists():
        _copy_stages(run, refits[first])
    write_json(run.path / FOLDER / RECORD, {"seeds": list(refits)})
    waiting = [seed for seed, each in refits.items() if each.finished(each.settings.method) is None]
    watch = watcher or (lambda title, total: Watcher())
    if jobs == 1 or len(waiting) < 2:
        for seed in waiting:
            refits[seed].train(_name_seed(watch, seed))
    else:
        _train_beside(refits, waiting, jobs, watch)
    candidates = load_refits(run)
    best = choose_refit(candidates)
    _copy_stages(refits[best.seed], run)
    for name in ("prior", "fitted", "fit", "_parts", "standard", "held"):
        vars(run).pop(name, None)  # what was loaded before may be of another seed
    scores = {str(each.seed): each.validation for each in candidates}
    write_json(run.path / FOLDER / RECORD, {"seeds": list(refits), "chosen": best.seed, "validation": jsonable(scores)})
    return candidates


def fit_beside(run: Run, count: int, *, jobs: int = 1, watcher: _Watch | None = None) -> list[Candidate]:
    """Fit a run with `count` seeds and leave it as it is: the fits are a run of their own in its folder `BESIDE`.

    What the run has fitted is the first of them; refits that it has already, if they are enough, are taken.
    """
    if count_refits(run.path) >= count:
        return load_refits(run)
    other = Run.start(run.path / BESIDE, run.settings, run.source, run.loaded, core=run.core)
    if not (other.path / FOLDER / RECORD).exists():
        _copy_stages(run, other)
    return fit_refits(other, count, jobs=jobs, watcher=watcher)


def choose_refit(candidates: Sequence[Candidate]) -> Candidate:
    """Choose the smallest validation score; the first of equal ones, and one without a score if no other has one."""
    return min(candidates, key=lambda each: math.inf if math.isnan(each.validation) else each.validation)


def count_refits(path: str | Path) -> int:
    """Count the refits that a run was asked for; 0 for an ordinary run."""
    return len(_read_seeds(Path(path)))


def load_refits(run: Run) -> list[Candidate]:
    """Load the refits of a run in the order of their seeds; none for an ordinary run, and raise if one is not done."""
    candidates = []
    for seed in _read_seeds(run.path):
        fitted = Run(_place(run.path, seed), core=run.core).finished(run.settings.method)
        if fitted is None:
            raise CheckpointError(
                f"{run.path} has no finished fit with seed {seed} yet. First: kaffee resume {run.path}"
            )
        rungs = fitted.reconstruction.provenance.get("rungs")
        rung = "scratch" if rungs is None else rungs["chosen"]
        candidates.append(Candidate(seed, rung, _score(fitted), fitted.reconstruction))
    return candidates


def load_pool(path: str | Path, *, core: Any = None) -> list[Reconstruction]:
    """Load the models of all refits of a run, for forecasts that are averaged over them."""
    run = Run.open(path, core=core)
    candidates = load_refits(run)
    if not candidates:
        raise ConfigError(f"{run.path} has no refits. Make some first: kaffee fit DATA -o {run.path} --seeds 5")
    return [each.reconstruction for each in candidates]


def _read_seeds(path: Path) -> list[int]:
    file = path / FOLDER / RECORD
    if not file.exists():
        return []
    seeds = read_json(file, "list of refits").get("seeds")
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds):
        raise CheckpointError(f"{file} is damaged or was edited. Delete it and run kaffee fit --seeds again.")
    return seeds


def _place(path: Path, seed: int) -> Path:
    return path / FOLDER / f"seed-{seed}"


def _start(run: Run, settings: FitSettings) -> Run:
    """Start the run of one seed, on the data of the whole: a system is simulated once, not for every seed."""
    source: Source = run.source
    if source.system is not None:
        source = replace(source, options={**source.options, "seed": run.settings.seed})
    return Run.start(_place(run.path, settings.seed), settings, source, run.loaded, core=run.core)


def _copy_stages(source: Run, target: Run) -> None:
    """Copy the stages of one run to another, which may have those of another seed."""
    for name in ("linear", "prior", source.settings.method):
        origin, place, fresh = source.path / name, target.path / name, target.path / f".{name}.copy"
        if not origin.exists():
            continue
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(origin, fresh)
        if place.exists():
            shutil.rmtree(place)
        fresh.rename(place)


def _score(fitted: Stage) -> float:
    rungs = fitted.reconstruction.provenance.get("rungs")
    if rungs is not None:
        return score_rung(rungs)
    last = fitted.losses[-max(math.ceil(LAST_LOSSES * len(fitted.losses)), 1) :]
    last = last[np.isfinite(last)]
    return float(last.mean()) if len(last) else math.nan


def _name_seed(watch: _Watch, seed: int) -> _Watch:
    return lambda title, total: watch(f"Seed {seed}: {title}", total)


# --- several processes ---


class _Relay(Watcher):
    """Tells another process of the progress, and stops if nobody listens any more."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def tell(self, *message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError:
            raise KeyboardInterrupt from None  # upon which training saves its state

    def compiling(self, what: str) -> None:
        self.tell("compiling", what)

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        self.tell("advanced", update, float(loss), int(skipped))


def _train_there(path: Path, loaded: Loaded, core: Any, connection: Connection) -> None:
    """Fit one refit in a process of its own."""
    relay = _Relay(connection)

    def watch(title: str, total: int) -> Watcher:
        relay.tell("stage", title, total)
        return relay

    try:
        run = Run(path, core=core)
        run.loaded = loaded
        run.train(watch)
        relay.tell("done")
    except KeyboardInterrupt:
        pass
    except KaffeeError as error:
        relay.tell("failed", str(error))
    except Exception:
        relay.tell("failed", traceback.format_exc())


def _train_beside(refits: dict[int, Run], waiting: Iterable[int], jobs: int, watch: _Watch) -> None:
    """Train refits in several processes; an interruption or a failure stops all of them, each with its state saved."""
    # A fork of a process that has used JAX may hang.
    context, waiting = multiprocessing.get_context("spawn"), list(waiting)
    running: dict[Any, tuple[int, Any]] = {}
    watchers: dict[int, Watcher] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                seed = waiting.pop(0)
                run = refits[seed]
                ours, theirs = context.Pipe(duplex=False)
                arguments = (run.path, replace(run.loaded, truth=None), run.core, theirs)
                process = context.Process(target=_train_there, args=arguments, daemon=True)
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                running[ours] = seed, process
            ready: list[Any] = list(wait(list(running)))
            for connection in ready:
                seed, process = running[connection]
                try:
                    kind, *content = connection.recv()
                except EOFError:
                    process.join()
                    kind, content = "failed", [f"its process ended with code {process.exitcode}."]
                if kind == "failed":
                    raise KaffeeError(f"The fit with seed {seed} failed: {content[0]}")
                if kind == "stage":
                    watchers[seed] = _name_seed(watch, seed)(*content)
                elif kind == "done":
                    del running[connection]
                    connection.close()
                    process.join()
                else:
                    getattr(watchers[seed], kind)(*content)
    finally:
        for connection in running:
            connection.close()
        for _, process in running.values():
            process.join(_GOODBYE)
            if process.is_alive():
                process.terminate()
