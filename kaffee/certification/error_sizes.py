"""Does the size of forecast errors vary in a way that could have been known? A constant spread claims that it does not.

Two foretellers, neither of which sees the errors that it foretells: the variance that the core's own tangents would
give (only of a filter that does not use them), and a quadratic function of the state that a forecast starts from,
fitted to other stretches of time. What they find is there. What they do not find may be there too: the function is
smooth and sees little in ten coordinates or more, and sizes may vary with something unknown, such as an input.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from kaffee.certification.passes import Starts
from kaffee.certification.scores import block_mean

NUM_FOLDS = 10
RIDGE = 1.0
"""Per row of standardised features."""
MAX_PRODUCTS = 8
"""Coordinates up to which products of two of them are features; beyond, squares alone."""

Entries = Float[np.ndarray, "S N"]
Mask = Bool[np.ndarray, "S N"]


class Foretold(NamedTuple):
    """How well the size of errors can be told beforehand.

    Attributes:
        by: What tells it best.
        rank: Correlation of what it says with the rank of |error|, mean over coordinates; 0 if sizes do not vary.
        error: Its standard error, from blocks of time.
    """

    by: str
    rank: float
    error: float


def size_ranks(error: Entries, mask: Mask) -> Entries:
    """Ranks of |error| in each coordinate, with mean 0 and variance 1; 0 where there is no error."""
    found = np.zeros(error.shape)
    for j, seen in enumerate(mask.T):
        n = int(seen.sum())
        found[seen, j] = (rankdata(np.abs(error[seen, j])) - (n + 1) / 2) * np.sqrt(12.0) / max(n, 1)
    return found


def quadratic_features(state: Entries) -> Float[np.ndarray, "S F"]:
    """The state, and products of two coordinates of it; all with mean 0 and variance 1."""

    def standard(values: np.ndarray) -> np.ndarray:
        spread = values.std(axis=0)
        return (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)

    x, N = standard(state), state.shape[1]
    i, j = np.triu_indices(N) if N <= MAX_PRODUCTS else (np.arange(N), np.arange(N))
    return np.hstack([x, standard(x[:, i] * x[:, j])])


def cross_fitted(features: Float[np.ndarray, "S F"], ranks: Entries, mask: Mask, starts: Starts, h: int) -> Entries:
    """Ranks as a linear function of features, at each start fitted to stretches that share no row with its forecast."""
    found = np.zeros(ranks.shape)
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
                found[fold, j] = features[fold] @ weights
    return found


def agreement_of_sizes(by: str, predicted: Entries, ranks: Entries, mask: Mask) -> Foretold:
    """The correlation within coordinates, with a standard error from blocks of time."""
    products = np.zeros(ranks.shape)
    for j, seen in enumerate(mask.T):
        p = predicted[seen, j]
        if len(p) and (spread := p.std()) > 0:
            products[seen, j] = (p - p.mean()) / spread * ranks[seen, j]
    return Foretold(by, *block_mean(products, mask)[:2])


def foretell(
    error: Entries, mask: Mask, starts: Starts, horizon: int, state: Entries, by_tangents: Entries | None
) -> Foretold:
    """The better of both foretellers.

    Args:
        state: The filtered signal at each start.
        by_tangents: Variances that the core's tangents would give; None if those are the model's own.
    """
    ranks, usable = size_ranks(error, mask), np.isfinite(state).all(axis=1)
    kept = mask & usable[:, None]
    fitted = np.zeros(ranks.shape)
    if usable.any():
        some = Starts(starts.recordings[usable], starts.rows[usable])
        features = quadratic_features(state[usable])
        fitted[usable] = cross_fitted(features, ranks[usable], kept[usable], some, horizon)
    found = [agreement_of_sizes("the state at the start", fitted, ranks, kept)]
    if by_tangents is not None:
        finite = np.isfinite(by_tangents)
        sizes = size_ranks(np.where(finite, by_tangents, 0.0), mask & finite)
        found.append(agreement_of_sizes("the core's own tangents", sizes, ranks, mask & finite))
    return max(found, key=lambda one: np.nan_to_num(one.rank / one.error if one.error else 0.0))
