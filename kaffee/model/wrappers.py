"""Cores around other maps: confined to a box, or made of a function; and the built-in cores by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kaffee.errors import ConfigError
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core, Covariances, Jacobian, MomentCotangents, State, States
from kaffee.model.dynamix import DynaMix
from kaffee.model.kernel import KernelMap
from kaffee.model.maps import Linear, Polynomial, ResidualMLP

# Names under which checkpoints and settings know a core.
CORE_TYPES: dict[str, type[Core]] = {
    "alrnn": ALRNN,
    "linear": Linear,
    "polynomial": Polynomial,
    "mlp": ResidualMLP,
    "dynamix": DynaMix,
    "kernel": KernelMap,
}


class ConfinedTangent(NamedTuple):
    """Products with J diag(inside): a clipped coordinate no longer influences the next state."""

    inner: Any
    inside: States

    def apply(self, X: Float[Array, "W M K"]) -> Float[Array, "W M K"]:
        """Compute J X."""
        return self.inner.apply(self.inside[:, :, None] * X)

    def apply_transposed(self, X: Float[Array, "W M K"]) -> Float[Array, "W M K"]:
        """Compute J' X."""
        return self.inside[:, :, None] * self.inner.apply_transposed(X)

    def square_apply(self, d: States) -> States:
        """Compute diag(J diag(d) J')."""
        return self.inner.square_apply(self.inside * d)

    def square_apply_transposed(self, d: States) -> States:
        """Compute diag(J' diag(d) J)."""
        return self.inside * self.inner.square_apply_transposed(d)


