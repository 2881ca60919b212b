"""The linear observation map B (Eq. observation_operator) and the products that a filter needs."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.errors import ConfigError


class ObservationMap(eqx.Module):
    """A linear map x = B z of full row rank; matrices X below carry leading batch axes."""

    @property
    @abstractmethod
    def num_observed(self) -> int:
        """Number of observed coordinates N."""

    @property
    @abstractmethod
    def latent_dim(self) -> int:
        """Number of latent coordinates M."""

    @abstractmethod
    def matrix(self) -> Float[Array, "N M"]:
        """Return B as a dense matrix."""

    def observe(self, z: Float[Array, "... M"]) -> Float[Array, "... N"]:
        """Compute B z."""
        return z @ self.matrix().T

    def tangent(self, z: Float[Array, "W M"]) -> "ObservationMap":
        """Return the linear map that conditions a belief around these states: B itself unless the map is nonlinear."""
        return self

    def rows(self, X: Float[Array, "... M K"]) -> Float[Array, "... N K"]:
        """Compute B X."""
        return self.matrix() @ X

    def columns(self, X: Float[Array, "... K M"]) -> Float[Array, "... K N"]:
        """Compute X B'."""
        return X @ self.matrix().T

    def lift(self, x: Float[Array, "... N"]) -> Float[Array, "... M"]:
        """Compute B' x."""
        return self.extend_columns(x[..., None, :])[..., 0, :]

    def extend_columns(self, X: Float[Array, "... K N"]) -> Float[Array, "... K M"]:
        """Compute X B."""
        return X @ self.matrix()

    def add_rows_and_columns(self, P: Float[Array, "... M M"], X: Float[Array, "... N M"]) -> Float[Array, "... M M"]:
        """Compute P + B' X + X' B."""
        lifted = self.matrix().T @ X
        return P + lifted + lifted.mT

    def overwrite(self, z: Float[Array, "... M"], x: Float[Array, "... N"]) -> Float[Array, "... M"]:
        """Compute z + B^+ (x - B z), the nearest state to z that is observed as x (identity teacher forcing)."""
        return self.overwriter()(z, x)

    def overwriter(self) -> Callable[[Array, Array], Array]:
        """Return `overwrite` with B^+ computed once, for loops."""
        inverse = jnp.linalg.pinv(self.matrix()).T
        return lambda z, x: z + (x - self.observe(z)) @ inverse

    def spread(self, variance: Float[Array, "... N"]) -> Float[Array, "... M M"]:
        """Compute B^+ diag(variance) B^+', the latent covariance for given variances of the observation."""
        inverse = jnp.linalg.pinv(self.matrix())
        return (inverse * variance[..., None, :]) @ inverse.T


class Projection(ObservationMap):
    """B = [I 0]: the first N latent coordinates are observed (the paper's map); products are slices."""

    _num_observed: int = eqx.field(static=True)
    _latent_dim: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not 1 <= self._num_observed <= self._latent_dim:
            raise ConfigError(
                f"B = [I 0] needs 1 <= N <= M, but N = {self._num_observed} coordinates are observed and the "
                f"latent state has M = {self._latent_dim}. Choose a larger latent_dim or pass a matrix B."
            )

    @property
    def num_observed(self) -> int:
        return self._num_observed

    @property
    def latent_dim(self) -> int:
        return self._latent_dim

    def matrix(self) -> Float[Array, "N M"]:
        return jnp.eye(self.num_observed, self.latent_dim)

    def observe(self, z: Float[Array, "... M"]) -> Float[Array, "... N"]:
        return z[..., : self.num_observed]

    def rows(self, X: Float[Array, "... M K"]) -> Float[Array, "... N K"]:
        return X[..., : self.num_observed, :]

    def columns(self, X: Float[Array, "... K M"]) -> Float[Array, "... K N"]:
        return X[..., : self.num_observed]

    def extend_columns(self, X: Float[Array, "... K N"]) -> Float[Array, "... K M"]:
        hidden = self.latent_dim - self.num_observed
        return jnp.pad(X, [(0, 0)] * (X.ndim - 1) + [(0, hidden)])

    def add_rows_and_columns(self, P: Float[Array, "... M M"], X: Float[Array, "... N M"]) -> Float[Array, "... M M"]:
        # Only the observed rows and columns change; padding would touch everything twice.
        N = self.num_observed
        seen, cross = X[..., :N], X[..., N:]
        upper = jnp.concatenate([P[..., :N, :N] + seen + seen.mT, P[..., :N, N:] + cross], axis=-1)
        lower = jnp.concatenate([P[..., N:, :N] + cross.mT, P[..., N:, N:]], axis=-1)
        return jnp.concatenate([upper, lower], axis=-2)

    def overwriter(self) -> Callable[[Array, Array], Array]:
        return lambda z, x: jnp.concatenate([x, z[..., self.num_observed :]], axis=-1)

    def spread(self, variance: Float[Array, "... N"]) -> Float[Array, "... M M"]:
        return self.lift(variance)[..., None] * jnp.eye(self.latent_dim, dtype=variance.dtype)


class LinearObservation(ObservationMap):
    """Any matrix B of full row rank."""

    B: Float[Array, "N M"]

    def __check_init__(self) -> None:
        if getattr(self.B, "ndim", 2) != 2:
            raise ConfigError(f"B must be a matrix (N, M); got an array with {self.B.ndim} axes.")

    @property
    def num_observed(self) -> int:
        return self.B.shape[0]

    @property
    def latent_dim(self) -> int:
        return self.B.shape[1]

    def matrix(self) -> Float[Array, "N M"]:
        return self.B


class NonlinearObservation(ObservationMap):
    """x = h(z) for any differentiable function of a state; filters that linearise do so at each belief's mean."""

    function: Callable[[Array], Array]
    _num_observed: int = eqx.field(static=True)
    _latent_dim: int = eqx.field(static=True)

    @property
    def num_observed(self) -> int:
        return self._num_observed

    @property
    def latent_dim(self) -> int:
        return self._latent_dim

    def matrix(self) -> Float[Array, "N M"]:
        raise ConfigError(
            "A nonlinear observation has no matrix B: teacher forcing, embeddings and localised filters need a linear "
            "one. Assimilate with a known flow, or pass a matrix."
        )

    def observe(self, z: Float[Array, "... M"]) -> Float[Array, "... N"]:
        return jnp.apply_along_axis(self.function, -1, z) if z.ndim > 1 else self.function(z)

    def tangent(self, z: Float[Array, "W M"]) -> "LocalObservation":
        return LocalObservation(jax.vmap(jax.jacfwd(self.function))(z))


class LocalObservation(ObservationMap):
    """A matrix for each window, dh/dz at its mean; applies to batches of the same windows."""

    B: Float[Array, "W N M"]

    @property
    def num_observed(self) -> int:
        return self.B.shape[-2]

    @property
    def latent_dim(self) -> int:
        return self.B.shape[-1]

    def matrix(self) -> Float[Array, "W N M"]:
        return self.B

    def observe(self, z: Float[Array, "W M"]) -> Float[Array, "W N"]:
        return jnp.einsum("wnm,wm->wn", self.B, z)

    def columns(self, X: Float[Array, "W K M"]) -> Float[Array, "W K N"]:
        return X @ self.B.mT
