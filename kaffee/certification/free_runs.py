"""Free runs of a surrogate: their distance from a recording, whether they diverge, their Lyapunov exponents."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kaffee.certification.references import Reference
from kaffee.checkpoint import Reconstruction
from kaffee.checks import CORE_SEED
from kaffee.data.stretches import evenly
from kaffee.lyapunov import lyapunov_spectrum
from kaffee.metrics import d_hellinger, d_stsp_kernel
from kaffee.metrics.trapping import Extent
from kaffee.rollout import core_key_of, free_run

NUM_EXPONENTS = 10
# Of every run for its exponents, and how many runs: enough for standard errors, whatever the length of the recording.
LYAPUNOV_STEPS, LYAPUNOV_RUNS = 2_500, 8
MIN_KEPT = 1_000
# A density gains little from more, and there are a hundred runs.
MAX_DENSITY_ROWS = 5_000


class Distance(NamedTuple):
    """From the held-out recording: D_stsp in nats (infinite if nothing overlaps), D_H between 0 and 1 or unknown."""

    d_stsp: float
    d_h: float


class Runs(NamedTuple):
    """The ends of long free runs from held-out rows; those that diverged are left out of the arrays.

    Attributes:
        observations: In data units.
        states: Latent ones.
        diverged_at: Of all runs; 0 for those that did not.
    """

    observations: Float[np.ndarray, "S T N"]
    states: Float[Array, "S T M"]
    diverged_at: Int[np.ndarray, " R"]


class Watched(NamedTuple):
    """What became of many free runs of one model.

    Attributes:
        typical: The median distance of those that did not diverge; NaN if all did.
        lowest, highest: D_stsp of the best and of the worst of them.
        diverged: How many left the attractor.
        first: The earliest step at which one did; 0: none.
        trapped: How many stay in a part of it, or at rest (`kaffee.metrics.trapping`).
    """

    typical: Distance
    lowest: float
    highest: float
    diverged: int
    first: int
    trapped: int


class Exponents(NamedTuple):
    """Lyapunov exponents of the core along its free runs, per unit of time: means over runs and standard errors."""

    values: Float[np.ndarray, " K"]
    errors: Float[np.ndarray, " K"]
    sum_positive: float
    sum_positive_error: float
    kaplan_yorke: float
    num_steps: int


def distances(reference: Reference, runs: list[Float[np.ndarray, "T N"]]) -> list[Distance]:
    """D_stsp of each run by kernel densities, and D_H if the rows of the reference follow each other."""
    rows = reference.rows
    kept = [run[: len(rows)] for run in runs]
    spectral = [d_hellinger(rows, run) if reference.in_order else float("nan") for run in kept]
    thin = -(-len(rows) // MAX_DENSITY_ROWS)
    occupied = d_stsp_kernel(rows[::thin], [run[::thin] for run in kept])
    return [Distance(float(d), h) for d, h in zip(occupied, spectral, strict=True)]


def run_freely(
    reconstruction: Reconstruction, starts: Float[np.ndarray, "R N"], num_steps: int, kept: int, seed: int | None
) -> Runs:
    """Long free runs from observations in data units. With a seed the shell is on.

    Noise inside the core is drawn from CORE_SEED either way.
    """
    model, scaler = reconstruction.model, reconstruction.scaler
    first = model.embed(jnp.asarray(scaler.transform(starts), model.dtype))
    key = None if seed is None else jax.random.key(seed)
    noise = core_key_of(model.core, CORE_SEED)
    run = free_run(model, first, kept, key=key, core_key=noise, transient=num_steps - kept)
    diverged_at = np.asarray(run.diverged_at)
    stays = diverged_at == 0
    return Runs(scaler.inverse(np.asarray(run.observations, np.float64)[stays]), run.states[stays], diverged_at)


def extent_of(reference: Reference, pieces: list[Distance]) -> Extent:
    """What data of the reference's length cover, from the distances of training pieces and the rows of all data."""
    return Extent.of(np.array([d.d_stsp for d in pieces]), [*reference.known, reference.rows], len(reference.rows))


def watched(runs: Runs, each: list[Distance], extent: Extent, varying: Bool[np.ndarray, " N"]) -> Watched:
    """The summary of runs whose distances are known, beside what pieces of data cover in coordinates that vary."""
    left = runs.diverged_at[runs.diverged_at > 0]
    d = np.array([distance.d_stsp for distance in each])
    typical = Distance(*np.median(np.array(each), axis=0).tolist()) if each else Distance(float("nan"), float("nan"))
    return Watched(
        typical=typical,
        lowest=float(min(d, default=np.nan)),
        highest=float(max(d, default=np.nan)),
        diverged=len(left),
        first=int(min(left, default=0)),
        trapped=int(extent.trapped(d, runs.observations[:, :, varying]).sum()),
    )


def exponents_of(reconstruction: Reconstruction, states: Float[Array, "S T M"]) -> Exponents | None:
    """The leading exponents of the core along some of its free runs; None if all diverged.

    The standard errors are those of the mean over runs, so that runs that settle in different places show in them.
    """
    if not len(states):
        return None
    model = reconstruction.model
    count = min(NUM_EXPONENTS, model.latent_dim)
    chosen = states[evenly(len(states), min(LYAPUNOV_RUNS, len(states)))]
    core = model.core.exact()
    found = [lyapunov_spectrum(core, run[:LYAPUNOV_STEPS], num_exponents=count, dt=reconstruction.dt) for run in chosen]
    every = np.array([spectrum.exponents for spectrum in found])
    several = len(found) > 1
    mean = every.mean(axis=0)
    scatter = every.std(axis=0, ddof=1) / np.sqrt(len(found)) if several else found[0].standard_errors
    sums = np.array([spectrum.sum_positive for spectrum in found])
    pooled = replace(found[0], exponents=mean)
    return Exponents(
        values=mean,
        errors=scatter,
        sum_positive=pooled.sum_positive,
        sum_positive_error=float(sums.std(ddof=1) / np.sqrt(len(sums))) if several else found[0].sum_positive_error,
        kaplan_yorke=pooled.kaplan_yorke_dimension,
        num_steps=sum(spectrum.num_steps for spectrum in found),
    )
