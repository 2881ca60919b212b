"""What a filter's innovations on held-out data say: bias, width, shape and memory of its one-step predictions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import chdtri, ndtr

from kaffee.certification.passes import FilterPass
from kaffee.certification.whiteness import Whiteness, whiteness
from kaffee.errors import DataError
from kaffee.metrics.calibration import coverage

LEVELS = (0.5, 0.8, 0.9, 0.95)
CURVE = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())
JUDGED = 0.9
NUM_BINS = 20
MIN_ENTRIES = 50
"""Fewer scored entries than this make a coverage of 90 % uncertain by more than 4 %."""


@dataclass(frozen=True)
class Residuals:
    """One-step predictions of held-out readings.

    Attributes:
        columns: Names of the coordinates.
        num_entries: Scored entries: predicted, read, after the warm-up.
        counts: Of these, in each coordinate.
        num_independent: Readings of one row may err together; so many independent ones say at least as much.
        num_restarts: How often the filter lost its belief and started anew.
        nll, nll_standard: -log p per entry given the past, in data units and in standardised ones.
        bias: Mean of v_i / sqrt(Omega_ii) of each coordinate, 0 if unbiased.
        bias_errors: Its standard error if innovations are white; NaN without entries, as all of a coordinate.
        nis: Mean of v' Omega^-1 v per entry, 1 for a calibrated filter; above: bands too narrow.
        nis_each: Mean of v_i^2 / Omega_ii of each coordinate.
        nis_band: Where it lies with probability 95 % if all is well: quantiles of chi-square / degrees of freedom.
        pit: Histogram density of Phi(v_i / sqrt(Omega_ii)) over `NUM_BINS` equal bins; 1 everywhere if calibrated.
        ks: Kolmogorov-Smirnov distance of these from uniform, pooled and `ks_each` coordinate.
        coverage: Share of entries inside their central band, by level.
        coverage_each: Of each coordinate, at `JUDGED`.
        curve_levels, curve: The same at many levels: the reliability curve.
        whiteness: None if recordings are too short.
    """

    columns: tuple[str, ...]
    num_entries: int
    counts: Int[np.ndarray, " N"]
    num_independent: float
    num_restarts: int
    nll: float
    nll_standard: float
    bias: Float[np.ndarray, " N"]
    bias_errors: Float[np.ndarray, " N"]
    nis: float
    nis_band: tuple[float, float]
    nis_each: Float[np.ndarray, " N"]
    pit: Float[np.ndarray, " B"]
    ks: float
    ks_each: Float[np.ndarray, " N"]
    coverage: dict[str, float]
    coverage_each: Float[np.ndarray, " N"]
    curve_levels: tuple[float, ...]
    curve: list[float]
    whiteness: Whiteness | None


def ks_distance(u: Float[np.ndarray, " T"]) -> float:
    """sup |F_n(u) - u|, the distance of a sample from the uniform distribution on [0, 1]; NaN for an empty one.

    >>> round(ks_distance(np.array([0.1, 0.2, 0.3])), 6)
    0.7
    """
    if not len(u):
        return float("nan")
    ordered, n = np.sort(u), len(u)
    return float(np.max(np.maximum(np.arange(1, n + 1) / n - ordered, ordered - np.arange(n) / n)))


def residual_checks(run: FilterPass) -> Residuals:
    """All checks of the innovations of a filter pass.

    Marginal innovations v_i / sqrt(Omega_ii) give bias, PIT and coverage, since these are the bands that a user sees;
    jointly whitened ones give NIS and autocorrelations, since these are independent under the model.
    """
    scored = run.scored()
    scale = run.reconstruction.scaler.scale
    total = sum(int(mask.sum()) for mask in scored)
    if total < MIN_ENTRIES:
        raise DataError(
            f"{run.series.label}: {total} readings can be scored after {run.warm_up} rows of warm-up; at least "
            f"{MIN_ENTRIES} are needed. Hold out more."
        )
    standardised, degrees, nis, nll = [], 0, 0.0, 0.0
    for x, row, mask in zip(run.standard, run.rows, scored, strict=True):
        v = x - np.asarray(row.reading_mean, np.float64)
        standardised.append(np.where(mask, v / np.asarray(row.reading_std, np.float64), np.nan))
        rows = mask.any(axis=1)
        degrees += int(mask.sum())
        nis += float(np.sum(row.nis[rows], dtype=np.float64))
        nll += float(np.sum(row.nll[rows], dtype=np.float64))
    u = np.concatenate(standardised)
    seen = ~np.isnan(u)
    each = [u[seen[:, j], j] for j in range(u.shape[1])]
    pooled = u[seen]
    counts = seen.sum(axis=0)

    def of_each(measure: Callable[[np.ndarray], float]) -> Float[np.ndarray, " N"]:
        return np.array([measure(values) if len(values) else np.nan for values in each])

    white = [np.where(mask, y, np.nan) for y, mask in zip(run.whitened, scored, strict=True)]
    ones = np.ones_like(pooled)
    return Residuals(
        columns=run.series.columns,
        num_entries=total,
        counts=counts,
        num_independent=float(total**2 / np.sum(seen.sum(axis=1) ** 2)),
        num_restarts=sum(int(np.asarray(row.restarted)[1:].sum()) for row in run.rows),
        nll=nll / total + float(np.log(scale) @ counts) / total,
        nll_standard=nll / total,
        bias=of_each(np.mean),
        bias_errors=of_each(lambda values: len(values) ** -0.5),
        nis=nis / degrees,
        nis_band=(float(chdtri(degrees, 0.975)) / degrees, float(chdtri(degrees, 0.025)) / degrees),
        nis_each=of_each(lambda values: float(np.mean(values**2))),
        pit=np.histogram(ndtr(pooled), bins=NUM_BINS, range=(0.0, 1.0))[0] * NUM_BINS / total,
        ks=ks_distance(ndtr(pooled)),
        ks_each=of_each(lambda values: ks_distance(ndtr(values))),
        coverage={f"{level:g}": coverage(pooled, ones, level) for level in LEVELS},
        coverage_each=of_each(lambda values: coverage(values, np.ones_like(values), JUDGED)),
        curve_levels=CURVE,
        curve=[coverage(pooled, ones, level) for level in CURVE],
        whiteness=whiteness(white),
    )