class Confined(Core):
    """F(clip(z, low, high)): the inner core at the nearest point of a box.

    Inside the box nothing changes. Outside, a clipped coordinate no longer influences the next state, also in the
    Jacobian. An AL-RNN is not bounded by itself; it maps a box to a bounded set, so that no confined free run diverges.
    Gradients treat the box as constant.

    With states in `home`, one that is outside goes on from the nearest of these instead. That is for free runs: a wall
    holds for good what a map that was never trained there drives against it.
    """

    inner: Core
    low: Float[Array, " M"]
    high: Float[Array, " M"]
    home: Float[Array, "K M"] | None = None

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    def _clip(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        if self.home is not None:
            # Hardly any step leaves the box, and looking for the nearest of hundreds of states takes far longer than
            # all the rest of a step.
            return jax.lax.cond(jnp.all(self.contains(z)), lambda z: z, lambda z: self._return_home(z), z)
        return jnp.clip(z, jax.lax.stop_gradient(self.low), jax.lax.stop_gradient(self.high))

    def _return_home(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Replace states outside the box by the nearest of `home`, in units of the box."""
        home, width = jax.lax.stop_gradient((self.home, self.high - self.low))
        assert home is not None
        distances = jnp.sum((home / width) ** 2, axis=-1) - 2.0 * (z / width) @ (home / width).T
        return jnp.where(self.inside(z) > 0, z, home[jnp.argmin(distances, axis=-1)])

    def inside(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Mark coordinates that are taken as they are by 1, others by 0: clipped ones, or with a `home` all."""
        within = (z >= self.low) & (z <= self.high)
        if self.home is not None:
            within = jnp.broadcast_to(jnp.all(within, axis=-1, keepdims=True), z.shape)
        return within.astype(z.dtype)

    def contains(self, z: Float[Array, "... M"]) -> Bool[Array, "..."]:
        return jnp.all((z >= self.low) & (z <= self.high), axis=-1)

    def noise_scale(self, z: States) -> Float[Array, " W"] | None:
        return self.inner.noise_scale(self._clip(z))

    def __call__(self, z: State) -> State:
        return self.inner(self._clip(z))

    def jacobian(self, z: State) -> Jacobian:
        return self.inner.jacobian(self._clip(z)) * self.inside(z)

    @property
    def noise_dim(self) -> int:
        return self.inner.noise_dim

    def with_noise(self, noise: Float[Array, "... K"]) -> "Confined":
        return replace(self, inner=self.inner.with_noise(noise))

    def without_noise(self) -> "Confined":
        return replace(self, inner=self.inner.without_noise())

    @property
    def input_dim(self) -> int:
        return self.inner.input_dim

    def with_inputs(self, inputs: Float[Array, "... K"]) -> "Confined":
        return replace(self, inner=self.inner.with_inputs(inputs))

    def without_inputs(self) -> "Confined":
        return replace(self, inner=self.inner.without_inputs())

    def exact(self) -> "Confined":
        return replace(self, inner=self.inner.exact())

    def with_hard_gates(self) -> "Confined":
        return replace(self, inner=self.inner.with_hard_gates())

    def surrogate(self) -> "Confined":
        return replace(self, inner=self.inner.surrogate())

    def predict_mean(self, z: States) -> States:
        return self.inner.predict_mean(self._clip(z))

    def stepper(self) -> Callable[[States], States]:
        step = self.inner.stepper()
        return lambda z: step(self._clip(z))

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        return self.inner.predict_moments(self._clip(z), covariance * self._kept(z))

    def linearise(self, z: States) -> tuple[States, Covariances]:
        mean, J = self.inner.linearise(self._clip(z))
        return mean, J * self.inside(z)[:, None, :]

    def linearise_products(self, z: States) -> tuple[States, "ConfinedTangent"]:
        mean, inner = self.inner.linearise_products(self._clip(z))
        return mean, ConfinedTangent(inner, self.inside(z))

    def propagate_gaussian(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        return self.inner.propagate_gaussian(self._clip(z), covariance * self._kept(z))

    def _kept(self, z: States) -> Covariances:
        d = self.inside(z)
        return d[:, :, None] * d[:, None, :]

    def pull_back_mean(self, z: States, mean_bar: States, *, with_core: bool) -> tuple[Any, States]:
        inner_bar, z_bar = self.inner.pull_back_mean(self._clip(z), mean_bar, with_core=with_core)
        return self._around(inner_bar), z_bar * self.inside(z)

    def pull_back_moments(
        self, z: States, covariance: Covariances, mean_bar: States, covariance_bar: Covariances, *, with_core: bool
    ) -> MomentCotangents:
        kept = self._kept(z)
        inner = self.inner.pull_back_moments(
            self._clip(z), covariance * kept, mean_bar, covariance_bar, with_core=with_core
        )
        return MomentCotangents(self._around(inner.core), inner.mean * self.inside(z), inner.covariance * kept)

    def _around(self, inner_bar: Any) -> Any:
        """Wrap the inner core's cotangents; those of the box are zero."""
        if inner_bar is None:
            return None
        return Confined(inner_bar, *jax.tree.map(jnp.zeros_like, (self.low, self.high, self.home)))


class Custom(Core):
    """A user's transition map; its Jacobian is by automatic differentiation unless it has a method `jacobian`.

    With inputs it is a map of (z, u), and so is its `jacobian`, dF/dz.
    """

    function: Callable[..., Any]
    _latent_dim: int = eqx.field(static=True)
    _input_dim: int = eqx.field(static=True, default=0)
    u: Float[Array, "... K"] | None = None

    @property
    def latent_dim(self) -> int:
        return self._latent_dim

    @property
    def input_dim(self) -> int:
        return self._input_dim

    def with_inputs(self, inputs: Float[Array, "... K"]) -> "Custom":
        return replace(self, u=inputs) if self._input_dim else self

    def without_inputs(self) -> "Custom":
        return self if self.u is None else replace(self, u=None)

    def _arguments(self, z: State) -> tuple[Array, ...]:
        if not self._input_dim:
            return (z,)
        return z, jnp.zeros(self._input_dim, z.dtype) if self.u is None else self.u

    def __call__(self, z: State) -> State:
        return self.function(*self._arguments(z))

    def jacobian(self, z: State) -> Jacobian:
        own = getattr(self.function, "jacobian", None)
        return super().jacobian(z) if own is None else own(*self._arguments(z))

    def predict_mean(self, z: States) -> States:
        return self._over(lambda core, row: core(row), z)

    def linearise(self, z: States) -> tuple[States, Covariances]:
        return self.predict_mean(z), self._over(lambda core, row: core.jacobian(row), z)

    def _over(self, function: Callable[["Custom", State], Any], z: States) -> Any:
        """Apply a function to every state, with the inputs of its window."""
        if self.u is None or self.u.ndim == 1:
            return jax.vmap(lambda row: function(self, row))(z)
        return jax.vmap(lambda row, u: function(replace(self, u=u), row))(z, self.u)


def as_core(function: Callable[..., Any], latent_dim: int, input_dim: int = 0) -> Core:
    """Turn a function (M,) -> (M,) into a core; with inputs, one of (M,) and (K,). A core passes through unchanged.

    >>> import jax.numpy as jnp
    >>> core = as_core(lambda z: 0.5 * z, latent_dim=2)
    >>> [float(x) for x in jnp.diagonal(core.jacobian(jnp.ones(2)))]
    [0.5, 0.5]
    """
    if isinstance(function, Core):
        return function
    if not callable(function):
        raise ConfigError(f"A core must be callable, z (M,) -> z' (M,); got {type(function).__name__}.")
    sizes, kind = (latent_dim, input_dim)[: 1 + bool(input_dim)], jax.dtypes.canonicalize_dtype(float)
    try:
        result = eqx.filter_eval_shape(function, *(jax.ShapeDtypeStruct((size,), kind) for size in sizes))
    except (TypeError, ValueError) as error:
        inputs = f" and inputs of shape ({input_dim},)" if input_dim else ""
        raise ConfigError(f"The core cannot be applied to a state of shape ({latent_dim},){inputs}: {error}") from error
    shape = getattr(result, "shape", None)
    if shape != (latent_dim,):
        raise ConfigError(
            f"The core maps a state of shape ({latent_dim},) to {shape}; it must return the same shape. "
            "Pass one state at a time: kaffee batches it by itself."
        )
    return Custom(function, latent_dim, input_dim)


def check_derivatives(core: Core) -> None:
    """Raise a ConfigError if JAX cannot differentiate the core's Jacobian, which training needs.

    This happens for callbacks, loops without a fixed length, and a custom VJP.
    """
    given = jax.ShapeDtypeStruct((core.latent_dim,), jax.dtypes.canonicalize_dtype(float))
    try:
        jax.eval_shape(jax.grad(lambda z: jnp.sum(core.jacobian(z))), given)
    except Exception as error:
        raise ConfigError(
            f"The core cannot be differentiated twice, which training needs: {type(error).__name__}: {error}"
        ) from error
