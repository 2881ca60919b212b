"""Axes 2 and 3: long free runs with the shell on and off, against noisy and clean truth."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.data.stretches import evenly
from kaffee.evaluation.protocol import Protocol
from kaffee.evaluation.reference import Reference
from kaffee.lyapunov import lyapunov_spectrum
from kaffee.metrics import d_hellinger, d_stsp_mixture
from kaffee.metrics.geometry import d_stsp_histogram
from kaffee.rollout import free_run
from kaffee.ssm import StateSpaceModel


class Fidelity(NamedTuple):
    """How well a free run reconstructs the dynamics; NaN where it diverged.

    Attributes:
        exponents: Lyapunov exponents per unit of time.
        diverged_at: First step beyond the bound, 0 for never.
        diverged: How many of the watched runs diverged.
    """

    d_stsp: float
    dh: float
    d_h: float
    h: float
    exponents: list[float]
    diverged_at: int
    diverged: int


def state_space_divergence(
    reference: Float[np.ndarray, "T N"], generated: Float[np.ndarray, "L N"], *, num_samples: int = 1_000, seed: int = 0
) -> float:
    """D_stsp by histogram for up to three coordinates, by Gaussian mixtures beyond (appendix C.4)."""
    if reference.shape[1] <= 3:
        return d_stsp_histogram(reference, generated)
    return d_stsp_mixture(reference, generated, num_samples=num_samples, seed=seed)


def fidelity(
    model: StateSpaceModel, reference: Reference, protocol: Protocol, *, stochastic: bool, h_reference: float | None
) -> Fidelity:
    """Free run of `protocol.rollout_steps` after a transient, and its comparison with the truth.

    Shell on: starts at a noisy observation, generates noisy observations, is compared with noisy observations.
    Shell off: starts at a clean state, is compared with the clean trajectory.

    Args:
        h_reference: The true h; None: without Lyapunov exponents.
    """
    if stochastic:
        # The post-burn window of the held-out data.
        truth = reference.test_observations[protocol.transient :][: protocol.rollout_steps]
        origins = reference.test_observations
    else:
        truth, origins = reference.clean, reference.clean
    target = reference.scaler.transform(truth)
    key = jax.random.key(protocol.seed + 1) if stochastic else None
    first = jnp.asarray(reference.scaler.transform(origins[:1]), model.dtype)
    noise: Any = {"key": key, "core_key": jax.random.key(protocol.seed + 2)}
    run = free_run(model, model.embed(first), protocol.rollout_steps, transient=protocol.transient, **noise)
    diverged_at = int(run.diverged_at[0])
    watched = evenly(len(origins), protocol.num_divergence_starts)
    starts: Array = jnp.asarray(reference.scaler.transform(origins[watched]), model.dtype)
    watch = free_run(model, model.embed(starts), 0, transient=protocol.rollout_steps, **noise)
    diverged = int(jnp.sum(watch.diverged_at > 0))
    if diverged_at:
        nan = float("nan")
        return Fidelity(nan, nan, nan, nan, [], diverged_at, diverged)
    generated = np.asarray(run.observations[0], np.float64)
    h, exponents = float("nan"), []
    if h_reference is not None:
        count = min(protocol.num_exponents, model.latent_dim)
        spectrum = lyapunov_spectrum(model.core.exact(), run.states[0], num_exponents=count, dt=reference.system.dt)
        h, exponents = spectrum.sum_positive, [float(e) for e in spectrum.exponents]
    return Fidelity(
        d_stsp=state_space_divergence(target, generated, num_samples=protocol.mixture_samples, seed=protocol.seed),
        dh=float("nan") if h_reference is None else abs(h - h_reference),
        d_h=d_hellinger(target, generated),
        h=h,
        exponents=exponents,
        diverged_at=diverged_at,
        diverged=diverged,
    )
