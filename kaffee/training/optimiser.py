"""Optimisers as values."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from kaffee.errors import ConfigError, unknown
from kaffee.model.observation import Projection

ALGORITHMS = {"adam": optax.adam, "radam": optax.radam, "sgd": optax.sgd}


@dataclass(frozen=True)
class Optimiser:
    """A gradient method: learning rates, their decay, a bound on the gradient's norm, averaging.

    Attributes:
        algorithm: "adam", "radam" or "sgd".
        learning_rate: At the first update.
        final_learning_rate: At the last update, reached exponentially; None: constant.
        clip_norm: Global norm that a gradient is scaled down to; None: no clipping.
        shell_learning_rate: Of the shell, with the same relative decay; None: that of everything else.
        shell_scales: "shared" moves the shell as three numbers on its initial profile (process noise of observed
            coordinates, of hidden ones, observation noise); None: every coordinate for itself.
        averaging: Decay of an exponential moving average of the iterates, which then is the result; None: the last
            iterate is.
    """

    algorithm: str = "adam"
    learning_rate: float = 5e-3
    final_learning_rate: float | None = None
    clip_norm: float | None = None
    shell_learning_rate: float | None = None
    shell_scales: Literal["shared"] | None = None
    averaging: float | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(unknown("optimiser", self.algorithm, ALGORITHMS))
        for name in ("learning_rate", "final_learning_rate", "clip_norm", "shell_learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, not {value}.")
        if self.averaging is not None and not 0 < self.averaging < 1:
            raise ConfigError(f"averaging, the decay of the moving average, lies in (0, 1), not {self.averaging}.")

    # The same object for the same settings: a new one would be a new program to compile.
    @lru_cache(maxsize=64)  # noqa: B019
    def build(self, num_updates: int) -> optax.GradientTransformation:
        """The optax transformation for a run of `num_updates`."""
        chain: list[optax.GradientTransformation] = []
        if self.clip_norm is not None:
            chain.append(optax.clip_by_global_norm(self.clip_norm))
        if self.shell_scales == "shared":
            chain.append(share_shell())
        if self.shell_learning_rate is None:
            chain.append(self._descent(self.learning_rate, num_updates))
        else:
            rates = {"core": self.learning_rate, "shell": self.shell_learning_rate}
            parts = {part: self._descent(rate, num_updates) for part, rate in rates.items()}
            chain.append(optax.partition(parts, part_labels))
        if self.averaging is not None:
            chain.append(average_iterates(self.averaging))
        return chain[0] if len(chain) == 1 else optax.chain(*chain)

    def _descent(self, first_rate: float, num_updates: int) -> optax.GradientTransformation:
        rate: float | optax.Schedule = first_rate
        if self.final_learning_rate is not None:
            decay = self.final_learning_rate / self.learning_rate
            rate = optax.exponential_decay(first_rate, max(num_updates, 1), decay)
        return ALGORITHMS[self.algorithm](rate)

    def result(self, state: PyTree, parameters: PyTree) -> PyTree:
        """What a run ends with: the averaged iterates, or the last."""
        return parameters if self.averaging is None else averaged(state, parameters, self.averaging)


# Gradient transformations beside optax's: averaged iterates, and a shell that moves as a few shared numbers.


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
