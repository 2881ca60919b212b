"""The interface of a core: a transition map, its Jacobian, and the transport of mean and covariance.

A core has to define `__call__` and `latent_dim`. Everything else defaults to automatic differentiation; cores override
what their structure makes cheaper.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

State = Float[Array, " M"]
States = Float[Array, "W M"]
Jacobian = Float[Array, "M M"]
Covariances = Float[Array, "W M M"]

KEPT = "kept"
"""The name under which the recursion finds what `keep` has marked."""


def keep(value: Array) -> Array:
    """Mark a product that the automatic gradient of a filter should store and not compute again on its way back."""
    return checkpoint_name(value, KEPT)


class MomentCotangents(NamedTuple):
    """Cotangents of the inputs of `Core.predict_moments`."""

    core: Any
    mean: States
    covariance: Covariances


class Tangent(NamedTuple):
    """Jacobians of a batch of states as products; cores with structure have their own, which never build J."""

    J: Covariances

    def apply(self, X: Float[Array, "W M K"]) -> Float[Array, "W M K"]:
        """Compute J X."""
        return self.J @ X

    def apply_transposed(self, X: Float[Array, "W M K"]) -> Float[Array, "W M K"]:
        """Compute J' X."""
        return self.J.mT @ X

    def square_apply(self, d: States) -> States:
        """Compute diag(J diag(d) J'), the variances that independent coordinates pass on."""
        return jnp.einsum("wij,wj->wi", self.J**2, d)

    def square_apply_transposed(self, d: States) -> States:
        """Compute diag(J' diag(d) J), what costs of the next state are for the coordinates of this one."""
        return jnp.einsum("wij,wi->wj", self.J**2, d)


