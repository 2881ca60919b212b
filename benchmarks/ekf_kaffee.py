"""kaffee's gradient of the innovation NLL: with its adjoint, without it, and without the core's structure."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.problem import Problem
from kaffee.filtering.likelihood import KAFFEE, window_nll
from kaffee.model.statespace import StateSpaceModel, trainable
from kaffee.model.wrappers import Custom

Variant = Literal["adjoint", "autodiff", "autodiff_dense"]


def value_and_gradient(variant: Variant) -> Callable[..., Any]:
    """The compiled function of (trainable part, frozen part, windows, mask)."""
    gradient = "adjoint" if variant == "adjoint" else "autodiff"

    def loss(moving: Any, frozen: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        model = eqx.combine(moving, frozen)
        return window_nll(model, x, mask, KAFFEE.recursion, burn_in=0, gradient=gradient).loss

    return eqx.filter_jit(eqx.filter_value_and_grad(loss))


def arguments(problem: Problem, variant: Variant = "adjoint") -> tuple[Any, ...]:
    """What `value_and_gradient` is called with. A wrapped core is a map like any other: its Jacobian is dense."""
    model: StateSpaceModel = problem.model
    if variant == "autodiff_dense":
        model = model.replace(core=Custom(model.core, model.latent_dim))
    moving, frozen = eqx.partition(model, trainable(model, KAFFEE.trainable_parts))
    return moving, frozen, jnp.asarray(problem.x), jnp.asarray(problem.mask)


def build(problem: Problem, variant: Variant = "adjoint") -> Callable[[], Any]:
    """A call that waits for loss and gradient."""
    function, given = value_and_gradient(variant), arguments(problem, variant)
    return lambda: jax.block_until_ready(function(*given))


def unpack(result: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients by name."""
    loss, gradient = result
    core = gradient.core.function if isinstance(gradient.core, Custom) else gradient.core
    shell = gradient.shell
    found = {
        "A": core.A,
        "W": core.W,
        "h": core.h,
        "log_process_std": shell.log_process_std,
        "log_observation_std": shell.log_observation_std,
    }
    return float(loss), {name: np.asarray(value) for name, value in found.items()}
