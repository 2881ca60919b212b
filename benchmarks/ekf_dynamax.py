"""dynamax's `extended_kalman_filter`, mapped over windows, with `jax.value_and_grad`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.ekf_plain_jax import Parameters, transition, unpack
from benchmarks.problem import Problem

__all__ = ["build", "loss", "unpack"]


def loss(p: Parameters, start: jax.Array, x: jax.Array, gates: int) -> jax.Array:
    """Mean NLL per observed entry; x (W, T, N) is without the anchoring row.

    dynamax starts from the belief before its first emission, so the first prediction is made here; in exchange it
    makes one after the last emission.
    """
    from dynamax.nonlinear_gaussian_ssm import ParamsNLGSSM, extended_kalman_filter

    N = x.shape[-1]
    Gamma = jnp.diag(jnp.exp(2.0 * p["log_process_std"]))

    def window(z: jax.Array, x_w: jax.Array) -> jax.Array:
        J = jax.jacfwd(transition, argnums=1)(p, z, gates)
        params = ParamsNLGSSM(
            initial_mean=transition(p, z, gates),
            initial_covariance=J @ Gamma @ J.T + Gamma,
            dynamics_function=lambda latent: transition(p, latent, gates),
            dynamics_covariance=Gamma,
            emission_function=lambda latent: latent[:N],
            emission_covariance=jnp.diag(jnp.exp(2.0 * p["log_observation_std"])),
        )
        # No fields: only the total is kept, which is the cheapest call.
        return -extended_kalman_filter(params, x_w, output_fields=[]).marginal_loglik

    return jnp.sum(jax.vmap(window)(start, x)) / x.size


def build(problem: Problem) -> Callable[[], Any]:
    """A call that waits for loss and gradient; raises ImportError without dynamax."""
    import dynamax  # noqa: F401

    gates = problem.size.gates
    function = jax.jit(jax.value_and_grad(lambda p, z, x: loss(p, z, x, gates)))
    p = {name: jnp.asarray(value) for name, value in problem.parameters.items()}
    start, x = jnp.asarray(problem.start), jnp.asarray(problem.x[:, 1:])

    def run() -> Any:
        # dynamax mixes types in ways that JAX's strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            return jax.block_until_ready(function(p, start, x))

    return run
