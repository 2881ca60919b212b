"""A core that cannot leave the region in which it was trained."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.errors import ConfigError
from kaffee.model.core import Core, MomentCotangents


class Confined(Core):
    """F(clip(z, low, high)): the inner core on the nearest point of a box.

    Inside the box nothing changes. Outside, the step and its Jacobian are those of the clipped map: a coordinate that
    is clipped no longer influences the next state. Since an AL-RNN maps a box to a bounded set, no free run diverges.

    Attributes:
        inner: The core that was trained.
        low, high: The box; constants to every gradient.
    """

    inner: Core
    low: Float[Array, " M"]
    high: Float[Array, " M"]

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    def _clip(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        return jnp.clip(z, jax.lax.stop_gradient(self.low), jax.lax.stop_gradient(self.high))

    def inside(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """1 for every coordinate within the box, 0 for one that is clipped."""
        return ((z >= self.low) & (z <= self.high)).astype(z.dtype)

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.inner(self._clip(z))

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        return self.inner.jacobian(self._clip(z)) * self.inside(z)

    @property
    def noise_dim(self) -> int:
        return self.inner.noise_dim

    def with_noise(self, noise: Float[Array, "... K"]) -> "Confined":
        return Confined(self.inner.with_noise(noise), self.low, self.high)

    def without_noise(self) -> "Confined":
        return Confined(self.inner.without_noise(), self.low, self.high)

    def exact(self) -> "Confined":
        return Confined(self.inner.exact(), self.low, self.high)

    def surrogate(self) -> "Confined":
        return Confined(self.inner.surrogate(), self.low, self.high)

    def predict_mean(self, z: Float[Array, "W M"]) -> Float[Array, "W M"]:
        return self.inner.predict_mean(self._clip(z))

    def stepper(self) -> Callable[[Float[Array, "W M"]], Float[Array, "W M"]]:
        step = self.inner.stepper()
        return lambda z: step(self._clip(z))

    def predict_moments(
        self, z: Float[Array, "W M"], covariance: Float[Array, "W M M"]
    ) -> tuple[Float[Array, "W M"], Float[Array, "W M M"]]:
        return self.inner.predict_moments(self._clip(z), covariance * self._kept(z))

    def _kept(self, z: Float[Array, "W M"]) -> Float[Array, "W M M"]:
        d = self.inside(z)
        return d[:, :, None] * d[:, None, :]

    def pull_back_mean(
        self, z: Float[Array, "W M"], mean_bar: Float[Array, "W M"], *, with_core: bool
    ) -> tuple[Any, Float[Array, "W M"]]:
        inner_bar, z_bar = self.inner.pull_back_mean(self._clip(z), mean_bar, with_core=with_core)
        return self._around(inner_bar), z_bar * self.inside(z)

    def pull_back_moments(
        self,
        z: Float[Array, "W M"],
        covariance: Float[Array, "W M M"],
        mean_bar: Float[Array, "W M"],
        covariance_bar: Float[Array, "W M M"],
        *,
        with_core: bool,
    ) -> MomentCotangents:
        kept = self._kept(z)
        inner = self.inner.pull_back_moments(
            self._clip(z), covariance * kept, mean_bar, covariance_bar, with_core=with_core
        )
        return MomentCotangents(self._around(inner.core), inner.mean * self.inside(z), inner.covariance * kept)

    def _around(self, inner_bar: Any) -> Any:
        """Cotangents of this core: the box is constant."""
        if inner_bar is None:
            return None
        return Confined(inner_bar, jnp.zeros_like(self.low), jnp.zeros_like(self.high))


# Any JAX callable or Equinox module as a core.


class Custom(Core):
    """The user's own transition map; its Jacobian by automatic differentiation unless it brings `jacobian`."""

    function: Callable[[Any], Any]
    _latent_dim: int = eqx.field(static=True)

    @property
    def latent_dim(self) -> int:
        return self._latent_dim

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.function(z)

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        own = getattr(self.function, "jacobian", None)
        return super().jacobian(z) if own is None else own(z)


def as_core(function: Callable[[Any], Any], latent_dim: int) -> Core:
    """Make a core of a function (M,) -> (M,); a core passes through unchanged.

    >>> import jax.numpy as jnp
    >>> core = as_core(lambda z: 0.5 * z, latent_dim=2)
    >>> [float(x) for x in jnp.diagonal(core.jacobian(jnp.ones(2)))]
    [0.5, 0.5]
    """
    if isinstance(function, Core):
        return function
    if not callable(function):
        raise ConfigError(f"A core must be callable, z (M,) -> z' (M,); got {type(function).__name__}.")
    given = jax.ShapeDtypeStruct((latent_dim,), jax.dtypes.canonicalize_dtype(float))
    try:
        result = eqx.filter_eval_shape(function, given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"The core cannot be applied to a state of shape ({latent_dim},): {error}") from error
    shape = getattr(result, "shape", None)
    if shape != (latent_dim,):
        raise ConfigError(
            f"The core maps a state of shape ({latent_dim},) to {shape}; it must return the same shape. "
            "Pass one state at a time: kaffee batches it by itself."
        )
    return Custom(function, latent_dim)


def check_derivatives(core: Core) -> None:
    """Training needs the derivative of the Jacobian; a core that has none is refused before it begins.

    Raises:
        ConfigError: JAX cannot trace the derivative, as for callbacks, loops without a fixed length or a custom VJP.
    """
    given = jax.ShapeDtypeStruct((core.latent_dim,), jax.dtypes.canonicalize_dtype(float))
    try:
        jax.eval_shape(jax.grad(lambda z: jnp.sum(core.jacobian(z))), given)
    except Exception as error:
        raise ConfigError(
            f"The core cannot be differentiated twice, which training needs: {type(error).__name__}: {error}"
        ) from error
