"""Are innovations white? What a filter leaves behind should not be predictable from what it left behind before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import chdtrc, ndtri

from kaffee.certification.chance import normal

NUM_LAGS = 20
MIN_PAIRS = 20
"""Fewer pairs of rows than this say nothing about a lag."""


@dataclass(frozen=True)
class Whiteness:
    """Autocorrelations of the whitened innovations, coordinate by coordinate.

    Attributes:
        lags: 1..K.
        autocorrelations: At each lag of each coordinate; NaN where there are too few pairs of rows.
        bands: Half-width of the 95 % band of white noise, likewise.
        chance: What each stays below if all is white, by its own number of pairs; all of them do with probability 99 %.
        ljung_box: Q of each coordinate, chi-square with as many degrees of freedom as it has lags if all is white.
        p_values: P(Q' > Q). With thousands of rows nearly always 0 on real data: a test of whether there is anything at
            all, not of how much.
        largest: The largest |autocorrelation|, the effect size.
        largest_lag, largest_coordinate: Where it is.
        outside: Share of autocorrelations outside their band; 0.05 if all is white.
    """

    lags: list[int]
    autocorrelations: Float[np.ndarray, "K N"]
    bands: Float[np.ndarray, "K N"]
    chance: Float[np.ndarray, "K N"]
    ljung_box: Float[np.ndarray, " N"]
    p_values: Float[np.ndarray, " N"]
    largest: float
    largest_lag: int
    largest_coordinate: int
    outside: float


def autocorrelation(
    recordings: Sequence[Float[np.ndarray, "T N"]], lag: int
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """r_k over all pairs of rows of one recording that are `lag` apart and both seen, and how many pairs there are.

        r_k = [mean over pairs (y_t - m)(y_{t+k} - m)] / [mean over rows (y_t - m)^2]

    With gaps the pairs across them count too: under the model innovations stay independent over a gap.
    """
    everything = np.concatenate(recordings)
    seen = ~np.isnan(everything)
    count = np.maximum(seen.sum(axis=0), 1)
    mean = np.where(seen, everything, 0.0).sum(axis=0) / count
    variance = np.sum(np.where(seen, everything - mean, 0.0) ** 2, axis=0) / count
    products = [(y[lag:] - mean) * (y[:-lag] - mean) for y in recordings if len(y) > lag]
    stacked = np.concatenate(products) if products else np.zeros((0, len(mean)))
    pairs = (~np.isnan(stacked)).sum(axis=0)
    usable = (pairs >= MIN_PAIRS) & (variance > 0)
    covariance = np.nansum(stacked, axis=0) / np.maximum(pairs, 1)
    return np.where(usable, covariance / np.where(usable, variance, 1.0), np.nan), pairs


def whiteness(recordings: Sequence[Float[np.ndarray, "T N"]], num_lags: int = NUM_LAGS) -> Whiteness | None:
    """Whether sequences (NaN where there is no value) are white; None if they are too short to tell.

    Q = sum_k n_k r_k^2, which is Ljung and Box's n (n + 2) r_k^2 / (n - k) up to terms of order 1 / n and holds with
    gaps, where n_k pairs are seen. The mean is taken out first: a bias is another fault, and reported as such.
    """
    found = [autocorrelation(recordings, lag) for lag in range(1, num_lags + 1)]
    r, pairs = np.array([a for a, _ in found]), np.array([n for _, n in found])
    usable = np.isfinite(r)
    if not usable.any():
        return None
    error = np.where(usable, 1.0 / np.sqrt(np.maximum(pairs, 1)), np.nan)
    bands = ndtri(0.975) * error
    Q = np.nansum((r / error) ** 2, axis=0)
    degrees = usable.sum(axis=0)
    p_values = np.where(degrees > 0, chdtrc(np.maximum(degrees, 1), Q), np.nan)
    lag, coordinate = np.unravel_index(np.nanargmax(np.abs(r)), r.shape)
    return Whiteness(
        lags=list(range(1, num_lags + 1)),
        autocorrelations=r,
        bands=bands,
        chance=normal(int(usable.sum())) * error,
        ljung_box=np.where(degrees > 0, Q, np.nan),
        p_values=p_values,
        largest=float(np.abs(r[lag, coordinate])),
        largest_lag=int(lag) + 1,
        largest_coordinate=int(coordinate),
        outside=float((np.abs(r) > bands)[usable].mean()),
    )
