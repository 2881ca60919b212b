"""Free runs against a held-out recording: state space, spectra, divergence, Lyapunov exponents."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from kaffee.certification.free_runs import (
    MIN_KEPT,
    Distance,
    Exponents,
    Runs,
    Watched,
    distances,
    exponents_of,
    extent_of,
    run_freely,
    watched,
)
from kaffee.certification.references import reference_of
from kaffee.checkpoint import Reconstruction
from kaffee.checks import TRANSIENT
from kaffee.data.series import Series
from kaffee.data.stretches import constant_columns, evenly
from kaffee.errors import DataError
from kaffee.metrics import power_spectrum

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
