"""How long a series remembers: its autocorrelation and decorrelation time."""

import numpy as np
from jaxtyping import Float

from kaffee.data.series import Series
from kaffee.errors import ConfigError


def autocorrelation(series: Series, max_lag: int) -> Float[np.ndarray, "L N"]:
    """rho(0), ..., rho(max_lag) of every coordinate, over all recordings and the pairs that were observed.

        rho(k) = sum_t m_t m_{t+k} y_t y_{t+k} / sum_t m_t m_{t+k}  /  the same for k = 0,   y = x - mean, m the mask

    NaN at lags for which no pair was observed, and for coordinates that do not vary.

    >>> autocorrelation(Series.from_arrays([1.0, -1.0, 1.0, -1.0]), 2)[:, 0].tolist()
    [1.0, -1.0, 1.0]
    """
    if max_lag < 0:
        raise ConfigError(f"max_lag must not be negative; got {max_lag}.")
    mean = np.nanmean(series.concatenated(), axis=0)
    products = np.zeros((max_lag + 1, series.num_coordinates))
    pairs = np.zeros_like(products)
    for values, mask in zip(series.recordings, series.mask, strict=True):
        lags = min(max_lag + 1, len(values))
        centred = np.where(mask, values - mean, 0.0)
        products[:lags] += _lagged_products(centred, lags)
        pairs[:lags] += np.round(_lagged_products(mask.astype(float), lags))
    with np.errstate(divide="ignore", invalid="ignore"):
        covariance = products / np.where(pairs > 0, pairs, np.nan)
        # What is left of a constant after its mean was taken away is rounding.
        varies = covariance[0] > 1e-24 * np.nanmax(np.abs(series.concatenated()), axis=0) ** 2
        return np.where(varies, covariance / covariance[0], np.nan)


def _lagged_products(x: Float[np.ndarray, "T N"], lags: int) -> Float[np.ndarray, "L N"]:
    """sum_t x_t x_{t+k} for k < lags."""
    spectrum = np.fft.rfft(x, n=2 * len(x), axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, n=2 * len(x), axis=0)[:lags]


def decorrelation_time(series: Series, max_lag: int = 1000) -> float:
    """Steps until the autocorrelation, averaged over coordinates, first falls below 1/e; interpolated between steps.

    At most `max_lag`, and at most a tenth of the longest recording, beyond which it cannot be estimated.

    >>> walk = np.exp(-np.arange(400) / 8.0) * np.cos(np.arange(400))
    >>> 0.5 < decorrelation_time(Series.from_arrays(walk)) < 2
    True
    """
    max_lag = max(1, min(max_lag, max(series.lengths) // 10))
    with np.errstate(invalid="ignore"):
        rho = autocorrelation(series, max_lag)
    known = ~np.isnan(rho).any(axis=0)
    if not known.any():
        return float(max_lag)
    mean = rho[:, known].mean(axis=1)
    below = np.flatnonzero(mean < np.exp(-1))
    if not below.size:
        return float(max_lag)
    k = int(below[0])
    return k - 1 + float((mean[k - 1] - np.exp(-1)) / (mean[k - 1] - mean[k]))
