"""Filtering recordings with a trained model: beliefs, predictions and likelihood at every step."""

from math import isqrt
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.data.series import Series
from kaffee.data.windows import padded
from kaffee.filtering.gated import Gate, Row, Track, advance, before_the_first_row, choose, open_gate
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import dynamics_of, initial_belief
from kaffee.filtering.recursion import Outcome, Recursion, core_noise, locate_fault, observations_of, outcome_of, step
from kaffee.model.statespace import StateSpaceModel


class Filtered(NamedTuple):
    """Moments at every step after the first row, in standardised coordinates; `_std` are marginal.

    Attributes:
        mean, std: Of the latent state given all observations up to and including this step.
        signal_std: Of its observed part B z, without observation noise.
        predicted_mean, predicted_std: Of the observation given those before it (Lambda included).
        innovations: x - B z_{t|t-1}, 0 where missing.
        nis: v' Omega^-1 v, which has as many degrees of freedom as entries were observed.
        nll: -log p(x_t | x_{<t}) of the observed entries.
        faults: Indices in `recursion.QUANTITIES`.
        final: The last belief, to go on from.
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
        return outcome_of(locate_fault(self.faults.T))


def _marginal_variance(covariance: Float[Array, "R K K"]) -> Float[Array, "R K"]:
    # Rounding may leave a variance that is zero in exact arithmetic a hair below.
    return jnp.maximum(jnp.diagonal(covariance, axis1=-2, axis2=-1), 0.0)


@eqx.filter_jit
def run_filter(
    model: StateSpaceModel,
    x: Float[Array, "R T N"],
    mask: Bool[Array, "R T N"],
    recursion: Recursion | None = None,
    initial: Belief | None = None,
    key: Key[Array, ""] | None = None,
) -> Filtered:
    """Filter a batch of recordings; the first row anchors the belief unless `initial` is given.

    With `initial` every row is assimilated and the results have as many steps as `x`. `key` draws the core's internal
    noise, if it has any; without one the filter is deterministic.
    """
    recursion = recursion or Recursion()
    if initial is None:
        start = model.embed(jnp.where(mask[:, 0], x[:, 0], 0.0))
        initial, x, mask = initial_belief(model, start, anchored=mask[:, 0]), x[:, 1:], mask[:, 1:]
    noise = core_noise(model.core, key, x.shape[1], x.shape[0], model.dtype)
    observations = observations_of(x, mask, model.observation, noise)
    dynamics = dynamics_of(model, initial)
    observation_noise = dynamics.observation_variance

    def observed(covariance: Float[Array, "R M M"]) -> Float[Array, "R N N"]:
        return model.observation.columns(model.observation.rows(covariance))

    def body(belief: Belief, inputs: tuple[Array, Array, Array | None]) -> tuple[Belief, dict[str, Array]]:
        now = step(recursion, dynamics, model.observation, belief, *inputs)
        return now.filtered, {
            "mean": now.filtered.mean,
            "std": jnp.sqrt(_marginal_variance(now.filtered.covariance)),
            "signal_std": jnp.sqrt(_marginal_variance(observed(now.filtered.covariance))),
            "predicted_mean": model.observation.observe(now.predicted.mean),
            "predicted_std": jnp.sqrt(_marginal_variance(observed(now.predicted.covariance)) + observation_noise),
            "innovations": now.innovation.residual,
            "nis": jnp.sum(now.innovation.whitened**2, axis=-1),
            "nll": now.innovation.nll,
            "faults": now.fault,
        }

    final, kept = jax.lax.scan(body, initial, (observations.x, observations.mask, observations.noise))
    recordings_first = {name: jnp.swapaxes(kept[name], 0, 1) for name in kept}
    return Filtered(**recordings_first, final=final)


# Sweeps over a batch of recordings: forward for every row, forward to one row of each.


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
