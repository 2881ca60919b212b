"""Gradients through other filters: a thousand latents by low rank, ensembles, and cuthbert's filters beside ours.

Every measurement is a process of its own (`python -m benchmarks.wide lowrank:32 --latent 1000`), for its own peak of
memory; contestants take turns. Ratios and exponents are of processor time, which other work on the machine changes
least; seconds on the clock stand beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problem import Problem, Size, make_problem
from benchmarks.scaling import exponent

LATENT = (200, 500, 1000, 2000)
STRUCTURE = "lowrank:16"
# Exponents do not depend on the length of windows, which is shorter to measure.
SHORT = 8
RANK = 32
TARGETS = {"seconds": 15.0, "memory": 6.0, "dense": 2.2, "structured": 1.3, "enkf": 1.5, "cuthbert": 3.0}
PATIENCE = 3600.0


def build(problem: Problem, spec: str, structure: str | None = None) -> tuple[Callable[[], Any], float | None]:
    """A call that waits for value and gradient through a filter, and the megabytes that XLA plans for it.

    `cuthbert:ekf` and `cuthbert:enkf` are the peer's; everything else is a name of `kaffee.filtering.filters`.
    """
    if spec.startswith("cuthbert:"):
        from benchmarks import ekf_cuthbert

        return ekf_cuthbert.build(problem, spec.partition(":")[2]), None
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from kaffee.filtering.filters import parse_filter
    from kaffee.filtering.likelihood import KAFFEE, window_nll
    from kaffee.filtering.recursion import Recursion
    from kaffee.model.alrnn import ALRNN
    from kaffee.model.statespace import trainable

    model, recursion = problem.model, Recursion(filter=parse_filter(spec))
    if structure is not None:
        M, key = problem.size.latent, jax.random.key(0)
        model = model.replace(core=ALRNN.create(M, problem.size.gates, key=key, structure=structure).surrogate())
    moving, frozen = eqx.partition(model, trainable(model, KAFFEE.trainable_parts))

    def loss(moving: Any, frozen: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        return window_nll(eqx.combine(moving, frozen), x, mask, recursion, burn_in=0).loss

    given = (moving, frozen, jnp.asarray(problem.x), jnp.asarray(problem.mask))
    compiled = eqx.filter_jit(eqx.filter_value_and_grad(loss)).lower(*given).compile()
    planned = compiled.compiled.memory_analysis().temp_size_in_bytes / 2**20
    return lambda: jax.block_until_ready(compiled(*given)), planned


def measure_here(spec: str, size: Size, structure: str | None, repeats: int, seed: int) -> dict[str, Any]:
    """Processor and clock seconds, megabytes and loss of one filter in this process; the first call is not timed."""
    from benchmarks.worker import release_free_memory, reset_peak, resident_mb

    call, planned = build(make_problem(size, seed=seed), spec, structure)
    loss = float(call()[0])
    release_free_memory()
    before, resets = resident_mb("VmRSS"), reset_peak()
    clock, processor = [], []
    for _ in range(repeats):
        began = time.perf_counter(), time.process_time()
        call()
        clock.append(time.perf_counter() - began[0])
        processor.append(time.process_time() - began[1])
    peak = resident_mb("VmHWM")
    found: dict[str, Any] = {"clock": clock, "processor": processor, "loss": loss}
    if planned is not None:
        found["planned_mb"] = round(planned, 1)
    if before is not None and peak is not None and resets:
        found["added_mb"] = round(peak - before, 1)
    return found


def _apart(
    spec: str, size: Size, repeats: int, seed: int, structure: str | None = None, cores: int = 2
) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.wide", spec, "--repeats", str(repeats), "--seed", str(seed)]
    command += ["--cores", str(cores)]
    for name, value in asdict(size).items():
        command += [f"--{name}", str(value)]
    command += [] if structure is None else ["--structure", structure]
    # LAPACK's own threads spin beside those of XLA; one is faster for every contestant.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        command, cwd=root, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=PATIENCE
    )
    return json.loads(done.stdout.splitlines()[-1])


def _merge(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds, and the largest memory."""
    merged: dict[str, Any] = {"loss": rounds[0]["loss"]}
    for name in ("clock", "processor"):
        values = [value for each in rounds for value in each[name]]
        merged[name] = float(f"{np.median(values):.4g}")
    for name in ("planned_mb", "added_mb"):
        known = [each[name] for each in rounds if name in each]
        merged |= {name: max(known)} if known else {}
    return merged


