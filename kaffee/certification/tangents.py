"""A proxy for G_tan on real data: does predicted variance grow where tangents estimated from the training data say so?

Tangents are those of one-step maps fitted to the training data: linear, quadratic, or local linear over analogues,
whichever forecasts the last part of them best. Noise in x_t pulls slopes towards zero (errors in variables); a short
average around t has less of it, at the price of a bias that grows with the signal's curvature.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from kaffee.certification.forecasts import Recordings, block_mean, carry_ahead, count_blocks
from kaffee.certification.innovations import FilterPass
from kaffee.data.gaps import evenly
from kaffee.errors import DataError
from kaffee.metrics.calibration import student_limit
from kaffee.metrics.scores import correlate_growths, oracle_log_growth, spearman

RIDGE = 1e-3
"""Added to the variances of the regressors, in units of these: a thousandth, against collinearity."""
MAX_FEATURES = 1000
"""A quadratic map in N coordinates has (N + 1)(N + 2) / 2 features: up to N = 43."""
MAX_ANALOGUES, MAX_NUMBERS, CHUNK = 20_000, 40_000_000, 128
"""More rows than this are thinned out, and more products of rows (300 MB) are not kept."""
SHARES = (0.05, 0.15)
"""Of all rows that count as analogues."""
# A derivative needs a wider neighbourhood than a value: of local maps that forecast equally well, to 2 %, the widest.
SLACK = 1.02
WIDTHS = (0, 1, 2, 3)
VALIDATION, MAX_POINTS = 0.2, 400
"""Share of the training data, and forecasts from it, that a map is chosen by."""
MIN_PAIRS, MIN_GROWTHS = 20, 100
"""Training pairs per coefficient of a linear map, and growths that are compared, below which there is no proxy."""
# Variances of a filter without transport settle at constants, of which float32 leaves this much.
TOLERANCE = 1e-5

Points = Float[np.ndarray, "P N"]
# Points -> the next row that is expected after each, and the derivative of that by the point.
TangentMap = Callable[[Points], tuple[Points, Float[np.ndarray, "P N N"]]]
MapFit = Callable[[Points, Points], TangentMap]


def _hann(width: int) -> tuple[float, ...]:
    """Return the weights of a Hann window of 2 width + 1 points, which sum to 1."""
    w = np.sin(np.pi * np.arange(1, 2 * width + 2) / (2 * width + 2)) ** 2
    return tuple((w / w.sum()).round(15).tolist())


def _smooth(values: Float[np.ndarray, "T N"], width: int) -> Float[np.ndarray, "T N"]:
    """Average around every row; NaN where a value in its window is missing, also at both ends."""
    averages = np.full_like(values, np.nan)
    rows = len(values) - 2 * width
    if rows > 0:
        averages[width : width + rows] = sum(w * values[i : i + rows] for i, w in enumerate(_hann(width)))
    return averages


def _regress(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve a ridge regression whose first feature is the constant, which is not penalised."""
    gram = features.T @ features / len(features)
    gram[np.arange(1, len(gram)), np.arange(1, len(gram))] += RIDGE
    return np.linalg.solve(gram, features.T @ target / len(features))


def _fit_linear_map(now: Points, after: Points) -> TangentMap:
    """Fit F(x) = c + A x; the same tangent everywhere."""
    N = now.shape[1]
    W = _regress(np.hstack([np.ones((len(now), 1)), now]), after)
    return lambda x: (W[0] + x @ W[1:], np.broadcast_to(W[1:].T, (len(x), N, N)))


def _fit_quadratic_map(now: Points, after: Points) -> TangentMap:
    """Fit F_i(x) = c_i + A_i x + x' Q_i x / 2 with symmetric Q_i, so that J(x) = A + Q x."""
    N = now.shape[1]
    first, second = np.triu_indices(N)

    def features(x: Points) -> np.ndarray:
        return np.hstack([np.ones((len(x), 1)), x, x[:, first] * x[:, second]])

    W = _regress(features(now), after)
    Q = np.zeros((N, N, N))
    Q[:, first, second] = W[1 + N :].T
    Q = Q + Q.swapaxes(1, 2)
    return lambda x: (features(x) @ W, W[1 : 1 + N].T + np.einsum("ijk,pk->pij", Q, x))


