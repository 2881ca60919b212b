"""Optimisers as values."""

import math
from dataclasses import dataclass
from functools import lru_cache

import optax

from kaffee.errors import ConfigError, unknown

ALGORITHMS = {"adam": optax.adam, "radam": optax.radam, "sgd": optax.sgd}


@dataclass(frozen=True)
class Optimiser:
    """A gradient method with an exponential decay of its learning rate and a bound on the gradient's norm.

    Attributes:
        algorithm: "adam", "radam" or "sgd".
        learning_rate: At the first update.
        final_learning_rate: At the last update, reached exponentially; None: constant.
        clip_norm: Global norm that a gradient is scaled down to; None: no clipping.
    """

    algorithm: str = "adam"
    learning_rate: float = 5e-3
    final_learning_rate: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(unknown("optimiser", self.algorithm, ALGORITHMS))
        for name in ("learning_rate", "final_learning_rate", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be positive and finite, not {value}.")

    # The same object for the same settings: a new one would be a new program to compile.
    @lru_cache(maxsize=64)  # noqa: B019
    def build(self, num_updates: int) -> optax.GradientTransformation:
        """The optax transformation for a run of `num_updates`."""
        rate: float | optax.Schedule = self.learning_rate
        if self.final_learning_rate is not None:
            decay = self.final_learning_rate / self.learning_rate
            rate = optax.exponential_decay(self.learning_rate, max(num_updates, 1), decay)
        step = ALGORITHMS[self.algorithm](rate)
        return step if self.clip_norm is None else optax.chain(optax.clip_by_global_norm(self.clip_norm), step)
