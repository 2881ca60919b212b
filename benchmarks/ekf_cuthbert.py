"""cuthbert's extended and ensemble Kalman filters on the same problem, as its documentation builds them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.ekf_plain_jax import Parameters, transition
from benchmarks.problem import Problem

MEMBERS = 40


def _extended(p: Parameters, z: jax.Array, x: jax.Array, gates: int, key: jax.Array) -> jax.Array:
    """The log likelihood of one window by the filter of conditional moments, linearised at the filtered mean."""
    from cuthbert import filter as run
    from cuthbert.gaussian import moments

    N = x.shape[-1]
    process, reading = (jnp.diag(jnp.exp(p[name])) for name in ("log_process_std", "log_observation_std"))
    by = moments.build_filter(
        z,
        process,
        lambda state, inputs: (lambda latent: (transition(p, latent, gates), process), state.mean),
        lambda state, x_t: (lambda latent: (latent[:N], reading), state.mean, x_t),
    )
    return run(by, x, by.init_prepare()).log_normalizing_constant[-1]


def _ensemble(p: Parameters, z: jax.Array, x: jax.Array, gates: int, key: jax.Array) -> jax.Array:
    """The same by an ensemble with perturbed readings."""
    from cuthbert import filter as run
    from cuthbert.ensemble_kalman import ensemble_kalman_filter

    N = x.shape[-1]
    process, reading = jnp.exp(p["log_process_std"]), jnp.exp(p["log_observation_std"])

    def draw(key: jax.Array) -> jax.Array:
        return process * jax.random.normal(key, process.shape, process.dtype)

    by = ensemble_kalman_filter.build_filter(
        lambda key: z + draw(key),
        lambda inputs: lambda latent, key: transition(p, latent, gates) + draw(key),
        lambda x_t: (lambda latent: latent[:N], jnp.diag(reading), x_t),
        MEMBERS,
    )
    return run(by, x, by.init_prepare(key=key), key=key).log_normalizing_constant[-1]


def build(problem: Problem, kind: str = "ekf") -> Callable[[], Any]:
    """A call that waits for loss and gradient; raises ImportError without cuthbert."""
    import cuthbert  # noqa: F401

    gates, window = problem.size.gates, {"ekf": _extended, "enkf": _ensemble}[kind]

    def loss(p: Parameters, start: jax.Array, x: jax.Array) -> jax.Array:
        found = jax.vmap(lambda z, x_w: window(p, z, x_w, gates, jax.random.key(0)))(start, x)
        return -jnp.sum(found) / x.size

    function = jax.jit(jax.value_and_grad(loss))
    p = {name: jnp.asarray(value) for name, value in problem.parameters.items()}
    start, x = jnp.asarray(problem.start), jnp.asarray(problem.x[:, 1:])

    def run() -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return jax.block_until_ready(function(p, start, x))

    return run
