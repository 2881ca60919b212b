"""One-step maps and their tangents from data alone: linear, quadratic, and local linear over analogues.

All of them are regressions of the next row on this one, in standardised units; none has seen a model.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

Points = Float[np.ndarray, "P N"]
# Points -> the next row that is expected after each, and the derivative of that by the point.
TangentMap = Callable[[Points], tuple[Points, Float[np.ndarray, "P N N"]]]

RIDGE = 1e-3
"""Added to the variances of the regressors, in units of these: a thousandth, against collinearity."""
MAX_FEATURES = 1000
"""A quadratic map in N coordinates has (N + 1)(N + 2) / 2 features: up to N = 43."""
MAX_ANALOGUES, MAX_NUMBERS = 20_000, 40_000_000
"""More rows than this are thinned out, and more products of rows (300 MB) are not kept."""
CHUNK = 128


def _solve(features: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Ridge regression whose first feature is the constant, which is not penalised."""
    gram = features.T @ features / len(features)
    gram[np.arange(1, len(gram)), np.arange(1, len(gram))] += RIDGE
    return np.linalg.solve(gram, features.T @ target / len(features))


def linear_map(now: Points, after: Points) -> TangentMap:
    """F(x) = c + A x; the same tangent everywhere."""
    N = now.shape[1]
    W = _solve(np.hstack([np.ones((len(now), 1)), now]), after)

    def evaluate(x: Points) -> tuple[Points, np.ndarray]:
        return W[0] + x @ W[1:], np.broadcast_to(W[1:].T, (len(x), N, N))

    return evaluate


def quadratic_map(now: Points, after: Points) -> TangentMap:
    """F_i(x) = c_i + A_i x + x' Q_i x / 2 with symmetric Q_i, so that J(x) = A + Q x."""
    N = now.shape[1]
    first, second = np.triu_indices(N)

    def features(x: Points) -> np.ndarray:
        return np.hstack([np.ones((len(x), 1)), x, x[:, first] * x[:, second]])

    W = _solve(features(now), after)
    Q = np.zeros((N, N, N))
    Q[:, first, second] = W[1 + N :].T
    Q = Q + Q.swapaxes(1, 2)

    def evaluate(x: Points) -> tuple[Points, np.ndarray]:
        return features(x) @ W, W[1 : 1 + N].T + np.einsum("ijk,pk->pij", Q, x)

    return evaluate


def local_map(now: Points, after: Points, share: float) -> TangentMap:
    """Around every point the linear regression over its nearest analogues, weighted by closeness.

        minimise sum_k w_k |y_k - c - J x_k|^2 + ridge |J|^2,    w_k = max(1 - |x_k - x|^2 / d^2, 0)^2

    where the given share of all rows is closer than d. Lorenz's analogues with a derivative; it assumes smoothness and
    no form. All moments that any weighting needs are products of rows, computed once.

    Args:
        share: Of the rows that count as analogues.
    """
    N = now.shape[1]
    columns = (N + 1) * (2 * N + 1)
    stride = -(-len(now) // min(MAX_ANALOGUES, MAX_NUMBERS // columns))
    now, after = now[::stride], after[::stride]
    rank = min(len(now), max(round(share * len(now)), 4 * (N + 1))) - 1
    F = np.hstack([np.ones((len(now), 1)), now])
    products = (F[:, :, None] * np.hstack([F, after])[:, None, :]).reshape(len(now), columns)
    squares = np.sum(now**2, axis=1)

    def some(x: Points) -> tuple[np.ndarray, np.ndarray]:
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

    def evaluate(x: Points) -> tuple[Points, np.ndarray]:
        parts = [some(x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    return evaluate
