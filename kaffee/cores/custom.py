"""Any JAX callable or Equinox module as a core."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.cores.core import Core
from kaffee.errors import ConfigError


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
