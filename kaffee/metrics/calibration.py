"""Coverage, normalised innovations, and the limits that a correctly specified model keeps; on plain arrays."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import bdtrik, chdtri, kolmogi, ndtri, stdtrit

from kaffee.errors import ConfigError

CONFIDENCE = 0.999
"""Probability that a correctly specified model keeps all limits of one check, so that of seven checks all pass."""


def coverage(
    residuals: Float[np.ndarray, "..."],
    std: Float[np.ndarray, "..."],
    level: float,
    mask: Bool[np.ndarray, "..."] | None = None,
) -> float:
    """Return the share of residuals inside the central Gaussian interval of probability `level`; NaN without any."""
    if not 0 < level < 1:
        raise ConfigError(f"A band has a probability between 0 and 1, not {level}.")
    inside = np.abs(residuals) <= ndtri(0.5 + level / 2) * np.asarray(std)
    if mask is not None:
        inside = inside[mask]
    return float(inside.mean()) if inside.size else float("nan")


def normalised_nis(nis: Float[np.ndarray, " T"], num_observed: Float[np.ndarray, " T"] | int) -> float:
    """Return the mean of v' Omega^-1 v per observed entry: 1 for a calibrated filter, larger if it is overconfident."""
    total = float(np.sum(np.broadcast_to(num_observed, np.shape(nis))))
    return float(np.sum(nis)) / total if total else float("nan")


def ks_distance(u: Float[np.ndarray, " T"]) -> float:
    """Return sup |F_n(u) - u|, the distance of a sample from the uniform distribution on [0, 1]; NaN if it is empty.

    >>> round(ks_distance(np.array([0.1, 0.2, 0.3])), 6)
    0.7
    """
    if not len(u):
        return float("nan")
    ordered, n = np.sort(u), len(u)
    return float(np.max(np.maximum(np.arange(1, n + 1) / n - ordered, ordered - np.arange(n) / n)))


def relative_ranks(
    members: Float[np.ndarray, "K *shape"], values: Float[np.ndarray, "*shape"], rng: np.random.Generator
) -> Float[np.ndarray, "*shape"]:
    """Return the rank of values among ensemble members as a number from 0 to 1, uniform if both are drawn alike.

    (number below + an even draw among those that are equal + u) / (K + 1), u uniform; NaN where one of them is missing.

    >>> bool(relative_ranks(np.array([[1.0], [2.0]]), np.array([3.0]), np.random.default_rng(0))[0] > 2 / 3)
    True
    """
    below = np.sum(members < values, axis=0) + rng.integers(0, np.sum(members == values, axis=0) + 1)
    missing = np.isnan(values) | np.isnan(members).any(axis=0)
    return np.where(missing, np.nan, (below + rng.uniform(size=values.shape)) / (len(members) + 1))


def histogram_density(u: Float[np.ndarray, "..."], bins: int = 20) -> Float[np.ndarray, " B"]:
    """Return the histogram of numbers from 0 to 1 as a density, 1 everywhere if they are uniform; NaN is left out."""
    known = u[~np.isnan(u)]
    counts = np.histogram(known, bins=bins, range=(0.0, 1.0))[0]
    return counts * bins / known.size if known.size else np.full(bins, np.nan)


def bin_spread_and_error(
    spread: Float[np.ndarray, " T"], error: Float[np.ndarray, " T"], bins: int = 10
) -> Float[np.ndarray, "B 2"]:
    """Return root mean square spread and error in bins of equal size by spread; on the diagonal if spread is error."""
    parts = np.array_split(np.argsort(spread), max(1, min(bins, len(spread))))
    return np.array([[np.sqrt(np.mean(each[part] ** 2)) for each in (spread, error)] for part in parts])


# Limits that a correctly specified model stays within. `num` is the number of independent quantities that a
# check looks at; all of them keep their limits together with probability CONFIDENCE.


def _each_confidence(num: int) -> float:
    return float(CONFIDENCE ** (1.0 / max(num, 1)))


def normal_limit(num: int) -> float:
    """Limit |standard normal|.

    >>> round(normal_limit(1), 2), round(normal_limit(100), 2)
    (3.29, 4.42)
    """
    return float(ndtri(0.5 + 0.5 * _each_confidence(num)))


def student_limit(num_blocks: int, num: int = 1) -> float:
    """Limit |mean / its standard error| of so many blocks of time; infinite for fewer than two.

    >>> round(student_limit(20), 2), round(student_limit(5), 2)
    (3.88, 8.61)
    """
    return float(stdtrit(num_blocks - 1, 0.5 + 0.5 * _each_confidence(num))) if num_blocks > 1 else float("inf")


def ks_limit(count: float, num: int) -> float:
    """Limit the Kolmogorov-Smirnov distance of `count` values from their distribution."""
    return float(kolmogi(1.0 - _each_confidence(num)) / np.sqrt(count))


def variance_limits(count: float, num: int) -> tuple[float, float]:
    """Limit the mean of `count` squared standard normal numbers: quantiles of chi-square / `count`.

    >>> [round(limit, 3) for limit in variance_limits(1000, 1)]
    [0.859, 1.154]
    """
    tail = 0.5 - 0.5 * _each_confidence(num)
    return float(chdtri(count, 1.0 - tail)) / count, float(chdtri(count, tail)) / count


def coverage_limits(level: float, count: float, num: int) -> tuple[float, float]:
    """Limit the share of `count` readings inside bands of probability `level`: quantiles of the binomial distribution.

    >>> [round(limit, 3) for limit in coverage_limits(0.9, 100, 1)]
    [0.79, 0.98]
    """
    n, tail = max(int(count), 1), 0.5 - 0.5 * _each_confidence(num)
    low, high = (float(np.ceil(np.nan_to_num(bdtrik(q, n, level)))) for q in (tail, 1.0 - tail))
    return low / n, min(high, n) / n
