"""Optimisers as values."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import optax
from jaxtyping import PyTree

from kaffee.errors import ConfigError, unknown
from kaffee.training.transformations import average_iterates, averaged, part_labels, share_shell

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
