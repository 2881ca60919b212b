"""The EKF as one writes it in JAX: a step for one window from the textbook, scan, vmap, value_and_grad.

In float64 it is also the reference that all implementations are compared with.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problem import Problem

Parameters = dict[str, jax.Array]


def gate(z: jax.Array) -> jax.Array:
    """ReLU forward, the slope of sigmoid(1.7 z) z as its derivative."""
    surrogate = jax.nn.sigmoid(1.7 * z) * z
    return surrogate + jax.lax.stop_gradient(jnp.maximum(z, 0.0) - surrogate)


def transition(p: Parameters, z: jax.Array, gates: int) -> jax.Array:
    """F(z) of the AL-RNN."""
    split = z.shape[0] - gates
    return p["A"] * z + p["W"] @ jnp.concatenate([z[:split], gate(z[split:])]) + p["h"]


def loss(p: Parameters, start: jax.Array, x: jax.Array, gates: int) -> jax.Array:
    """Mean NLL per observed entry; x (W, T, N) is without the anchoring row."""
    M, N = p["A"].shape[0], x.shape[-1]
    Gamma = jnp.diag(jnp.exp(2.0 * p["log_process_std"]))
    Lambda = jnp.diag(jnp.exp(2.0 * p["log_observation_std"]))
    B = jnp.eye(N, M, dtype=x.dtype)

    def step(belief: tuple[jax.Array, jax.Array], x_t: jax.Array) -> tuple[Any, jax.Array]:
        mean, P = belief
        J = jax.jacfwd(transition, argnums=1)(p, mean, gates)
        mean, P = transition(p, mean, gates), J @ P @ J.T + Gamma
        S = B @ P @ B.T + Lambda
        log_likelihood = jax.scipy.stats.multivariate_normal.logpdf(x_t, B @ mean, S)
        K = jnp.linalg.solve(S, B @ P).T
        mean = mean + K @ (x_t - B @ mean)
        P = (jnp.eye(M, dtype=x.dtype) - K @ B) @ P
        return (mean, P), -log_likelihood

    def window(z: jax.Array, x_w: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(step, (z, Gamma), x_w)[1])

    return jnp.sum(jax.vmap(window)(start, x)) / x.size


def build(problem: Problem, dtype: Any = np.float32) -> Callable[[], Any]:
    """A call that waits for loss and gradient."""
    gates = problem.size.gates
    function = jax.jit(jax.value_and_grad(lambda p, z, x: loss(p, z, x, gates)))
    p = {name: jnp.asarray(value.astype(dtype)) for name, value in problem.parameters.items()}
    start, x = (jnp.asarray(a.astype(dtype)) for a in (problem.start, problem.x[:, 1:]))
    return lambda: jax.block_until_ready(function(p, start, x))


def unpack(result: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients by name."""
    value, gradient = result
    return float(value), {name: np.asarray(g) for name, g in gradient.items()}


def reference(problem: Problem) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients in float64."""
    with jax.enable_x64(True):
        return unpack(build(problem, np.float64)())
