"""The one training loop: a readable outer loop in Python over jitted chunks of updates.

Every update draws its batch from `fold_in(key, update)`, so that a run is a function of its seed alone: stopping it
anywhere and going on from the saved state gives the same numbers as never having stopped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from kaffee.data.windows import WindowBatch, WindowSampler
from kaffee.errors import ConfigError
from kaffee.objectives import Score
from kaffee.outcome import QUANTITIES, Outcome, locate_fault, outcome_of
from kaffee.ssm import StateSpaceModel, trainable
from kaffee.training.optimiser import Optimiser


class Objective(Protocol):
    """What is minimised: a pytree that maps a model and a batch of windows to a score."""

    def __call__(self, model: StateSpaceModel, batch: WindowBatch, /) -> Score: ...


class TrainState(eqx.Module):
    """All that a run has to remember between two updates."""

    parameters: PyTree
    optimiser: PyTree
    update: Int[Array, ""]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    fault: Int[Array, " 3"]


@dataclass(frozen=True)
class Schedule:
    """How long, how large, how often.

    Attributes:
        num_updates: Gradient steps in all.
        batch_size: Windows per update.
        report_every: Updates per jitted chunk; progress is seen and interrupts are heard between chunks.
        save_every: Updates between two calls of `save`.
        patience: A run stops after this many non-finite updates in a row.
    """

    num_updates: int
    batch_size: int = 16
    report_every: int = 100
    save_every: int = 1000
    patience: int = 50

    def __post_init__(self) -> None:
        for name in ("batch_size", "report_every", "save_every", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.num_updates <= np.iinfo(np.int32).max:
            raise ConfigError(f"num_updates lies between 0 and {np.iinfo(np.int32).max}, not {self.num_updates}.")


class Watcher:
    """What a caller wants to hear of a run; the base class hears nothing."""

    def compiling(self, what: str) -> None:
        """The first chunk is about to be compiled."""

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        """A chunk is done; `loss` is the mean over its finite updates."""

    def visited(self, update: int, model: StateSpaceModel) -> None:
        """The model before the first update of this call and after every chunk, as it would be if the run ended now."""


@dataclass(frozen=True)
class Trained:
    """The end of a run.

    Attributes:
        model: With the trained parameters.
        losses: One per update, NaN where an update was skipped.
        skipped: How many updates were not finite and left the parameters alone.
        outcome: Finite, or the fault that the last skipped update met.
        completed: False if the run stopped for good because it could not recover.
    """

    model: StateSpaceModel
    losses: Float[np.ndarray, " T"]
    state: TrainState = field(repr=False)
    skipped: int
    outcome: Outcome
    completed: bool

    def __str__(self) -> str:
        done = f"{len(self.losses)} updates, {self.skipped} skipped"
        if not self.skipped:
            return done
        verdict = "" if self.completed else "; the run could not recover and stopped"
        return f"{done}{verdict}: {self.outcome}"


def initial_state(model: StateSpaceModel, parts: tuple[str, ...], optimiser: Optimiser, num_updates: int) -> TrainState:
    """The state before the first update."""
    parameters = eqx.filter(model, trainable(model, parts))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        parameters, optimiser.build(num_updates).init(parameters), zero, zero, zero, jnp.zeros(3, jnp.int32)
    )


def _choose(finite: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda n, o: jnp.where(finite, n, o) if eqx.is_array(n) else n, new, old)


def one_update(
    state: TrainState,
    frozen: PyTree,
    batch: WindowBatch,
    objective: Objective,
    transformation: optax.GradientTransformation,
) -> tuple[TrainState, Float[Array, ""]]:
    """One gradient step; a non-finite one leaves parameters and optimiser untouched and is counted."""

    def loss_of(parameters: PyTree) -> tuple[Float[Array, ""], Score]:
        score = objective(eqx.combine(parameters, frozen), batch)
        return score.loss, score

    (loss, score), gradient = eqx.filter_value_and_grad(loss_of, has_aux=True)(state.parameters)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    safe = jax.tree.map(lambda g: jnp.where(finite, g, jnp.zeros_like(g)), gradient)
    # Optimisers count in integers and multiply by floats, which users of strict promotion would forbid.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimiser = transformation.update(safe, state.optimiser, state.parameters)
    parameters = eqx.apply_updates(state.parameters, updates)
    # Teacher forcing locates no faults: if its loss is not finite, its predictions are not.
    code = jnp.where(jnp.isfinite(loss), QUANTITIES.index("gradient"), QUANTITIES.index("predicted mean"))
    nowhere = jnp.zeros(3, jnp.int32).at[2].set(code.astype(jnp.int32))
    located = locate_fault(score.faults) if score.faults.size else nowhere
    located = jnp.where(located[2] > 0, located, nowhere)
    bad = (~finite).astype(jnp.int32)
    new = TrainState(
        parameters=_choose(finite, parameters, state.parameters),
        optimiser=_choose(finite, optimiser, state.optimiser),
        update=state.update + 1,
        skipped=state.skipped + bad,
        skipped_in_a_row=(state.skipped_in_a_row + bad) * bad,
        fault=jnp.where(finite, state.fault, located),
    )
    return new, jnp.where(finite, loss, jnp.nan)


@eqx.filter_jit
def _run_chunk(
    state: TrainState,
    frozen: PyTree,
    sampler: WindowSampler,
    objective: Objective,
    key: Key[Array, ""],
    count: Int[Array, ""],
    transformation: optax.GradientTransformation,
    batch_size: int,
    capacity: int,
) -> tuple[TrainState, Float[Array, " capacity"]]:
    """`count` updates; the loop's length is a value, so that one program serves chunks of every size."""

    def body(i: Array, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
        state, losses = carry
        batch = sampler.sample(jax.random.fold_in(key, state.update), batch_size)
        state, loss = one_update(state, frozen, batch, objective, transformation)
        return state, losses.at[i].set(loss.astype(losses.dtype))

    return jax.lax.fori_loop(0, count, body, (state, jnp.zeros(capacity)))


def train(
    model: StateSpaceModel,
    objective: Objective,
    sampler: WindowSampler,
    *,
    parts: tuple[str, ...],
    optimiser: Optimiser,
    schedule: Schedule,
    seed: int,
    state: TrainState | None = None,
    losses: Float[np.ndarray, " T"] | None = None,
    watcher: Watcher | None = None,
    save: Callable[[TrainState, np.ndarray], Any] | None = None,
) -> Trained:
    """Minimise `objective` over the chosen parts of `model`.

    Args:
        state: Where an earlier run stopped; None starts anew.
        losses: The losses of that earlier run.
        save: Called with the state and all losses so far every `schedule.save_every` updates, at the end, and when
            the user interrupts.
    """
    watcher = watcher or Watcher()
    transformation = optimiser.build(schedule.num_updates)
    frozen = eqx.filter(model, trainable(model, parts), inverse=True)
    state = state or initial_state(model, parts, optimiser, schedule.num_updates)
    history = [] if losses is None else [np.asarray(losses)]
    key = jax.random.key(seed)

    def chunk(state: TrainState, count: int) -> tuple[TrainState, np.ndarray]:
        new, values = _run_chunk(
            state,
            frozen,
            sampler,
            objective,
            key,
            jnp.int32(count),
            transformation,
            schedule.batch_size,
            min(schedule.report_every, schedule.num_updates),
        )
        return new, np.asarray(values)[:count]

    def model_at(state: TrainState) -> StateSpaceModel:
        return eqx.combine(optimiser.result(state.optimiser, state.parameters), frozen)

    done = int(state.update)
    watcher.visited(done, model_at(state))
    if done < schedule.num_updates:
        watcher.compiling("one update")
        chunk(state, 0)
    completed = int(state.skipped_in_a_row) < schedule.patience
    try:
        while done < schedule.num_updates and completed:
            until_save = schedule.save_every - done % schedule.save_every
            count = min(schedule.report_every, schedule.num_updates - done, until_save)
            new, values = chunk(state, count)
            # Together, so that an interrupt cannot come between a state and its losses.
            state, history = new, [*history, values]
            done += count
            completed = int(state.skipped_in_a_row) < schedule.patience
            finite = values[np.isfinite(values)]
            mean = float(finite.mean()) if finite.size else float("nan")
            watcher.advanced(done, mean, int(state.skipped))
            watcher.visited(done, model_at(state))
            if save is not None and done % schedule.save_every == 0 and done < schedule.num_updates:
                save(state, np.concatenate(history))
    except KeyboardInterrupt:
        if save is not None:
            save(state, np.concatenate(history) if history else np.zeros(0))
        raise
    every = np.concatenate(history) if history else np.zeros(0, np.float32)
    if save is not None:
        save(state, every)
    return Trained(
        model=model_at(state),
        losses=every,
        state=state,
        skipped=int(state.skipped),
        outcome=outcome_of(state.fault),
        completed=completed,
    )
