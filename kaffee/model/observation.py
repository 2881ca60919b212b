"""The linear observation map B (Eq. observation_operator) and the products that a filter needs."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.errors import ConfigError


class ObservationMap(eqx.Module):
    """An affine map x = B z + b; matrices X below carry leading batch axes.

    B^+ is the pseudo-inverse: with N <= M rows it finds the nearest state that is observed as x, with more rows than
    latents the one that is observed nearest to x, by least squares.
    """

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
        """Compute B z + b."""
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
        """Compute z + B^+ (x - b - B z), the nearest state to z that is observed as x (identity teacher forcing)."""
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
    """B = [C 0] and an offset b: the first K latent coordinates are observed through any matrix C, the others are not.

    C may be tall (more channels than components) and have a leading axis of windows, each with its own. A reading x of
    a tall map says of z no more than K numbers do, which filters that condition dense Gaussians on it make use of
    (`kaffee.filtering.gaussian.compress`).

    Attributes:
        B: C; all of B if nothing is hidden.
        offset: b; None: 0.
        hidden: Latent coordinates that no channel sees, M - K.
        compressible: Whether filters may work with K numbers for each reading of N.
    """

    B: Float[Array, "*W N K"]
    offset: Float[Array, "*W N"] | None = None
    hidden: int = eqx.field(static=True, default=0)
    compressible: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        if getattr(self.B, "ndim", 2) not in (2, 3):
            raise ConfigError(f"B must be a matrix (N, M); got an array with {self.B.ndim} axes.")

    @property
    def num_observed(self) -> int:
        return self.B.shape[-2]

    @property
    def num_components(self) -> int:
        """Number of latent coordinates that are observed, K."""
        return self.B.shape[-1]

    @property
    def latent_dim(self) -> int:
        return self.num_components + self.hidden

    @property
    def tall(self) -> bool:
        """Whether filters take K numbers for each reading of N."""
        return self.compressible and self.num_observed > self.num_components

    def matrix(self) -> Float[Array, "*W N M"]:
        return _pad_last(self.B, self.hidden)

    def seen(self, z: Float[Array, "... M"]) -> Float[Array, "... K"]:
        """Take the components of a state."""
        return z[..., : self.num_components] if self.hidden else z

    def observe(self, z: Float[Array, "... M"]) -> Float[Array, "... N"]:
        z = self.seen(z)
        x = z @ self.B.T if self.B.ndim == 2 else jnp.einsum("wnk,w...k->w...n", self.B, z)
        if self.offset is None:
            return x
        b = self.offset
        return x + (b if b.ndim == 1 else b.reshape(b.shape[0], *[1] * (x.ndim - 2), b.shape[1]))

    def rows(self, X: Float[Array, "... M K"]) -> Float[Array, "... N K"]:
        return self.B @ (X[..., : self.num_components, :] if self.hidden else X)

    def columns(self, X: Float[Array, "... K M"]) -> Float[Array, "... K N"]:
        return self.seen(X) @ self.B.mT

    def extend_columns(self, X: Float[Array, "... K N"]) -> Float[Array, "... K M"]:
        return _pad_last(X @ self.B, self.hidden)

    def add_rows_and_columns(self, P: Float[Array, "... M M"], X: Float[Array, "... N M"]) -> Float[Array, "... M M"]:
        lifted = self.B.mT @ X
        if self.hidden:
            lifted = jnp.pad(lifted, [(0, 0)] * (lifted.ndim - 2) + [(0, self.hidden), (0, 0)])
        return P + lifted + lifted.mT

    def overwriter(self) -> Callable[[Array, Array], Array]:
        inverse = _pad_last(jnp.linalg.pinv(self.B).mT, self.hidden)

        def overwrite(z: Array, x: Array) -> Array:
            v = x - self.observe(z)
            return z + (v @ inverse if inverse.ndim == 2 else jnp.einsum("wnm,wn->wm", inverse, v))

        return overwrite

    def spread(self, variance: Float[Array, "... N"]) -> Float[Array, "... M M"]:
        inverse = _pad_last(jnp.linalg.pinv(self.B).mT, self.hidden).mT
        return (inverse * variance[..., None, :]) @ inverse.mT


def _pad_last(X: Float[Array, "... K"], hidden: int) -> Float[Array, "... M"]:
    return jnp.pad(X, [(0, 0)] * (X.ndim - 1) + [(0, hidden)]) if hidden else X


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

    def tangent(self, z: Float[Array, "W M"]) -> LinearObservation:
        return LinearObservation(jax.vmap(jax.jacfwd(self.function))(z), compressible=False)
