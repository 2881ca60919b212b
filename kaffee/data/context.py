"""A context: the recording from which a foundation model is asked to infer a system (appendix C.5)."""

from typing import Any

import numpy as np
from jaxtyping import Float

from kaffee.data.scaler import Scaler
from kaffee.errors import DataError

MIN_FRAMES = 3


def check_shape(shape: tuple[int, ...], num_observed: int | None = None) -> None:
    """Raise unless a context has shape (T, N) and is long enough."""
    if len(shape) != 2 or shape[1] == 0 or (num_observed is not None and shape[1] != num_observed):
        wanted = "N" if num_observed is None else num_observed
        hint = "" if num_observed is None else " For other dimensions use kaffee.zero_shot, which embeds them."
        raise DataError(f"A context has shape (T, {wanted}), one row per time step; given {shape}.{hint}")
    if shape[0] < MIN_FRAMES:
        raise DataError(f"A context needs at least {MIN_FRAMES} frames, better some hundred; given {shape[0]}.")


def check_context(context: Any, num_observed: int | None = None) -> Float[np.ndarray, "T N"]:
    """The context as a float64 array; too short, constant, gappy or ill-shaped ones are clear errors."""
    array = np.asarray(context)
    if array.dtype.kind not in "iuf":
        raise DataError(f"A context holds real numbers; given values of type {array.dtype}.")
    check_shape(array.shape, num_observed)
    array = array.astype(np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise DataError(
            f"The context has {int(bad.sum())} missing or infinite values, the first in row {row}, coordinate "
            f"{column}. A context has no gaps: interpolate it, or take a part without gaps."
        )
    constant = np.flatnonzero(np.ptp(array, axis=0) <= 1e-12 * np.abs(array).max(axis=0))
    if constant.size:
        raise DataError(
            f"Coordinate {int(constant[0])} of the context is constant ({array[0, constant[0]]:.6g}): "
            "there is nothing to reconstruct. Leave it out."
        )
    return array


def context_scaler(context: Float[np.ndarray, "T N"]) -> Scaler:
    """Mean and standard deviation (ddof 1) of a context, which is all that may be known of the system."""
    context = check_context(context)
    return Scaler(context.mean(axis=0), context.std(axis=0, ddof=1))
