"""One filter pass over held-out recordings, from which every local check takes what it needs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kaffee.checkpoint import Reconstruction
from kaffee.checks import filter_of
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.gaussian import Belief, innovate
from kaffee.inference.passes import time_first
from kaffee.inference.tracking import Row, Track, advance, before_the_first_row, open_gate
from kaffee.recursion import Recursion, predict
from kaffee.ssm import StateSpaceModel

WARM_UP = 20
"""Rows in which a filter forgets how its first row anchored it, and which are not scored."""


class Starts(NamedTuple):
    """Rows of a series from which forecasts start: the recording of each, and the row in it."""

    recordings: Int[np.ndarray, " S"]
    rows: Int[np.ndarray, " S"]

    def ahead(self, recordings: tuple[Float[np.ndarray, "T N"], ...], steps: int) -> Float[np.ndarray, "S N"]:
        """The row `steps` after each start; NaN beyond the end of its recording."""
        found = np.full((len(self.rows), recordings[0].shape[1]), np.nan)
        for r, values in enumerate(recordings):
            mine = (self.recordings == r) & (self.rows + steps < len(values))
            found[mine] = values[self.rows[mine] + steps]
        return found


@dataclass(frozen=True)
class FilterPass:
    """A model's filter over a series, in standardised coordinates.

    Attributes:
        reconstruction: Whose filter.
        series: In data units, with the model's columns.
        standard: Its recordings in standardised units, NaN where missing.
        rows: What the filter gave at every row of each recording.
        whitened: y = L^-1 v of the seen entries, Omega = L L' (see `kaffee.gaussian`); NaN where nothing is scored.
        starts: Where beliefs were kept.
        beliefs: Filtered, at those rows.
        warm_up: Rows of each recording that are not scored.
    """

    reconstruction: Reconstruction
    series: Series
    standard: tuple[Float[np.ndarray, "T N"], ...]
    rows: tuple[Row, ...]
    whitened: tuple[Float[np.ndarray, "T N"], ...]
    starts: Starts
    beliefs: Belief
    warm_up: int

    @property
    def recursion(self) -> Recursion:
        """The filter's switches."""
        return filter_of(self.reconstruction)

    def scored(self) -> tuple[Bool[np.ndarray, "T N"], ...]:
        """For every recording, the entries that were predicted and read, after the warm-up."""
        found = []
        for row in self.rows:
            mask = np.asarray(row.accepted) & ~np.asarray(row.restarted)[:, None]
            mask[: self.warm_up] = False
            found.append(mask)
        return tuple(found)


def warm_up_of(series: Series) -> int:
    """`WARM_UP`, or a quarter of the longest recording if that is less; at least the row that anchors."""
    return max(1, min(WARM_UP, max(series.lengths) // 4))


def choose_starts(series: Series, count: int) -> Starts:
    """Up to `count` evenly spaced rows after the warm-up that have a row after them."""
    warm_up = warm_up_of(series)
    pairs = [(r, t) for r, length in enumerate(series.lengths) for t in range(warm_up, length - 1)]
    if not pairs:
        raise DataError(
            f"{series.label}: the longest recording has {max(series.lengths)} rows; a forecast needs one row after "
            f"{warm_up} to start from. Hold out more."
        )
    chosen = np.unique(np.linspace(0, len(pairs) - 1, min(count, len(pairs))).round().astype(int))
    table = np.array(pairs)[chosen]
    return Starts(table[:, 0], table[:, 1])


@eqx.filter_jit
def _sweep(
    model: StateSpaceModel, recursion: Recursion, x: Float[Array, "T R N"], slots: Int[Array, "T R"], kept: Belief
) -> tuple[Row, Float[Array, "T R N"], Belief]:
    Gamma, Lambda = model.shell.process_variance(), model.shell.observation_variance()

    def body(carry: tuple[Track, Belief], now: tuple[Array, Array]) -> tuple[tuple[Track, Belief], tuple[Row, Array]]:
        (track, kept), (x, slot) = carry, now
        after, row = advance(model, recursion, open_gate(), track, x)
        # As inside `advance`; the compiler sees both and computes one.
        predicted = predict(model.core, Gamma, track.belief, transport=recursion.transport)
        clean = jnp.where(row.accepted, x, 0.0)
        whitened = innovate(predicted, clean, row.accepted, model.observation, Lambda).whitened
        whitened = jnp.where(row.accepted & ~row.restarted[:, None], whitened, jnp.nan)
        # A slot beyond the last is not a start, and dropped.
        kept = jax.tree.map(lambda a, b: a.at[slot].set(b, mode="drop"), kept, after.belief)
        return (after, kept), (row, whitened)

    start = before_the_first_row(model, x.shape[1])
    (_, kept), (rows, whitened) = jax.lax.scan(body, (start, kept), (x, slots))
    return rows, whitened, kept


def filter_pass(reconstruction: Reconstruction, series: Series, starts: Starts) -> FilterPass:
    """Filter a series whose columns are the model's, and keep the beliefs at `starts`.

    Where only part of a row was read, the part is whitened by the Cholesky factor of its own block of Omega: under the
    model these numbers are independent and standard normal for every pattern of gaps, which v_i / sqrt(Omega_ii) are
    not.
    """
    model = reconstruction.model
    standard = series.standardised(reconstruction.scaler)
    x = time_first(standard, model.dtype)
    count, M = len(starts.rows), model.latent_dim
    slots = np.full(x.shape[:2], count)
    slots[starts.rows, starts.recordings] = np.arange(count)
    kept = Belief(jnp.zeros((count, M), model.dtype), jnp.zeros((count, M, M), model.dtype))
    rows, whitened, beliefs = _sweep(model, filter_of(reconstruction), x, jnp.asarray(slots, jnp.int32), kept)
    found: Any = jax.tree.map(np.asarray, (rows, whitened))
    each = [jax.tree.map(lambda a, r=r, T=T: a[:T, r], found) for r, T in enumerate(series.lengths)]
    return FilterPass(
        reconstruction=reconstruction,
        series=series,
        standard=standard.recordings,
        rows=tuple(row for row, _ in each),
        whitened=tuple(np.asarray(y, np.float64) for _, y in each),
        starts=starts,
        beliefs=beliefs,
        warm_up=warm_up_of(series),
    )
