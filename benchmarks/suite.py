"""The development suite: `kaffee.fit` as a user calls it on many recordings, beside simple methods.

    python -m benchmarks.suite [--only CASE ...] [--seeds 3] [--arm NAME] [--set KEY=VALUE] [--baselines-only] [--show]

Cases are those of `benchmarks.cases`. The last fifth of every recording is held out; all methods forecast from the same
rows of it, know all readings up to there, and are scored as Gaussians in units of the training part's spread. An arm
is a name for the state of the code, such as "before" and "after". Writes one file for each case, seed and arm, and one
of baselines for each case and seed, to `results/suite/`; the same command continues where it stopped.
"""

import argparse
import resource
import sys
import time
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.baselines import Forecast, Task, forecast_all, spread_starts
from benchmarks.cases import CASES, Unavailable
from benchmarks.processes import call_apart
from benchmarks.suite_tables import BASELINES, OUTPUT, Tables, read_results, result_path, suite_tables
from kaffee.certification.forecasts import _ensemble_forecast, _gaussian_forecast
from kaffee.certification.free_runs import agreement
from kaffee.certification.innovations import Starts, filter_pass
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import evenly
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import KaffeeError
from kaffee.fitting.config import merge, parse_override
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings
from kaffee.metrics.scores import STD_FLOOR, gaussian_nll
from kaffee.records import jsonable, machine, versions, write_json

HORIZONS = (1, 4, 16, 64)
FEWEST_STARTS = 10
"""Starts with a reading so far ahead, without which a horizon is left out."""
NUM_BLOCKS, MIN_BLOCKS = 20, 5
"""Blocks of time behind a standard error; each at least as long as the horizon, if there are so many."""
MEMBERS = 200
COLD_ROWS = 20
HALF_WIDTH = 1.6448536269514722


def make_task(series: Series) -> tuple[Task, Scaler]:
    """Hold out what a fit holds out, and choose starts and horizons."""
    train, _ = series.split(1.0 - FitSettings().test_fraction)
    scaler = Scaler.fit(train)
    values = series.standardised(scaler).recordings
    starts = spread_starts(series.lengths, train.lengths)
    enough = [h for h in HORIZONS if (~np.isnan(starts.ahead(values, h))).any(axis=1).sum() >= FEWEST_STARTS]
    return Task(values, train.lengths, starts, tuple(enough)), scaler


