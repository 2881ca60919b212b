"""Zero-shot forecasts on public data: ours beside simple methods, DynaMix and stored scores of others.

    python -m benchmarks.zeroshot [--dysts] [--univariate] [--free] [--speed] [--only NAME ...] [--starts 20]
        [--noise 0 5 10 20] [--rows 128 512] [--arm NAME --set KEY=VALUE] [--baselines-only] [--show [--by-system]]

    --dysts        forecasts from contexts of 128 and 512 rows with noise (`--data FILE.npz`)
    --univariate   scalar series, beside published scores of trained models (`--univariate-data FILE.npz`)
    --free         long free runs on the paper's 13 systems (`benchmarks.zeroshot_free`)
    --speed        seconds of a filter step, a forecast and a first forecast (sections of `benchmarks.speed`)

Without any of these: the first two. An arm is a name for the state of the code, with settings of `ContextSettings`.
Writes one file for each system, noise, length and arm, and one of all baselines, to `results/zeroshot/`; the same
command continues where it stopped. Every file has the versions, the commit and the seed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import Float
from rich.console import Console

from benchmarks import speed, zeroshot_free
from benchmarks.cases import Unavailable
from benchmarks.suite_tables import Tables
from benchmarks.zeroshot_baselines import LEVELS, Continuation, Method, baselines
from benchmarks.zeroshot_tables import ARM, BASELINES, FREE, HORIZONS, OUTPUT, zeroshot_tables
from kaffee.data.series import Series
from kaffee.errors import KaffeeError
from kaffee.fitting.config import merge, parse_override
from kaffee.foundation.incontext import ContextSettings, read_context
from kaffee.inference.ensembles import forecast
from kaffee.records import jsonable, machine, read_json, versions, write_json

BENCH = Path(__file__).parent.parent.parent / "shared" / "bench"
DYSTS, UNIVARIATE = BENCH / "dysts_zero_shot_dev.npz", BENCH / "dysts_univariate_dev.npz"
NOISE, ROWS, STARTS = (0, 5, 10, 20), (128, 512), 20
"""Percent of the context's standard deviation, lengths of contexts, and how many for each system."""
MEMBERS, SEED = 100, 0
PER_LYAPUNOV_TIME = 30
"""Rows of the public data in one Lyapunov time."""
FAR = 0.4
TRAINING = 1000
"""Values of a scalar series that are known."""
SECTIONS = "zeroshot_filter,zeroshot_forecast,zeroshot_first"


class Scores(NamedTuple):
    """Of one forecast: VPT in Lyapunov times, sMAPE of the first one, and the share inside bands at `HORIZONS`."""

    vpt: float
    smape: float
    coverage: tuple[float, ...] | None
    seconds: float


def valid_time(truth: Float[np.ndarray, "H N"], point: Float[np.ndarray, "H N"], std: Float[np.ndarray, " N"]) -> float:
    """Find how long the rms error over coordinates is at most 0.4 standard deviations, in Lyapunov times.

    >>> valid_time(np.zeros((90, 1)), np.linspace(0, 1.2, 90)[:, None], np.ones(1))
    1.0
    """
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.sqrt(np.mean(((truth - point) / std) ** 2, axis=1)) <= FAR
    return float(np.argmin(good) if not good.all() else len(good)) / PER_LYAPUNOV_TIME


