"""A residual multilayer perceptron: smooth, general, no structure to exploit."""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.cores.core import Core
from kaffee.errors import ConfigError


class ResidualMLP(Core):
    """z' = z + W_D tanh(... tanh(W_1 z + b_1) ...) + b_D."""

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]

    @classmethod
    def create(
        cls,
        latent_dim: int,
        *,
        hidden_dim: int = 64,
        depth: int = 1,
        key: Key[Array, ""],
        dtype: Any = jnp.float32,
    ) -> "ResidualMLP":
        """Weights ~ N(0, 1/fan_in), the last layer ten times smaller so that the map starts near the identity."""
        if depth < 1 or hidden_dim < 1:
            raise ConfigError(f"depth and hidden_dim must be at least 1, not {depth} and {hidden_dim}.")
        sizes = [latent_dim, *[hidden_dim] * depth, latent_dim]
        keys = jax.random.split(key, depth + 1)
        weights = []
        for i, k in enumerate(keys):
            scale = (0.1 if i == depth else 1.0) / sizes[i] ** 0.5
            weights.append(scale * jax.random.normal(k, (sizes[i + 1], sizes[i]), dtype))
        return cls(weights=tuple(weights), biases=tuple(jnp.zeros(n, dtype) for n in sizes[1:]))

    @property
    def latent_dim(self) -> int:
        return self.biases[-1].shape[0]

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        hidden = z
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jnp.tanh(W @ hidden + b)
        return z + self.weights[-1] @ hidden + self.biases[-1]

    def hyperparameters(self) -> dict[str, Any]:
        return {
            "latent_dim": self.latent_dim,
            "hidden_dim": self.biases[0].shape[0],
            "depth": len(self.weights) - 1,
        }

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        template = cls.create(**hyperparameters, key=jax.random.key(0))
        return eqx.filter(template, eqx.is_array)
