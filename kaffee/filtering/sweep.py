"""One sweep of the filter over a batch of recordings, for everything that filters more than a row."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.data.series import Series
from kaffee.data.windows import padded
from kaffee.filtering.gated import Gate, Row, Track, advance, new_track
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import start_belief
from kaffee.filtering.recursion import Outcome, Recursion, Step, core_noise, decode_outcome, locate_fault
from kaffee.model.statespace import StateSpaceModel


class _Sweep(NamedTuple):
    """What `keep` returned at every row, (T, R, ...), the beliefs after the rows `starts`, and after the last row."""

    rows: Any
    beliefs: Belief
    final: Belief


def keep_row(track: Track, row: Row, step: Step) -> Row:
    """Keep the moments of a row."""
    return row


@eqx.filter_jit
def sweep(
    model: StateSpaceModel,
    recursion: Recursion,
    x: Float[Array, "T R D"],
    *,
    gate: Gate | None,
    keep: Callable[[Track, Row, Step], Any] | None = keep_row,
    starts: tuple[Int[np.ndarray, " S"], Int[np.ndarray, " S"]] | None = None,
    initial: Belief | None = None,
    noise: Float[Array, "T R K"] | None = None,
    variance: Float[Array, "T R N"] | None = None,
) -> _Sweep:
    """Filter recordings side by side; NaN is missing.

    Args:
        x: Standardised readings, time first, and after them the inputs of a model that takes any.
        gate: Which readings are believed, see `advance`; None for the bare recursion without gate and restarts.
        keep: What to keep of every row, by default its moments; the program is compiled again for each function.
        starts: Recording and row of beliefs to keep.
        variance: Of every reading, in place of Lambda; NaN, or None for all: Lambda.
        initial: The beliefs before the first row; without them the first row starts the belief, which takes a gate.
    """
    T, R, _ = x.shape
    recordings, rows = (jnp.zeros(0, jnp.int32),) * 2 if starts is None else map(jnp.asarray, starts)
    count = len(rows)
    # The slot beyond the last is that of rows whose belief is not kept: writing to it is dropped.
    slots = jnp.full((T, R), count, jnp.int32).at[rows, recordings].set(jnp.arange(count, dtype=jnp.int32))
    track = new_track(model, recursion, R)
    none_yet = jax.tree.map(lambda a: jnp.zeros((count, *a.shape[1:]), a.dtype), track.belief)
    if initial is not None:
        track = Track(initial, jnp.ones_like(track.started), track.rejections)

    def body(carry: tuple[Track, Belief], inputs: Any) -> tuple[tuple[Track, Belief], Any]:
        (track, beliefs), (readings, slot, eps, own) = carry, inputs
        track, row, step = advance(model, recursion, gate, track, readings, eps, own)
        if count:
            beliefs = jax.tree.map(lambda a, b: a.at[slot].set(b, mode="drop"), beliefs, track.belief)
        return (track, beliefs), None if keep is None else keep(track, row, step)

    (track, beliefs), kept = jax.lax.scan(body, (track, none_yet), (x, slots, noise, variance))
    return _Sweep(kept, beliefs, track.belief)


def batch_recordings(series: Series, dtype: jnp.dtype) -> Float[Array, "T R D"]:
    """Stack standardised recordings, time first, with their inputs; NaN is missing and fills up the shorter ones."""
    x, mask = padded(series, dtype)
    return jnp.swapaxes(jnp.where(mask, x, jnp.nan), 0, 1)


def split_recordings(rows: Any, lengths: Sequence[int]) -> list[Any]:
    """Cut arrays (T, R, ...) into those of each recording, (T_r, ...), in NumPy."""
    arrays = jax.tree.map(np.asarray, rows)
    return [jax.tree.map(lambda a, r=r, T=T: a[:T, r], arrays) for r, T in enumerate(lengths)]


class _Filtered(NamedTuple):
    """Moments at every step after the first row, in standardised coordinates; `_std` are marginal.

    Attributes:
        mean, std: Of the latent state given all observations up to and including this step.
        signal_std: Of its observed part B z, without observation noise.
        predicted_mean, predicted_std: Of the observation given those before it (Lambda included).
        innovations: x - B z_{t|t-1}, 0 where missing.
        nis: v' Omega^-1 v, which has as many degrees of freedom as entries were observed.
        nll: -log p(x_t | x_{<t}) of the observed entries.
    """

    mean: Float[Array, "R T M"]
    std: Float[Array, "R T M"]
    signal_std: Float[Array, "R T N"]
    predicted_mean: Float[Array, "R T N"]
    predicted_std: Float[Array, "R T N"]
    innovations: Float[Array, "R T N"]
    nis: Float[Array, "R T"]
    nll: Float[Array, "R T"]
    faults: Int[Array, "R T"]
    final: Belief

    @property
    def outcome(self) -> Outcome:
        """Whether all of it is finite; if not, what was not, and when."""
        return decode_outcome(locate_fault(self.faults.T))


@eqx.filter_jit
def run_filter(
    model: StateSpaceModel,
    x: Float[Array, "R T D"],
    mask: Bool[Array, "R T D"],
    recursion: Recursion | None = None,
    initial: Belief | None = None,
    key: Key[Array, ""] | None = None,
) -> _Filtered:
    """Run the bare recursion over a batch of standardised arrays: no gate, no restart.

    The first row starts the belief unless `initial` is given; then every row is assimilated and the results have as
    many steps as `x`. `key` draws the core's internal noise, if it has any; without one the filter is deterministic.
    """
    rows = jnp.swapaxes(jnp.where(mask, x, jnp.nan), 0, 1)
    if initial is None:
        first, seen = (model.split(each[:, 0])[0] for each in (x, mask))
        initial, rows = start_belief(model, first, seen, recursion), rows[1:]
    noise = core_noise(model.core, key, len(rows), len(x), model.dtype)
    swept = sweep(model, recursion or Recursion(), rows, gate=None, keep=_keep_residual, initial=initial, noise=noise)
    row, v = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), swept.rows)
    observed = (row.signal_std, row.reading_mean, row.reading_std, v, row.nis, row.nll, row.fault)
    return _Filtered(row.state_mean, row.state_std, *observed, swept.final)


def _keep_residual(track: Track, row: Row, step: Step) -> tuple[Row, Array]:
    return row, step.innovation.residual
