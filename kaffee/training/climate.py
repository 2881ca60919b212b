"""The climate of a model: the Gaussian of filtered latent states over training data, which its beliefs start from.

A first reading does not tell hidden coordinates. N(embed(x), Gamma) takes them for known, and bands are too narrow
until the filter has forgotten it; the Gaussian of training states given the reading knows what the reading tells.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kaffee.data.gaps import evenly
from kaffee.data.series import Series
from kaffee.filtering.gated import Row, Track, make_gate
from kaffee.filtering.recursion import Recursion, Step
from kaffee.filtering.sweep import sweep
from kaffee.model.statespace import Climate, StateSpaceModel

# Windows of training data that are filtered side by side, fewer for large models, whose filters cost M^3; and the
# beginning of each that does not count, in which a filter forgets what it started from.
MOST_WINDOWS, LEAST_WINDOWS, WINDOWS_TIMES_LATENTS = 64, 8, 6400
WINDOW_ROWS, SKIPPED = 512, 64
NUM_STATES = 256  # that free runs may go on from; with four times as many they are no better


def filtering_windows(series: Series, latent_dim: int) -> Float[np.ndarray, "T W D"]:
    """Cut recordings into windows for the filter of a model of this size, time first; NaN fills up short ones.

    Inputs stand after the coordinates; where a window has no row they are 0, their mean.
    """
    return _cut_windows(series, latent_dim)[0]


def _cut_windows(series: Series, latent_dim: int) -> tuple[Float[np.ndarray, "T W D"], Int[np.ndarray, " W"]]:
    """Cut windows, and tell the recording of each."""
    rows = min(WINDOW_ROWS, max(series.lengths))
    # The rest of a recording is a window of its own if it is half a window, or all that there is.
    parts = [(r, i) for r, T in enumerate(series.lengths) for i in range(0, max(T - rows // 2, 1), rows)]
    whole = [series.rows_with_inputs(r) for r in range(series.num_recordings)]
    cuts = [whole[r][i : i + rows] for r, i in parts]
    most = min(MOST_WINDOWS, max(LEAST_WINDOWS, WINDOWS_TIMES_LATENTS // latent_dim), len(cuts))
    windows = np.full((rows, most, whole[0].shape[1]), np.nan)
    windows[..., series.num_coordinates :] = 0.0
    chosen = evenly(len(cuts), most)
    for w, i in enumerate(chosen):
        windows[: len(cuts[i]), w] = cuts[i]
    return windows, np.array([parts[i][0] for i in chosen])


def _keep_moments(track: Track, row: Row, step: Step) -> tuple[Float[Array, "R M"], Float[Array, "M M"], Array]:
    """Keep filtered means, NaN where they do not count, and the sum and number of covariances over windows.

    A row counts if something was read, since in a gap the belief only widens, and if the filter did not fail.
    """
    mean, covariance = track.belief.moments()
    counts = jnp.isfinite(jnp.sum(mean, axis=1) + jnp.sum(covariance, axis=(1, 2))) & jnp.any(row.accepted, axis=1)
    total = jnp.sum(jnp.where(counts[:, None, None], covariance, 0.0), axis=0)
    return jnp.where(counts[:, None], mean, jnp.nan), total, jnp.sum(counts)


def with_climate(model: StateSpaceModel, series: Series, recursion: Recursion) -> StateSpaceModel:
    """Give a model the climate of its filter over a standardised series; none if the filter fails everywhere.

        mean = <z_t|t>,    covariance = Cov(z_t|t) + <P_t|t>

    If the model has no climate yet, a first pass starts from N(0, 1) and skips the beginning of every window; a second
    one starts from what it found.
    """
    windows, owners = _cut_windows(series, model.latent_dim)
    x = jnp.asarray(windows, model.dtype)
    names = series.group_names
    groups = jnp.asarray([names.index(series.groups[r]) for r in owners]) if model.num_groups else None
    passes = (min(SKIPPED, len(x) // 4), 0) if model.climate is None else (0,)
    if model.climate is None:
        M = model.latent_dim
        model = model.replace(climate=Climate.from_moments(np.zeros(M), np.eye(M), model.dtype))
    for skipped in passes:
        local = model if groups is None else model.select(groups)
        swept = sweep(local, recursion, x, gate=make_gate(), keep=_keep_moments)
        means, totals, counts = (np.asarray(each, np.float64)[skipped:] for each in swept.rows)
        z = means[np.isfinite(means).all(axis=2)]
        if len(z) < 2:
            return model.replace(climate=None)
        within = totals.sum(axis=0) / counts.sum()
        covariance = np.cov(z.T, ddof=0).reshape(within.shape) + within
        some = z[np.random.default_rng(0).permutation(len(z))[:NUM_STATES]]
        model = model.replace(climate=Climate.from_moments(z.mean(axis=0), covariance, model.dtype, states=some))
    return model