def _fit_local_map(now: Points, after: Points, share: float) -> TangentMap:
    """Fit, around every point, the linear regression over its nearest analogues, weighted by closeness.

        minimise sum_k w_k |y_k - c - J x_k|^2 + ridge |J|^2,    w_k = max(1 - |x_k - x|^2 / d^2, 0)^2

    where the given share of all rows is closer than d. Lorenz's analogues with a derivative; it assumes smoothness and
    no form. All moments that any weighting needs are products of rows, computed once.
    """
    N = now.shape[1]
    columns = (N + 1) * (2 * N + 1)
    stride = -(-len(now) // min(MAX_ANALOGUES, MAX_NUMBERS // columns))
    now, after = now[::stride], after[::stride]
    rank = min(len(now), max(round(share * len(now)), 4 * (N + 1))) - 1
    F = np.hstack([np.ones((len(now), 1)), now])
    products = (F[:, :, None] * np.hstack([F, after])[:, None, :]).reshape(len(now), columns)
    squares = np.sum(now**2, axis=1)

    def evaluate(x: Points) -> tuple[np.ndarray, np.ndarray]:
        d = np.maximum(squares - 2.0 * x @ now.T + np.sum(x**2, axis=1)[:, None], 0.0)
        farthest = np.partition(d, rank, axis=1)[:, rank, None] + 1e-12
        w = np.maximum(1.0 - d / farthest, 0.0) ** 2
        moments = (w @ products / w.sum(axis=1, keepdims=True)).reshape(len(x), N + 1, 2 * N + 1)
        # The penalty pulls towards a tangent of zero around the analogues' mean, not around the origin.
        mean, mean_after = moments[:, 0, 1 : N + 1], moments[:, 0, N + 1 :]
        covariance = moments[:, 1:, 1 : N + 1] - mean[:, :, None] * mean[:, None, :]
        cross = moments[:, 1:, N + 1 :] - mean[:, :, None] * mean_after[:, None, :]
        # Relative to the variance within the neighbourhood, which is small where the neighbourhood is.
        variance = np.trace(covariance, axis1=1, axis2=2)[:, None, None] / N
        J = np.linalg.solve(covariance + (RIDGE * variance + 1e-12) * np.eye(N), cross).swapaxes(1, 2)
        return mean_after + np.einsum("pij,pj->pi", J, x - mean), J

    def evaluate_in_chunks(x: Points) -> tuple[Points, np.ndarray]:
        values, tangents = zip(*(evaluate(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)), strict=True)
        return np.concatenate(values), np.concatenate(tangents)

    return evaluate_in_chunks


class Candidate(NamedTuple):
    """A kind of map and a smoothing, with the mean squared error of its forecasts of raw validation rows."""

    name: str
    width: int
    error: float


def _list_maps(num_coordinates: int) -> dict[str, MapFit]:
    """List the maps that may be tried on so many coordinates."""
    maps: dict[str, MapFit] = {"linear": _fit_linear_map}
    if (num_coordinates + 1) * (num_coordinates + 2) // 2 <= MAX_FEATURES:
        maps["quadratic"] = _fit_quadratic_map
    return maps | {f"local {share:g}": partial(_fit_local_map, share=share) for share in SHARES}


def _pair_rows(recordings: Recordings, width: int, *, raw: bool = False) -> tuple[Points, Points]:
    """Return smoothed rows, and the smoothed ones after them or the raw ones `width` + 1 later; all complete."""
    averages = [_smooth(values, width) for values in recordings]
    later, lag = (recordings, width + 1) if raw else (averages, 1)
    now = np.concatenate([s[: max(len(s) - lag, 0)] for s in averages])
    after = np.concatenate([values[lag:] for values in later])
    both = ~np.isnan(now).any(axis=1) & ~np.isnan(after).any(axis=1)
    return now[both], after[both]


def _forecast_error(fitted: TangentMap, recordings: Recordings, width: int) -> float:
    """Return the mean squared error of forecasts of raw rows x_{t+1} from rows up to t, fair to any smoothing.

    The smoothed row t - width has seen rows up to t; from there the map takes width + 1 steps. So no smoothing sees
    what it forecasts, and the error on smoothed rows, which more smoothing always lowers, decides nothing.
    """
    x, y = _pair_rows(recordings, width, raw=True)
    if not len(x):
        return float("inf")
    chosen = np.unique(evenly(len(x), MAX_POINTS))
    x, y = x[chosen], y[chosen]
    with np.errstate(all="ignore"):
        for _ in range(width + 1):
            x = fitted(x)[0]
        error = float(np.mean((x - y) ** 2))
    return error if np.isfinite(error) else float("inf")


def try_candidates(train: Recordings) -> list[Candidate]:
    """Try all maps and smoothings, best first; a map's smoothing grows until its forecasts get worse."""
    parts = [np.split(values, [int((1.0 - VALIDATION) * len(values))]) for values in train]
    fit_on, validate_on = zip(*parts, strict=True)
    candidates: list[Candidate] = []
    for name, fit in _list_maps(train[0].shape[1]).items():
        best = float("inf")
        for width in WIDTHS:
            now, after = _pair_rows(fit_on, width)
            if len(now) < MIN_PAIRS * (now.shape[1] + 1):
                break
            error = _forecast_error(fit(now, after), validate_on, width)
            candidates.append(Candidate(name, width, error))
            if error > best:
                break
            best = error
    return sorted((c for c in candidates if np.isfinite(c.error)), key=lambda c: c.error)


def _choose_candidate(candidates: list[Candidate]) -> Candidate:
    """Choose the candidate with the smallest error; of local maps the widest that is as good."""
    best = candidates[0]
    if not best.name.startswith("local"):
        return best
    as_good = [c for c in candidates if c.name.startswith("local") and c.error <= SLACK * best.error]
    return max(as_good, key=lambda c: (float(c.name.split()[1]), -c.error))


class _Growths(NamedTuple):
    """Log-growths of variance at the `chosen` starts of a filter pass, which are complete, with neighbours.

    Attributes:
        covariance: B P_{t|t} B'.
        model: log [B P_{t+1|t} B']_jj - log [B P_{t|t} B']_jj.
        proxy: log [J B P_{t|t} B' J']_jj - log [B P_{t|t} B']_jj with J from data.
    """

    chosen: Bool[np.ndarray, " S"]
    covariance: Float[np.ndarray, "C N N"]
    model: Float[np.ndarray, "C N"]
    proxy: Float[np.ndarray, "C N"]


@dataclass(frozen=True)
class TangentProxy:
    """Rank correlations of the model's variance growth with that by data-driven tangents.

    Attributes:
        pooled, within: As in `kaffee.metrics.scores.Grounding`.
        method: The chosen map and the half-width of its smoothing in rows, as in "quadratic, 2".
        r2: Share of the variance of validation rows that its forecasts explain.
        r2_over_linear: Share of the squared error of the best linear map that it takes away. Near 0 the data show no
            dependence of tangents on the state, and the proxy says nothing.
        reliability: Rank correlation of growths by tangents from two halves of the training data, corrected to the
            full length (Spearman and Brown): how much is not chance.
        num_growths: Variances that grew or shrank: rows x coordinates.
        candidates: All that were tried, best first.
        chance: What `within` may differ by chance from that of all rows there could be; NaN if there are too few.
    """

    pooled: float
    within: float
    method: str
    r2: float
    r2_over_linear: float
    reliability: float
    num_growths: int
    candidates: list[Candidate]
    chance: float = float("nan")


def measure_proxy(run: FilterPass, train: Recordings, candidates: list[Candidate]) -> tuple[TangentProxy, _Growths]:
    """Measure the proxy by the best of `candidates`; also return the growths behind it.

    Tangents are taken at the smoothed held-out rows that forecasts start from, the same for every model.
    """
    N = train[0].shape[1]
    if not candidates:
        raise DataError(
            f"The training data have too few complete consecutive rows to estimate tangents of {N} coordinates from "
            f"({MIN_PAIRS} pairs per coefficient are needed)."
        )
    best = _choose_candidate(candidates)
    fit, (now, after) = _list_maps(N)[best.name], _pair_rows(train, best.width)
    points = run.starts.ahead(tuple(_smooth(values, best.width) for values in run.standard), 0)
    _, variance = carry_ahead(run, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        model = np.log(variance[:, 1]) - np.log(variance[:, 0])
    chosen = ~np.isnan(points).any(axis=1) & np.isfinite(model).all(axis=1)
    if chosen.sum() * N < MIN_GROWTHS:
        raise DataError(
            f"{run.series.label}: {chosen.sum()} of the held-out rows that forecasts start from are complete, with "
            f"their neighbours; growth of variance is compared over at least {MIN_GROWTHS} entries. Hold out more."
        )
    observation = run.reconstruction.model.observation
    covariance = np.asarray(observation.columns(observation.rows(run.beliefs.moments().covariance)), np.float64)[chosen]

    def grow(rows: slice) -> Float[np.ndarray, "C N"]:
        return oracle_log_growth(covariance, fit(now[rows], after[rows])(points[chosen])[1])

    half = len(now) // 2
    r = spearman(grow(slice(0, half)), grow(slice(half, None)))
    growths = _Growths(chosen, covariance, model[chosen], grow(slice(None)))
    linear = min((c.error for c in candidates if c.name == "linear"), default=float("nan"))
    proxy = TangentProxy(
        *correlate_growths(growths.model, growths.proxy, tolerance=TOLERANCE),
        method=f"{best.name}, {best.width}",
        r2=1.0 - best.error / float(np.nanvar(np.concatenate(train))),
        r2_over_linear=1.0 - best.error / linear,
        reliability=2.0 * r / (1.0 + r) if r > 0 else r,
        num_growths=growths.model.size,
        candidates=candidates,
        chance=_limit_chance(growths, count_blocks(run, 1)),
    )
    return proxy, growths


def _limit_chance(growths: _Growths, num_blocks: int) -> float:
    """Limit what chance does to a rank correlation within coordinates, by its spread over blocks of time."""
    if not (np.isfinite(growths.model).all() and np.isfinite(growths.proxy).all()):
        return float("nan")
    a, b = (
        (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-300) for x in map(_rank, (growths.model, growths.proxy))
    )
    _, error, found = block_mean(a * b, np.ones(a.shape, bool), num_blocks)
    return student_limit(found) * error


def _rank(values: Float[np.ndarray, "C N"]) -> Float[np.ndarray, "C N"]:
    return np.apply_along_axis(rankdata, 0, values).astype(float)


def tangent_proxy(run: FilterPass, train: Recordings) -> TangentProxy:
    """Correlate a model's growth of variance with that by tangents from standardised training data (cf. Eq. gtan)."""
    return measure_proxy(run, train, try_candidates(train))[0]
