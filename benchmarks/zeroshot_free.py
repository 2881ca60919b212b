"""Long free runs from one noisy context, on the paper's systems: which are lost, and how far the others are from truth.

All methods read the same 2000 rows with 10 % noise. Runs start from rows of the context at equal distances; their ends
are compared with the true trajectory after the context, in which nothing is noisy.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from benchmarks.zeroshot_baselines import pretrained, repeat_context
from kaffee.certification.free_runs import RunSummary, summarise_runs
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import evenly
from kaffee.data.series import Series
from kaffee.filtering.evaluation import FreeRunEvaluation, Target, evaluate_free_runs
from kaffee.filtering.rollout import make_core_key
from kaffee.foundation.context import condition
from kaffee.foundation.incontext import ContextSettings, read_context
from kaffee.paper.recipe import load_recipe
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

SYSTEMS = tuple(load_recipe("table2").systems)
NOISE = 0.1


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        rows: Of the context.
        starts, steps: Free runs, and how long each is.
        kept: Steps at the end of a run, and rows of truth, that are compared.
        stretches: Of the true trajectory, which show what a perfect model gets.
    """

    rows: int = 2000
    starts: int = 20
    steps: int = 100_000
    kept: int = 10_000
    stretches: int = 8


@dataclass(frozen=True)
class Problem:
    """A noisy context, where runs start, and the truth that they are compared with."""

    context: Series
    starts: Float[np.ndarray, "R N"]
    target: Target
    others: list[Float[np.ndarray, "L N"]]


def make_problem(name: str, size: Size, seed: int) -> Problem:
    """Simulate the context and, behind it, stretches of truth."""
    kept = min(size.kept, size.steps)
    system = get_system(name)
    total = size.rows + (1 + size.stretches) * kept
    found = simulate(system, total, seed=seed, observation_noise=NOISE, num_train_steps=size.rows)
    context, times = found.observations[: size.rows], found.times[: size.rows]
    stretches = np.split(found.states[size.rows :], 1 + size.stretches)
    # Histograms, as in the paper's table; whether a run is trapped is judged by all of the truth.
    target = Target(stretches[0], length=kept).with_extent([found.states], kept)
    series = Series.from_arrays(context, times=times, name=name)
    return Problem(series, context[evenly(size.rows, size.starts)], target, stretches[1:])


def run(model: Reconstruction, problem: Problem, size: Size, seed: int, *, noisy: bool = False) -> FreeRunEvaluation:
    """Run a model freely, its shell off or on; noise inside a core (DynaMix' gate) belongs to it."""
    kept = len(problem.target.rows)
    return evaluate_free_runs(
        model.model,
        problem.starts,
        problem.target,
        kept,
        transient=size.steps - kept,
        key=jax.random.key(seed) if noisy else None,
        core_key=make_core_key(model.model.core, seed),
        scaler=model.scaler,
    )


def _facts(summary: RunSummary) -> dict[str, Any]:
    counts = {key: getattr(summary, key) for key in ("diverged", "trapped", "at_wall", "periodic")}
    distances = {"d_stsp": summary.typical.d_stsp, "d_h": summary.typical.d_h}
    # A cycle that covers the attractor is not lost, but it is counted.
    return {**distances, "lost": summary.lost - summary.periodic, **counts}


def measure(name: str, arm: str, settings: ContextSettings | None, size: Size, seed: int) -> dict[str, Any]:
    """Measure one system: the arm with these settings, or without any all baselines."""
    problem = make_problem(name, size, seed)
    methods: dict[str, Any] = {}
    began = time.perf_counter()
    if settings is not None:
        model = read_context(problem.context, settings)
        shaken = run(model, problem, size, seed, noisy=True)
        methods[arm] = _facts(summarise_runs(run(model, problem, size, seed), shaken))
        methods[arm] |= {"noisy": _facts(summarise_runs(shaken)), "runs": size.starts}
        methods[arm]["seconds"] = time.perf_counter() - began
    else:
        weights, rows = pretrained(), problem.context.concatenated()
        if weights is not None:
            surrogate, _ = condition(weights, rows, dt=problem.context.time_step or 1.0)
            methods["DynaMix"] = _facts(summarise_runs(run(surrogate, problem, size, seed))) | {"runs": size.starts}
            methods["DynaMix"]["seconds"] = time.perf_counter() - began
        repeated = repeat_context(rows, len(problem.target.rows)).point
        for method, paths in (("context repeat", [repeated]), ("truth", problem.others)):
            found = problem.target.measure(paths)
            methods[method] = {key: float(np.median([getattr(d, key) for d in found])) for key in ("d_stsp", "d_h")}
    return {"kept": len(problem.target.rows), "methods": methods}
