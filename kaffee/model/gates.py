"""The gate of the AL-RNN and its straight-through surrogate (appendix B.2).

hard      phi(z) = max(z, 0)
smooth    s(z)   = sigma(c z) z,   c = 1.7 / tau
          s'(z)  = sigma + c z sigma (1 - sigma)
          s''(z) = c sigma (1 - sigma) (2 + c z (1 - 2 sigma))
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.errors import ConfigError, unknown

GateMode = Literal["straight_through", "smooth", "hard"]


def check_mode(mode: str) -> None:
    """Raise if `mode` is not one of the three gates."""
    if mode not in get_args(GateMode):
        raise ConfigError(unknown("gate", mode, get_args(GateMode)))


def smooth(z: Float[Array, "..."], temperature: float) -> Float[Array, "..."]:
    """s(z) = sigma(1.7 z / tau) z, close to the GELU at tau = 1."""
    return jax.nn.sigmoid((1.7 / temperature) * z) * z


def value(z: Float[Array, "..."], mode: str, temperature: float) -> Float[Array, "..."]:
    """The gate as it enters the mean; automatic differentiation sees `slope` as its derivative.

    >>> float(value(jnp.float32(-1.0), "straight_through", 1.0))
    0.0
    """
    if mode == "smooth":
        return smooth(z, temperature)
    hard = jax.nn.relu(z)  # not maximum, whose derivative at 0 is 1/2
    if mode == "hard":
        return hard
    surrogate = smooth(z, temperature)
    return surrogate + jax.lax.stop_gradient(hard - surrogate)


def slope(z: Float[Array, "..."], mode: str, temperature: float) -> Float[Array, "..."]:
    """The derivative that transports covariances and gradients."""
    if mode == "hard":
        return (z > 0).astype(z.dtype)
    c = 1.7 / temperature
    sigma = jax.nn.sigmoid(c * z)
    return sigma + c * z * sigma * (1.0 - sigma)


def curvature(z: Float[Array, "..."], mode: str, temperature: float) -> Float[Array, "..."]:
    """The derivative of `slope`: how the transport itself depends on the state."""
    if mode == "hard":
        return jnp.zeros_like(z)
    c = 1.7 / temperature
    sigma = jax.nn.sigmoid(c * z)
    return c * sigma * (1.0 - sigma) * (2.0 + c * z * (1.0 - 2.0 * sigma))
