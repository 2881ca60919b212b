"""DynaMix with 2000 context frames: one step of a free run, and one in-context update inside the training loop."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from benchmarks.dynamix_torch import TorchDynaMix, TorchUpdate
from benchmarks.ekf_gradient import INSTALL
from benchmarks.timing import compared, first_call, interleaved, summary
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.filtering.likelihood import KAFFEE
from kaffee.filtering.recursion import core_noise
from kaffee.filtering.rollout import free_run
from kaffee.foundation.context import IN_CONTEXT, condition
from kaffee.model.dynamix import DynaMix
from kaffee.model.statespace import StateSpaceModel
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.loop import Trained

TARGETS = {"dynamix_rollout": 30.0, "dynamix_update": 8.0}
CHECKED_STEPS, CHECKED_UPDATES = 20, 5
# kaffee regularises S by 1e-5 of its variances, which the peer leaves out; the rest is float32 rounding.
TOLERANCE = 2e-4


@dataclass(frozen=True)
class Size:
    """How large the problem is; the defaults are those of the published model and of appendix C.5.

    Attributes:
        latent, experts, gates: M, E and P; the hidden layer has E units, and N is 3.
        frames: Rows of the context.
        windows, scored, burn_in: Of one update.
        steps, torch_steps: Of a free run that is timed.
        updates, torch_updates: Timed together.
    """

    latent: int = 30
    experts: int = 10
    gates: int = 2
    frames: int = 2000
    windows: int = 16
    scored: int = 128
    burn_in: int = 8
    steps: int = 10_000
    torch_steps: int = 1000
    updates: int = 20
    torch_updates: int = 4

    def adaptation(self, num_updates: int) -> Adaptation:
        """The protocol of the paper, its updates in one chunk."""
        schedule = replace(
            IN_CONTEXT.schedule,
            num_updates=num_updates,
            batch_size=self.windows,
            report_every=num_updates,
            save_every=num_updates,
        )
        return replace(IN_CONTEXT, scored=self.scored, burn_in=self.burn_in, schedule=schedule)


QUICK = Size(
    latent=8,
    experts=3,
    frames=60,
    windows=3,
    scored=6,
    burn_in=2,
    steps=100,
    torch_steps=50,
    updates=5,
    torch_updates=2,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """A conditioned model with its first shell, its standardised context, and the same rows in float32."""

    size: Size
    model: StateSpaceModel
    context: Series
    rows: Float[np.ndarray, "T N"]

    @property
    def start(self) -> Float[np.ndarray, "1 M"]:
        """The latent state after the context."""
        return np.asarray(self.model.embed(jnp.asarray(self.rows[-1:])))


def make_problem(size: Size, *, seed: int = 0) -> Problem:
    """Random weights on Lorenz-63 with 10 % noise: no download is needed, and no number of operations depends on them.

    `DynaMix.create` draws contracting experts, so that free runs stay bounded; the shell fits their residuals.
    """
    simulation = simulate(get_system("lorenz63"), size.frames, seed=seed, observation_noise=0.1)
    core = DynaMix.create(
        size.latent, num_observed=3, num_experts=size.experts, num_gates=size.gates, key=jax.random.key(seed)
    )
    surrogate, context = condition(core, simulation.observations, dt=simulation.dt)
    return Problem(size, surrogate.model, context, context.concatenated().astype(np.float32))


def run_kaffee(problem: Problem, num_steps: int, *, noisy: bool = True) -> Callable[[], Any]:
    """A call that waits for all states of one trajectory; the gate's noise is fresh at each step."""
    start, core_key = jnp.asarray(problem.start), jax.random.key(0) if noisy else None
    return lambda: jax.block_until_ready(free_run(problem.model, start, num_steps, core_key=core_key))


def adapt_kaffee(problem: Problem, num_updates: int) -> Callable[[], Trained]:
    """A whole adaptation of `num_updates` updates."""
    settings, given = problem.size.adaptation(num_updates), (problem.model, problem.context, KAFFEE)
    return lambda: adapt(*given, settings, seed=0)


