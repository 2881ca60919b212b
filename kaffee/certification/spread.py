"""Spread and error over withheld observations: where the model expects to be wrong, is it?

A spread that hardly varies claims that errors are of one size everywhere. Two predictors of |error| put that to the
test: the variance that the core's own tangents would give (for a filter that does not use them), and a quadratic
function of the state that a forecast starts from, fitted to other stretches of time. They may miss what is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from kaffee.certification.forecasts import Entries, Mask, block_mean, carry_ahead, count_blocks
from kaffee.certification.innovations import FilterPass, Starts
from kaffee.errors import DataError
from kaffee.filtering.recursion import Recursion
from kaffee.metrics.calibration import student_limit
from kaffee.metrics.scores import spearman
from kaffee.model.discrete import reading_noise

NUM_BINS, NUM_DRAWS, NUM_FOLDS = 10, 10, 10
MIN_ENTRIES = 100
# Relative; below it a variance that differs between rows differs by rounding (float32).
TOLERANCE = 1e-4
# A spread whose perfect version would correlate with errors by less than this hardly varies.
MIN_CEILING = 0.02
RIDGE = 1.0
"""Per row of standardised features."""
MAX_PRODUCTS = 8
"""Coordinates up to which products of two of them are features; beyond, squares alone."""


class _ErrorSizePrediction(NamedTuple):
    """How well the size of errors can be predicted, by the best predictor.

    `rank` is the correlation of its predictions with the rank of |error|, mean over coordinates, 0 if sizes do not
    vary; `error` its standard error, from blocks of time, and `chance` what the rank may be by chance.
    """

    by: str
    rank: float
    error: float
    chance: float = nan


class _Ranks(NamedTuple):
    """Rank correlation of a prediction of spread with |error|: pooled, and the mean of those within coordinates.

    Attributes:
        pooled_ceiling, within_ceiling: What errors drawn from the predicted distributions give: |error| is noisy, so
            that even a perfect model is far from 1.
        pooled_ratio, within_ratio: Achieved over ceiling; NaN where the spread does not vary enough to tell.
        within_chance: What `within` may differ from its ceiling by chance, with as many blocks of time.
    """

    pooled: float
    within: float
    pooled_ceiling: float
    within_ceiling: float
    pooled_ratio: float
    within_ratio: float
    within_chance: float = nan


class _Curve(NamedTuple):
    """The spread-skill curve: equally filled bins of predicted variance, in standardised units.

    Attributes:
        variance, squared_error: Means in a bin, observation noise included; equal for a calibrated model.
        slope: Of log squared error on log variance over the bins: 1 if spread means what it says, 0 if nothing.
        slope_within: The same after dividing both by the coordinate's mean variance.
    """

    variance: Float[np.ndarray, " B"]
    squared_error: Float[np.ndarray, " B"]
    slope: float
    slope_within: float


class Spread(NamedTuple):
    """Spread and error at one horizon.

    Attributes:
        ratio: Mean predicted variance over mean squared error: 1 calibrated, below 1 overconfident.
        spread: Ranks of the predicted standard deviation.
        growth: Ranks of log [B P_{t+h|t} B']_jj - log [B P_{t|t} B']_jj.
        foretold: How well something else than the predicted spread predicts |error|; the name is that of the files.
    """

    horizon: int
    num_entries: int
    ratio: float
    spread: _Ranks
    growth: _Ranks
    curve: _Curve
    foretold: _ErrorSizePrediction


@dataclass(frozen=True)
class SpreadGrowth:
    """Spread and error over withheld observations, at several horizons."""

    horizons: list[Spread]


def _rank_sizes(error: Entries, mask: Mask) -> Entries:
    """Rank |error| in each coordinate, with mean 0 and variance 1; 0 where there is no error."""
    ranks = np.zeros(error.shape)
    for j, seen in enumerate(mask.T):
        n = int(seen.sum())
        ranks[seen, j] = (rankdata(np.abs(error[seen, j])) - (n + 1) / 2) * np.sqrt(12.0) / max(n, 1)
    return ranks


def _quadratic_features(state: Entries) -> Float[np.ndarray, "S F"]:
    """Return the state, and products of two coordinates of it; all with mean 0 and variance 1."""

    def standard(values: np.ndarray) -> np.ndarray:
        spread = values.std(axis=0)
        return (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)

    x, N = standard(state), state.shape[1]
    i, j = np.triu_indices(N) if N <= MAX_PRODUCTS else (np.arange(N), np.arange(N))
    return np.hstack([x, standard(x[:, i] * x[:, j])])


def _cross_fit(features: Float[np.ndarray, "S F"], ranks: Entries, mask: Mask, starts: Starts, h: int) -> Entries:
    """Predict ranks linearly from features, at each start fitted to stretches that share no row with its forecast."""
    predicted = np.zeros(ranks.shape)
    for fold in np.array_split(np.arange(len(ranks)), NUM_FOLDS):
        far = np.ones(len(ranks), bool)
        for recording in np.unique(starts.recordings[fold]):
            rows = starts.rows[fold][starts.recordings[fold] == recording]
            near = (starts.rows >= rows.min() - h) & (starts.rows <= rows.max() + h)
            far &= ~((starts.recordings == recording) & near)
        for j, seen in enumerate(mask.T):
            F, r = features[far & seen], ranks[far & seen, j]
            if len(F):
                weights = np.linalg.solve(F.T @ F + RIDGE * len(F) * np.eye(F.shape[1]), F.T @ (r - r.mean()))
                predicted[fold, j] = features[fold] @ weights
    return predicted


def _correlate_sizes(by: str, predicted: Entries, ranks: Entries, mask: Mask, blocks: int) -> _ErrorSizePrediction:
    """Correlate predictions with ranks within coordinates, with a standard error from blocks of time."""
    products = np.zeros(ranks.shape)
    for j, seen in enumerate(mask.T):
        p = predicted[seen, j]
        if len(p) and (spread := p.std()) > 0:
            products[seen, j] = (p - p.mean()) / spread * ranks[seen, j]
    rank, error, found = block_mean(products, mask, blocks)
    return _ErrorSizePrediction(by, rank, error, student_limit(found) * error)


def _predict_error_size(
    error: Entries, mask: Mask, starts: Starts, horizon: int, blocks: int, state: Entries, by_tangents: Entries | None
) -> _ErrorSizePrediction:
    """Predict |error| by the better of both: the filtered signal at each start, and variances by tangents."""
    ranks, usable = _rank_sizes(error, mask), np.isfinite(state).all(axis=1)
    kept = mask & usable[:, None]
    fitted = np.zeros(ranks.shape)
    if usable.any():
        some = Starts(starts.recordings[usable], starts.rows[usable])
        features = _quadratic_features(state[usable])
        fitted[usable] = _cross_fit(features, ranks[usable], kept[usable], some, horizon)
    predictions = [_correlate_sizes("the state at the start", fitted, ranks, kept, blocks)]
    if by_tangents is not None:
        kept = mask & np.isfinite(by_tangents)
        sizes = _rank_sizes(np.where(kept, by_tangents, 0.0), kept)
        predictions.append(_correlate_sizes("the core's own tangents", sizes, ranks, kept, blocks))
    return max(predictions, key=lambda one: np.nan_to_num(one.rank / one.error if one.error else 0.0))


def _correlations(predictor: Entries, error: Entries, mask: Mask) -> tuple[float, float]:
    """Correlate by rank over all entries, and within each coordinate that has enough of them."""
    rank = partial(spearman, tolerance=TOLERANCE)
    each = [rank(predictor[m, j], error[m, j]) for j, m in enumerate(mask.T) if m.sum() >= NUM_BINS]
    return rank(predictor[mask], error[mask]), float(np.mean(each)) if each else nan


def _correlate_with_error(
    predictor: Entries, std: Entries, error: Entries, mask: Mask, rng: np.random.Generator, blocks: int
) -> _Ranks:
    """Correlate `predictor` with |error| by rank, beside errors drawn from N(0, std^2)."""
    achieved = np.array(_correlations(predictor, np.abs(error), mask))
    draws = [_correlations(predictor, np.abs(std * rng.standard_normal(std.shape)), mask) for _ in range(NUM_DRAWS)]
    ceiling = np.mean(draws, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.abs(ceiling) >= MIN_CEILING, achieved / ceiling, np.nan)
    products = _rank_sizes(predictor - np.min(predictor), mask) * _rank_sizes(error, mask)
    _, deviation, found = block_mean(products, mask, blocks)
    ranks = _Ranks(*achieved.tolist(), *ceiling.tolist(), *ratio.tolist())
    return ranks._replace(within_chance=student_limit(found) * deviation)


def _bin(variance: Float[np.ndarray, " E"], squares: Float[np.ndarray, " E"]) -> tuple[np.ndarray, np.ndarray, float]:
    parts = np.array_split(np.argsort(variance, kind="stable"), NUM_BINS)
    x, y = (np.array([values[part].mean() for part in parts]) for values in (variance, squares))
    slope = nan
    if np.ptp(variance) > TOLERANCE * variance.max() and (x > 0).all() and (y > 0).all():
        log_x = np.log(x) - np.log(x).mean()
        slope = float(log_x @ np.log(y) / (log_x @ log_x))
    return x, y, slope


def _spread_curve(variance: Entries, squares: Entries, mask: Mask) -> _Curve:
    """Bin the squared error by predicted variance."""
    count = np.maximum(mask.sum(axis=0), 1)
    typical = np.maximum(np.where(mask, variance, 0.0).sum(axis=0) / count, 1e-30)
    *_, within = _bin((variance / typical)[mask], (squares / typical)[mask])
    return _Curve(*_bin(variance[mask], squares[mask]), within)


def spread_growth(run: FilterPass, horizons: Sequence[int], *, seed: int) -> SpreadGrowth:
    """Carry the beliefs at the starts ahead by the model's own recursion, and relate spread to error at `horizons`."""
    means, variances = carry_ahead(run, max(horizons))
    recursion = run.reconstruction.filter
    tied = Recursion(filter=recursion.filter)
    own = None if recursion.transport else carry_ahead(run, max(horizons), tied)[1]
    model = run.reconstruction.model
    noise = np.asarray(
        reading_noise(model.discrete, model.shell.observation_variance(), jnp.asarray(means)), np.float64
    )
    rng = np.random.default_rng(seed)
    spreads = []
    for h in horizons:
        variance = variances[:, h] + (noise if model.discrete is None else noise[:, h])
        with np.errstate(divide="ignore", invalid="ignore"):
            growth = np.log(variances[:, h]) - np.log(variances[:, 0])
        finite = np.isfinite(means[:, h]) & np.isfinite(variance) & np.isfinite(growth)
        y = run.starts.ahead(run.standard, h)
        mask = ~np.isnan(y) & finite
        if mask.sum() < MIN_ENTRIES:
            continue
        error = np.where(mask, y - means[:, h], 0.0)
        variance, growth = np.where(finite, variance, 0.0), np.where(finite, growth, 0.0)
        std, by_tangents = np.sqrt(variance), None if own is None else own[:, h]
        blocks = count_blocks(run, h)
        spreads.append(
            Spread(
                horizon=h,
                num_entries=int(mask.sum()),
                ratio=float(variance[mask].mean() / np.mean(error[mask] ** 2)),
                spread=_correlate_with_error(std, std, error, mask, rng, blocks),
                growth=_correlate_with_error(growth, std, error, mask, rng, blocks),
                curve=_spread_curve(variance, error**2, mask),
                foretold=_predict_error_size(error, mask, run.starts, h, blocks, means[:, 0], by_tangents),
            )
        )
    if not spreads:
        raise DataError(
            f"{run.series.label}: fewer than {MIN_ENTRIES} withheld readings follow the starts of forecasts. "
            "Hold out more."
        )
    return SpreadGrowth(spreads)
