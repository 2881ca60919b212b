"""How much process noise makes bands of forecasts cover what they should: measured inside the context.

White noise as large as the errors of single steps is too little for many steps, since errors of a map are alike along
a trajectory, and too much where the smoother's noise is meant for readings. So pieces of the context are left out of
the map, forecast from their own states, and the noise is scaled until its bands cover the errors:

    P_h = A_h + f^2 B_h,    |x_{t+h} - z_h| <= 1.645 P_h^1/2  in 90 % of cases

A_h is what the start's uncertainty has become after h steps (and that of the state it is compared with), B_h what the
process noise has added; both are carried along by the map's tangents (`Core.predict_moments`).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.filtering.recursion import scale_variance
from kaffee.foundation.denoising import LEAST_STD, Pairs
from kaffee.model.kernel import KernelMap

FOLDS = 8
"""Pieces of the context, of which each is left out once."""
STARTS = 8
"""Forecasts of each piece."""
STEPS = 120
"""Longest forecast; of short contexts a shorter one."""
FEWEST_PAIRS = 64
"""Below this nothing is left out: factors of so few forecasts are chance."""
COVERED, QUANTILE = 0.9, 1.6449
FACTORS = tuple(np.geomspace(0.25, 32.0, 29))
"""Factors of the standard deviation that are tried."""


def choose_factor(
    learn: Callable[[Any], KernelMap | None],
    pairs: Pairs,
    states: list[Float[np.ndarray, "T N"]],
    variances: list[Float[np.ndarray, "T N"]],
    process: Float[np.ndarray, " M"],
) -> float | None:
    """Find the least factor of the process noise with which forecasts of left-out pieces are covered; None: unknown.

    Args:
        learn: Learns a core without the pairs at some places; None if it cannot.
        states, variances: Of the smoothed readings.
        process: Standard deviations of the process noise in a register.
    """
    P = len(pairs.features)
    if P < FEWEST_PAIRS:
        return None
    steps = min(STEPS, P // (2 * FOLDS))
    pieces = np.array_split(np.arange(P), FOLDS)
    errors, start, noise = [], [], []
    for piece in pieces:
        chosen = _starts(pairs, piece, steps)
        core = learn(piece) if len(chosen) else None
        if core is None:
            continue
        r, t = pairs.recording[chosen], pairs.row[chosen]
        begin, doubt = (
            jnp.asarray(_registers(values, r, t, core.lags[-1]), jnp.float32) for values in (states, variances)
        )
        parts = _propagate(core, begin, doubt, jnp.asarray(process**2, jnp.float32), steps)
        mean, from_start, from_noise = (np.asarray(part, np.float64).swapaxes(0, 1) for part in parts)
        ahead = t[:, None] + np.arange(1, steps + 1)
        truth = np.stack([states[i][rows] for i, rows in zip(r, ahead, strict=True)])
        compared = np.stack([variances[i][rows] for i, rows in zip(r, ahead, strict=True)])
        errors.append(truth - mean)
        start.append(compared + from_start)
        noise.append(from_noise)
    if not errors:
        return None
    e, A, B = (np.concatenate(a)[:, _horizons(steps)] for a in (errors, start, noise))
    # What overflows covers everything; rounding can make a small variance negative.
    A, B = (np.maximum(np.nan_to_num(a, nan=np.inf), 0.0) for a in (A, B))
    for factor in FACTORS:
        if np.mean(np.abs(e) <= QUANTILE * np.sqrt(A + factor**2 * B + LEAST_STD**2)) >= COVERED:
            return float(factor)
    return float(FACTORS[-1])


def _horizons(steps: int) -> Any:
    """Choose steps ahead, about evenly in their logarithm, without the first ones: these are the smoother's."""
    return np.unique(np.geomspace(min(3, steps), steps, 5).round().astype(int)) - 1


def _starts(pairs: Pairs, piece: Any, steps: int) -> Any:
    """Choose pairs of a piece after which `steps` more rows are in the same recording and usable."""
    last = np.minimum(piece + steps - 1, len(pairs.row) - 1)
    whole = (pairs.recording[last] == pairs.recording[piece]) & (pairs.row[last] - pairs.row[piece] == steps - 1)
    # Forecasts begin inside the piece; most of them end there, too.
    good = piece[whole & (piece + steps <= piece[-1] + 1 + steps // 2)]
    return good[np.unique(np.linspace(0, len(good) - 1, STARTS).round().astype(int))] if len(good) else good


def _registers(values: list[np.ndarray], recording: Any, row: Any, longest: int) -> Float[np.ndarray, "W M"]:
    """Stack the rows up to this one, newest first."""
    past = np.arange(longest + 1)
    return np.stack([values[r][t - past].ravel() for r, t in zip(recording, row, strict=True)])


@eqx.filter_jit
def _propagate(
    core: KernelMap, z: Float[Array, "W M"], variance: Float[Array, "W M"], process: Float[Array, " M"], steps: int
) -> tuple[Array, Array, Array]:
    """Forecast means, and the variances that come from the start and from process noise, each (H, W, N)."""
    W, N = z.shape[0], core.num_observed
    # Both parts in one batch: with the start's covariance and no noise, and the other way round.
    both = jnp.concatenate([z, z])
    first = jax.vmap(jnp.diag)(jnp.concatenate([variance, jnp.zeros_like(variance)]))
    shaken = jnp.repeat(jnp.array([0.0, 1.0], z.dtype), W)[:, None]

    def body(belief: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        mean, covariance = belief
        Gamma = shaken * scale_variance(core, process, mean)
        mean, covariance = core.predict_moments(mean, covariance)
        covariance = covariance + jax.vmap(jnp.diag)(Gamma)
        return (mean, covariance), (mean[:W, :N], jnp.diagonal(covariance, axis1=1, axis2=2)[:, :N])

    _, (means, variances) = jax.lax.scan(body, (both, first), length=steps)
    return means, variances[:, :W], variances[:, W:]