def rollout_disagreement(problem: Problem) -> float:
    """Largest difference of the states of a few steps without noise."""
    own = np.asarray(run_kaffee(problem, CHECKED_STEPS, noisy=False)().states[0])
    other = TorchDynaMix(problem.model, problem.rows).free_run(problem.start, CHECKED_STEPS, noisy=False)()
    return float(np.max(np.abs(other.numpy() - own)))


def update_disagreement(problem: Problem) -> float:
    """Largest difference between the losses of a few updates on the same windows with the same noise."""
    size, settings, key = problem.size, problem.size.adaptation(CHECKED_UPDATES), jax.random.key(0)
    steps = size.burn_in + size.scored
    sampler = training_windows(problem.context, steps + 1)
    batches = []
    for i in range(CHECKED_UPDATES):
        batch = sampler.sample(jax.random.fold_in(key, i), size.windows)
        noise = core_noise(problem.model.core, batch.key, steps, size.windows, jnp.float32)
        batches.append((np.asarray(batch.starts), np.asarray(noise)))
    own = adapt_kaffee(problem, CHECKED_UPDATES)().losses
    return float(np.max(np.abs(TorchUpdate(problem.model, problem.rows, settings).losses(batches) - own)))


def _measure(
    section: str,
    kaffee: tuple[Callable[[], Any], int],
    torch: Callable[[], tuple[Callable[[], Any], int]],
    disagreement: Callable[[], float],
    repeats: int,
) -> dict[str, Any]:
    """A section with its details and its ratio; calls come with how many steps or updates they make."""
    calls, detail = {"kaffee": kaffee}, {"kaffee": {}}
    try:
        calls["torch"] = torch()
    except ImportError as error:
        print(f"torch is left out ({error}); {INSTALL}", file=sys.stderr)
    else:
        error = disagreement()
        assert error < TOLERANCE, f"{section}: PyTorch disagrees by {error:.1e}."
        detail["torch"] = {"difference": float(f"{error:.2g}")}
    for name, (call, _) in calls.items():
        detail[name]["first_call"] = round(first_call(call)[1], 3)
    seconds = interleaved({name: call for name, (call, _) in calls.items()}, repeats, warm_up=1)
    seconds = {name: values / calls[name][1] for name, values in seconds.items()}
    for name, values in seconds.items():
        detail[name] |= {**summary(values), "units_per_repeat": calls[name][1]}
    return {
        section: {name: detail[name]["median"] if name in detail else None for name in ("kaffee", "torch")},
        f"{section}_detail": detail,
        "ratios": {section: {"torch": compared(seconds.get("torch"), seconds["kaffee"], TARGETS[section])}},
    }


def measure_rollout(size: Size, repeats: int, seed: int = 0) -> dict[str, Any]:
    """The section `dynamix_rollout`: seconds per step of one trajectory."""
    problem = make_problem(size, seed=seed)
    call = run_kaffee(problem, size.steps)

    def torch() -> tuple[Callable[[], Any], int]:
        peer = TorchDynaMix(problem.model, problem.rows)
        return peer.free_run(problem.start, size.torch_steps), size.torch_steps

    found = _measure("dynamix_rollout", (call, size.steps), torch, lambda: rollout_disagreement(problem), repeats)
    assert not np.any(call().diverged_at), "The benchmark's core should not diverge."
    return found


def measure_update(size: Size, repeats: int, seed: int = 0) -> dict[str, Any]:
    """The section `dynamix_update`: seconds per update."""
    problem = make_problem(size, seed=seed)

    def torch() -> tuple[Callable[[], Any], int]:
        peer = TorchUpdate(problem.model, problem.rows, size.adaptation(size.torch_updates))
        return peer.many(size.torch_updates), size.torch_updates

    own = (adapt_kaffee(problem, size.updates), size.updates)
    return _measure("dynamix_update", own, torch, lambda: update_disagreement(problem), repeats)
