"""Free runs of a surrogate: their distance from a recording, whether they diverge, their Lyapunov exponents."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.checkpoint import Reconstruction
from kaffee.checks import CORE_SEED, TRANSIENT
from kaffee.lyapunov import lyapunov_spectrum
from kaffee.metrics import d_hellinger, d_stsp_kernel
from kaffee.metrics.trapping import trapped
from kaffee.rollout import core_key_of, free_run

NUM_EXPONENTS = 10
# Enough for standard errors, whatever the length of the recording.
LYAPUNOV_STEPS = 10_000


class Distance(NamedTuple):
    """From the held-out recording: D_stsp in nats (infinite if nothing overlaps), D_H between 0 and 1 or unknown."""

    d_stsp: float
    d_h: float


class Divergence(NamedTuple):
    """Of many long free runs.

    Attributes:
        core, stochastic: How many of `runs` left the attractor within `steps`, with the shell off and on.
        first_core, first_stochastic: The earliest step at which one did; 0: none.
        trapped_core, trapped_stochastic: How many of them rest or circle in a small part of the attractor at their end:
            the rest varies less than half as much as the quietest piece of the data that is as long.
    """

    runs: int
    steps: int
    core: int
    stochastic: int
    first_core: int
    first_stochastic: int
    trapped_core: int = 0
    trapped_stochastic: int = 0


class Exponents(NamedTuple):
    """Lyapunov exponents of the core along its free run, per unit of time, with standard errors."""

    values: Float[np.ndarray, " K"]
    errors: Float[np.ndarray, " K"]
    sum_positive: float
    sum_positive_error: float
    kaplan_yorke: float
    num_steps: int


def compared(reference: Float[np.ndarray, "T N"], run: Float[np.ndarray, "T N"], *, in_order: bool = True) -> Distance:
    """D_stsp by kernel densities, and D_H if the rows of the reference follow each other."""
    return Distance(d_stsp_kernel(reference, run), d_hellinger(reference, run) if in_order else float("nan"))


def run_freely(
    reconstruction: Reconstruction, start: Float[np.ndarray, " N"], num_steps: int, seed: int | None
) -> tuple[Float[np.ndarray, "T N"] | None, Float[Array, "T M"]]:
    """A free run after a transient, in data units; None if it diverged. With a seed the shell is on.

    Noise inside the core is drawn from CORE_SEED either way.
    """
    model, scaler = reconstruction.model, reconstruction.scaler
    first = model.embed(jnp.asarray(scaler.transform(start), model.dtype)[None])
    key = None if seed is None else jax.random.key(seed)
    run = free_run(model, first, num_steps, key=key, core_key=core_key_of(model.core, CORE_SEED), transient=TRANSIENT)
    if int(run.diverged_at[0]):
        return None, run.states[0]
    return scaler.inverse(np.asarray(run.observations[0], np.float64)), run.states[0]


def divergence_test(
    reconstruction: Reconstruction,
    starts: Float[np.ndarray, "S N"],
    num_steps: int,
    *,
    pieces: Float[np.ndarray, "P T N"],
    seed: int,
) -> Divergence:
    """Watch free runs from many observations, in data units.

    Args:
        pieces: Of data, as long as the ends of runs that are looked at; may be none.
    """
    model, scaler = reconstruction.model, reconstruction.scaler
    first = model.embed(jnp.asarray(scaler.transform(starts), model.dtype))
    end, data = pieces.shape[1], [scaler.transform(piece) for piece in pieces]
    found, noise = [], core_key_of(model.core, CORE_SEED)
    for key in (None, jax.random.key(seed)):
        run = free_run(model, first, end, key=key, core_key=noise, transient=num_steps - end)
        left, rest = np.asarray(run.diverged_at), np.asarray(run.observations, np.float64)[run.diverged_at == 0]
        first_left = int(left[left > 0].min()) if (left > 0).any() else 0
        found.append((int((left > 0).sum()), first_left, int(trapped(rest, data).sum())))
    both = [count for pair in zip(*found, strict=True) for count in pair]
    return Divergence(len(starts), num_steps, *both)


def exponents_of(reconstruction: Reconstruction, states: Float[Array, "T M"]) -> Exponents:
    """The leading exponents of the core along states of its free run."""
    model = reconstruction.model
    count = min(NUM_EXPONENTS, model.latent_dim)
    found = lyapunov_spectrum(model.core.exact(), states, num_exponents=count, dt=reconstruction.dt)
    return Exponents(
        values=found.exponents,
        errors=found.standard_errors,
        sum_positive=found.sum_positive,
        sum_positive_error=found.sum_positive_error,
        kaplan_yorke=found.kaplan_yorke_dimension,
        num_steps=found.num_steps,
    )
