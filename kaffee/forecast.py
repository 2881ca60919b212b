"""Ensemble forecasts: sampled rollouts of the shell-on surrogate from many starts."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.gaussian import Belief
from kaffee.ssm import StateSpaceModel


@eqx.filter_jit
def forecast_ensemble(
    model: StateSpaceModel,
    start: Float[Array, "S M"] | Belief,
    num_steps: int,
    num_members: int,
    *,
    key: Key[Array, ""],
    observation_noise: bool = True,
) -> Float[Array, "K S H N"]:
    """Observations of `num_members` sampled trajectories for the `num_steps` after each start, standardised.

    Every member draws process noise at each step and observation noise on its output, so that the ensemble's spread is
    that of a future observation.

    Args:
        start: Latent states (all members start there, as in the paper), or beliefs from which each member draws.
        observation_noise: Without it the spread is that of the signal B z, not of a reading of it.
    """
    key_start, key_path = jax.random.split(key)
    if isinstance(start, Belief):
        z = _sample_belief(start, num_members, key=key_start)
    else:
        z = jnp.broadcast_to(start, (num_members, *start.shape))
    num_starts, M = z.shape[1:]
    core = model.core.exact()
    process_std = jnp.sqrt(model.shell.process_variance())
    observation_std = jnp.sqrt(model.shell.observation_variance())

    def body(z: Array, key: Any) -> tuple[Array, Array]:
        key_process, key_observation = jax.random.split(key)
        flat = z.reshape(-1, M)
        inner = core
        if core.noise_dim:
            key_core = jax.random.fold_in(key, 2)
            inner = core.with_noise(jax.random.normal(key_core, (flat.shape[0], core.noise_dim), z.dtype))
        z = inner.predict_mean(flat).reshape(z.shape)
        z = z + process_std * jax.random.normal(key_process, z.shape, z.dtype)
        x = model.observation.observe(z)
        if not observation_noise:
            return z, x
        return z, x + observation_std * jax.random.normal(key_observation, x.shape, x.dtype)

    _, xs = jax.lax.scan(body, z, jax.random.split(key_path, num_steps))
    return jnp.moveaxis(xs, 0, 2).reshape(num_members, num_starts, num_steps, -1)


def _sample_belief(belief: Belief, num_members: int, *, key: Key[Array, ""]) -> Float[Array, "K S M"]:
    """Draws from N(mean, covariance); a root made of eigenvalues tolerates rounding below zero."""
    values, vectors = jnp.linalg.eigh(belief.covariance)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
    noise = jax.random.normal(key, (num_members, *belief.mean.shape), belief.mean.dtype)
    return belief.mean + jnp.einsum("sij,ksj->ksi", root, noise)
