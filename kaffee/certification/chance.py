"""What chance alone does to a right model: limits that grow as readings get fewer.

Under a right model innovations of different rows are independent, whatever the dynamics. If several numbers are judged
at once, such as one for each coordinate, all stay within their limits with probability `CONFIDENCE`.
"""

import numpy as np
from scipy.special import bdtrik, chdtri, kolmogi, ndtri

CONFIDENCE = 0.99


def share(num: int) -> float:
    """The probability with which each of `num` independent numbers keeps its limits, so that all of them do."""
    return float(CONFIDENCE ** (1.0 / max(num, 1)))


def normal(num: int) -> float:
    """The limit of |standard normal|.

    >>> round(normal(1), 2), round(normal(100), 2)
    (2.58, 3.89)
    """
    return float(ndtri(0.5 + 0.5 * share(num)))


def ks_limit(count: float, num: int) -> float:
    """Of the Kolmogorov-Smirnov distance of `count` values from their distribution."""
    return float(kolmogi(1.0 - share(num)) / np.sqrt(count))


def variance_limits(count: float, num: int) -> tuple[float, float]:
    """Of the mean of `count` squares of standard normal numbers: quantiles of chi-square / `count`.

    >>> [round(limit, 3) for limit in variance_limits(1000, 1)]
    [0.889, 1.119]
    """
    tail = 0.5 - 0.5 * share(num)
    return float(chdtri(count, 1.0 - tail)) / count, float(chdtri(count, tail)) / count


def coverage_limits(level: float, count: float, num: int) -> tuple[float, float]:
    """Of the share of `count` readings inside bands of probability `level`: quantiles of the binomial distribution.

    >>> [round(limit, 3) for limit in coverage_limits(0.9, 100, 1)]
    [0.82, 0.97]
    """
    n, tail = max(int(count), 1), 0.5 - 0.5 * share(num)
    low, high = (float(np.ceil(np.nan_to_num(bdtrik(q, n, level)))) for q in (tail, 1.0 - tail))
    return low / n, min(high, n) / n