class Core(eqx.Module):
    """The autonomous, noise-free transition map z_{t+1} = F(z_t) of section 2.1."""

    @property
    @abstractmethod
    def latent_dim(self) -> int:
        """Number of latent coordinates M."""

    @abstractmethod
    def __call__(self, z: State) -> State:
        """Compute the next state F(z)."""

    def jacobian(self, z: State) -> Jacobian:
        """Compute J(z) = dF/dz, the matrix that transports covariances."""
        return jax.jacfwd(self)(z)

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers that a step draws inside the core (DynaMix's gate); 0 for most cores."""
        return 0

    def with_noise(self, noise: Float[Array, "... K"]) -> "Core":
        """Fix one realisation of the internal noise: (K,) for single states, (W, K) with a row for each window.

        Noise is drawn outside the core, so that the recursion and its adjoint see an ordinary, deterministic core.
        """
        if self.noise_dim == 0:
            return self
        raise NotImplementedError(f"{type(self).__name__} draws noise (noise_dim > 0) and must define with_noise.")

    def without_noise(self) -> "Core":
        """Undo `with_noise`; also applies to cotangents of the core."""
        return self

    @property
    def input_dim(self) -> int:
        """Numbers that a known input gives the core at every step (`kaffee.model.inputs`); 0 for most cores."""
        return 0

    def with_inputs(self, inputs: Float[Array, "... K"]) -> "Core":
        """Fix the inputs of a step: (K,) for single states, (W, K) with a row for each window; without them 0."""
        if self.input_dim == 0:
            return self
        raise NotImplementedError(f"{type(self).__name__} takes inputs (input_dim > 0) and must define with_inputs.")

    def without_inputs(self) -> "Core":
        """Undo `with_inputs`; also applies to cotangents of the core."""
        return self

    def given(self, noise: Float[Array, "... K"] | None = None, inputs: Float[Array, "... K"] | None = None) -> "Core":
        """Fix all that a step takes beside the state, so that what is left is an ordinary map of it."""
        core = self if noise is None else self.with_noise(noise)
        return core if inputs is None else core.with_inputs(inputs)

    def exact(self) -> "Core":
        """Return the core whose `jacobian` is the exact derivative of its step (no straight-through surrogate)."""
        return self

    def with_hard_gates(self) -> "Core":
        """Return the core whose activations have hard slopes in `jacobian`; what else that leaves out stays out."""
        return self.exact()

    def surrogate(self) -> "Core":
        """Return the core with the surrogate gradients of KAFFEE training (appendix B.2); self if it has none."""
        return self

    def contains(self, z: Float[Array, "... M"]) -> Bool[Array, "..."]:
        """Tell which states the core takes as they are; False where it moves them back to the data's region first."""
        return jnp.ones(z.shape[:-1], bool)

    def noise_scale(self, z: States) -> Float[Array, " W"] | None:
        """Return the factor of the process variance at each state, a constant to gradients; None: 1 everywhere."""
        return None

    def hyperparameters(self) -> dict[str, Any]:
        """Return what `skeleton` needs to rebuild this core without its weights; JSON values only."""
        raise NotImplementedError(f"{type(self).__name__} cannot be rebuilt from a checkpoint alone.")

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        """Build a core of the right shapes, into which a checkpoint's weights are read."""
        raise NotImplementedError(f"{cls.__name__} cannot be rebuilt from a checkpoint alone.")

    def predict_mean(self, z: States) -> States:
        """Compute F(z) for a batch of windows."""
        return jax.vmap(self)(z)

    def stepper(self) -> Callable[[States], States]:
        """Return `predict_mean` with all that does not depend on the state computed once, for long loops."""
        return self.predict_mean

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        """Compute F(z) and J P J' for a batch (Eqs. kf_predict_mean and kf_predict_cov, without Gamma)."""
        mean, J = self.linearise(z)
        return mean, J @ covariance @ J.mT

    def linearise(self, z: States) -> tuple[States, Covariances]:
        """Compute F(z) and J(z) for a batch of windows."""
        return self.predict_mean(z), jax.vmap(self.jacobian)(z)

    def linearise_products(self, z: States) -> tuple[States, Any]:
        """Compute F(z) and the products with J(z), for filters that never need J itself."""
        mean, J = self.linearise(z)
        return mean, Tangent(J)

    def propagate_gaussian(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        """Compute mean and covariance of F(z) for Gaussian z without linearising, where closed forms exist."""
        raise NotImplementedError(f"{type(self).__name__} has no closed form of the moments of F(z).")

    def _pull_back(self, function: Callable[..., Any], z: States, with_core: bool) -> tuple[Any, Callable[..., Any]]:
        """Return function(core, z), and its vjp to (core, z) with None for the core unless `with_core`."""
        if not with_core:
            value, vjp = jax.vjp(lambda z_: function(self, z_), z)
            return value, lambda bar: (None, *vjp(bar))
        arrays, static = eqx.partition(self, eqx.is_inexact_array)
        return jax.vjp(lambda a, z_: function(eqx.combine(a, static), z_), arrays, z)

    def pull_back_mean(self, z: States, mean_bar: States, *, with_core: bool) -> tuple[Any, States]:
        """Compute cotangents of (core, z) through `predict_mean`; None for the core unless `with_core`."""
        return self._pull_back(lambda core, z_: core.predict_mean(z_), z, with_core)[1](mean_bar)

    def pull_back_moments(
        self, z: States, covariance: Covariances, mean_bar: States, covariance_bar: Covariances, *, with_core: bool
    ) -> MomentCotangents:
        """Compute cotangents through `predict_moments`, for symmetric P and symmetric cotangent Pb.

        T = Pb J,   P_bar = J' T,   J_bar = 2 T P,
        (core_bar, z_bar) = vjp of (core, z) -> (F(z), J(z)) at (mean_bar, J_bar)
        """
        (_, J), vjp = self._pull_back(lambda core, z_: core.linearise(z_), z, with_core)
        T = covariance_bar @ J
        core_bar, z_bar = vjp((mean_bar, 2.0 * T @ covariance))
        return MomentCotangents(core_bar, z_bar, J.mT @ T)


def times_shared(X: Covariances, A: Any) -> Covariances:
    """Compute X_b A for all windows as one tall product, which is faster than W small ones; A may have structure."""
    W, M, _ = X.shape
    return jnp.reshape(jnp.reshape(X, (W * M, M)) @ A, (W, M, M))
