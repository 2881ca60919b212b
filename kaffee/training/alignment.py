"""Alignment of scores of different recordings: each has its own axes, and one core is to run in all of them.

Scores of the same system, seen through different maps, differ by an affine change of coordinates s -> T s + c. It is
found where one law of motion holds for both. With f_h the quadratic regression of s_{t+h} - s_t on s_t in the
reference's coordinates, at a few lags h,

    min over T, c of   < |s_{t+h} - s_t - T^-1 f_h(T s_t + c)|^2 >  /  < |s_{t+h} - s_t|^2 >

The law is that of states, wherever a recording has been; moments of a short recording are its own. There are many local
optima, so that a search starts from the best of many orthogonal matrices. What symmetries of the system leave open,
such as the sign of x and y of Lorenz-63, stays open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

# Orthogonal matrices that are tried at once, rows they are tried on, and the best of them that are descended from.
_NUM_TRIED, _NUM_ROWS, _NUM_STARTS, _SEED = 2000, 200, 24, 0
_NUM_FINISHED, _FEW_STEPS, _MOST_STEPS = 3, 8, 60
_DISTINCT = 0.3  # of the Frobenius norm, between two optima that count as two
_ROUNDS = 2
_RIDGE = 1e-3  # of a variance of 1
_Scores = Float[np.ndarray, "T K"]


class Affine(NamedTuple):
    """A change of coordinates, s -> T s + c."""

    T: Float[np.ndarray, "K K"]
    c: Float[np.ndarray, " K"]

    def apply(self, scores: _Scores) -> _Scores:
        """Compute T s + c for every row."""
        return scores @ self.T.T + self.c


@dataclass(frozen=True, eq=False)
class Law:
    """A law of motion: s_{t+h} - s_t as a quadratic function of s_t, for each lag h."""

    lags: tuple[int, ...]
    coefficients: Float[np.ndarray, "H F K"]

    @classmethod
    def fit(cls, recordings: Sequence[_Scores], lags: Sequence[int]) -> "Law":
        """Fit by ridge regression to all recordings together; rows with gaps count for nothing."""
        found = []
        for h in lags:
            now, step = _pairs(recordings, h)
            A = _features(now)
            found.append(np.linalg.solve(A.T @ A + _RIDGE * len(A) * np.eye(A.shape[1]), A.T @ step))
        return cls(tuple(lags), np.array(found))

    def errors(self, pairs: Sequence[tuple[_Scores, _Scores]], T: Any, c: Any) -> np.ndarray:
        """Compute the share of motion that the law does not explain in other coordinates, for one T, c or many."""
        total = 0.0
        for (now, step), coefficients in zip(pairs, self.coefficients, strict=True):
            moved = now @ np.swapaxes(T, -1, -2) + c[..., None, :]
            predicted = _features(moved) @ coefficients @ np.swapaxes(np.linalg.inv(T), -1, -2)
            total = total + np.mean((step - predicted) ** 2, axis=(-1, -2)) / np.mean(step**2)
        return total / len(self.lags)  # type: ignore[return-value]


def _pairs(recordings: Sequence[_Scores], lag: int) -> tuple[_Scores, _Scores]:
    """Collect s_t and s_{t+h} - s_t of all recordings."""
    now = np.concatenate([x[: len(x) - lag] for x in recordings if len(x) > lag])
    later = np.concatenate([x[lag:] for x in recordings if len(x) > lag])
    known = ~np.isnan(now + later).any(axis=1)
    return now[known], (later - now)[known]


def _features(s: Float[np.ndarray, "*B T K"]) -> Float[np.ndarray, "*B T F"]:
    """Compute 1, s and all products of two."""
    i, j = np.triu_indices(s.shape[-1])
    return np.concatenate([np.ones_like(s[..., :1]), s, s[..., i] * s[..., j]], axis=-1)


def choose_lags(decorrelation_time: float) -> tuple[int, ...]:
    """Choose lags over which motion is larger than noise, and not yet folded."""
    return tuple(sorted({max(round(share * decorrelation_time), 1) for share in (0.25, 0.5)}))


def align(law: Law, recordings: Sequence[_Scores], *, most: int = 1) -> list[Affine]:
    """Find the coordinates in which recordings obey a law: the best optima, each once.

    Scores should have variance about 1, here as where the law was fitted.
    """
    K, rng = recordings[0].shape[1], np.random.default_rng(_SEED)
    pairs = [_pairs(recordings, h) for h in law.lags]
    few = [tuple(a[:: max(len(a) // _NUM_ROWS, 1)] for a in pair) for pair in pairs]
    turned = np.linalg.qr(rng.standard_normal((_NUM_TRIED, K, K)))[0]
    turned[::2, :, 0] *= -1.0  # products of K reflections all have the same handedness
    tried = np.concatenate([np.eye(K)[None], turned])
    losses = np.concatenate([law.errors(few, some, np.zeros((len(some), K))) for some in np.array_split(tried, 20)])  # type: ignore[arg-type]
    starts: list[Affine] = []
    for Q in tried[np.argsort(losses)]:
        if len(starts) < max(_NUM_STARTS, most) and _is_new(Q, starts):
            starts.append(Affine(Q, np.zeros(K)))
    rough = sorted((_descend(law, few, start, _FEW_STEPS) for start in starts), key=lambda each: each[0])
    finished = (_descend(law, pairs, each, _MOST_STEPS) for _, each in rough[: max(_NUM_FINISHED, 2 * most)])
    found = sorted(finished, key=lambda each: each[0])
    best: list[Affine] = []
    for _, each in found:
        if len(best) < most and _is_new(each.T, best):
            best.append(each)
    return best


def _is_new(T: Float[np.ndarray, "K K"], others: Sequence[Affine]) -> bool:
    return all(np.linalg.norm(T - other.T) > _DISTINCT * np.sqrt(len(T)) for other in others)


def _descend(law: Law, pairs: Any, start: Affine, steps: int) -> tuple[float, Affine]:
    """Descend from one change of coordinates by so many steps."""
    K = len(start.c)

    def unpack(values: np.ndarray) -> Affine:
        return Affine(values[: K * K].reshape(K, K), values[K * K :])

    def loss(values: np.ndarray) -> float:
        T, c = unpack(values)
        # Nothing but noise would forbid to shrink or shear the scores out of the law's range.
        pull = np.mean((T @ T.T - np.eye(K)) ** 2) + np.mean(c**2)
        return float(law.errors(pairs, T, c)) + 0.01 * float(pull)

    found = minimize(loss, np.concatenate([start.T.ravel(), start.c]), method="BFGS", options={"maxiter": steps})
    return float(found.fun), unpack(found.x)


def align_all(groups: Sequence[Sequence[_Scores]], lags: Sequence[int]) -> list[Affine]:
    """Find common coordinates of groups of recordings; those of the longest are the first, and refined by the others.

    A law of all groups together takes the place of that of the longest one in later rounds.
    """
    reference = max(range(len(groups)), key=lambda g: sum(map(len, groups[g])))
    K = groups[reference][0].shape[1]
    laws, same = Law.fit(groups[reference], lags), Affine(np.eye(K), np.zeros(K))
    turns = [same if g == reference else align(laws, each)[0] for g, each in enumerate(groups)]
    for _ in range(_ROUNDS):
        moved = [turn.apply(x) for turn, each in zip(turns, groups, strict=True) for x in each]
        laws = Law.fit(moved, lags)
        turns = [same if g == reference else align(laws, each)[0] for g, each in enumerate(groups)]
    return turns
