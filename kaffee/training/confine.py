"""Bounded rollouts: the box of filtered training states around a trained core."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.cores import Confined
from kaffee.data.series import Series
from kaffee.filtering import run_filter
from kaffee.recursion import Recursion
from kaffee.ssm import StateSpaceModel
from kaffee.training.sampling import training_windows

NUM_WINDOWS = 64
WINDOW_ROWS = 256


def state_range(
    model: StateSpaceModel, series: Series, recursion: Recursion, *, seed: int = 0
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Lowest and highest filtered mean of every latent coordinate over windows of a standardised series.

    Steps at which the filter fails do not count; a coordinate without any other is unbounded.
    """
    sampler = training_windows(series, min(WINDOW_ROWS, max(series.lengths)), model.dtype)
    batch = sampler.sample(jax.random.key(seed), NUM_WINDOWS)
    means = np.asarray(run_filter(model.exact(), batch.observations, batch.mask, recursion).mean)
    means = means.reshape(-1, means.shape[-1])
    finite = np.isfinite(means)
    known = finite.any(axis=0)
    low = np.where(known, np.where(finite, means, np.inf).min(axis=0), -np.inf)
    high = np.where(known, np.where(finite, means, -np.inf).max(axis=0), np.inf)
    return low, high


def confined(model: StateSpaceModel, series: Series, recursion: Recursion, *, margin: float = 0.25) -> StateSpaceModel:
    """The model with its core confined to the range of filtered states, widened by `margin` of it on both sides."""
    low, high = state_range(model, series, recursion)
    with np.errstate(invalid="ignore"):
        width = np.where(np.isfinite(high - low), margin * (high - low), 0.0)
    core = model.core.inner if isinstance(model.core, Confined) else model.core
    box = (jnp.asarray(edge, model.dtype) for edge in (low - width, high + width))
    return model.replace(core=Confined(core, *box))
