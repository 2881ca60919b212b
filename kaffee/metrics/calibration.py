"""Are predictive bands as wide as they should be? Coverage and normalised innovations, on plain arrays."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from kaffee.errors import ConfigError


def coverage(
    residuals: Float[np.ndarray, "..."],
    std: Float[np.ndarray, "..."],
    level: float,
    mask: Bool[np.ndarray, "..."] | None = None,
) -> float:
    """The share of residuals inside the central Gaussian interval of probability `level`; NaN without any.

    >>> coverage(np.array([0.5, -1.9, 2.1]), np.ones(3), 0.95)
    0.6666666666666666
    """
    if not 0 < level < 1:
        raise ConfigError(f"A band has a probability between 0 and 1, not {level}.")
    inside = np.abs(residuals) <= ndtri(0.5 + level / 2) * np.asarray(std)
    if mask is not None:
        inside = inside[mask]
    return float(inside.mean()) if inside.size else float("nan")


def normalised_nis(nis: Float[np.ndarray, " T"], num_observed: Float[np.ndarray, " T"] | int) -> float:
    """The mean of v' Omega^-1 v per observed entry: 1 for a calibrated filter, larger if it is overconfident.

    >>> normalised_nis(np.array([2.0, 4.0]), 3)
    1.0
    """
    total = float(np.sum(np.broadcast_to(num_observed, np.shape(nis))))
    return float(np.sum(nis)) / total if total else float("nan")