def _turns(
    specs: Sequence[str], size: Size, rounds: int, repeats: int, seed: int, cores: int = 2
) -> dict[str, dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {spec: [] for spec in specs}
    for turn in range(rounds):
        for spec in specs if turn % 2 == 0 else reversed(specs):
            found[spec].append(_apart(spec, size, repeats, seed, cores=cores))
    return {spec: _merge(each) for spec, each in found.items()}


def _ratio(value: float, target: float, *, at_most: bool = False) -> dict[str, Any]:
    return {
        "ratio": float(f"{value:.4g}"),
        "target": target,
        "at_most": at_most,
        "met": bool(value <= target if at_most else value >= target),
    }


def measure_gradient(size: Size, rank: int = RANK, *, rounds: int = 1, seed: int = 0) -> dict[str, Any]:
    """The section `wide_gradient`: a dense W, the dense filter against low rank."""
    low = f"lowrank:{rank}"
    found = _turns(["ekf", low], size, rounds, 1, seed)
    ratios = {
        "dense filter": _ratio(found["ekf"]["processor"] / found[low]["processor"], TARGETS["seconds"]),
        "memory of the dense filter": _ratio(found["ekf"]["planned_mb"] / found[low]["planned_mb"], TARGETS["memory"]),
    }
    return {"wide_gradient": found, "ratios": {"wide_gradient": ratios}}


def measure_growth(
    size: Size, rank: int = RANK, latent: Sequence[int] = LATENT, *, repeats: int = 2, seed: int = 0
) -> dict[str, Any]:
    """The section `wide_growth`: processor time of the low-rank gradient over M, with a dense and a structured W."""
    rows: dict[str, Any] = {}
    for name, structure in (("dense", None), ("structured", STRUCTURE)):
        rows[name] = {
            str(M): _merge([_apart(f"lowrank:{rank}", replace(size, latent=M), repeats, seed, structure)])
            for M in latent
        }
    slopes = {name: exponent(latent, [row["processor"] for row in each.values()]) for name, each in rows.items()}
    ratios = {f"exponent, {name} W": _ratio(slope, TARGETS[name], at_most=True) for name, slope in slopes.items()}
    return {"wide_growth": {**rows, "exponents": slopes}, "ratios": {"wide_growth": ratios}}


def measure_ensemble(size: Size, *, rounds: int = 2, seed: int = 0) -> dict[str, Any]:
    """The section `ensemble_gradient`: EnKF of 40 members beside the EKF, and both beside cuthbert's.

    On one core: on two, a step of cuthbert's filter has two batched LAPACK calls at once, which wait for each other for
    good (jaxlib 0.10.2; ours have none that could run at the same time).
    """
    import importlib.util

    specs = ["ekf", "enkf:40"]
    if importlib.util.find_spec("cuthbert") is not None:
        specs += ["cuthbert:ekf", "cuthbert:enkf"]
    found = _turns(specs, size, rounds, 3, seed, cores=1)
    own = {spec: row["processor"] for spec, row in found.items()}
    ratios: dict[str, Any] = {"enkf:40 over ekf": _ratio(own["enkf:40"] / own["ekf"], TARGETS["enkf"], at_most=True)}
    for spec, ours in (("cuthbert:ekf", "ekf"), ("cuthbert:enkf", "enkf:40")):
        ratios[spec] = _ratio(own[spec] / own[ours], TARGETS["cuthbert"]) if spec in own else None
    return {"ensemble_gradient": found, "ratios": {"ensemble_gradient": ratios}}


def measure(name: str, size: Size, *, quick: bool, seed: int) -> dict[str, Any]:
    """One section by its name; quick sizes only show that it runs."""
    if name == "wide_gradient":
        wide = size if quick else replace(size, latent=1000)
        return measure_gradient(wide, 4 if quick else RANK, seed=seed)
    if name == "wide_growth":
        short = size if quick else replace(size, steps=SHORT)
        return measure_growth(short, 4 if quick else RANK, (12, 24) if quick else LATENT, seed=seed)
    return measure_ensemble(size, rounds=1 if quick else 2, seed=seed)


def main() -> None:
    """Measure one filter as the arguments say and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("filter")
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--structure")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    size = Size(options.latent, options.observed, options.windows, options.steps)
    print(json.dumps(measure_here(options.filter, size, options.structure, options.repeats, options.seed)))


if __name__ == "__main__":
    main()
