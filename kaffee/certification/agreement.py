"""Free runs against a held-out recording: state space, spectra, divergence, Lyapunov exponents."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from kaffee.certification.free_runs import (
    LYAPUNOV_STEPS,
    Distance,
    Divergence,
    Exponents,
    compared,
    divergence_test,
    exponents_of,
    run_freely,
)
from kaffee.certification.references import reference_of
from kaffee.checkpoint import Reconstruction
from kaffee.data.series import Series
from kaffee.data.stretches import constant_columns, pieces
from kaffee.errors import DataError
from kaffee.metrics import power_spectrum

END_ROWS = 1_000
"""Of long free runs, by which one tells whether they are trapped."""
# Of the arrays that are kept for figures.
MAX_SHOWN, MAX_POINTS, MAX_FREQUENCIES = 6, 3_000, 400


@dataclass(frozen=True)
class Agreement:
    """How free runs compare with the held-out recording, in units of its spread.

    Attributes:
        num_rows: Rows of the held-out recording, and of every run.
        columns: Coordinates that vary in it, over which everything is compared.
        core, stochastic: The surrogate with the shell off and on; NaN if it diverged.
        prior_core, prior_stochastic: The same of the prior, if there is one.
        linear: The linear model's stochastic run, if there is one.
        floor: Training pieces of the same length against the held-out recording: medians. A perfect model gets this.
        floor_highest: The largest of these.
        num_pieces: How many there are.
        at_rest: A run that rests at the mean of the data: what a collapsed core gets.
        divergence: Of many longer runs.
        exponents: None if the core diverged.
        shown: Coordinates of what follows, which is for figures.
        runs: Rows of the data, of the core and of the stochastic run, in data units; without those that diverged.
        frequencies: In cycles per unit of time.
        spectra: Power spectra of the same at these frequencies, normalised to a sum of 1 over all; none where the data
            have too many gaps for one, and then every D_H is NaN.
    """

    num_rows: int
    columns: tuple[str, ...]
    core: Distance
    stochastic: Distance
    prior_core: Distance | None
    prior_stochastic: Distance | None
    linear: Distance | None
    floor: Distance
    floor_highest: Distance
    num_pieces: int
    at_rest: Distance
    divergence: Divergence
    exponents: Exponents | None
    shown: tuple[str, ...]
    runs: dict[str, Float[np.ndarray, "P C"]]
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
    """Compare free runs with the longest complete stretch of the held-out data, or with its complete rows.

    Args:
        train, test: In data units, with the model's columns.
        prior: The deterministic surrogate that the model was made of.
        linear: The linear baseline.
        runs, steps: Of the divergence test.
    """
    reference, others, in_order, drawn = reference_of(train, test)
    varying = ~constant_columns(reference)
    if not varying.any():
        raise DataError(f"{test.label}: every held-out coordinate is constant, so there are no dynamics to compare.")

    def distance(run: Float[np.ndarray, "T N"] | None) -> Distance:
        if run is None:
            return Distance(float("nan"), float("nan"))
        return compared(reference[:, varying], run[: len(reference), varying], in_order=in_order)

    def both(which: Reconstruction | None) -> tuple[Distance | None, Distance | None]:
        if which is None:
            return None, None
        core, _ = run_freely(which, reference[0], len(reference), None)
        noisy, _ = run_freely(which, reference[0], len(reference), seed)
        return distance(core), distance(noisy)

    core, states = run_freely(reconstruction, reference[0], max(len(reference), LYAPUNOV_STEPS), None)
    noisy, _ = run_freely(reconstruction, reference[0], len(reference), seed)
    floors = [distance(piece) for piece in others]
    stacked = np.array(floors) if floors else np.full((1, 2), np.nan)
    prior_core, prior_noisy = both(prior)
    rest = np.broadcast_to(reference.mean(axis=0), reference.shape)
    origins = reference[np.linspace(0, len(reference) - 1, runs).round().astype(int)]
    end = max(min(END_ROWS, len(reference), steps // 2), 1)
    ends = np.array(pieces(train, end, gaps=True)).reshape(-1, end, reference.shape[1])
    columns = np.flatnonzero(varying)[:MAX_SHOWN]
    every = {"data": drawn, "core": core, "stochastic": noisy}
    kept = {name: run[: len(drawn), columns] for name, run in every.items() if run is not None}
    thin = -(-(len(reference) // 2 + 1) // MAX_FREQUENCIES)
    return Agreement(
        num_rows=len(reference),
        columns=tuple(name for name, varies in zip(test.columns, varying, strict=True) if varies),
        core=distance(core),
        stochastic=distance(noisy),
        prior_core=prior_core,
        prior_stochastic=prior_noisy,
        linear=None if linear is None else distance(run_freely(linear, reference[0], len(reference), seed)[0]),
        floor=Distance(*np.median(stacked, axis=0).tolist()),
        floor_highest=Distance(*stacked.max(axis=0).tolist()),
        num_pieces=len(floors),
        at_rest=distance(rest),
        divergence=divergence_test(reconstruction, origins, steps, pieces=ends, seed=seed),
        exponents=None if core is None else exponents_of(reconstruction, states),
        shown=tuple(test.columns[j] for j in columns),
        runs={name: run[:MAX_POINTS] for name, run in kept.items()},
        frequencies=np.fft.rfftfreq(len(reference), reconstruction.dt)[::thin],
        spectra={name: power_spectrum(run)[::thin] for name, run in kept.items()} if in_order else {},
    )
