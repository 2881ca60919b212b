"""Scores of probabilistic forecasts, Gaussian or ensembles: NLL, CRPS, interval score, RMSE and G_tan (appendix C.4).

A diverged ensemble, one with non-finite members, has the score NaN; a reference with such values is an error.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from kaffee.errors import ConfigError

NLL_UNIT = "nats per reading, standardised units"
"""The unit of every NLL that is shown of a fitted model."""
STD_FLOOR = 1e-3
TOLERANCE = 1e-10
"""What values that were computed in float64 may differ by and still be constant, in units of the largest of them."""

# A diverged member makes the result NaN; that is an answer, not a reason for warnings.
_tolerant = np.errstate(over="ignore", invalid="ignore")


def _check(ensemble: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ensemble, reference = np.asarray(ensemble, np.float64), np.asarray(reference, np.float64)
    if ensemble.ndim < 2 or ensemble.shape[0] < 2 or ensemble.shape[1:] != reference.shape:
        raise ConfigError(
            f"An ensemble (K, ..., N) of at least two members and a reference (..., N) are needed; "
            f"got {ensemble.shape} and {reference.shape}."
        )
    if not np.isfinite(reference).all():
        raise ConfigError("The reference has non-finite values, which cannot be scored; leave those times out.")
    return ensemble, reference


def gaussian_nll(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return -log N(y; mean, std^2), entry by entry."""
    variance = std**2
    return 0.5 * (np.log(2 * np.pi * variance) + (y - mean) ** 2 / variance)


def gaussian_crps(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return the CRPS of a normal distribution (Gneiting et al. 2005): s [u (2 Phi(u) - 1) + 2 phi(u) - 1/sqrt(pi)]."""
    u = (y - mean) / std
    density = np.exp(-0.5 * u**2) / np.sqrt(2 * np.pi)
    return std * (u * (2 * ndtr(u) - 1) + 2 * density - 1 / np.sqrt(np.pi))


def gaussian_interval_score(y: np.ndarray, mean: np.ndarray, std: np.ndarray, level: float) -> np.ndarray:
    """Return the interval score (Winkler 1972) of central bands of a normal distribution, entry by entry.

        (h - l) + 2/a max(l - y, 0) + 2/a max(y - h, 0),   a = 1 - level,   l, h = mean -+ z std,   Phi(z) = 1 - a/2

    The width of a band, and 2/a times how far a reading lies outside; smaller is better.

    >>> gaussian_interval_score(np.array([0.0, 2.0]), np.zeros(2), np.ones(2), 0.9).round(3).tolist()
    [3.29, 10.393]
    """
    half_width = ndtri(0.5 + level / 2) * std
    return 2 * half_width + 2 / (1 - level) * np.maximum(np.abs(y - mean) - half_width, 0.0)


@_tolerant
def ensemble_nll(
    ensemble: Float[np.ndarray, "K ... N"], reference: Float[np.ndarray, "... N"], *, floor: float = STD_FLOOR
) -> float:
    """Score the reference by the Gaussian NLL of the ensemble's mean and sample standard deviation, per entry.

        1/N sum_j 1/2 [log(2 pi s_j^2) + (y_j - m_j)^2 / s_j^2],   s_j >= floor

    Averaged over all leading axes: for a path (H, N) this is the paper's path mean over the horizon.
    """
    ensemble, reference = _check(ensemble, reference)
    std = np.maximum(ensemble.std(axis=0, ddof=1), floor)
    return float(np.mean(gaussian_nll(reference, ensemble.mean(axis=0), std)))


@_tolerant
def ensemble_crps(ensemble: Float[np.ndarray, "K ... N"], reference: Float[np.ndarray, "... N"]) -> float:
    """Score the reference by the marginal CRPS of the ensemble, averaged over all entries.

        1/K sum_k |x_k - y| - 1/(2 K^2) sum_k sum_l |x_k - x_l|

    The double sum is computed from sorted members in O(K log K): `sum_kl |x_k - x_l| = 2 sum_k (2k - K - 1) x_(k)`.
    """
    ensemble, reference = _check(ensemble, reference)
    K = ensemble.shape[0]
    ranks = (2 * np.arange(1, K + 1) - K - 1).reshape(-1, *[1] * reference.ndim)
    spread = 2.0 * np.sum(ranks * np.sort(ensemble, axis=0), axis=0) / (2 * K**2)
    return float(np.mean(np.mean(np.abs(ensemble - reference), axis=0) - spread))


@_tolerant
def ensemble_rmse(ensemble: Float[np.ndarray, "K S N"], reference: Float[np.ndarray, "S N"]) -> float:
    """Score the ensemble mean by its RMSE, averaged over starts (Eq. rmse_10): `E_t sqrt(|xbar - x*|^2 / N)`."""
    ensemble, reference = _check(ensemble, reference)
    squares = np.mean((ensemble.mean(axis=0) - reference) ** 2, axis=-1)
    return float(np.mean(np.sqrt(squares)))


class Grounding(NamedTuple):
    """The rank correlation of predicted and oracle log-growth of variances.

    `pooled` over coordinates and time is the paper's G_tan; `within`, the mean over coordinates of that over time, is
    free of offsets between coordinates (a Gamma that differs between them).
    """

    pooled: float
    within: float


def spearman(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."], *, tolerance: float = TOLERANCE) -> float:
    """Return Spearman's rank correlation; 0 if either argument is constant up to numerical precision."""
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if a.shape != b.shape or a.size < 2:
        raise ConfigError(f"Two equally long series of at least 2 values are needed; got {a.size} and {b.size}.")
    for values in (a, b):
        if not np.isfinite(values).all():
            return float("nan")
        if np.ptp(values) <= tolerance * max(np.abs(values).max(), 1.0):
            return 0.0
    return float(np.clip(np.corrcoef(rankdata(a), rankdata(b))[0, 1], -1.0, 1.0))


def correlate_growths(
    model_growth: Float[np.ndarray, "T N"], oracle_growth: Float[np.ndarray, "T N"], *, tolerance: float = TOLERANCE
) -> Grounding:
    """Compute G_tan (Eq. gtan): does predicted variance grow where the true tangents say so?

    model:  log [B Sigma_{t+1|t} B']_jj - log [Omega_{t|t}]_jj
    oracle: log [J* Omega_{t|t} J*']_jj - log [Omega_{t|t}]_jj
    """
    each = [spearman(a, b, tolerance=tolerance) for a, b in zip(model_growth.T, oracle_growth.T, strict=True)]
    return Grounding(spearman(model_growth, oracle_growth, tolerance=tolerance), float(np.mean(each)))


def oracle_log_growth(
    covariance: Float[np.ndarray, "T N N"], jacobian: Float[np.ndarray, "T N N"]
) -> Float[np.ndarray, "T N"]:
    """Compute log [J Omega J']_jj - log Omega_jj for every time and coordinate."""
    pushed: Any = np.einsum("tij,tjk,tik->ti", jacobian, covariance, jacobian, optimize=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(pushed) - np.log(np.diagonal(covariance, axis1=1, axis2=2))
