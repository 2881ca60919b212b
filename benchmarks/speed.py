"""Measure kaffee beside its peers and write `benchmarks/speed.json`: `python -m benchmarks.speed`.

All contestants solve the same problem in float32 on the same cores, agree on its result before they are timed, and
take turns. Values are seconds, medians over the turns; the first call, which compiles, is reported and not counted.
"""

import argparse
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

SECTIONS = (
    "ekf_gradient",
    "teacher_forcing",
    "rollouts",
    "dynamix_rollout",
    "dynamix_update",
    "zeroshot_filter",
    "zeroshot_forecast",
    "zeroshot_first",
    "scaling",
    "memory",
    "ensemble_gradient",
    "wide_gradient",
    "wide_growth",
)
BUSY = 0.5
OUTPUT = Path(__file__).parent / "speed.json"


def limit_cores(threads: int) -> None:
    """Give this process and its children as many cores as threads; must come before JAX starts its own."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:threads])


def load() -> float | None:
    """How many processes wanted to run during the last minute; the benchmark itself adds up to its threads."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def peer_versions() -> dict[str, str | None]:
    """Versions of the peers; None where one is not installed."""
    found: dict[str, str | None] = {}
    for package in ("torch", "dynamax", "cuthbert"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def run_section(name: str, *, quick: bool, repeats: int, seed: int) -> dict[str, Any]:
    """Measure one section; the quick mode is for tests of the code, its numbers mean nothing."""
    from benchmarks.problem import Size

    size = Size(latent=12, observed=5, windows=3, steps=6) if quick else Size()
    if name == "ekf_gradient":
        from benchmarks import ekf_gradient

        return ekf_gradient.measure(size, repeats, seed)
    if name == "teacher_forcing":
        from benchmarks import teacher_forcing

        counts = teacher_forcing.Counts(10, 2) if quick else None
        return teacher_forcing.measure(size, repeats, counts=counts, seed=seed)
    if name == "rollouts":
        from benchmarks import rollouts

        steps = {"num_steps": 1000, "torch_steps": 200} if quick else {}
        return rollouts.measure(size, max(repeats // 4, 2), seed=seed, **steps)
    if name.startswith("dynamix"):
        from benchmarks import dynamix

        run = dynamix.measure_rollout if name == "dynamix_rollout" else dynamix.measure_update
        return run(dynamix.QUICK if quick else dynamix.Size(), repeats, seed)
    if name.startswith("zeroshot"):
        from benchmarks import zeroshot_speed

        measured = {
            "zeroshot_filter": zeroshot_speed.measure_filter,
            "zeroshot_forecast": zeroshot_speed.measure_forecast,
            "zeroshot_first": zeroshot_speed.measure_first,
        }
        return measured[name](zeroshot_speed.QUICK if quick else zeroshot_speed.Size(), max(repeats // 2, 2), seed)
    if name in ("ensemble_gradient", "wide_gradient", "wide_growth"):
        from benchmarks import wide

        return wide.measure(name, size, quick=quick, seed=seed)
    from benchmarks import scaling

    if name == "scaling":
        return scaling.measure_scaling(size, repeats, (6, 12) if quick else scaling.LATENT, seed)
    return scaling.measure_memory(size, seed)


def measure(
    sections: tuple[str, ...], *, quick: bool = False, repeats: int = 21, seed: int = 0, threads: int = 2
) -> dict[str, Any]:
    """All sections with the machine, the versions and the settings."""
    from kaffee.records import machine, versions

    before = load()
    if before is not None and before > BUSY and not quick:
        print(f"The machine is busy (load {before:.1f}): the numbers will be noisy.", file=sys.stderr)
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": {**versions(), **peer_versions()},
        "settings": {
            "repeats": repeats,
            "seed": seed,
            "threads": threads,
            "quick": quick,
            "dtype": "float32",
            "value": "seconds, median of interleaved repeats; the first call is not counted",
            "problem": "AL-RNN, M=100, N=20, 50 straight-through gates, 16 windows of 40 scored steps of Lorenz-96",
            "problem_dynamix": "DynaMix of random weights, M=30, N=3, E=10, P=2, 2000 frames of Lorenz-63; seconds per "
            "step of a free run, and per update on 16 windows of 128 scored steps and 8 of burn-in",
            "problem_zeroshot": "contexts of Lorenz-63 with 10 % noise: a filter step and 300 steps of 100 members "
            "with 2000 rows; context to a first forecast of 30 steps, cold in a fresh process after its imports",
        },
        "ratios": {},
    }
    for name in sections:
        found = run_section(name, quick=quick, repeats=repeats, seed=seed)
        results["ratios"] |= found.pop("ratios", {})
        results |= found
    results["settings"]["load"] = {"before": before, "after": load()}
    return results


def chosen(text: str) -> list[str]:
    """The sections of a comma-separated list."""
    names = text.split(",")
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"'{name}' is no section; choose from {', '.join(SECTIONS)}")
    return names


def merged(old: dict[str, Any], new: dict[str, Any], sections: tuple[str, ...]) -> dict[str, Any]:
    """An earlier file with some sections measured again, and under `apart` how: machine, versions and settings."""
    about = {name: new[name] for name in ("machine", "versions", "settings")}
    return {
        **old,
        **{name: value for name, value in new.items() if name not in about},
        "ratios": {**old.get("ratios", {}), **new["ratios"]},
        "apart": {**old.get("apart", {}), **dict.fromkeys(sections, about)},
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument(
        "--only", type=chosen, action="extend", help="sections, separated by commas; others of the file are kept"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--repeats", type=int, help="turns of each contestant (default 21, quick 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="cores for all contestants alike")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    if __name__ == "__main__":
        limit_cores(options.threads)
    repeats = options.repeats or (2 if options.quick else 21)
    sections = tuple(options.only or SECTIONS)
    results = measure(
        sections,
        quick=options.quick,
        repeats=repeats,
        seed=options.seed,
        threads=options.threads,
    )
    from benchmarks.report import print_report

    print_report(results)
    if options.only and options.output.exists():
        results = merged(json.loads(options.output.read_text(encoding="utf-8")), results, sections)
    options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"Written to {options.output}")
    return results


if __name__ == "__main__":
    main()
