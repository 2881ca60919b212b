"""Local transport: Jacobian spectra along a path, and where a reference covariance grows or shrinks (appendix D.2)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kaffee.cores.core import Core


@eqx.filter_jit
def _gains(core: Core, starts: Float[Array, "S M"], num_steps: Int[Array, ""]) -> Float[Array, " S"]:
    def gain(z: Float[Array, " M"]) -> Float[Array, ""]:
        def step(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            z, product = carry
            return core(z), core.jacobian(z) @ product

        _, product = jax.lax.fori_loop(0, num_steps, step, (z, jnp.eye(z.shape[0], dtype=z.dtype)))
        return jnp.sum(product**2) / z.shape[0]

    return jax.vmap(gain)(starts)


@eqx.filter_jit
def _jacobians(core: Core, path: Float[Array, "T M"]) -> Float[Array, "T M M"]:
    return jax.vmap(core.jacobian)(path)


def covariance_gain(core: Core, starts: Float[np.ndarray, "S M"], num_steps: int) -> Float[np.ndarray, " S"]:
    """The factor by which the trace of an isotropic covariance changes on the way from each start.

        tr(P Sigma_0 P') / tr(Sigma_0) = |P|_F^2 / M,    P = J(z_{H-1}) ... J(z_0),    Sigma_0 = s^2 I

    along the core's own free run z_{h+1} = F(z_h), without process noise: below 1, uncertainty shrinks.
    """
    return np.asarray(_gains(core, jnp.asarray(starts, jnp.float32), jnp.int32(num_steps)), np.float64)


def jacobian_eigenvalues(core: Core, path: Float[np.ndarray, "T M"]) -> np.ndarray:
    """Eigenvalues (T, M) of J(z) at every state of a path that the core need not have made itself."""
    jacobians = _jacobians(core, jnp.asarray(path, jnp.float32))
    return np.linalg.eigvals(np.asarray(jacobians, np.float64))
