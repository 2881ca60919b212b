"""How far a median over seeds can be trusted."""

import numpy as np
from numpy.typing import ArrayLike


def bootstrap_band(
    values: ArrayLike, *, level: float = 0.95, num_resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a median (the bands of the forecast-skill spectrum, appendix D.1).

        values*_b = S draws from the S values with replacement,    b = 1..num_resamples
        band      = the (1 -/+ level)/2 quantiles of median(values*_b)

    >>> bootstrap_band([1.0, 2.0, 3.0, 4.0, 5.0])
    (1.0, 5.0)

    Args:
        values: One finite number for each seed.
        level: Coverage that is aimed at; few seeds reach less.
        seed: Of the resampling, so that a figure can be drawn twice.

    Raises:
        ValueError: There are no values, or some are not finite.
    """
    given = np.asarray(values, np.float64)
    if given.ndim != 1 or not given.size or not np.isfinite(given).all():
        raise ValueError(f"A band needs one finite value for each seed; given {given.tolist()}.")
    if not 0 < level < 1:
        raise ValueError(f"A band needs a level between 0 and 1; given {level}.")
    drawn = np.random.default_rng(seed).integers(0, given.size, (num_resamples, given.size))
    low, high = np.quantile(np.median(given[drawn], axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