def smape(truth: Float[np.ndarray, "H N"], point: Float[np.ndarray, "H N"]) -> float:
    """Compute 200 mean |y - p| / (|y| + |p|); what is not a number counts as 200."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.abs(truth - point) / (np.abs(truth) + np.abs(point))
    return float(200.0 * np.mean(np.where(truth == point, 0.0, np.where(np.isnan(ratio), 1.0, ratio))))


def in_context(settings: ContextSettings) -> Method:
    """Make the method under test: the trajectory of the map from the filtered mean, and the band of an ensemble."""

    def method(context: Float[np.ndarray, "T N"], num_steps: int) -> Continuation:
        series = Series.from_arrays(context)
        how: dict[str, Any] = {"members": MEMBERS, "observation_noise": False, "point": True}
        [found] = forecast(read_context(series, settings), series, num_steps, **how)
        low, high = (found.quantile(level) for level in LEVELS)
        return Continuation(found.point, (low, high))

    return method


def score(
    method: Method, context: np.ndarray, truth: Float[np.ndarray, "H N"], std: Float[np.ndarray, " N"]
) -> Scores | None:
    """Score a forecast of the clean truth; None if the method refuses."""
    began = time.perf_counter()
    try:
        point, band = method(context, len(truth))
    except KaffeeError:
        return None
    seconds, coverage = time.perf_counter() - began, None
    if band is not None:
        inside = (truth >= band[0]) & (truth <= band[1])
        coverage = tuple(float(inside[h - 1].mean()) for h in HORIZONS if h <= len(truth))
    return Scores(
        valid_time(truth, point, std), smape(truth[:PER_LYAPUNOV_TIME], point[:PER_LYAPUNOV_TIME]), coverage, seconds
    )


def summarise(scores: list[Scores | None]) -> dict[str, Any]:
    """Summarise the starts of a system; one without a forecast counts as the worst there is."""
    found = [one for one in scores if one is not None]
    bands = [one.coverage for one in found if one.coverage is not None]
    # A method without bands has no coverage; one that refuses covers nothing.
    bands += [(0.0,) * len(bands[0])] * (len(scores) - len(found)) if bands else []
    return {
        "vpt": float(np.median([0.0 if one is None else one.vpt for one in scores])),
        "smape": float(np.median([200.0 if one is None else one.smape for one in scores])),
        "coverage": dict(zip(map(str, HORIZONS), np.mean(bands, axis=0), strict=False)) if bands else None,
        "seconds": float(np.median([one.seconds for one in found])) if found else None,
        "refused": len(scores) - len(found),
    }


def measure_system(path: Path, name: str, percent: int, rows: int, starts: int, methods: dict[str, Method]) -> dict:
    """All methods on one system, one level of noise and one length of contexts."""
    with np.load(path) as data:
        contexts, truths = data[f"{name}/context"][:starts, -rows:], data[f"{name}/truth"][:starts]
    scores: dict[str, list[Scores | None]] = {method: [] for method in methods}
    for i, (clean, truth) in enumerate(zip(contexts, truths, strict=True)):
        std = clean.std(axis=0)
        # The same noise for all methods, and for all lengths in proportion.
        noisy = clean + percent / 100 * std * np.random.default_rng([SEED, i]).standard_normal(clean.shape)
        for method, call in methods.items():
            scores[method].append(score(call, noisy, truth, std))
    found = {method: summarise(each) for method, each in scores.items()}
    return {"coordinates": contexts.shape[2], "methods": found}


def measure_series(path: Path, name: str, methods: dict[str, Method]) -> dict[str, Any]:
    """All methods on one scalar series; seconds include compilation, as for somebody who has one series."""
    with np.load(path) as data:
        values = np.asarray(data[name], np.float64)[:, None]
    context, truth, found = values[:TRAINING], values[TRAINING:], {}
    for method, call in methods.items():
        jax.clear_caches()
        began = time.perf_counter()
        try:
            error = smape(truth, call(context, len(truth)).point)
        except KaffeeError:
            error = None
        found[method] = {"smape": 200.0 if error is None else error, "refused": int(error is None)}
        found[method]["seconds"] = time.perf_counter() - began
    return {"methods": found}


@contextmanager
def compiling() -> Iterator[None]:
    """Let JAX compile every program, and read none from a disk."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    # Whether there is a cache is looked up once.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def stored_scores(path: Path, name: str) -> dict[str, Any]:
    """Scores of others that come with the data, `FILE_scores.json`; empty if there are none."""
    beside = path.with_name(f"{path.stem}_scores.json")
    return json.loads(beside.read_text(encoding="utf-8")).get(name, {}) if beside.exists() else {}


def names_in(path: Path) -> list[str]:
    """List what a file holds."""
    if not path.exists():
        raise Unavailable(f"There is no {path.name}; give a file by --data or --univariate-data.")
    with np.load(path) as data:
        return sorted({key.split("/")[0] for key in data.files})


class Job(NamedTuple):
    """One file to write."""

    path: Path
    about: dict[str, Any]
    measure: Callable[[], dict[str, Any]]


def dysts_jobs(given: argparse.Namespace, arm: str, method: Method | None) -> Iterator[Job]:
    """List systems, noise and lengths; without a method, of all baselines."""
    for percent in given.noise:
        for rows in given.rows:
            for name in filter(lambda name: not given.only or name in given.only, names_in(given.data)):

                def measure(name: str = name, percent: int = percent, rows: int = rows) -> dict[str, Any]:
                    with np.load(given.data) as data:
                        coordinates = data[f"{name}/context"].shape[2]
                    methods = baselines(coordinates, percent / 100) if method is None else {arm: method}
                    found = measure_system(given.data, name, percent, rows, given.starts, methods)
                    if method is None and percent == 0 and rows == max(ROWS):
                        others = stored_scores(given.data, name)
                        chronos = {other: {"vpt": s["vpt"], "smape": s["smape_1"]} for other, s in others.items()}
                        found["methods"] |= chronos
                    return found

                file = given.output / given.data.stem / f"{name}-{percent}-{rows}-{arm}.json"
                about = {"system": name, "noise": percent, "rows": rows, "starts": given.starts}
                yield Job(file, about, measure)


