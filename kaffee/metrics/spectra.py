"""D_H: distance of power spectra (appendix C.4)."""

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter1d

from kaffee.errors import ConfigError

# Models run in float32: a run that has come to rest goes on flickering in the last digits of its coordinates.
FLAT = 1e-6


def power_spectrum(x: Float[np.ndarray, "T N"], *, smoothing: float = 20.0) -> Float[np.ndarray, "F N"]:
    """Estimate power spectra: z-scored `|rfft|^2`, smoothed by a Gaussian of `smoothing` bins, of unit mass.

    A constant or non-finite coordinate has no spectrum: its column is NaN. The width is in bins, so results depend on
    the length of the series.
    """
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

    Raises:
        ConfigError: If a coordinate of the reference is constant or not finite: there is nothing to compare with.

    >>> t = np.arange(1000.0)[:, None]
    >>> d_hellinger(np.sin(t), np.sin(t + 0.3)) < 0.01
    True
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
