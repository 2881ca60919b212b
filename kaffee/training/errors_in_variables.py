"""Regression with errors in variables along trajectories: one Gauss-Newton step for states and map together.

    x_t = z_t + N(0, R),    z_{t+1} = W' phi(u_t) + N(0, Q),    u_t = (z_{t-lag})_lags,    W ~ N(0, P)

Around states z and tangents J of the map, with G dz = dz_{t+1} - J dz_u, what the readings say of a step

    y = z_{t+1} + G (x - z) = W' phi + noise,    covariance Q + G R G'

is a linear regression with banded noise; given W the states follow: dz = x - z - R G' (Q + G R G')^-1 (y - W' phi).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, cho_solve, cho_solve_banded, cholesky_banded, solve_triangular
from scipy.linalg.lapack import dtbtrs

MOST_ROWS = 2000
"""Rows that are taken at a time; longer recordings are cut."""
UNKNOWN = 10.0
"""How far a state that nobody has read may move in a step, in standard deviations of the data."""


class RowGroup(NamedTuple):
    """Rows that are eliminated at a time: readings, the steps of the map among them, and rows no step leads to."""

    first: int
    x: Float[np.ndarray, "T N"]
    seen: Any
    steps: Any
    begun: Any


def group_rows(readings: list[Float[np.ndarray, "T N"]], lags: tuple[int, ...]) -> list[RowGroup]:
    """Cut long recordings evenly and gather short ones."""
    pieces = []
    for x in readings:
        pieces += np.array_split(x, max(1, -(-len(x) // MOST_ROWS)))
    gathered: list[list[np.ndarray]] = [[]]
    for piece in pieces:
        if sum(map(len, gathered[-1])) + len(piece) > MOST_ROWS and gathered[-1]:
            gathered.append([])
        gathered[-1].append(piece)
    groups, first = [], 0
    for parts in gathered:
        begin, steps = 0, []
        for part in parts:
            steps.append(np.arange(begin + lags[-1], begin + len(part) - 1))
            begin += len(part)
        x, every = np.concatenate(parts), np.concatenate(steps)
        groups.append(RowGroup(first, x, np.isfinite(x), every, np.setdiff1d(np.arange(begin), every + 1)))
        first += begin
    return groups


class Solution(NamedTuple):
    """One step: states and weights; squared residuals, cost and log evidence, in sums; what is asked of the spread.

    root: V with V'V the covariance of the weights, blocks of F columns for each coordinate; map_variance as in
    `JointEstimate`.
    """

    states: Float[np.ndarray, "T N"]
    weights: Float[np.ndarray, "F N"]
    squares: Float[np.ndarray, " N"]
    cost: float
    evidence: float
    root: Any = None
    map_variance: Any = None


def solve(
    groups: list[RowGroup], lags: tuple[int, ...], z: Any, J: Any, phi: Any, R: Any, Q: Any, prior: Any, certain: bool
) -> Solution:
    """Take one Gauss-Newton step: weighted least squares with banded noise, then the states."""
    N, F = z.shape[1], phi.shape[1]
    S, right, determinant, parts, at = np.diag(np.tile(1.0 / prior, N)), np.zeros(N * F), 0.0, [], 0
    for group in groups:
        mine = slice(at, at + len(group.steps))
        at = mine.stop
        if not len(group.steps):  # all of its steps were left out
            continue
        part = _whiten(group, lags, z[group.first : group.first + len(group.x)], J[mine], phi[mine], R, Q)
        S, right = S + part.features.T @ part.features, right + part.features.T @ part.target
        determinant += part.determinant
        parts.append((group, phi[mine], part))
    Ls = np.linalg.cholesky(S)
    w = cho_solve((Ls, True), right)
    W, states, squares = w.reshape(N, F).T, z.copy(), np.zeros(N)
    cost = float(np.sum(W**2 / prior[:, None]))
    scales = N * np.sum(np.log(prior)) + 2.0 * np.log(np.diag(Ls)).sum() + determinant
    for group, features, part in parts:
        own = z[group.first : group.first + len(group.x)]
        multiplier = cho_solve_banded((part.root, True), (part.y - features @ W).ravel(), check_finite=False)
        multiplier = multiplier.reshape(-1, N)
        new = own + part.moved - part.variance * _spread_back(part, group.steps, multiplier, own.shape)
        residuals = np.where(group.seen, group.x - new, 0.0)
        squares += np.sum(residuals**2, axis=0)
        cost += float(np.sum(residuals**2 / R) + np.sum(Q * multiplier**2) + np.sum(new[group.begun] ** 2))
        cost += float(np.sum((new - own)[part.unknown] ** 2)) / UNKNOWN**2
        scales += np.sum(group.seen * np.log(R))
        states[group.first : group.first + len(group.x)] = new
    found = Solution(states, W, squares, cost, -0.5 * (cost + scales))
    if certain:
        return found
    root = solve_triangular(Ls, np.eye(len(Ls)), lower=True)
    spread = np.zeros(z.shape)
    for group, features, part in parts:
        spread[group.first : group.first + len(group.x)] = _vary(group, features, part, root)
    return found._replace(root=root, map_variance=spread)


class _Part(NamedTuple):
    """A group, linearised: y = W' phi + noise of covariance L L', and what gives the states back.

    features, target: L^-1 of phi in blocks and of y; root: L, banded; determinant: of L L', less that of the readings.
    moved, variance: To the readings and what else is known of states, and its variance; unknown: where nothing is.
    """

    features: Any
    target: Any
    y: Any
    root: Any
    determinant: float
    moved: Any
    variance: Any
    unknown: Any
    offsets: tuple[int, ...]
    G: Any


def _whiten(group: RowGroup, lags: tuple[int, ...], z: Any, J: Any, phi: Any, R: Any, Q: Any) -> _Part:
    """Write steps as a regression whose noise is that of the readings on both sides, and make it white.

    y_t = z_{t+1} + sum_i G_i (x - z)_{t+o_i} = W' phi_t + noise,    covariance Q + G R G'
    """
    (T, N), F, S = z.shape, phi.shape[1], len(group.steps)
    precision = np.where(group.seen, 1.0 / R, 0.0)
    precision[group.begun] += 1.0  # what nothing leads to is N(0, 1), as standardised readings are
    known = np.where(group.seen, group.x, 0.0) * np.where(group.seen, 1.0 / R, 0.0)
    # Of what nobody has read only so much is known: it moves by less than ten at a time.
    unknown = precision == 0.0
    precision[unknown] = 1.0 / UNKNOWN**2
    moved, variance = np.where(unknown, 0.0, known / precision - z), 1.0 / precision
    blocks, offsets = J.reshape(S, N, len(lags), N), (1, *(-lag for lag in lags))
    G = [np.broadcast_to(np.eye(N), (S, N, N)), *(-blocks[:, :, i] for i in range(len(lags)))]
    y, place = z[group.steps + 1], np.full(T + lags[-1] + 2, -1)
    place[group.steps] = np.arange(S)
    band = np.zeros(((lags[-1] + 2) * N, S, N))
    band[0] = Q
    coordinates = np.arange(N)
    for o, left in zip(offsets, G, strict=True):
        y = y + np.einsum("snd,sd->sn", left, moved[group.steps + o])
        for p, right in zip(offsets, G, strict=True):
            if o < p:
                continue
            # Steps t and t + o - p share the reading of row t + o.
            later = place[group.steps + o - p]
            both = np.flatnonzero(later >= 0)
            shared = right[later[both]] @ (variance[group.steps[both] + o][:, :, None] * left[both].transpose(0, 2, 1))
            rows = (later[both] - both)[:, None, None] * N + coordinates[:, None] - coordinates
            lower = rows >= 0
            where = np.broadcast_to(both[:, None, None], rows.shape), np.broadcast_to(coordinates, rows.shape)
            band[rows[lower], where[0][lower], where[1][lower]] += shared[lower]
    root = cholesky_banded(band.reshape(-1, S * N), lower=True, overwrite_ab=True, check_finite=False)
    white = np.zeros((N * F + 1, S, N))  # LAPACK wants columns together
    for n in range(N):
        white[n * F : (n + 1) * F, :, n] = phi.T
    white[-1] = y
    white, failed = dtbtrs(root, white.reshape(N * F + 1, S * N).T, uplo="L", overwrite_b=True)
    if failed:
        raise LinAlgError("a banded factor is singular")
    determinant = 2.0 * float(np.log(root[0]).sum()) - float(np.sum(np.log(variance[~unknown])))
    return _Part(white[:, :-1], white[:, -1], y, root, determinant, moved, variance, unknown, offsets, G)


def _spread_back(part: _Part, steps: Any, multiplier: Any, shape: tuple[int, ...]) -> Any:
    """Compute G' of multipliers of the steps, for every row."""
    total = np.zeros((*shape, *multiplier.shape[2:]))
    for o, left in zip(part.offsets, part.G, strict=True):
        total[steps + o] += np.einsum("snd,sn...->sd...", left, multiplier)
    return total


def _vary(group: RowGroup, phi: Any, part: _Part, root: Any) -> Float[np.ndarray, "T N"]:
    """Compute the variance that the map's uncertainty gives to states: dz = - R G' (Q + G R G')^-1 phi dW."""
    (T, N), S = group.x.shape, len(group.steps)
    own = np.zeros((S, N, N, phi.shape[1]))
    for n in range(N):
        own[:, n, n] = phi
    both = cho_solve_banded((part.root, True), own.reshape(S * N, -1) @ root.T, check_finite=False)
    back = _spread_back(part, group.steps, both.reshape(S, N, -1), (T, N))
    return np.sum((part.variance[:, :, None] * back) ** 2, axis=2)
