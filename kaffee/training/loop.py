"""The one training loop: an outer loop in Python over jitted chunks of updates.

Every update draws its batch from `fold_in(key, update)`, so that a run is a function of its seed alone: an interrupted
and resumed run is bit-identical to an uninterrupted one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, PyTree

from kaffee.data.windows import WindowSampler
from kaffee.errors import ConfigError
from kaffee.filtering.recursion import Outcome, decode_outcome
from kaffee.model.statespace import StateSpaceModel, trainable
from kaffee.training.guard import PATIENCE, Guard, apply_guard
from kaffee.training.optimiser import Optimiser
from kaffee.training.sharding import gather, replicate, share_windows, window_mesh
from kaffee.training.update import Objective, TrainState, initial_state, one_update

# Windows beyond this many do not fit into any memory; more is a slip of the keyboard.
_MAX_BATCH = 1_000_000


@dataclass(frozen=True)
class Schedule:
    """Length of a run, size of its batches, and how often it reports and saves.

    Attributes:
        report_every: Updates per jitted chunk; progress is reported and interrupts are handled between chunks.
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
        if self.batch_size > _MAX_BATCH:
            raise ConfigError(f"batch_size is at most {_MAX_BATCH}, not {self.batch_size}.")
        if not 0 <= self.num_updates <= np.iinfo(np.int32).max:
            raise ConfigError(f"num_updates lies between 0 and {np.iinfo(np.int32).max}, not {self.num_updates}.")


class Watcher:
    """Callbacks of a run; the base class ignores them."""

    def compiling(self, what: str) -> None:
        """Handle the start of compilation."""

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        """Handle the end of a chunk; `loss` is the mean over its finite updates."""

    def visited(self, update: int, model: StateSpaceModel) -> None:
        """Handle the model before the first update and after every chunk, as it would be if the run ended now."""


@dataclass(frozen=True)
class Trained:
    """The result of a run.

    Attributes:
        losses: One per update, NaN where an update was skipped.
        skipped: Number of non-finite updates, which left the parameters unchanged.
        outcome: Finite, or the fault of the last skipped update.
        completed: False if the run stopped because it could not recover.
        sent_back: Number of times that the guard rolled the model back to its last check.
    """

    model: StateSpaceModel
    losses: Float[np.ndarray, " T"]
    state: TrainState = field(repr=False)
    skipped: int
    outcome: Outcome
    completed: bool
    sent_back: int = 0

    def __str__(self) -> str:
        done = f"{len(self.losses)} updates, {self.skipped} skipped"
        if self.sent_back:
            often = "once" if self.sent_back == 1 else f"{self.sent_back} times"
            done = f"{done}, rolled back {often} for worse free runs or forecasts"
        if not self.skipped:
            return done
        verdict = "" if self.completed else "; the run could not recover and stopped"
        return f"{done}{verdict}: {self.outcome}"


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
    mesh: Mesh | None = None,
) -> tuple[TrainState, Float[Array, " capacity"]]:
    """Do `count` updates; the loop's length is a value, so that one program serves chunks of every size."""

    def body(i: Array, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
        state, losses = carry
        batch = share_windows(sampler.sample(jax.random.fold_in(key, state.update), batch_size), mesh)
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
    guard: Guard | None = None,
    save: Callable[[TrainState, np.ndarray], Any] | None = None,
) -> Trained:
    """Minimise `objective` over the chosen parts of `model`.

    Args:
        state, losses: Of an earlier run that stopped; None starts a new run.
        guard: Checks the model every `guard.every` updates and rolls it back to its last check if it is worse.
        save: Called with the state and all losses so far every `schedule.save_every` updates, at the end, and when
            the user interrupts; with a guard, the state at its last check.
    """
    watcher = watcher or Watcher()
    transformation = optimiser.build(schedule.num_updates)
    frozen = eqx.filter(model, trainable(model, parts), inverse=True)
    if state is None:
        state = initial_state(model, parts, optimiser, schedule.num_updates, guarded=guard is not None)
    history = [] if losses is None else [np.asarray(losses)]
    key = jax.random.key(seed)
    mesh = window_mesh(schedule.batch_size)
    shared_frozen, shared_sampler, shared_objective, shared_key = replicate((frozen, sampler, objective, key), mesh)

    def chunk(state: TrainState, count: int) -> tuple[TrainState, np.ndarray]:
        size, capacity = schedule.batch_size, min(schedule.report_every, schedule.num_updates)
        state, number = replicate((state, jnp.int32(count)), mesh)
        done = _run_chunk(
            state,
            shared_frozen,
            shared_sampler,
            shared_objective,
            shared_key,
            number,
            transformation,
            size,
            capacity,
            mesh,
        )
        new, values = gather(done, mesh)
        return new, np.asarray(values)[:count]

    def model_at(state: TrainState) -> StateSpaceModel:
        return eqx.combine(optimiser.result(state.optimiser, state.parameters), frozen)

    done = int(state.update)
    watcher.visited(done, model_at(state))
    if done < schedule.num_updates:
        watcher.compiling("one update")
        chunk(state, 0)  # compiles without changing the state
    if guard is not None and done == 0:
        state = apply_guard(guard, model_at(state), state, state)
    # State and losses together, so that an interrupt cannot come between them.
    kept = (state, history)
    completed = int(state.skipped_in_a_row) < schedule.patience

    def save_kept() -> None:
        if save is not None:
            save(kept[0], np.concatenate(kept[1]) if kept[1] else np.zeros(0, np.float32))

    try:
        while done < schedule.num_updates and completed:
            ends = [schedule.save_every] if guard is None else [schedule.save_every, guard.every]
            until_end = min(end - done % end for end in ends)
            count = min(schedule.report_every, schedule.num_updates - done, until_end)
            state, values = chunk(state, count)
            history, done = [*history, values], done + count
            completed = int(state.skipped_in_a_row) < schedule.patience
            last = done == schedule.num_updates or not completed
            if guard is None:
                kept = (state, history)
            elif last or done % guard.every == 0:
                state = apply_guard(guard, model_at(state), state, kept[0])
                kept = (state, history)
            finite = values[np.isfinite(values)]
            mean = float(finite.mean()) if finite.size else float("nan")
            watcher.advanced(done, mean, int(state.skipped))
            watcher.visited(done, model_at(state))
            if done % schedule.save_every == 0 and done < schedule.num_updates:
                save_kept()
            if state.guard is not None and int(state.guard.in_a_row) >= PATIENCE:
                break  # what there is to learn has been learnt
    except KeyboardInterrupt:
        save_kept()
        raise
    save_kept()
    return Trained(
        model=model_at(state),
        losses=np.concatenate(history) if history else np.zeros(0, np.float32),
        state=state,
        skipped=int(state.skipped),
        outcome=decode_outcome(state.fault),
        completed=completed,
        sent_back=0 if state.guard is None else int(state.guard.sent_back),
    )
