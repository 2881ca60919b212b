"""How good are the two Jacobians of DynaMix as tangents of the step they belong to, and of the system?"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.bench.incontext import conditioned, context_reference
from kaffee.bench.kinds import Measurement
from kaffee.bench.store import Cell, ResultStore
from kaffee.cores.core import Core
from kaffee.lyapunov import lyapunov_spectrum
from kaffee.rollout import free_run

COMPARED_STATES = 500


@eqx.filter_jit
def tangent_errors(core: Core, states: Float[Array, "T M"]) -> Float[Array, " T"]:
    """|J(z) - dF/dz|_F / |dF/dz|_F at every state; dF/dz by the core's exact derivative."""
    J, exact = jax.vmap(core.jacobian)(states), jax.vmap(core.exact().jacobian)(states)
    norm = lambda A: jnp.sqrt(jnp.sum(A**2, axis=(1, 2)))  # noqa: E731
    return norm(J - exact) / norm(exact)


def measure_tangent(store: ResultStore, cell: Cell) -> Measurement:
    """Along a free run of the zero-shot core: relative error of its Jacobian, and lambda_1 beside the truth's."""
    settings = store.settings(cell)
    reference = context_reference(settings, cell.seed)
    zero_shot, _ = conditioned(settings, reference)
    ready, protocol, model = time.perf_counter(), settings.protocol, zero_shot.model
    first = jnp.asarray(reference.scaler.transform(reference.clean[:1]), model.dtype)
    core_key = jax.random.key(protocol.seed)
    run = free_run(model, model.embed(first), protocol.rollout_steps, transient=protocol.transient, core_key=core_key)
    states = run.states[0]
    chosen = states[jnp.linspace(0, len(states) - 1, COMPARED_STATES).round().astype(int)]
    dt, truth = reference.system.dt, reference.lyapunov.maximal
    found = lyapunov_spectrum(model.core, states, num_exponents=1, dt=dt).maximal
    metrics = {
        "tangent_error": float(np.median(np.asarray(tangent_errors(model.core, chosen)))),
        "lambda_1": found,
        "lambda_1_true": truth,
        "dlambda_1": abs(found - truth),
        # Per step, where systems of different time scales can be compared.
        "dlambda_1_step": abs(found - truth) * dt,
        "extra": {"diverged_at_core": int(run.diverged_at[0])},
    }
    return Measurement(metrics, {}, reference.train.fingerprint, ready)
