"""Autocorrelation of recordings with gaps, and the time after which they are decorrelated."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from kaffee.errors import ConfigError


def autocorrelation(
    recordings: Sequence[Float[np.ndarray, "T N"]], max_lag: int, *, biased: bool = False
) -> Float[np.ndarray, "L N"]:
    """Estimate rho(0), ..., rho(max_lag) of every coordinate from all recordings; NaN is a missing value.

        rho(k) = c(k) / c(0),   c(k) = sum_t m_t m_{t+k} y_t y_{t+k} / sum_t m_t m_{t+k},   y = x - mean, m the mask

    The mean is that of all recordings. NaN at lags for which no pair of values was observed, and for coordinates that
    do not vary.

    Args:
        recordings: Arrays (T_i, N).
        max_lag: The largest lag, in steps.
        biased: Do not divide by the numbers of pairs. Without gaps this damps large lags by 1 - k / T, and rho is
            positive definite.

    >>> autocorrelation([np.array([[1.0], [-1.0], [1.0], [-1.0]])], 2)[:, 0].tolist()
    [1.0, -1.0, 1.0]
    """
    pairs = count_pairs(recordings, max_lag)
    rows = np.concatenate(recordings)
    mean = np.nansum(rows, axis=0) / np.maximum(pairs[0], 1)
    products = np.zeros(pairs.shape)
    for values in recordings:
        lags = min(max_lag + 1, len(values))
        products[:lags] += _sum_lagged_products(np.where(np.isnan(values), 0.0, values - mean), lags)
    covariance = np.where(pairs > 0, products / (1 if biased else np.maximum(pairs, 1)), np.nan)
    # What is left of a constant after its mean was subtracted is rounding.
    largest = np.fmax.reduce(np.abs(rows), axis=0)
    varies = covariance[0] > 1e-24 * largest**2 * (pairs[0] if biased else 1)
    return np.where(varies, covariance / np.where(varies, covariance[0], 1.0), np.nan)


def count_pairs(recordings: Sequence[Float[np.ndarray, "T N"]], max_lag: int) -> Int[np.ndarray, "L N"]:
    """Count the pairs of observed values 0, ..., max_lag steps apart within a recording, for every coordinate.

    >>> count_pairs([np.array([[1.0], [np.nan], [3.0]])], 2)[:, 0].tolist()
    [2, 0, 1]
    """
    if max_lag < 0:
        raise ConfigError(f"max_lag must not be negative; got {max_lag}.")
    pairs = np.zeros((max_lag + 1, recordings[0].shape[1]))
    for values in recordings:
        lags = min(max_lag + 1, len(values))
        pairs[:lags] += _sum_lagged_products((~np.isnan(values)).astype(float), lags)
    return np.round(pairs).astype(np.int64)


def _sum_lagged_products(x: Float[np.ndarray, "T N"], lags: int) -> Float[np.ndarray, "L N"]:
    """Compute sum_t x_t x_{t+k} for k < lags by FFT."""
    spectrum = np.fft.rfft(x, n=2 * len(x), axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, n=2 * len(x), axis=0)[:lags]


def decorrelation_time(recordings: Sequence[Float[np.ndarray, "T N"]], max_lag: int = 1000) -> float:
    """Estimate the steps until the autocorrelation, averaged over coordinates, first falls below 1/e.

    Interpolated between steps; at most `max_lag`, and at most a tenth of the longest recording, beyond which it cannot
    be estimated. Coordinates that do not vary are left out.

    >>> walk = np.exp(-np.arange(400) / 8.0) * np.cos(np.arange(400))
    >>> 0.5 < decorrelation_time([walk[:, None]]) < 2
    True
    """
    max_lag = max(1, min(max_lag, max(map(len, recordings)) // 10))
    rho = autocorrelation(recordings, max_lag)
    known = ~np.isnan(rho).any(axis=0)
    mean = rho[:, known].mean(axis=1) if known.any() else np.ones(1)
    below = np.flatnonzero(mean < np.exp(-1))
    if not below.size:
        return float(max_lag)
    k = int(below[0])
    return k - 1 + float((mean[k - 1] - np.exp(-1)) / (mean[k - 1] - mean[k]))
