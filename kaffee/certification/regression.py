"""Vector autoregressions by ridge regression, and which orders predict the end of the training data best."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.data.series import Series

Recordings = list[Float[np.ndarray, "T N"]]

ORDERS = (1, 2, 3, 5, 8, 13, 20, 32)
# A Kalman filter costs the cube of its latent size, which is order times N.
MOST_LATENT = 100
ROWS_PER_COEFFICIENT = 5
# In units of the data's variance. The smallest is for coordinates that repeat others, the largest is the climate.
RIDGES = (1e-9, 1e-6, 1e-3, 1e-1, 10.0)
# Nats per entry from the best order: the shortest order so close is worth a filter.
CLOSE, VERY_CLOSE = 0.05, 0.005
CHUNK = 10_000


class Regression(NamedTuple):
    """x_t = sum_k A_k x_{t-k} + c + noise of covariance Q, standardised."""

    A: Float[np.ndarray, "p N N"]
    c: Float[np.ndarray, " N"]
    Q: Float[np.ndarray, "N N"]

    def predict(self, x: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
        """Every row from those before it; before the first row there is the first row."""
        before = np.concatenate([np.repeat(x[:1], len(self.A), axis=0), x])
        lags = (before[len(self.A) - k : len(before) - k] for k in range(1, len(self.A) + 1))
        return self.c + sum(lag @ A_k.T for lag, A_k in zip(lags, self.A, strict=True))


class Moments(NamedTuple):
    """Sums of products over rows: of f = (x_{t-1}, ..., x_{t-p}, 1) and of x_t."""

    rows: int
    ff: Float[np.ndarray, "K K"]
    fx: Float[np.ndarray, "K N"]
    xx: Float[np.ndarray, "N N"]


class Choice(NamedTuple):
    """An order and a ridge."""

    order: int
    ridge: float


def moments(recordings: Recordings, order: int) -> Moments:
    """Of complete recordings; those that are not longer than `order` have no part."""
    N = recordings[0].shape[1]
    K, rows, products = order * N + 1, 0, np.zeros((order * N + 1 + N,) * 2)
    for x in recordings:
        for first in range(order, len(x), CHUNK):
            last = min(first + CHUNK, len(x))
            lags = [x[first - k : last - k] for k in range(1, order + 1)]
            table = np.hstack([*lags, np.ones((last - first, 1)), x[first:last]])
            products += table.T @ table
            rows += last - first
    return Moments(rows, products[:K, :K], products[:K, K:], products[K:, K:])


def ridge_regression(found: Moments, ridge: float) -> Regression:
    """min_W |x - f W|^2 / rows + ridge |W|^2, the constant without penalty."""
    rows, ff, fx, xx = found
    K, N = fx.shape
    W = np.linalg.solve(ff + rows * np.diag([ridge] * (K - 1) + [1e-9]), fx)
    S = (xx - W.T @ fx - fx.T @ W + W.T @ ff @ W) / rows
    S = 0.5 * (S + S.T) + 1e-6 * np.eye(N)
    # Correlations of few rows are chance; without them Q is positive definite however few there are.
    shrink = min(1.0, 2.0 * (N + 1) / rows)
    A = W[:-1].T.reshape(N, (K - 1) // N, N).swapaxes(0, 1)
    return Regression(A, W[-1], (1.0 - shrink) * S + shrink * np.diag(np.diag(S)))


def vector_autoregression(series: Series, choice: Choice) -> Regression:
    """Of a standardised series; gaps are filled by straight lines."""
    return ridge_regression(moments([interpolated(x) for x in series.recordings], choice.order), choice.ridge)


def one_step_nll(regression: Regression, series: Series, part: Series) -> float:
    """Mean over the readings of `series` after those of `part`, with the std of each coordinate for itself.

        1/2 log(2 pi Q_jj) + (x_tj - prediction)^2 / (2 Q_jj)

    A missing lag is the reading before it, so that nothing is predicted with what comes after.
    """
    variance = np.diag(regression.Q)
    terms = []
    for x, before in zip(series.recordings, part.recordings, strict=True):
        residual = (x - regression.predict(held(x)))[len(before) :]
        terms.append(0.5 * np.log(2.0 * np.pi * variance) + 0.5 * residual**2 / variance)
    each = np.concatenate(terms)
    seen = ~np.isnan(each)
    return float(each[seen].mean()) if seen.any() else 0.0


def possible_orders(series: Series) -> list[int]:
    """Those with enough rows for their coefficients and a moderate latent size; 1 always."""
    N = series.num_coordinates

    def enough(order: int) -> bool:
        rows = sum(max(length - order, 0) for length in series.lengths)
        return order * N <= MOST_LATENT and rows >= ROWS_PER_COEFFICIENT * (order * N + 1)

    return [order for order in ORDERS if order == 1 or enough(order)]


def best_choices(series: Series, part: Series) -> list[Choice]:
    """One or two, the shorter first: the shortest orders that predict what comes after `part` about as well as any.

    Each with its best ridge, fitted to `part`, the beginning of each recording of `series`.
    """
    complete = [interpolated(x) for x in part.recordings]
    best: dict[int, tuple[float, Choice]] = {}
    for order in possible_orders(part):
        found = moments(complete, order)
        scores = [one_step_nll(ridge_regression(found, ridge), series, part) for ridge in RIDGES]
        best[order] = min(scores), Choice(order, RIDGES[int(np.argmin(scores))])
    lowest = min(nll for nll, _ in best.values())
    close = [next(choice for nll, choice in best.values() if nll <= lowest + margin) for margin in (CLOSE, VERY_CLOSE)]
    return list(dict.fromkeys(close))


def interpolated(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Gaps filled by straight lines, ends by the nearest reading, columns without any by 0."""
    filled, t = np.zeros_like(values), np.arange(len(values))
    for j, column in enumerate(values.T):
        seen = ~np.isnan(column)
        if seen.any():
            filled[:, j] = np.interp(t, t[seen], column[seen])
    return filled


def held(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Gaps filled by the last reading before, 0 if there is none."""
    rows = np.where(np.isnan(values), -1, np.arange(len(values))[:, None])
    latest = np.maximum.accumulate(rows, axis=0)
    return np.where(latest < 0, 0.0, np.take_along_axis(values, np.maximum(latest, 0), axis=0))
