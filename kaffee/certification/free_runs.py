"""What free runs are compared with: a stretch of the held-out recording, or its complete rows where gaps are many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kaffee.certification.check import CORE_SEED, MIN_ROWS, TRANSIENT
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import complete_rows, constant_columns, evenly, longest_stretch, pieces, stretches
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.rollout import core_key_of, free_run
from kaffee.metrics.geometry import d_stsp_kernel
from kaffee.metrics.lyapunov import lyapunov_spectrum
from kaffee.metrics.spectra import d_hellinger, power_spectrum
from kaffee.metrics.trapping import Extent

MAX_ROWS = 10_000


class Reference(NamedTuple):
    """Held-out rows and training pieces of the same length.

    Attributes:
        rows: Complete ones.
        pieces: Of the training data: what a perfect model would be like.
        in_order: Whether rows follow each other in time, so that they have a spectrum.
        drawn: The same in time, perhaps with gaps.
        known: All training rows without gaps, in the stretches that they come in.
    """

    rows: Float[np.ndarray, "T N"]
    pieces: list[Float[np.ndarray, "T N"]]
    in_order: bool
    drawn: Float[np.ndarray, "R N"]
    known: Sequence[Float[np.ndarray, "T N"]] = ()


def reference_of(train: Series, test: Series) -> Reference:
    """The longest complete stretch; if it is too short, all complete rows, which still say where a system lives."""
    # No longer than what there is of training rows, so that there is a piece of the same length to compare with.
    stretch = longest_stretch(test)[: min(MAX_ROWS, len(longest_stretch(train)))]
    if len(stretch) >= MIN_ROWS:
        every = [part for values in train.recordings for part in stretches(values)]
        return Reference(stretch, pieces(train, len(stretch)), True, stretch, every)
    known = complete_rows(train)
    rows = complete_rows(test)[: min(MAX_ROWS, len(known))]
    if len(rows) < MIN_ROWS:
        raise DataError(
            f"{test.label}: here and in the training data there are {len(rows)} rows without gaps; free runs are "
            f"compared with at least {MIN_ROWS}. Hold out more, or leave out columns with many gaps."
        )
    together = Series.from_arrays(known)
    return Reference(rows, pieces(together, len(rows)), False, max(test.recordings, key=len)[:MAX_ROWS], [known])


# Free runs of a surrogate: their distance from a recording, whether they diverge, their Lyapunov exponents.


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


# Free runs against a held-out recording: state space, spectra, divergence, Lyapunov exponents.


# Of the arrays that are kept for figures.
MAX_SHOWN, MAX_POINTS, MAX_FREQUENCIES = 6, 3_000, 400


@dataclass(frozen=True)
class Agreement:
    """How free runs compare with the held-out recording, in units of its spread.

    Attributes:
        num_rows: Rows of the held-out recording, and of the end of every run that is compared with it.
        runs, steps: Of every model, from as many held-out rows.
        columns: Coordinates that vary in the recording, over which everything is compared.
        core, stochastic: The surrogate with the shell off and on.
        prior_core, prior_stochastic: The same of the prior, if there is one.
        linear: The linear model with its noise, if there is one.
        floor: Training pieces of the same length against the held-out recording: medians. A perfect model gets this.
        floor_highest: The largest of these.
        num_pieces: How many there are.
        at_rest: A run that rests at the mean of the data: what a collapsed core gets.
        exponents: None if all runs of the core diverged.
        shown: Coordinates of what follows, which is for figures.
        drawn: Rows of the data and of the typical run of the core and of the stochastic one, in data units; without
            models of which all runs diverged.
        frequencies: In cycles per unit of time.
        spectra: Power spectra of the same at these frequencies, normalised to a sum of 1 over all; none where the data
            have too many gaps for one, and then every D_H is NaN.
    """

    num_rows: int
    runs: int
    steps: int
    columns: tuple[str, ...]
    core: Watched
    stochastic: Watched
    prior_core: Watched | None
    prior_stochastic: Watched | None
    linear: Watched | None
    floor: Distance
    floor_highest: Distance
    num_pieces: int
    at_rest: Distance
    exponents: Exponents | None
    shown: tuple[str, ...]
    drawn: dict[str, Float[np.ndarray, "P C"]]
    frequencies: Float[np.ndarray, " F"]
    spectra: dict[str, Float[np.ndarray, "F C"]]


def agreement(
    reconstruction: Reconstruction,
    train: Series,
    test: Series,
    *,
    prior: Reconstruction | None = None,
    linear: Reconstruction | None = None,
    runs: int = 20,
    steps: int = 20_000,
    seed: int = 0,
) -> Agreement:
    """Compare the ends of many long free runs with the longest complete stretch of the held-out data, or with its rows.

    Args:
        train, test: In data units, with the model's columns.
        prior: The deterministic surrogate that the model was made of.
        linear: The linear baseline.
        runs, steps: How many, from held-out rows at equal distances, and how long at least.
    """
    reference = reference_of(train, test)
    rows = reference.rows
    varying = ~constant_columns(rows)
    if not varying.any():
        raise DataError(f"{test.label}: every held-out coordinate is constant, so there are no dynamics to compare.")
    known = [part[:, varying] for part in reference.known]
    compared = reference._replace(rows=rows[:, varying], known=known)
    end = max(len(rows), MIN_KEPT)
    steps = max(steps, TRANSIENT + end)
    starts = rows[evenly(len(rows), runs)]
    floors = distances(compared, [piece[:, varying] for piece in reference.pieces])
    extent = extent_of(compared, floors)
    stacked = np.array(floors) if floors else np.full((1, 2), np.nan)

    def watch(which: Reconstruction, noise: int | None) -> tuple[Runs, list[Distance], Watched]:
        found = run_freely(which, starts, steps, end, noise)
        each = distances(compared, [run[:, varying] for run in found.observations])
        return found, each, watched(found, each, extent, varying)

    core, core_each, core_watched = watch(reconstruction, None)
    noisy, noisy_each, noisy_watched = watch(reconstruction, seed)
    columns = np.flatnonzero(varying)[:MAX_SHOWN]
    typical = {"core": _typical(core, core_each), "stochastic": _typical(noisy, noisy_each)}
    every = {"data": reference.drawn, **{name: run for name, run in typical.items() if run is not None}}
    kept = {name: run[: len(reference.drawn), columns] for name, run in every.items()}
    thin = -(-(len(rows) // 2 + 1) // MAX_FREQUENCIES)
    return Agreement(
        num_rows=len(rows),
        runs=runs,
        steps=steps,
        columns=tuple(name for name, varies in zip(test.columns, varying, strict=True) if varies),
        core=core_watched,
        stochastic=noisy_watched,
        prior_core=None if prior is None else watch(prior, None)[-1],
        prior_stochastic=None if prior is None else watch(prior, seed)[-1],
        linear=None if linear is None else watch(linear, seed)[-1],
        floor=Distance(*np.median(stacked, axis=0).tolist()),
        floor_highest=Distance(*stacked.max(axis=0).tolist()),
        num_pieces=len(floors),
        at_rest=distances(compared, [np.broadcast_to(compared.rows.mean(axis=0), compared.rows.shape)])[0],
        exponents=exponents_of(reconstruction, core.states),
        shown=tuple(test.columns[j] for j in columns),
        drawn={name: run[:MAX_POINTS] for name, run in kept.items()},
        frequencies=np.fft.rfftfreq(len(rows), reconstruction.dt)[::thin],
        spectra={name: power_spectrum(run[: len(rows)])[::thin] for name, run in kept.items()}
        if reference.in_order
        else {},
    )


def _typical(runs: Runs, each: list[Distance]) -> Float[np.ndarray, "T N"] | None:
    """The run whose D_stsp is the middle one."""
    if not each:
        return None
    order = np.argsort([distance.d_stsp for distance in each])
    return runs.observations[order[(len(order) - 1) // 2]]
