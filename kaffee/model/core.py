"""What a core is: a transition map with its Jacobian, and the moments that it transports.

A core only has to say `__call__` and `latent_dim`. Everything else has a default by automatic differentiation;
a core overrides it where its structure makes the exact answer cheaper.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class MomentCotangents(NamedTuple):
    """Cotangents that flow back through one prediction of mean and covariance."""

    core: Any
    mean: Float[Array, "W M"]
    covariance: Float[Array, "W M M"]


class Core(eqx.Module):
    """The autonomous transition map z_{t+1} = F(z_t) of section 2.1, without any noise."""

    @property
    @abstractmethod
    def latent_dim(self) -> int:
        """M, the number of latent coordinates."""

    @abstractmethod
    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        """One step F(z)."""

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        """J(z) = dF/dz, the matrix that transports covariances."""
        return jax.jacfwd(self)(z)

    @property
    def noise_dim(self) -> int:
        """How many standard normal numbers a step draws inside the core (DynaMix's gate); 0 for most."""
        return 0

    def with_noise(self, noise: Float[Array, "... K"]) -> "Core":
        """The core under one realisation of its internal noise.

        With noise (K,) it steps single states; with noise (W, K) its batch methods use a row for each window. Without
        this call a core is noise-free.
        """
        if self.noise_dim == 0:
            return self
        raise NotImplementedError(f"{type(self).__name__} draws noise and must say how.")

    def without_noise(self) -> "Core":
        """The core as it was before `with_noise`; also for its cotangents."""
        return self

    def exact(self) -> "Core":
        """The core whose `jacobian` is the exact derivative of its step (no straight-through surrogate)."""
        return self

    def surrogate(self) -> "Core":
        """The core as KAFFEE trains it (appendix B.2); the same object where no surrogate gradient exists."""
        return self

    def hyperparameters(self) -> dict[str, Any]:
        """What `skeleton` needs to rebuild this core without its weights; JSON values only."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rebuilt from a checkpoint alone.")

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        """An object of the right shapes whose weights are then read from a checkpoint."""
        raise NotImplementedError(f"{cls.__name__} cannot be rebuilt from a checkpoint alone.")

    def predict_mean(self, z: Float[Array, "W M"]) -> Float[Array, "W M"]:
        """F(z) for a batch of windows."""
        return jax.vmap(self)(z)

    def stepper(self) -> Callable[[Float[Array, "W M"]], Float[Array, "W M"]]:
        """`predict_mean` with whatever does not depend on the state computed once, for long loops."""
        return self.predict_mean

    def predict_moments(
        self, z: Float[Array, "W M"], covariance: Float[Array, "W M M"]
    ) -> tuple[Float[Array, "W M"], Float[Array, "W M M"]]:
        """F(z) and J P J' for a batch (Eqs. kf_predict_mean and kf_predict_cov, without Gamma)."""
        J = jax.vmap(self.jacobian)(z)
        return self.predict_mean(z), J @ covariance @ J.mT

    def pull_back_mean(
        self, z: Float[Array, "W M"], mean_bar: Float[Array, "W M"], *, with_core: bool
    ) -> tuple[Any, Float[Array, "W M"]]:
        """Cotangents of (core, z) through `predict_mean`; None for the core unless `with_core`."""
        if not with_core:
            _, vjp = jax.vjp(self.predict_mean, z)
            return None, vjp(mean_bar)[0]
        arrays, static = eqx.partition(self, eqx.is_inexact_array)
        _, vjp = jax.vjp(lambda a, z_: eqx.combine(a, static).predict_mean(z_), arrays, z)
        return vjp(mean_bar)

    def pull_back_moments(
        self,
        z: Float[Array, "W M"],
        covariance: Float[Array, "W M M"],
        mean_bar: Float[Array, "W M"],
        covariance_bar: Float[Array, "W M M"],
        *,
        with_core: bool,
    ) -> MomentCotangents:
        """Cotangents through `predict_moments`, for symmetric P and symmetric cotangent Pb.

        T = Pb J,   P_bar = J' T,   J_bar = 2 T P,
        (core_bar, z_bar) = vjp of (core, z) -> (F(z), J(z)) at (mean_bar, J_bar)
        """
        arrays, static = eqx.partition(self, eqx.is_inexact_array)

        def linearise(a: Any, z_: Float[Array, "W M"]) -> tuple[Array, Array]:
            core = eqx.combine(a, static)
            return core.predict_mean(z_), jax.vmap(core.jacobian)(z_)

        if with_core:
            (_, J), vjp = jax.vjp(linearise, arrays, z)
        else:
            (_, J), vjp = jax.vjp(lambda z_: linearise(arrays, z_), z)
        T = covariance_bar @ J
        cotangents = vjp((mean_bar, 2.0 * T @ covariance))
        core_bar = cotangents[0] if with_core else None
        return MomentCotangents(core_bar, cotangents[-1], J.mT @ T)


def times_shared(X: Float[Array, "W M M"], A: Float[Array, "M M"]) -> Float[Array, "W M M"]:
    """X_b A for all windows as one tall product, which is faster than W small ones."""
    W, M, _ = X.shape
    return jnp.reshape(jnp.reshape(X, (W * M, M)) @ A, (W, M, M))


def shared_times(A: Float[Array, "M M"], X: Float[Array, "W M M"]) -> Float[Array, "W M M"]:
    """A X_b for all windows as one wide product."""
    return jnp.einsum("ij,bjk->bik", A, X)
