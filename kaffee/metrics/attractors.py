"""Is a free run on the attractor of the data? Its distances from them, and runs that are trapped in a part of it."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int

from kaffee.metrics.delays import Delays, Recordings
from kaffee.metrics.geometry import d_stsp_histogram, d_stsp_kernel, d_stsp_mixture
from kaffee.metrics.recurrence import find_period, half_structure
from kaffee.metrics.spectra import d_hellinger

Estimator = Literal["histogram", "mixture", "kernel"]

MAX_DENSITY_ROWS = 5_000
"""A kernel density gains little from more rows, and there are a hundred runs."""
MAX_PIECES = 20
"""Pieces whose distances from all data say how far a part may be from the whole."""
STILL = 0.01
"""Share of the variance of the quietest piece of data below which a run is at rest: a tenth of its deviations."""
FAINT, ROUGH = 0.25, 0.5
"""Data are at rest where their variance is this share of the whole, and that of their steps, halved, this of it."""
APERIODIC, EXPLAINED = 0.1, (0.6, 1.6)
"""Share of their variance that data lose within a run's period if they do not repeat themselves with it, and shares of
that loss between which noise in the dynamics explains it."""
ROUNDING = 1e-12
"""Variance that is no movement in float32."""


class AttractorDistances(NamedTuple):
    """Distances of a run from a reference: D_stsp in nats (infinite without overlap) and D_H in [0, 1].

    `estimator` says how D_stsp was estimated: values of different estimators cannot be compared.
    """

    d_stsp: float
    d_h: float
    estimator: Estimator = "kernel"


def measure_distances(
    reference: Float[np.ndarray, "T N"],
    runs: Sequence[Float[np.ndarray, "L N"]] | Float[np.ndarray, "S L N"],
    *,
    estimator: Estimator | None = None,
    spectra: bool = True,
    num_samples: int = 1_000,
    seed: int = 0,
) -> list[AttractorDistances]:
    """Measure D_stsp and D_H of each run from a reference in the same units (appendix C.4).

    Args:
        estimator: Of D_stsp. None: "histogram" up to three coordinates and "mixture" beyond, as in the paper. "kernel"
            suits recordings, which are short and noisy.
        spectra: False if rows of the reference do not follow each other in time: D_H is NaN.
        num_samples, seed: Monte Carlo draws of the mixture.
    """
    if not len(runs):
        return []
    if estimator is None:
        estimator = "histogram" if reference.shape[1] <= 3 else "mixture"
    if estimator == "histogram":
        occupation = [d_stsp_histogram(reference, run) for run in runs]
    elif estimator == "mixture":
        occupation = [d_stsp_mixture(reference, run, num_samples=num_samples, seed=seed) for run in runs]
    else:
        thin = -(-len(reference) // MAX_DENSITY_ROWS)
        occupation = d_stsp_kernel(reference[::thin], [run[::thin] for run in runs]).tolist()
    spectral = [d_hellinger(reference, run) if spectra else float("nan") for run in runs]
    return [AttractorDistances(d, h, estimator) for d, h in zip(occupation, spectral, strict=True)]


class Extent(NamedTuple):
    """What all data cover, how far from that pieces of one length are, and how much the quietest of them varies.

    Attributes:
        rows: Of all data, in delay coordinates if there are any.
        delays: None: the coordinates as they are.
        farthest: D_stsp of the piece that is farthest from the rows.
        unit: Variance of all data, by coordinate.
        quietest: Variance of the quietest piece in this unit, the mean over coordinates; 0 where data are at rest.
        structure: What is left of a state after 0, 1, ... steps (`half_structure`).
    """

    rows: Float[np.ndarray, "R K"]
    delays: Delays | None
    farthest: float
    unit: Float[np.ndarray, " N"]
    quietest: float
    structure: Float[np.ndarray, " L"]

    @classmethod
    def measure(cls, recordings: Recordings, length: int, delays: Delays | None = None) -> Self:
        """Measure the extent of complete recordings by pieces of one length, at most that of the longest.

        What a run covers cannot be judged by more than recordings show: many short ones may each be elsewhere.
        """
        length = min(length, max(map(len, recordings)))
        everything = np.concatenate(recordings)
        unit = everything.var(axis=0)
        parts = [part for values in recordings for part in _overlapping(values, length)]
        seen = everything if delays is None else np.concatenate([delays.embed(values) for values in recordings])
        quietest = min(_activity(part, unit) for part in parts)
        extent = cls(_thin(seen, MAX_DENSITY_ROWS), delays, 0.0, unit, quietest, half_structure(recordings))
        some = parts[:: -(-len(parts) // MAX_PIECES)]
        distances = extent._measure_distances(some) if seen.std(axis=0).all() else np.zeros(1)
        return extent._replace(farthest=float(max(distances[np.isfinite(distances)], default=0.0)))

    def _measure_distances(self, runs: Recordings | Float[np.ndarray, "S L N"]) -> Float[np.ndarray, " S"]:
        seen = runs if self.delays is None else [self.delays.embed(run) for run in runs]
        return d_stsp_kernel(self.rows, [_thin(run, MAX_DENSITY_ROWS) for run in seen])

    def find_trapped(self, runs: Float[np.ndarray, "S L N"]) -> Bool[np.ndarray, " S"]:
        """Find the runs that do not cover what the data cover: too far from them, or at rest where the data never are.

            D_i > 2 + 2 max_p D_p    or    V_i < 0.01 min_p V_p

        A run at rest, on a small cycle or on one wing of two is many nats away, a mediocre model one. Pieces of a slow
        or short recording are far from the whole as well, and then more is forgiven, but not that nothing moves.
        """
        varies = np.array([np.mean(np.var(run, axis=0) / self.unit) for run in runs])
        far = self._measure_distances(runs) > 2.0 + 2.0 * self.farthest if len(runs) else np.zeros(0, bool)
        return far | (varies < STILL * self.quietest)

    def find_periods(
        self, runs: Float[np.ndarray, "S L N"], noise: float, noisy: Recordings = ()
    ) -> Int[np.ndarray, " S"]:
        """Find the periods of noise-free runs that repeat themselves where the data do not; 0 for all others.

        Args:
            noise: Share of the data's variance that is observation noise.
            noisy: Runs of the same model with noise: where they lose as much of a state in a period as the data do,
                the noise in the dynamics explains it (a cycle whose phase wanders), and nothing is found.
        """
        periods = np.array([find_period(run) for run in runs], int)
        known = np.where(periods < len(self.structure), periods, 0)
        lost = np.where(known > 0, self.structure[known] - noise, 0.0)
        if len(noisy) and known.any():
            own = half_structure(noisy)
            explained = np.where(known < len(own), own[np.minimum(known, len(own) - 1)] - noise, 0.0)
            lost = np.where((explained > EXPLAINED[0] * lost) & (explained < EXPLAINED[1] * lost), 0.0, lost)
        return np.where(lost > APERIODIC, known, 0)


def _overlapping(values: Float[np.ndarray, "T N"], length: int) -> list[Float[np.ndarray, "L N"]]:
    """Cut pieces that begin half a length after each other, and the last one."""
    last = len(values) - length
    starts = {*range(0, last + 1, max(1, length // 2)), last} if last >= 0 else set()
    return [values[i : i + length] for i in sorted(starts)]


def _thin(values: Float[np.ndarray, "T N"], count: int) -> Float[np.ndarray, "R N"]:
    """Keep at most so many rows, at equal distances."""
    return values[:: max(1, -(-len(values) // count))]


def _activity(piece: Float[np.ndarray, "T N"], unit: Float[np.ndarray, " N"]) -> float:
    """Return the variance of a piece, or 0 if it is only noise: faint, and no row like the one before it."""
    variance = float(np.mean(piece.var(axis=0) / unit))
    steps = float(np.mean(np.diff(piece, axis=0) ** 2 / unit)) if len(piece) > 1 else 0.0
    only_noise = variance < FAINT and 0.5 * steps > ROUGH * variance
    return 0.0 if only_noise or variance < ROUNDING else variance
