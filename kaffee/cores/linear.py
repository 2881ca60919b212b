"""The affine core z' = A z + h, for which KAFFEE is the exact Kalman innovation likelihood (appendix D.2)."""

from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.cores.core import Core, MomentCotangents, shared_times, times_shared


class Linear(Core):
    """z' = A z + h with a dense matrix A; the Jacobian is A everywhere."""

    A: Float[Array, "M M"]
    h: Float[Array, " M"]

    @classmethod
    def create(cls, latent_dim: int, *, key: Key[Array, ""], scale: float = 0.1, dtype: Any = jnp.float32) -> "Linear":
        """The identity plus independent Gaussian entries of standard deviation `scale`; h = 0."""
        noise = scale * jax.random.normal(key, (latent_dim, latent_dim), dtype)
        return cls(A=jnp.eye(latent_dim, dtype=dtype) + noise, h=jnp.zeros(latent_dim, dtype))

    @property
    def latent_dim(self) -> int:
        return self.h.shape[0]

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.A @ z + self.h

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        return self.A

    def predict_moments(
        self, z: Float[Array, "W M"], covariance: Float[Array, "W M M"]
    ) -> tuple[Float[Array, "W M"], Float[Array, "W M M"]]:
        return self.predict_mean(z), shared_times(self.A, times_shared(covariance, self.A.T))

    def pull_back_moments(
        self,
        z: Float[Array, "W M"],
        covariance: Float[Array, "W M M"],
        mean_bar: Float[Array, "W M"],
        covariance_bar: Float[Array, "W M M"],
        *,
        with_core: bool,
    ) -> MomentCotangents:
        """As in `Core`; the second derivative vanishes and A_bar = sum_b mean_bar z' + 2 T P."""
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
