"""A self-test of an installation: is the gradient exact here, and how fast is one update?"""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from kaffee.filtering.likelihood import KAFFEE, Gradient, window_nll
from kaffee.model.alrnn import ALRNN
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import machine, versions

TOLERANCE = 1e-9


def _problem(latent_dim: int, num_observed: int, windows: int, steps: int, dtype: Any) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 3)
    core = ALRNN.create(latent_dim, latent_dim // 2, key=keys[0], dtype=dtype).surrogate()
    model = StateSpaceModel.create(core, num_observed, key=keys[1], dtype=dtype)
    x = jax.random.normal(keys[2], (windows, steps + 1, num_observed), dtype)
    return model, x, jnp.ones(x.shape, bool)


def _value_and_gradient(gradient: Gradient) -> Any:
    return eqx.filter_jit(
        eqx.filter_value_and_grad(lambda m, x, mask: window_nll(m, x, mask, KAFFEE.recursion, gradient=gradient).loss)
    )


def gradient_error() -> float:
    """The largest relative difference between the hand-derived adjoint and automatic differentiation, in float64."""
    with jax.enable_x64(True):
        problem = _problem(8, 3, 4, 12, jnp.float64)
        (_, ours), (_, theirs) = (_value_and_gradient(kind)(*problem) for kind in ("adjoint", "autodiff"))
        pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
        return max(float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-30)) for a, b in pairs)


def update_seconds() -> float:
    """Seconds for one value and gradient at the paper's Lorenz-96 size, median of five."""
    problem = _problem(100, 20, 16, 40, jnp.float32)
    run = _value_and_gradient("adjoint")
    jax.block_until_ready(run(*problem))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(run(*problem))
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def examine() -> tuple[dict[str, Any], list[str]]:
    """Facts about this installation and the problems found."""
    error, seconds = gradient_error(), update_seconds()
    facts = {
        **versions(),
        **machine(),
        "devices": ", ".join(str(device) for device in jax.devices()),
        "64-bit mode": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "gradient error (float64)": error,
        "KAFFEE gradient, M=100, N=20, 16 x 40 (s)": seconds,
    }
    problems = []
    if not error < TOLERANCE:
        problems.append(f"the hand-derived gradient differs from automatic differentiation by {error:.1e}")
    return facts, problems
