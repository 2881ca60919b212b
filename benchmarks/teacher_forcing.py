"""One update of sparse teacher forcing at the paper's size, inside the real training loop."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.ekf_gradient import INSTALL
from benchmarks.forcing_torch import TorchForcing
from benchmarks.problem import Problem, Size, make_problem
from benchmarks.timing import compared, first_call, interleaved, summary
from kaffee.data.windows import training_windows
from kaffee.training.forcing import Forcing
from kaffee.training.loop import Schedule, Trained, train
from kaffee.training.pretraining import PAPER_OPTIMISER, ForcingObjective

TARGET = 12.0
CHECKED_UPDATES = 12


@dataclass(frozen=True)
class Counts:
    """Updates that are timed together."""

    kaffee: int = 500
    torch: int = 20


def run_kaffee(problem: Problem, window: int, forcing: Forcing, num_updates: int) -> Callable[[], Trained]:
    """A whole training run of `num_updates` updates in one chunk."""
    sampler = training_windows(problem.series, window + 1)
    schedule = Schedule(num_updates, problem.size.windows, report_every=num_updates, save_every=num_updates)

    def run() -> Trained:
        return train(
            problem.model.exact(),
            ForcingObjective(forcing),
            sampler,
            parts=("core", "embedding"),
            optimiser=PAPER_OPTIMISER,
            schedule=schedule,
            seed=0,
        )

    return run


def make_torch(problem: Problem, window: int, forcing: Forcing, num_updates: int) -> TorchForcing:
    """The same update in PyTorch."""
    values = problem.series.concatenated().astype(np.float32)
    strengths = forcing.strengths(window)
    return TorchForcing(problem.model, values, strengths, num_updates=num_updates)


def disagreement(problem: Problem, window: int, forcing: Forcing) -> float:
    """Largest relative difference between the losses of a few updates on the same windows."""
    sampler, size = training_windows(problem.series, window + 1), problem.size.windows
    key = jax.random.key(0)
    batches = [sampler.sample(jax.random.fold_in(key, i), size).starts for i in range(CHECKED_UPDATES)]
    own = run_kaffee(problem, window, forcing, CHECKED_UPDATES)().losses
    other = make_torch(problem, window, forcing, CHECKED_UPDATES)
    return float(np.max(np.abs(other.losses(map(np.asarray, batches)) / own - 1.0)))


def measure(
    size: Size, repeats: int, *, window: int = 50, counts: Counts | None = None, seed: int = 0
) -> dict[str, Any]:
    """The section `teacher_forcing`, its details and its ratio; seconds per update."""
    counts = counts or Counts()
    problem, forcing = make_problem(size, seed=seed), Forcing(interval=20)
    calls: dict[str, Any] = {"kaffee": run_kaffee(problem, window, forcing, counts.kaffee)}
    units = {"kaffee": counts.kaffee, "torch": counts.torch}
    detail: dict[str, Any] = {"kaffee": {}}
    try:
        other = make_torch(problem, window, forcing, 100_000)
    except ImportError as error:
        print(f"torch is left out ({error}); {INSTALL}", file=sys.stderr)
    else:
        error = disagreement(problem, window, forcing)
        assert error < 1e-3, f"PyTorch's losses differ by {error:.1e}."
        calls["torch"] = other.many(counts.torch, size.windows)
        detail["torch"] = {"loss_difference": float(f"{error:.2g}")}
    for name, call in calls.items():
        detail[name]["first_call"] = round(first_call(call)[1], 3)
    seconds = {name: s / units[name] for name, s in interleaved(calls, repeats).items()}
    for name, values in seconds.items():
        detail[name] |= {**summary(values), "updates_per_repeat": units[name]}
    medians = {name: detail[name]["median"] if name in detail else None for name in ("kaffee", "torch")}
    return {
        "teacher_forcing": medians,
        "teacher_forcing_detail": detail,
        "ratios": {"teacher_forcing": {"torch": compared(seconds.get("torch"), seconds["kaffee"], TARGET)}},
    }
