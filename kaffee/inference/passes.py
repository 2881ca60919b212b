"""Sweeps over a batch of recordings: forward for every row, forward to one row of each."""

from math import isqrt

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kaffee.data.series import Series
from kaffee.gaussian import Belief
from kaffee.inference.tracking import Gate, Row, Track, advance, before_the_first_row, choose, open_gate
from kaffee.recursion import Recursion
from kaffee.ssm import StateSpaceModel
from kaffee.training.sampling import padded


def time_first(series: Series, dtype: jnp.dtype) -> Float[Array, "T R N"]:
    """Standardised recordings as one batch; NaN is missing and fills up the shorter ones."""
    x, mask = padded(series, dtype)
    return jnp.swapaxes(jnp.where(mask, x, jnp.nan), 0, 1)


@eqx.filter_jit
def filter_rows(model: StateSpaceModel, recursion: Recursion, gate: Gate, x: Float[Array, "T R N"]) -> Row:
    """Every row of every recording, as arrays (T, R, ...)."""

    def body(track: Track, row: Array) -> tuple[Track, Row]:
        return advance(model, recursion, gate, track, row)

    return jax.lax.scan(body, before_the_first_row(model, x.shape[1]), x)[1]


@eqx.filter_jit
def belief_at(model: StateSpaceModel, recursion: Recursion, x: Float[Array, "T R N"], rows: Int[Array, " R"]) -> Belief:
    """The belief of every recording after its own row."""

    def body(t: Array, carry: tuple[Track, Belief]) -> tuple[Track, Belief]:
        track, kept = carry
        track, _ = advance(model, recursion, open_gate(), track, x[t])
        return track, jax.tree.map(lambda a, b: choose(t == rows, a, b), track.belief, kept)

    start = before_the_first_row(model, x.shape[1])
    return jax.lax.fori_loop(0, x.shape[0], body, (start, start.belief))[1]


def in_segments(x: Float[Array, "T R N"]) -> Float[Array, "K S R N"]:
    """About sqrt(T) segments of equal length; missing rows fill up the last one."""
    T = x.shape[0]
    S = isqrt(T - 1) + 1
    K = -(-T // S)
    filled = jnp.pad(x, ((0, K * S - T), (0, 0), (0, 0)), constant_values=np.nan)
    return filled.reshape(K, S, *x.shape[1:])
