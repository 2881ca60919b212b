"""Autocorrelation of recordings with gaps, power spectra, and D_H, the distance of two spectra (appendix C.4)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from kaffee.errors import ConfigError

Recordings = Sequence[Float[np.ndarray, "T N"]]
# Models run in float32: a run that has come to rest goes on flickering in the last digits of its coordinates.
FLAT = 1e-6


def autocorrelation(recordings: Recordings, max_lag: int) -> Float[np.ndarray, "L N"]:
    """Estimate rho(0), ..., rho(max_lag) of every coordinate from all recordings; NaN is a missing value.

        rho(k) = c(k) / c(0),   c(k) = sum_t m_t m_{t+k} y_t y_{t+k} / sum_t m_t m_{t+k},   y = x - mean, m the mask

    The mean is that of all recordings. NaN at lags for which no pair of values was observed, and for coordinates that
    do not vary.
    """
    pairs = count_pairs(recordings, max_lag)
    rows = np.concatenate(recordings)
    mean = np.nansum(rows, axis=0) / np.maximum(pairs[0], 1)
    products = np.zeros(pairs.shape)
    for values in recordings:
        lags = min(max_lag + 1, len(values))
        products[:lags] += _sum_lagged_products(np.where(np.isnan(values), 0.0, values - mean), lags)
    covariance = np.where(pairs > 0, products / np.maximum(pairs, 1), np.nan)
    # What is left of a constant after its mean was subtracted is rounding.
    varies = covariance[0] > 1e-24 * np.fmax.reduce(np.abs(rows), axis=0) ** 2
    return np.where(varies, covariance / np.where(varies, covariance[0], 1.0), np.nan)


def count_pairs(recordings: Recordings, max_lag: int) -> Int[np.ndarray, "L N"]:
    """Count the pairs of observed values 0, ..., max_lag steps apart within a recording, for every coordinate."""
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


def decorrelation_time(recordings: Recordings, max_lag: int = 1000) -> float:
    """Estimate the steps until the autocorrelation, averaged over coordinates, first falls below 1/e.

    Interpolated between steps; at most `max_lag`, and at most a tenth of the longest recording, beyond which it cannot
    be estimated. Coordinates that do not vary are left out.
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


def power_spectrum(x: Float[np.ndarray, "T N"], *, smoothing: float = 20.0) -> Float[np.ndarray, "F N"]:
    """Estimate power spectra: z-scored `|rfft|^2`, smoothed by a Gaussian of `smoothing` bins, of unit mass.

    A constant or non-finite coordinate has no spectrum: its column is NaN. The width is in bins, so results depend on
    the length of the series.
    """
    from scipy.ndimage import gaussian_filter1d  # slow to import, and every series imports this module

    x = np.asarray(x, np.float64)
    if x.ndim != 2 or len(x) < 4:
        raise ConfigError(f"A trajectory (T, N) of at least 4 steps is needed; got shape {x.shape}.")
    with np.errstate(all="ignore"):
        std = x.std(axis=0)
        valid = np.isfinite(std) & (std > 1e-12 * np.abs(x).max(axis=0))
    safe = np.where(valid, x, 0.0)
    scaled = (safe - safe.mean(axis=0)) / np.where(valid, std, 1.0)
    power = gaussian_filter1d(np.abs(np.fft.rfft(scaled, axis=0)) ** 2, smoothing, axis=0)
    with np.errstate(all="ignore"):
        return np.where(valid, power / power.sum(axis=0), np.nan)


def d_hellinger(
    reference: Float[np.ndarray, "T N"], generated: Float[np.ndarray, "T N"], *, smoothing: float = 20.0
) -> float:
    """Return D_H, the mean over coordinates of sqrt(1 - sum_w sqrt(p_j(w) q_j(w))), between 0 (equal) and 1.

    Both series are cut to the shorter length. A generated coordinate that is constant (up to the rounding of float32,
    in units of the reference's spread) or non-finite counts as 1.
    """
    if np.ndim(reference) != 2 or np.ndim(generated) != 2 or np.shape(reference)[1] != np.shape(generated)[1]:
        raise ConfigError(
            f"Two trajectories (T, N) with the same N are needed; got {np.shape(reference)} and {np.shape(generated)}."
        )
    length = min(len(reference), len(generated))
    reference, generated = (np.asarray(x[:length], np.float64) for x in (reference, generated))
    p, q = (power_spectrum(x, smoothing=smoothing) for x in (reference, generated))
    if np.isnan(p).any():
        raise ConfigError("A coordinate of the reference is constant or non-finite: it has no power spectrum.")
    with np.errstate(all="ignore"):
        away = (generated - reference.mean(axis=0)) / reference.std(axis=0)
        flat = away.std(axis=0) <= FLAT * np.maximum(np.abs(away).max(axis=0), 1.0)
    overlap = np.clip(np.sum(np.sqrt(p * q), axis=0), 0.0, 1.0)
    return float(np.mean(np.where(np.isnan(overlap) | flat, 1.0, np.sqrt(1.0 - overlap))))
