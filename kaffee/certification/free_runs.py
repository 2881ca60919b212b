"""Free runs of a surrogate against held-out data: state space, spectra, divergence, Lyapunov exponents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import complete, complete_rows, constant_columns, evenly, longest_stretch, pieces, stretches
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.evaluation import FreeRunEvaluation, Target, evaluate_free_runs
from kaffee.filtering.rollout import make_core_key
from kaffee.metrics.attractors import AttractorDistances
from kaffee.metrics.delays import Delays
from kaffee.metrics.spectra import power_spectrum
from kaffee.model.inputs import InputRuns

MIN_ROWS, MAX_ROWS = 200, 10_000
"""Rows of a reference: a density and a spectrum of fewer say little, more cost time."""
MAX_KEPT = 5_000
"""Steps of a run, if the data have so many rows, by which it is judged whether it covers what all data cover."""
TRANSIENT, MIN_KEPT = 1_000, 1_000
"""Steps before those that are compared, and steps that are kept at least."""
CORE_SEED = 0
"""Of the noise inside a core (DynaMix's gate), without which its free run may come to rest."""
NUM_EXPONENTS = 10
# For exponents: enough steps and runs for standard errors, whatever the length of the recording.
LYAPUNOV_STEPS, LYAPUNOV_RUNS = 2_500, 8
# Of the arrays that are kept for figures.
MAX_SHOWN, MAX_POINTS, MAX_FREQUENCIES = 6, 3_000, 400


def run_freely(
    reconstruction: Reconstruction,
    starts: Float[np.ndarray, "R N"],
    target: Target,
    num_steps: int,
    *,
    transient: int = TRANSIENT,
    seed: int | None = None,
    recorded: Sequence[Series] = (),
) -> FreeRunEvaluation:
    """Run a surrogate freely from observations in data units, with the shell on if there is a seed for its noise.

    With the shell off the run itself is free of noise, but it is compared as readings of it would be. A driven one runs
    with the inputs of `recorded`, one series after the other, which begin again when they end.
    """
    model, scaler = reconstruction.model, reconstruction.scaler.inputs
    inputs = None
    if scaler is not None:
        rows = np.concatenate([series.inputs.concatenated() for series in recorded if series.inputs is not None])
        inputs = InputRuns.spread(scaler.transform(rows), len(starts), model.dtype)
    return evaluate_free_runs(
        model,
        starts,
        target,
        num_steps,
        transient=transient,
        key=None if seed is None else jax.random.key(seed),
        core_key=make_core_key(model.core, CORE_SEED),
        scaler=reconstruction.scaler,
        as_readings=True,
        inputs=inputs,
    )


class RunSummary(NamedTuple):
    """What became of many free runs of one model.

    Attributes:
        typical: Median distances of the runs that did not diverge; NaN if all did.
        lowest, highest: D_stsp of the best and of the worst of them.
        first: The earliest step at which one diverged; 0: none.
        trapped: Number of runs that stay in a part of the attractor, or at rest (`kaffee.metrics.attractors`).
        at_wall: Number of others that live at the wall of the data's region, where their core holds them back.
        clipped: Share of steps at which it does so, mean over runs.
        periodic: Number of others that repeat themselves where the data do not, up to noise.
        wandering: The same, but the model's noise makes its runs forget as fast as the data do.
        period: Steps after which these repeat themselves, the median; 0 without any.
        occupations, rhythms: D_stsp and D_H of every run that did not diverge.
    """

    typical: AttractorDistances
    lowest: float
    highest: float
    diverged: int
    first: int
    trapped: int
    at_wall: int = 0
    clipped: float = 0.0
    periodic: int = 0
    wandering: int = 0
    period: int = 0
    occupations: Float[np.ndarray, " S"] = np.zeros(0)
    rhythms: Float[np.ndarray, " S"] = np.zeros(0)

    @property
    def lost(self) -> int:
        """The number of runs that left the attractor in any way."""
        return self.diverged + self.trapped + self.at_wall + self.periodic


class Exponents(NamedTuple):
    """Lyapunov exponents of the core along its free runs, per unit of time: means over runs and standard errors.

    `refits` is how many fits with other seeds there were whose spread the errors contain; 0: none.
    """

    values: Float[np.ndarray, " K"]
    errors: Float[np.ndarray, " K"]
    sum_positive: float
    sum_positive_error: float
    kaplan_yorke: float
    num_steps: int
    refits: int = 0


@dataclass(frozen=True)
class Agreement:
    """How free runs compare with the held-out recording, in units of its spread.

    Attributes:
        num_rows: Rows of the held-out recording, and of the end of every run that is compared with it.
        columns: Coordinates that vary in the recording, over which everything is compared.
        core, stochastic: The surrogate with the shell off and on; of the prior, if there is one, the next two.
        floor: Training pieces of the same length against the held-out recording: medians. A perfect model gets this.
        floor_highest: The largest of these, and `num_pieces`, how many there are.
        at_rest: A run that rests at the mean of the data: what a collapsed core gets.
        exponents: None if all runs of the core diverged.
        shown: Coordinates of what follows, which is for figures.
        drawn: Rows of data, truth, and typical runs of core, stochastic model and prior's core that did not diverge.
        frequencies: In cycles per unit of time.
        spectra: Power spectra of the same at these frequencies, normalised to a sum of 1 over all; none where the data
            have too many gaps for one, and then every D_H is NaN.
        truth: Readings of noise-free pieces of the true system's trajectory, where it is known: what a perfect core
            gets.
        occupations, rhythms: D_stsp and D_H of the training pieces behind `floor`.
        delays: Lag and copies of the delay coordinates that D_stsp was measured in, for one or two coordinates.
    """

    num_rows: int
    runs: int
    steps: int
    columns: tuple[str, ...]
    core: RunSummary
    stochastic: RunSummary
    prior_core: RunSummary | None
    prior_stochastic: RunSummary | None
    linear: RunSummary | None
    floor: AttractorDistances
    floor_highest: AttractorDistances
    num_pieces: int
    at_rest: AttractorDistances
    exponents: Exponents | None
    shown: tuple[str, ...]
    drawn: dict[str, Float[np.ndarray, "P C"]]
    frequencies: Float[np.ndarray, " F"]
    spectra: dict[str, Float[np.ndarray, "F C"]]
    truth: AttractorDistances | None = None
    prior_exponents: Exponents | None = None
    occupations: Float[np.ndarray, " P"] = field(default_factory=lambda: np.zeros(0))
    rhythms: Float[np.ndarray, " P"] = field(default_factory=lambda: np.zeros(0))
    delays: Delays | None = None


def agreement(
    reconstruction: Reconstruction,
    train: Series,
    test: Series,
    *,
    prior: Reconstruction | None = None,
    linear: Reconstruction | None = None,
    truth: Float[np.ndarray, "L N"] | None = None,
    runs: int = 20,
    steps: int = 20_000,
    seed: int = 0,
) -> Agreement:
    """Compare the ends of many long free runs with the longest complete stretch of the held-out data, or with its rows.

    Args:
        train, test: In data units, with the model's columns.
        prior: The deterministic surrogate that the model was made of.
        linear: The linear baseline.
        truth: A noise-free trajectory of the true system, if it is known.
        runs, steps: How many, from held-out rows at equal distances, and how long at least.
    """
    target, floors, drawn = _build_target(train, test)
    rows, count = target.rows, len(target.rows)
    end = max(count, min(train.num_steps, MAX_KEPT), MIN_KEPT)
    steps = max(steps, TRANSIENT + end)
    starts = rows[evenly(count, runs)]
    models = {
        "core": (reconstruction, None),
        "stochastic": (reconstruction, seed),
        "prior_core": (prior, None),
        "prior_stochastic": (prior, seed),
        "linear": (linear, seed),
    }
    free: dict[str, Any] = {
        name: None
        if which is None
        else run_freely(which, starts, target, end, transient=steps - end, seed=noise, recorded=(train, test))
        for name, (which, noise) in models.items()
    }
    beside = {"core": free["stochastic"], "prior_core": free["prior_stochastic"]}
    summaries: dict[str, Any] = {
        name: None if run is None else summarise_runs(run, beside.get(name)) for name, run in free.items()
    }
    for bare, noisy in (("core", "stochastic"), ("prior_core", "prior_stochastic")):
        if summaries[bare] is not None:
            summaries[noisy] = _share_periods(summaries[bare], summaries[noisy], runs)
    ideal = None if truth is None or len(truth) < count else truth
    ideal_pieces = [] if ideal is None else [ideal[i - count : i] for i in range(count, len(ideal) + 1, count)]
    noise, rng = free["core"].noise, np.random.default_rng(seed)
    columns = np.flatnonzero(target.columns)[:MAX_SHOWN]
    typical = {"prior": free["prior_core"], "core": free["core"], "stochastic": free["stochastic"]}
    every = {"data": drawn, "truth": ideal, **{name: _typical_run(run) for name, run in typical.items()}}
    kept = {name: path[: len(drawn), columns] for name, path in every.items() if path is not None}
    thin = -(-(count // 2 + 1) // MAX_FREQUENCIES)
    return Agreement(
        num_rows=count,
        runs=runs,
        steps=steps,
        columns=tuple(np.array(test.columns)[target.columns].tolist()),
        **summaries,
        floor=_reduce(np.median, floors),
        floor_highest=_reduce(np.max, floors),
        num_pieces=len(floors),
        at_rest=target.measure([np.broadcast_to(rows.mean(axis=0), rows.shape)])[0],
        exponents=average_exponents(free["core"], reconstruction.dt),
        shown=tuple(test.columns[j] for j in columns),
        drawn={name: path[:MAX_POINTS] for name, path in kept.items()},
        frequencies=np.fft.rfftfreq(count, reconstruction.dt)[::thin],
        spectra={name: power_spectrum(path[:count])[::thin] for name, path in kept.items() if target.spectra},
        truth=_reduce(
            np.median, target.measure([piece + noise * rng.standard_normal(piece.shape) for piece in ideal_pieces])
        )
        if ideal_pieces
        else None,
        prior_exponents=None if prior is None else average_exponents(free["prior_core"], prior.dt),
        occupations=np.array([d.d_stsp for d in floors]),
        rhythms=np.array([d.d_h for d in floors]),
        delays=target.delays,
    )


def _build_target(train: Series, test: Series) -> tuple[Target, list[AttractorDistances], Float[np.ndarray, "R N"]]:
    """Build the target of free runs; also return how far training pieces are from it, and its rows for figures.

    It is the longest complete stretch of the held-out data or, if that is too short, all complete rows.
    """
    # No longer than the training data, so that there is a piece of the same length to compare with.
    rows = drawn = longest_stretch(test)[: min(MAX_ROWS, len(longest_stretch(train)))]
    known = [part for values in train.recordings for part in stretches(values)]
    in_order, parts = len(rows) >= MIN_ROWS, train
    if not in_order:
        known = [complete_rows(train)]
        rows, drawn = complete_rows(test)[: min(MAX_ROWS, len(known[0]))], max(test.recordings, key=len)[:MAX_ROWS]
        if len(rows) < MIN_ROWS:
            raise DataError(
                f"{test.label}: here and in the training data there are {len(rows)} rows without gaps; free runs are "
                f"compared with at least {MIN_ROWS}. Hold out more, or leave out columns with many gaps."
            )
        parts = Series.from_arrays(known[0])
        known = [complete(values) for series in (train, test) for values in series.recordings]
    varying = ~constant_columns(rows)
    if not varying.any():
        raise DataError(f"{test.label}: every held-out coordinate is constant, so there are no dynamics to compare.")
    # Histograms would need a hundred times the rows that a recording has.
    target = Target(rows, "kernel", spectra=in_order, length=len(rows), columns=varying)
    if in_order:
        known = [*known, rows]
        target = target.with_delays(known)
    floors = target.measure(pieces(parts, len(rows)))
    return target.with_extent(known, len(rows)), floors, drawn


def _reduce(by: Callable[..., Any], distances: list[AttractorDistances]) -> AttractorDistances:
    """Reduce each distance by a function of an array; NaN if there are none."""
    table = np.array([d[:2] for d in distances]) if distances else np.full((1, 2), np.nan)
    return AttractorDistances(*by(table, axis=0).tolist())


def summarise_runs(runs: FreeRunEvaluation, noisy: FreeRunEvaluation | None = None) -> RunSummary:
    """Summarise free runs beside their target; `noisy` are runs of the same model with its noise."""
    occupation = [d.d_stsp for d in runs.distances]
    periods, unexplained = runs.find_periods(), runs.find_periods(noisy)
    repeating = periods[periods > 0]
    return RunSummary(
        typical=_reduce(np.median, runs.distances),
        lowest=min(occupation, default=nan),
        highest=max(occupation, default=nan),
        diverged=runs.num_diverged,
        first=int(min(runs.diverged_at[runs.diverged_at > 0], default=0)),
        trapped=int(runs.trapped.sum()),
        at_wall=int(runs.at_wall.sum()),
        clipped=float(runs.clipped.mean()) if len(runs.clipped) else 0.0,
        periodic=int((unexplained > 0).sum()),
        wandering=int(((periods > 0) & (unexplained == 0)).sum()),
        period=int(np.median(repeating)) if len(repeating) else 0,
        occupations=np.array(occupation),
        rhythms=np.array([d.d_h for d in runs.distances]),
    )


def _share_periods(core: RunSummary, noisy: RunSummary, runs: int) -> RunSummary:
    """Count runs with noise as repeating themselves where those of the core do and the noise does not make up for it.

    In a run with noise a period cannot be seen, but its rhythm is that of the core.
    """
    return noisy._replace(periodic=min(core.periodic, runs - noisy.lost), period=core.period if core.periodic else 0)


def average_exponents(runs: FreeRunEvaluation, dt: float) -> Exponents | None:
    """Average the leading exponents over some free runs, with standard errors of that mean; None if all diverged."""
    spectra = runs.measure_exponents(NUM_EXPONENTS, dt=dt, max_runs=LYAPUNOV_RUNS, max_steps=LYAPUNOV_STEPS)
    if not spectra:
        return None
    first, root = spectra[0], np.sqrt(len(spectra))
    every, sums = np.array([s.exponents for s in spectra]), np.array([s.sum_positive for s in spectra])
    pooled, several = replace(first, exponents=every.mean(axis=0)), len(spectra) > 1
    with np.errstate(invalid="ignore"):  # of a direction that a map forgets at once the exponent is minus infinity
        errors = every.std(axis=0, ddof=1) / root if several else first.standard_errors
    return Exponents(
        values=pooled.exponents,
        errors=errors,
        sum_positive=pooled.sum_positive,
        sum_positive_error=float(sums.std(ddof=1) / root) if several else first.sum_positive_error,
        kaplan_yorke=pooled.kaplan_yorke_dimension,
        num_steps=sum(s.num_steps for s in spectra),
    )


def _typical_run(runs: FreeRunEvaluation | None) -> Float[np.ndarray, "T N"] | None:
    """Return the run whose D_stsp is the middle one; None if all diverged."""
    if runs is None or not runs.distances:
        return None
    order = np.argsort([d.d_stsp for d in runs.distances])
    return runs.observations[order[(len(order) - 1) // 2]]
