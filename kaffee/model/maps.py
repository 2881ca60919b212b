"""Affine, polynomial and multilayer-perceptron cores (the controls of appendix D.2, and a general smooth map)."""

from itertools import combinations_with_replacement
from math import comb
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError
from kaffee.model.core import Core, Covariances, Jacobian, MomentCotangents, State, States, times_shared


class Linear(Core):
    """z' = A z + h with a dense matrix A, for which KAFFEE is the exact Kalman innovation likelihood (appendix D.2)."""

    A: Float[Array, "M M"]
    h: Float[Array, " M"]

    @classmethod
    def create(cls, latent_dim: int, *, key: Key[Array, ""], scale: float = 0.1, dtype: Any = jnp.float32) -> "Linear":
        """Draw A as the identity plus independent Gaussian entries of standard deviation `scale`; h = 0."""
        noise = scale * jax.random.normal(key, (latent_dim, latent_dim), dtype)
        return cls(A=jnp.eye(latent_dim, dtype=dtype) + noise, h=jnp.zeros(latent_dim, dtype))

    @property
    def latent_dim(self) -> int:
        return self.h.shape[0]

    def __call__(self, z: State) -> State:
        return self.A @ z + self.h

    def jacobian(self, z: State) -> Jacobian:
        return self.A

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        return self.predict_mean(z), jnp.einsum("ij,bjk->bik", self.A, times_shared(covariance, self.A.T))

    def propagate_gaussian(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        return self.predict_moments(z, covariance)

    def pull_back_moments(
        self, z: States, covariance: Covariances, mean_bar: States, covariance_bar: Covariances, *, with_core: bool
    ) -> MomentCotangents:
        """Specialise `Core`: the second derivative vanishes and A_bar = sum_b mean_bar z' + 2 T P."""
        T = times_shared(covariance_bar, self.A)
        previous_covariance_bar = jnp.einsum("ij,bik->bjk", self.A, T)
        core_bar = None
        if with_core:
            A_bar = mean_bar.T @ z + 2.0 * jnp.sum(T @ covariance, axis=0)
            core_bar = Linear(A=A_bar, h=jnp.sum(mean_bar, axis=0))
        return MomentCotangents(core_bar, mean_bar @ self.A, previous_covariance_bar)

    def hyperparameters(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim}

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M = hyperparameters["latent_dim"]
        return cls(A=jnp.zeros((M, M)), h=jnp.zeros(M))


def _monomials(latent_dim: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """List the factors of every monomial of degree 2..degree, in the paper's order.

    >>> _monomials(2, 3)
    ((0, 0), (0, 1), (1, 1), (0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1))
    """
    return tuple(
        factors for d in range(2, degree + 1) for factors in combinations_with_replacement(range(latent_dim), d)
    )


def _count_monomials(latent_dim: int, degree: int) -> int:
    return comb(latent_dim + degree, degree) - 1 - latent_dim


class Polynomial(Core):
    """z' = A z + W phi(z) + h, phi = all monomials of degree 2 up to `degree` (Van der Pol control: 3)."""

    A: Float[Array, "M M"]
    W: Float[Array, "M F"]
    h: Float[Array, " M"]
    degree: int = eqx.field(static=True, default=3)

    @classmethod
    def create(
        cls, latent_dim: int, *, key: Key[Array, ""], degree: int = 3, scale: float = 0.01, dtype: Any = jnp.float32
    ) -> "Polynomial":
        """Draw the identity plus small independent Gaussian coefficients of standard deviation `scale`."""
        if degree < 2:
            raise ConfigError(f"A polynomial core needs degree >= 2, not {degree}; use Linear for degree 1.")
        key_A, key_W = jax.random.split(key)
        num_features = _count_monomials(latent_dim, degree)
        return cls(
            A=jnp.eye(latent_dim, dtype=dtype) + scale * jax.random.normal(key_A, (latent_dim, latent_dim), dtype),
            W=scale * jax.random.normal(key_W, (latent_dim, num_features), dtype),
            h=jnp.zeros(latent_dim, dtype),
            degree=degree,
        )

    @property
    def latent_dim(self) -> int:
        return self.h.shape[0]

    def features(self, z: State) -> Float[Array, " F"]:
        """Compute phi(z)."""
        # Powers of one appended entry, 1, pad every monomial to the same number of factors.
        padded = jnp.append(z, jnp.ones((), z.dtype))
        table = [m + (self.latent_dim,) * (self.degree - len(m)) for m in _monomials(self.latent_dim, self.degree)]
        return jnp.prod(padded[np.asarray(table)], axis=1)

    def __call__(self, z: State) -> State:
        return self.A @ z + self.W @ self.features(z) + self.h

    def hyperparameters(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim, "degree": self.degree}

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M, degree = hyperparameters["latent_dim"], hyperparameters["degree"]
        return cls(A=jnp.zeros((M, M)), W=jnp.zeros((M, _count_monomials(M, degree))), h=jnp.zeros(M), degree=degree)


class ResidualMLP(Core):
    """z' = z + W_D tanh(... tanh(W_1 z + b_1) ...) + b_D: smooth and general, without structure to exploit."""

    weights: tuple[Float[Array, "..."], ...]
    biases: tuple[Float[Array, "..."], ...]

    @classmethod
    def create(
        cls, latent_dim: int, *, hidden_dim: int = 64, depth: int = 1, key: Key[Array, ""], dtype: Any = jnp.float32
    ) -> "ResidualMLP":
        """Draw weights ~ N(0, 1/fan_in), the last layer ten times smaller so that the map starts near the identity."""
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

    def __call__(self, z: State) -> State:
        hidden = z
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = jnp.tanh(W @ hidden + b)
        return z + self.weights[-1] @ hidden + self.biases[-1]

    def hyperparameters(self) -> dict[str, Any]:
        hidden_dim, depth = self.biases[0].shape[0], len(self.weights) - 1
        return {"latent_dim": self.latent_dim, "hidden_dim": hidden_dim, "depth": depth}

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        template = cls.create(**hyperparameters, key=jax.random.key(0))
        return eqx.filter(template, eqx.is_array)
