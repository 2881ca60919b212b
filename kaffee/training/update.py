"""One gradient step, and the state that a run carries between steps."""

from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from kaffee.data.windows import WindowBatch
from kaffee.filtering.likelihood import Score
from kaffee.filtering.recursion import QUANTITIES, locate_fault
from kaffee.model.statespace import StateSpaceModel, trainable
from kaffee.training.optimiser import Optimiser


class Objective(Protocol):
    """A pytree that maps a model and a batch of windows to the score to minimise."""

    def __call__(self, model: StateSpaceModel, batch: WindowBatch, /) -> Score: ...


class GuardState(eqx.Module):
    """The memory of a guard (`kaffee.training.guard`): best results so far, rollbacks, and how many in a row."""

    lost: Int[Array, ""]
    distance: Float[Array, ""]
    sent_back: Int[Array, ""]
    nll: Float[Array, ""]
    in_a_row: Int[Array, ""]

    @classmethod
    def initial(cls) -> "GuardState":
        """Build a memory that any result improves."""
        most = jnp.array(jnp.iinfo(jnp.int32).max, jnp.int32)
        infinite, zero = jnp.array(jnp.inf, jnp.float32), jnp.zeros((), jnp.int32)
        return cls(most, infinite, zero, infinite, zero)


class TrainState(eqx.Module):
    """Everything that a resumed run needs; field names are part of the format on disk."""

    parameters: PyTree
    optimiser: PyTree
    update: Int[Array, ""]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    fault: Int[Array, " 3"]
    guard: GuardState | None = None


def initial_state(
    model: StateSpaceModel, parts: tuple[str, ...], optimiser: Optimiser, num_updates: int, *, guarded: bool = False
) -> TrainState:
    """Build the state before the first update."""
    parameters = eqx.filter(model, trainable(model, parts))
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        parameters=parameters,
        optimiser=optimiser.build(num_updates).init(parameters),
        update=zero,
        skipped=zero,
        skipped_in_a_row=zero,
        fault=jnp.zeros(3, jnp.int32),
        guard=GuardState.initial() if guarded else None,
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
    """Take one gradient step; a non-finite one leaves parameters and optimiser unchanged and is counted."""

    def evaluate(parameters: PyTree) -> tuple[Float[Array, ""], Score]:
        score = objective(eqx.combine(parameters, frozen), batch)
        return score.loss, score

    (loss, score), gradient = eqx.filter_value_and_grad(evaluate, has_aux=True)(state.parameters)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    safe = jax.tree.map(lambda g: jnp.where(finite, g, jnp.zeros_like(g)), gradient)
    # optax multiplies integer counts by floats, which fails under strict promotion.
    with jax.numpy_dtype_promotion("standard"):
        updates, optimiser = transformation.update(safe, state.optimiser, state.parameters)
    parameters = eqx.apply_updates(state.parameters, updates)
    # Teacher forcing reports no faults: if its loss is not finite, its predictions are not.
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
        guard=state.guard,
    )
    return new, jnp.where(finite, loss, jnp.nan)
