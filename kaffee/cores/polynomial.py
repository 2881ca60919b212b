"""The polynomial core of the Van der Pol control (appendix D.2)."""

from itertools import combinations_with_replacement
from math import comb
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.cores.core import Core
from kaffee.errors import ConfigError


def monomials(latent_dim: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """The factors of every monomial of degree 2..degree, in the paper's order.

    >>> monomials(2, 3)
    ((0, 0), (0, 1), (1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1))
    """
    return tuple(
        factors for d in range(2, degree + 1) for factors in combinations_with_replacement(range(latent_dim), d)
    )


def count_monomials(latent_dim: int, degree: int) -> int:
    """How many monomials there are, without listing them.

    >>> count_monomials(2, 3)
    7
    """
    return comb(latent_dim + degree, degree) - 1 - latent_dim


class Polynomial(Core):
    """z' = A z + W phi(z) + h, phi = all monomials of degree 2 up to `degree` (3: cubic)."""

    A: Float[Array, "M M"]
    W: Float[Array, "M F"]
    h: Float[Array, " M"]
    degree: int = eqx.field(static=True, default=3)

    @classmethod
    def create(
        cls,
        latent_dim: int,
        *,
        key: Key[Array, ""],
        degree: int = 3,
        scale: float = 0.01,
        dtype: Any = jnp.float32,
    ) -> "Polynomial":
        """The identity plus small independent Gaussian coefficients of standard deviation `scale`."""
        if degree < 2:
            raise ConfigError(f"A polynomial core needs degree >= 2, not {degree}; use Linear for degree 1.")
        key_A, key_W = jax.random.split(key)
        num_features = count_monomials(latent_dim, degree)
        return cls(
            A=jnp.eye(latent_dim, dtype=dtype) + scale * jax.random.normal(key_A, (latent_dim, latent_dim), dtype),
            W=scale * jax.random.normal(key_W, (latent_dim, num_features), dtype),
            h=jnp.zeros(latent_dim, dtype),
            degree=degree,
        )

    @property
    def latent_dim(self) -> int:
        return self.h.shape[0]

    def features(self, z: Float[Array, " M"]) -> Float[Array, " F"]:
        """phi(z)."""
        # Powers of one appended entry, 1, pad every monomial to the same number of factors.
        padded = jnp.append(z, jnp.ones((), z.dtype))
        table = [m + (self.latent_dim,) * (self.degree - len(m)) for m in monomials(self.latent_dim, self.degree)]
        return jnp.prod(padded[np.asarray(table)], axis=1)

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.A @ z + self.W @ self.features(z) + self.h

    def hyperparameters(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim, "degree": self.degree}

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M, degree = hyperparameters["latent_dim"], hyperparameters["degree"]
        return cls(A=jnp.zeros((M, M)), W=jnp.zeros((M, count_monomials(M, degree))), h=jnp.zeros(M), degree=degree)