def score(forecast: Forecast, task: Task) -> dict[str, Any]:
    """NLL and coverage of 90 % bands at every horizon, with the means over blocks of time that standard errors need."""
    scores = {}
    for i, h in enumerate(task.horizons):
        y = task.ahead(h)
        seen = ~np.isnan(y)
        rows = np.flatnonzero(seen.any(axis=1))
        span = int(np.ptp(task.starts.rows[rows])) if len(task.values) == 1 else sum(map(len, task.values))
        blocks = np.array_split(rows, min(NUM_BLOCKS, max(MIN_BLOCKS, span // h), len(rows)))
        mean, std = forecast.mean[:, i], np.maximum(forecast.std[:, i], STD_FLOOR)
        with np.errstate(over="ignore", invalid="ignore"):
            nll = np.where(seen, gaussian_nll(np.where(seen, y, 0.0), mean, std), 0.0)
            inside = seen & (np.abs(np.where(seen, y, 0.0) - mean) <= HALF_WIDTH * std)
            covered = np.array([inside[block].sum() / seen[block].sum() for block in blocks])
            scores[str(h)] = {
                "nll": nll.sum() / seen.sum(),
                "coverage": inside.sum() / seen.sum(),
                "coverage_error": covered.std(ddof=1) / np.sqrt(len(blocks)),
                "blocks": [nll[block].sum() / seen[block].sum() for block in blocks],
            }
    return scores


def forecast_surrogate(model: Reconstruction, series: Series, task: Task, scaler: Scaler, *, linear: bool) -> Forecast:
    """Filter from the first row of every recording and forecast from the starts; by ensembles beyond one step."""
    run = filter_pass(model, series, task.starts)
    found = _gaussian_forecast(run, task.horizons if linear else (1,))
    if not linear:
        first, (found, *_) = found, _ensemble_forecast(run, task.horizons, MEMBERS, seed=0)
        found.mean[:, 0], found.std[:, 0] = first.mean[:, 0], first.std[:, 0]
    # A model may have other units than the suite.
    return Forecast(
        scaler.transform(model.scaler.inverse(found.mean)), model.scaler.inverse_std(found.std) / scaler.scale
    )


def cold_start(model: Reconstruction, test: Series) -> dict[str, Any]:
    """Coverage of 90 % bands in rows 2 to 20 after a filter starts anew, at many held-out rows."""
    places = [(r, t) for r, x in enumerate(test.recordings) for t in range(len(x) - 1) if not np.isnan(x[t]).any()]
    # A window that ends early would leave out late rows; short recordings have no other.
    whole = [(r, t) for r, t in places if t + COLD_ROWS <= test.lengths[r]]
    places = whole if len(whole) >= FEWEST_STARTS else places
    chosen = [places[i] for i in np.unique(evenly(len(places), min(200, len(places))))]
    windows = Series.from_arrays([test.recordings[r][t : t + COLD_ROWS] for r, t in chosen], columns=test.columns)
    run = filter_pass(model, windows, Starts(np.zeros(1, int), np.zeros(1, int)))
    inside, seen = np.zeros(COLD_ROWS), np.zeros(COLD_ROWS)
    for x, row in zip(run.standard, run.rows, strict=True):
        # Where the filter lost its belief there is no band, and nothing is inside.
        hit = np.abs(x - np.asarray(row.reading_mean)) <= HALF_WIDTH * np.asarray(row.reading_std)
        inside[: len(x)] += hit.sum(axis=1)
        seen[: len(x)] += (~np.isnan(x)).sum(axis=1)
    return {
        "coverage": inside[1:].sum() / seen[1:].sum(),
        "second_row": inside[1] / seen[1],
        "entries": int(seen[1:].sum()),
    }


def free_runs(model: Reconstruction, linear: Reconstruction | None, train: Series, test: Series) -> dict[str, Any]:
    """Distances and lost runs of 20 free runs of 20 000 steps; the reason if there are too few rows."""
    try:
        found = agreement(model, train, test, linear=linear)
    except KaffeeError as error:
        return {"missing": str(error)}
    kept = {"core": found.core, "noisy": found.stochastic, "linear": found.linear}
    facts: dict[str, Any] = {
        name: {"d_stsp": runs.typical.d_stsp, "d_h": runs.typical.d_h, "lost": runs.diverged + runs.trapped}
        for name, runs in kept.items()
        if runs is not None
    }
    floor = {"d_stsp": found.floor.d_stsp, "d_h": found.floor.d_h}
    exponent = None if found.exponents is None else found.exponents.values[0]
    return {**facts, "floor": floor, "rows": found.num_rows, "runs": found.runs, "lambda_1": exponent}


def measure_arm(series: Series, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fit as a user does, and measure everything on held-out rows."""
    task, scaler = make_task(series)
    # Where the system has it, the peak is that of this fit and not of those before.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    began, worked = time.perf_counter(), time.process_time()
    try:
        found = fit(series, settings_for(series, merge({"seed": seed}, overrides)))
    except KaffeeError as error:
        return {"failed": str(error)}
    facts: dict[str, Any] = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
    facts["peak_mb"] = _peak_memory()
    model, train, test = found.fitted.reconstruction, found.train, found.test
    linear = None if found.linear is None else found.linear.reconstruction
    return {
        **facts,
        "report": found.fitted.report,
        "rungs": model.provenance.get("rungs"),
        "latent_dim": model.model.latent_dim,
        "core": type(getattr(model.model.core, "inner", model.model.core)).__name__,
        "forecasts": score(forecast_surrogate(model, series, task, scaler, linear=False), task),
        "linear": linear and score(forecast_surrogate(linear, series, task, scaler, linear=True), task),
        "cold_start": cold_start(model, test),
        "free_runs": free_runs(model, linear, train, test),
        "all_seconds": time.perf_counter() - began,
    }


def _peak_memory() -> float:
    """Peak of the process in megabytes, since it was last reset if the system can do that."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_baselines(series: Series, seed: int) -> dict[str, Any]:
    """All simple methods."""
    task, _ = make_task(series)
    began = time.perf_counter()
    methods = {name: {**score(f, task), **chosen} for name, (f, chosen) in forecast_all(task, seed).items()}
    return {"methods": methods, "seconds": time.perf_counter() - began}


def measure(case: str, seed: int, arm: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Everything about one case for one arm, or about its baselines."""
    series = CASES[case](seed)
    found = measure_baselines(series, seed) if arm == BASELINES else measure_arm(series, seed, overrides)
    about = {"rows": series.num_steps, "recordings": series.num_recordings, "coordinates": series.num_coordinates}
    return {
        "case": case,
        "seed": seed,
        "arm": arm,
        **about,
        **({"overrides": overrides} if overrides else {}),
        **found,
        "fingerprint": series.fingerprint,
        "versions": versions(),
        "machine": machine(),
    }


def table() -> Tables:
    """Of all results, for docs/fill.py."""
    return suite_tables(read_results(), list(CASES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, nargs="+", default=list(CASES), metavar="CASE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arm", default="now", help="A name for the state of the code, such as before and after.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="A setting of the fit.")
    parser.add_argument("--baselines-only", action="store_true", help="Fit nothing.")
    parser.add_argument("--show", action="store_true", help="Only print the tables.")
    given = parser.parse_args()
    if not given.arm.isidentifier() or given.arm == BASELINES:
        parser.error(f"--arm is a plain word other than {BASELINES}, not {given.arm!r}")
    overrides = reduce(merge, map(parse_override, given.set), {})
    arms = [BASELINES] if given.baselines_only else [BASELINES, given.arm]
    todo = [(case, seed, arm) for seed in range(given.seeds) for case in given.only for arm in arms]
    todo = [] if given.show else [each for each in todo if not result_path(*each).exists()]
    # In a file or pipe nothing needs to be split.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    for i, (case, seed, arm) in enumerate(todo, 1):
        if result_path(case, seed, arm).exists():
            continue  # by another process that runs the same command
        began = time.perf_counter()
        try:
            found = call_apart(measure, case, seed, arm, overrides)
            write_json(result_path(case, seed, arm), jsonable(found, digits=5))
            outcome = f"{time.perf_counter() - began:.0f} s"
        except Unavailable as reason:
            outcome = f"left out: {reason}"
        console.print(f"{i} of {len(todo)}: {case}, seed {seed}, {arm}: {outcome}", highlight=False)
    tables = suite_tables(read_results(), given.only)
    console.print(tables)
    console.print(f"Results: {OUTPUT.relative_to(OUTPUT.parent.parent)}")


if __name__ == "__main__":
    main()
