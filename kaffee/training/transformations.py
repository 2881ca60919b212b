"""Gradient transformations beside optax's: averaged iterates, and a shell that moves as a few shared numbers."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from kaffee.observation import Projection


class AveragedState(NamedTuple):
    """Exponentially weighted sum of the iterates, and how many entered."""

    total: PyTree
    num_iterates: Int[Array, ""]


def average_iterates(decay: float) -> optax.GradientTransformation:
    """Leaves updates alone and remembers a moving average of the parameters that they lead to.

        m_n = d m_{n-1} + (1 - d) theta_n,    average_n = m_n / (1 - d^n)

    Must stand last in a chain. `averaged` reads the result.
    """

    def init(parameters: PyTree) -> AveragedState:
        return AveragedState(jax.tree.map(jnp.zeros_like, parameters), jnp.zeros((), jnp.int32))

    def update(updates: PyTree, state: AveragedState, parameters: PyTree = None) -> tuple[PyTree, AveragedState]:
        moved = jax.tree.map(lambda p, u: p + u, parameters, updates)
        total = jax.tree.map(lambda m, p: decay * m + (1.0 - decay) * p, state.total, moved)
        return updates, AveragedState(total, state.num_iterates + 1)

    return optax.GradientTransformation(init, update)


def averaged(state: Any, parameters: PyTree, decay: float) -> PyTree:
    """The average that an optimiser's state remembers; `parameters` if no update was made yet."""
    found = [s for s in jax.tree.leaves(state, is_leaf=_is_average) if _is_average(s)]
    if not found or int(found[0].num_iterates) == 0:
        return parameters
    weight = 1.0 - decay ** int(found[0].num_iterates)
    return jax.tree.map(lambda m: (m / weight).astype(m.dtype), found[0].total)


def _is_average(value: Any) -> bool:
    return isinstance(value, AveragedState)


def share_shell() -> optax.GradientTransformation:
    """Replaces the shell's gradient by its mean over groups, so that the shell keeps its initial profile.

    Three numbers are left to learn: the scale of the process noise of observed coordinates, that of hidden ones, and
    the scale of the observation noise. Where B is no projection, all process noise is one group.
    """

    def init(_: PyTree) -> optax.EmptyState:
        return optax.EmptyState()

    def update(updates: PyTree, state: optax.EmptyState, parameters: PyTree = None) -> tuple[PyTree, optax.EmptyState]:
        shell = updates.shell
        observed = updates.observation.num_observed if isinstance(updates.observation, Projection) else 0
        process = shell.log_process_std
        groups = [_shared(part) for part in (process[:observed], process[observed:]) if part.size]
        shared = type(shell)(jnp.concatenate(groups), _shared(shell.log_observation_std))
        return eqx.tree_at(lambda u: u.shell, updates, shared), state

    return optax.GradientTransformation(init, update)


def _shared(values: Float[Array, " K"]) -> Float[Array, " K"]:
    return jnp.full_like(values, jnp.mean(values))


def part_labels(parameters: PyTree) -> PyTree:
    """For each array of a model: "shell", or "core" for everything else."""

    def label(path: tuple[Any, ...], _: Any) -> str:
        return "shell" if getattr(path[0], "name", None) == "shell" else "core"

    return jax.tree_util.tree_map_with_path(label, parameters)
