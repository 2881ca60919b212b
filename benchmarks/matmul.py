"""The floor: only the five M^3 matrix products of each step and window, as XLA runs them, in one compiled loop."""

from collections.abc import Callable
from typing import Any

import jax

from benchmarks.problem import Problem

PRODUCTS = 5


def flops(problem: Problem) -> int:
    """Floating-point operations of the products of all steps and windows."""
    size = problem.size
    return size.steps * size.windows * PRODUCTS * 2 * size.latent**3


def build(problem: Problem, kind: str = "batched") -> Callable[[], Any]:
    """A call that waits for the products. Their right factors are orthogonal, so that the values stay of order one.

    Args:
        kind: "batched": each window has its own right factor, one batched product. "shared": all windows have the
            same, one tall product.
    """
    M, W = problem.size.latent, problem.size.windows
    keys = jax.random.split(jax.random.key(0))
    Y = jax.random.normal(keys[0], (W, M, M))
    if kind == "shared":
        Y = Y.reshape(W * M, M)
    shape = (M, M) if kind == "shared" else (W, M, M)
    Q = jax.numpy.linalg.qr(jax.random.normal(keys[1], shape))[0]

    @jax.jit
    def run(Y: jax.Array, Q: jax.Array) -> jax.Array:
        def step(_: jax.Array, Y: jax.Array) -> jax.Array:
            for _ in range(PRODUCTS):
                Y = Y @ Q
            return Y

        return jax.lax.fori_loop(0, problem.size.steps, step, Y)

    return lambda: jax.block_until_ready(run(Y, Q))
