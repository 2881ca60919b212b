"""Optimisers as settings: optax's algorithms, averaged iterates, shared or faster noise scales."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from kaffee.errors import ConfigError, unknown
from kaffee.model.observation import Projection

_ALGORITHMS = {"adam": optax.adam, "radam": optax.radam, "sgd": optax.sgd}


@dataclass(frozen=True)
class Optimiser:
    """A gradient method: learning rates, their decay, a bound on the gradient's norm, averaging.

    Attributes:
        algorithm: "adam", "radam" or "sgd".
        learning_rate: At the first update.
        final_learning_rate: At the last update, reached exponentially; None: constant.
        clip_norm: Global norm that a gradient is scaled down to; None: no clipping.
        shell_learning_rate: Rate of the shell, with the same relative decay; None: `learning_rate`.
        shell_scales: "shared" moves the shell as three numbers on its initial profile (process noise of observed
            coordinates, of hidden ones, observation noise); None: every coordinate separately.
        averaging: Decay of an exponential moving average of the iterates, which is then the result; None: the result
            is the last iterate.
    """

    algorithm: str = "adam"
    learning_rate: float = 5e-3
    final_learning_rate: float | None = None
    clip_norm: float | None = None
    shell_learning_rate: float | None = None
    shell_scales: Literal["shared"] | None = None
    averaging: float | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in _ALGORITHMS:
            raise ConfigError(unknown("optimiser", self.algorithm, _ALGORITHMS))
        for name in ("learning_rate", "final_learning_rate", "clip_norm", "shell_learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, not {value}.")
        if self.averaging is not None and not 0 < self.averaging < 1:
            raise ConfigError(f"averaging, the decay of the moving average, lies in (0, 1), not {self.averaging}.")

    # The same object for the same settings: a new one would be a new program to compile.
    @lru_cache(maxsize=64)  # noqa: B019
    def build(self, num_updates: int) -> optax.GradientTransformation:
        """Build the optax transformation for a run of `num_updates`."""
        chain: list[optax.GradientTransformation] = []
        if self.clip_norm is not None:
            chain.append(optax.clip_by_global_norm(self.clip_norm))
        if self.shell_scales == "shared":
            chain.append(_share_shell())
        if self.shell_learning_rate is None:
            chain.append(self._descent(self.learning_rate, num_updates))
        else:
            rates = {"core": self.learning_rate, "shell": self.shell_learning_rate}
            parts = {part: self._descent(rate, num_updates) for part, rate in rates.items()}
            chain.append(optax.partition(parts, _label_parts))
        if self.averaging is not None:
            chain.append(_average_iterates(self.averaging))
        return chain[0] if len(chain) == 1 else optax.chain(*chain)

    def _descent(self, first_rate: float, num_updates: int) -> optax.GradientTransformation:
        rate: float | optax.Schedule = first_rate
        if self.final_learning_rate is not None:
            decay = self.final_learning_rate / self.learning_rate
            rate = optax.exponential_decay(first_rate, max(num_updates, 1), decay)
        return _ALGORITHMS[self.algorithm](rate)

    def result(self, state: PyTree, parameters: PyTree) -> PyTree:
        """Return the parameters that a run ends with: averaged iterates, or the last."""
        averages = [s for s in jax.tree.leaves(state, is_leaf=_is_average) if _is_average(s)]
        if self.averaging is None or not averages or (weight := float(averages[0].weight)) == 0.0:
            return parameters
        return jax.tree.map(lambda m: (m / weight).astype(m.dtype), averages[0].total)


class _AveragedState(NamedTuple):
    """Exponentially weighted sum of the iterates, and the sum of the weights.

    Not their number: a guard that rolls back (`kaffee.training.guard`) leaves counts as they are.
    """

    total: PyTree
    weight: Float[Array, ""]


def _average_iterates(decay: float) -> optax.GradientTransformation:
    """Keep a moving average of the parameters that result from the updates; must be last in a chain.

    m_n = d m_{n-1} + (1 - d) theta_n,    w_n = d w_{n-1} + (1 - d),    average_n = m_n / w_n    (`Optimiser.result`)
    """

    def init(parameters: PyTree) -> _AveragedState:
        return _AveragedState(jax.tree.map(jnp.zeros_like, parameters), jnp.zeros((), jnp.float32))

    def update(updates: PyTree, state: _AveragedState, parameters: PyTree = None) -> tuple[PyTree, _AveragedState]:
        moved = jax.tree.map(lambda p, u: p + u, parameters, updates)
        total = jax.tree.map(lambda m, p: decay * m + (1.0 - decay) * p, state.total, moved)
        return updates, _AveragedState(total, decay * state.weight + (1.0 - decay))

    return optax.GradientTransformation(init, update)


def _is_average(value: Any) -> bool:
    return isinstance(value, _AveragedState)


def _share_shell() -> optax.GradientTransformation:
    """Replace the shell's gradient by its mean over groups, so that the shell keeps its initial profile.

    Groups are process noise of observed coordinates, of hidden ones, and observation noise. If B is not a projection,
    all process noise is one group.
    """

    def update(updates: PyTree, state: optax.EmptyState, parameters: PyTree = None) -> tuple[PyTree, optax.EmptyState]:
        shell = updates.shell
        observed = updates.observation.num_observed if isinstance(updates.observation, Projection) else 0
        process = shell.log_process_std
        parts = [part for part in (process[:observed], process[observed:], shell.log_observation_std) if part.size]
        *process_means, observation_mean = (jnp.full_like(part, jnp.mean(part)) for part in parts)
        shared = type(shell)(jnp.concatenate(process_means), observation_mean)
        return eqx.tree_at(lambda u: u.shell, updates, shared), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def _label_parts(parameters: PyTree) -> PyTree:
    """Label each array of a model: "shell", or "core" for everything else."""

    def label(path: tuple[Any, ...], _: Any) -> str:
        return "shell" if getattr(path[0], "name", None) == "shell" else "core"

    return jax.tree_util.tree_map_with_path(label, parameters)
