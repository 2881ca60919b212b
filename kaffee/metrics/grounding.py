"""G_tan: does predicted variance grow where the true tangent dynamics say so (Eq. gtan, appendix C.4)?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from kaffee.errors import ConfigError


@dataclass(frozen=True)
class Grounding:
    """The rank correlation of predicted and oracle log-growth of variances.

    Attributes:
        pooled: Over coordinates and time, the paper's G_tan.
        within: The mean over coordinates of the correlation over time within each, which offsets between
            coordinates (a Gamma that differs between them) cannot change.
    """

    pooled: float
    within: float


TOLERANCE = 1e-10
"""What values that were computed in float64 may differ by and still be constant, in units of the largest of them."""


def spearman(a: Float[np.ndarray, " T"], b: Float[np.ndarray, " T"], *, tolerance: float = TOLERANCE) -> float:
    """Return Spearman's rank correlation; 0 if either argument is constant up to numerical precision.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 90.0]))
    1.0
    """
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    if a.shape != b.shape or a.size < 2:
        raise ConfigError(f"Two equally long series of at least 2 values are needed; got {a.size} and {b.size}.")
    for values in (a, b):
        if not np.isfinite(values).all():
            return float("nan")
        if np.ptp(values) <= tolerance * max(np.abs(values).max(), 1.0):
            return 0.0
    ranks_a, ranks_b = rankdata(a), rankdata(b)
    return float(np.clip(np.corrcoef(ranks_a, ranks_b)[0, 1], -1.0, 1.0))


def grounding(
    model_growth: Float[np.ndarray, "T N"], oracle_growth: Float[np.ndarray, "T N"], *, tolerance: float = TOLERANCE
) -> Grounding:
    """Compute G_tan from the log-growths of each coordinate's variance at each time.

    model:  log [B Sigma_{t+1|t} B']_jj - log [Omega_{t|t}]_jj
    oracle: log [J* Omega_{t|t} J*']_jj - log [Omega_{t|t}]_jj
    """
    model_growth, oracle_growth = np.asarray(model_growth), np.asarray(oracle_growth)
    each = [
        spearman(model_growth[:, j], oracle_growth[:, j], tolerance=tolerance) for j in range(model_growth.shape[1])
    ]
    return Grounding(pooled=spearman(model_growth, oracle_growth, tolerance=tolerance), within=float(np.mean(each)))


def oracle_log_growth(
    covariance: Float[np.ndarray, "T N N"], jacobian: Float[np.ndarray, "T N N"]
) -> Float[np.ndarray, "T N"]:
    """Compute log [J Omega J']_jj - log Omega_jj for every time and coordinate."""
    pushed: Any = np.einsum("tij,tjk,tik->ti", jacobian, covariance, jacobian, optimize=True)
    before = np.diagonal(covariance, axis1=1, axis2=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(pushed) - np.log(before)