def univariate_jobs(given: argparse.Namespace, arm: str, method: Method | None) -> Iterator[Job]:
    """List scalar series."""
    for name in filter(lambda name: not given.only or name in given.only, names_in(given.univariate_data)):

        def measure(name: str = name) -> dict[str, Any]:
            methods = baselines(1, 0.0) if method is None else {arm: method}
            published = stored_scores(given.univariate_data, name) if method is None else {}
            found = measure_series(given.univariate_data, name, methods)
            return found | ({"published": published} if method is None else {})

        file = given.output / given.univariate_data.stem / f"{name}-{arm}.json"
        yield Job(file, {"system": name}, measure)


def free_jobs(given: argparse.Namespace, arm: str, method: ContextSettings | None) -> Iterator[Job]:
    """List the systems of long free runs."""
    for name in filter(lambda name: not given.only or name in given.only, zeroshot_free.SYSTEMS):

        def measure(name: str = name) -> dict[str, Any]:
            size = zeroshot_free.Size(starts=given.starts, steps=given.steps)
            return zeroshot_free.measure(name, arm, method, size, SEED)

        about = {"system": name, "starts": given.starts, "steps": given.steps}
        yield Job(given.output / FREE / f"{name}-{arm}.json", about, measure)


def work(every: Iterator[Job], same: dict[str, Any], console: Console) -> None:
    """Write the files that are not there yet; those of other settings are neither kept nor replaced silently."""
    jobs = [job._replace(about={**job.about, **same}) for job in every]
    for job in (job for job in jobs if job.path.exists()):
        stored = read_json(job.path, "result")
        differs = [key for key, value in job.about.items() if stored.get(key) != jsonable(value)]
        if differs:
            raise SystemExit(
                f"{job.path} has other {' and '.join(differs)}. Take the same, or another --arm or --output."
            )
    todo = [job for job in jobs if not job.path.exists()]
    for i, job in enumerate(todo, 1):
        if job.path.exists():
            continue  # by another process that runs the same command
        began = time.perf_counter()
        found = {**job.about, "seed": SEED, **job.measure()}
        found |= {"versions": versions(), "machine": machine()}
        write_json(job.path, jsonable(found, digits=5))
        console.print(f"{i} of {len(todo)}: {job.path.stem}, {time.perf_counter() - began:.1f} s", highlight=False)


def table() -> Tables:
    """Of all results, for docs/fill.py."""
    return zeroshot_tables(OUTPUT)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for part in ("dysts", "univariate", "free", "speed"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--data", type=Path, default=DYSTS)
    parser.add_argument("--univariate-data", type=Path, default=UNIVARIATE)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="Some systems or series.")
    parser.add_argument("--noise", type=int, nargs="+", default=list(NOISE), metavar="PERCENT")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--steps", type=int, default=zeroshot_free.Size().steps, help="Of a free run.")
    parser.add_argument("--arm", default=ARM, help="A name for the state of the code and its settings.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Of ContextSettings.")
    parser.add_argument("--baselines-only", action="store_true")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--show", action="store_true", help="Only print the tables.")
    parser.add_argument("--by-system", action="store_true", help="Print every system too.")
    given = parser.parse_args(arguments)
    if not given.arm.isidentifier() or given.arm == BASELINES:
        parser.error(f"--arm is a plain word other than {BASELINES}, not {given.arm!r}")
    if not (given.dysts or given.univariate or given.free or given.speed):
        given.dysts = given.univariate = True
    return given


def main(arguments: list[str] | None = None) -> None:
    """Measure what is not there yet and print the tables."""
    given = parse(arguments)
    # In a file or pipe nothing needs to be split.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    overrides = reduce(merge, map(parse_override, given.set), {})
    settings = ContextSettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in overrides.items()})
    arms = [(BASELINES, None)] + ([] if given.baselines_only else [(given.arm, settings)])
    try:
        for arm, chosen in [] if given.show else arms:
            method = None if chosen is None else in_context(chosen)
            same = {"arm": arm, "settings": {} if chosen is None else overrides}
            if given.dysts:
                work(dysts_jobs(given, arm, method), same, console)
            if given.free:
                work(free_jobs(given, arm, chosen), same, console)
            if given.univariate:
                with compiling():
                    work(univariate_jobs(given, arm, method), same, console)
    except Unavailable as reason:
        raise SystemExit(str(reason)) from None
    if given.speed and not given.show:
        speed.main(["--only", SECTIONS])
    files = {"dysts": given.data.stem, "univariate": given.univariate_data.stem}
    console.print(zeroshot_tables(given.output, **files, by_system=given.by_system))


if __name__ == "__main__":
    main()
