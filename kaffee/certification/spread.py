"""Withheld observations: where the model expects to be wrong, is it?

From many filtered beliefs the model runs ahead without readings; its predicted variance is then held against the
squared error that came about. No truth is needed, only readings that the model did not see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from kaffee.certification.ahead import carry_ahead
from kaffee.certification.error_sizes import Foretold, foretell
from kaffee.certification.passes import FilterPass
from kaffee.errors import DataError
from kaffee.metrics.grounding import spearman
from kaffee.recursion import Recursion

NUM_BINS = 10
NUM_DRAWS = 10
MIN_ENTRIES = 100
# Relative; below it a variance that differs between rows differs by rounding (float32).
TOLERANCE = 1e-4
# A spread whose perfect version would correlate with errors by less than this hardly varies.
MIN_CEILING = 0.02


class Ranks(NamedTuple):
    """Rank correlation of a prediction of spread with |error|.

    Attributes:
        pooled: Over coordinates and time.
        within: Mean over coordinates of the correlation over time, which constant offsets between them cannot feign.
        pooled_ceiling, within_ceiling: What errors drawn from the predicted distributions give: |error| is noisy, so
            that even a perfect model is far from 1.
        pooled_ratio, within_ratio: Achieved over ceiling; NaN where the spread does not vary enough to tell.
    """

    pooled: float
    within: float
    pooled_ceiling: float
    within_ceiling: float
    pooled_ratio: float
    within_ratio: float


class Curve(NamedTuple):
    """The spread-skill curve: equally filled bins of predicted variance, in standardised units.

    Attributes:
        variance: Mean predicted variance of a bin, observation noise included.
        squared_error: Mean squared error in it; equal for a calibrated model.
        slope: Of log squared error on log variance over the bins: 1 if spread means what it says, 0 if nothing.
        slope_within: Likewise after dividing both by the coordinate's mean variance.
    """

    variance: Float[np.ndarray, " B"]
    squared_error: Float[np.ndarray, " B"]
    slope: float
    slope_within: float


class Spread(NamedTuple):
    """At one horizon.

    Attributes:
        spread: Ranks of the predicted standard deviation.
        growth: Ranks of log [B P_{t+h|t} B']_jj - log [B P_{t|t} B']_jj.
        ratio: Mean predicted variance over mean squared error: 1 calibrated, below 1 overconfident.
        foretold: How well something else than the predicted spread tells the size of errors.
    """

    horizon: int
    num_entries: int
    ratio: float
    spread: Ranks
    growth: Ranks
    curve: Curve
    foretold: Foretold


@dataclass(frozen=True)
class SpreadGrowth:
    """Spread and error over withheld observations, at several horizons."""

    horizons: list[Spread]


def _correlations(
    predictor: Float[np.ndarray, "S N"], error: Float[np.ndarray, "S N"], mask: Bool[np.ndarray, "S N"]
) -> tuple[float, float]:
    each = [
        spearman(predictor[m, j], error[m, j], tolerance=TOLERANCE) for j, m in enumerate(mask.T) if m.sum() >= NUM_BINS
    ]
    return spearman(predictor[mask], error[mask], tolerance=TOLERANCE), float(np.mean(each)) if each else float("nan")


def ranks(
    predictor: Float[np.ndarray, "S N"],
    std: Float[np.ndarray, "S N"],
    error: Float[np.ndarray, "S N"],
    mask: Bool[np.ndarray, "S N"],
    rng: np.random.Generator,
) -> Ranks:
    """The rank correlation of `predictor` with |error|, beside that of errors drawn from N(0, std^2)."""
    found = np.array(_correlations(predictor, np.abs(error), mask))
    draws = [_correlations(predictor, np.abs(std * rng.standard_normal(std.shape)), mask) for _ in range(NUM_DRAWS)]
    ceiling = np.mean(draws, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.abs(ceiling) >= MIN_CEILING, found / ceiling, np.nan)
    return Ranks(*found.tolist(), *ceiling.tolist(), *ratio.tolist())


def _bins(variance: Float[np.ndarray, " E"], squares: Float[np.ndarray, " E"]) -> tuple[np.ndarray, np.ndarray, float]:
    parts = np.array_split(np.argsort(variance, kind="stable"), NUM_BINS)
    x, y = (np.array([values[part].mean() for part in parts]) for values in (variance, squares))
    slope = float("nan")
    if np.ptp(variance) > TOLERANCE * variance.max() and (x > 0).all() and (y > 0).all():
        log_x = np.log(x) - np.log(x).mean()
        slope = float(log_x @ np.log(y) / (log_x @ log_x))
    return x, y, slope


def spread_curve(
    variance: Float[np.ndarray, "S N"], squares: Float[np.ndarray, "S N"], mask: Bool[np.ndarray, "S N"]
) -> Curve:
    """Binned mean squared error against binned predicted variance."""
    count = np.maximum(mask.sum(axis=0), 1)
    typical = np.maximum(np.where(mask, variance, 0.0).sum(axis=0) / count, 1e-30)
    *_, within = _bins((variance / typical)[mask], (squares / typical)[mask])
    return Curve(*_bins(variance[mask], squares[mask]), within)


def spread_growth(run: FilterPass, horizons: Sequence[int], *, seed: int) -> SpreadGrowth:
    """Run the beliefs at the starts ahead by the model's own recursion, and relate spread to error at `horizons`."""
    model = run.reconstruction.model
    ahead = carry_ahead(model, run.recursion, run.beliefs, max(horizons))
    noise = np.asarray(model.shell.observation_variance(), np.float64)
    own = None if run.recursion.transport else carry_ahead(model, Recursion(), run.beliefs, max(horizons)).variance
    rng = np.random.default_rng(seed)
    found = []
    for h in horizons:
        variance = ahead.variance[:, h] + noise
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.log(ahead.variance[:, h]) - np.log(ahead.variance[:, 0])
        y = run.starts.ahead(run.standard, h)
        finite = np.isfinite(ahead.mean[:, h]) & np.isfinite(variance) & np.isfinite(growth)
        mask = ~np.isnan(y) & finite
        if mask.sum() < MIN_ENTRIES:
            continue
        error = np.where(mask, y - ahead.mean[:, h], 0.0)
        std = np.sqrt(np.where(finite, variance, 0.0))
        found.append(
            Spread(
                horizon=h,
                num_entries=int(mask.sum()),
                ratio=float(variance[mask].mean() / np.mean(error[mask] ** 2)),
                spread=ranks(std, std, error, mask, rng),
                growth=ranks(np.where(finite, growth, 0.0), std, error, mask, rng),
                curve=spread_curve(np.where(finite, variance, 0.0), error**2, mask),
                foretold=foretell(error, mask, run.starts, h, ahead.mean[:, 0], None if own is None else own[:, h]),
            )
        )
    if not found:
        raise DataError(
            f"{run.series.label}: fewer than {MIN_ENTRIES} withheld readings follow the starts of forecasts. "
            "Hold out more."
        )
    return SpreadGrowth(found)
