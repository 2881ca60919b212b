"""The backward pass: a Rauch-Tung-Striebel smoother around the linearisations of the filter.

It goes back over the dense moments of the beliefs, whatever filter made them.
"""

from math import isqrt
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from kaffee.filtering.gated import Track, advance, choose, make_gate, new_track
from kaffee.filtering.gaussian import Belief, relative_jitter
from kaffee.filtering.recursion import Recursion, predict, scale_variance
from kaffee.model.statespace import StateSpaceModel

# Mean and standard deviation of the state z, then of the signal B z; standardised.
_Moments = tuple[
    Float[Array, "*rows R M"], Float[Array, "*rows R M"], Float[Array, "*rows R N"], Float[Array, "*rows R N"]
]


@eqx.filter_jit
def smooth_rows(
    model: StateSpaceModel,
    recursion: Recursion,
    x: Float[Array, "T R D"],
    lengths: Int[Array, " R"],
    *,
    variance: Float[Array, "T R N"] | None = None,
    covariances: bool = False,
) -> Any:
    """Compute mean and std of state z and signal B z at every row, given all readings of its recording.

    With `covariances` a fifth array is those of the state. `variance` is that of every reading, as in `sweep`.

    Beliefs are kept at the start of segments only and recomputed within each on the way back: memory O(sqrt(T) M^2)
    for twice the filter's time. Nothing flows back over a restart, nor from the rows that fill up short recordings.
    """
    # About sqrt(T) segments of equal length; missing rows fill up the last one.
    S = isqrt(len(x) - 1) + 1
    none = jnp.where(jnp.arange(x.shape[2]) < model.num_observed, jnp.nan, 0.0).astype(x.dtype)
    beyond = jnp.broadcast_to(none, (-len(x) % S, *x.shape[1:]))
    filled = jnp.concatenate([x, beyond])
    segments: Any = filled.reshape(-1, S, *x.shape[1:])
    K = len(segments)
    if variance is not None:
        own = jnp.pad(variance, ((0, -len(x) % S), (0, 0), (0, 0)), constant_values=jnp.nan)
        segments = (segments, own.reshape(*segments.shape[:3], -1))
    numbers = jnp.arange(K * S).reshape(K, S)

    def forward(track: Track, inputs: Any) -> tuple[Track, tuple[Belief, Bool[Array, " R"]]]:
        row, own = (inputs, None) if variance is None else inputs
        after, now, _ = advance(model, recursion, make_gate(), track, row, variance=own)
        return after, (track.belief.moments(), now.restarted)

    def backward(later: Belief, inputs: tuple[Belief, Array, Array, Array]) -> tuple[Belief, _Moments]:
        earlier, restarted, number, given = inputs
        row = given if variance is None else given[0]
        driven = model.replace(core=model.core.given(inputs=model.split(row)[1]))
        smoothed = smooth_back(driven, recursion, earlier, later)
        finite = jnp.isfinite(jnp.sum(smoothed.mean, axis=1) + jnp.sum(smoothed.variances(), axis=1))
        connected = ~restarted & (number < lengths) & finite
        belief = choose(connected, smoothed, earlier)
        return belief, moments(belief)

    def moments(belief: Belief) -> Any:
        return (*_moments(model, belief), belief.covariance) if covariances else _moments(model, belief)

    def start_segment(track: Track, rows: Any) -> tuple[Track, Track]:
        return lax.scan(forward, track, rows)[0], track

    def smooth_segment(later: Belief, inputs: tuple[Track, Array, Array]) -> tuple[Belief, _Moments]:
        track, rows, number = inputs
        before = lax.scan(forward, track, rows)[1]
        return lax.scan(backward, later, (*before, number, rows), reverse=True)

    end, starts = lax.scan(start_segment, new_track(model, recursion, x.shape[1]), segments)
    _, earlier = lax.scan(smooth_segment, end.belief.moments(), (starts, segments, numbers), reverse=True)
    # Going back from row t gives row t - 1; the one before the first does not exist, the last is as filtered.
    last = jax.tree.map(lambda a: a[None], moments(end.belief.moments()))
    rows = jax.tree.map(lambda a, b: jnp.concatenate([a.reshape(K * S, *a.shape[2:])[1:], b]), earlier, last)
    return jax.tree.map(lambda a: a[: x.shape[0]], rows)


def smooth_back(model: StateSpaceModel, recursion: Recursion, filtered: Belief, later: Belief) -> Belief:
    """Smooth the belief of row t by the smoothed one of row t + 1.

        G = P J' P_pred^-1,    z_s = z + G (z_s' - F(z)),    P_s = (I - G J) P (I - G J)' + G (P_s' + Gamma) G'

    Rauch, Tung and Striebel (1965); Sarkka (2013), section 9.1 for the extended filter. Their P + G (P_s' - P_pred) G'
    is the same matrix; this form stays positive semidefinite in float32, also for the G of a jittered P_pred. J is the
    Jacobian that transported the covariance forward; without transport it is the identity here as there.
    """
    z, P = filtered
    variance = model.shell.process_variance()
    predicted = predict(model.core, variance, filtered, transport=recursion.transport)
    Gamma = jax.vmap(jnp.diag)(scale_variance(model.core, variance, z))
    identity = jnp.broadcast_to(jnp.eye(z.shape[1], dtype=z.dtype), P.shape)
    J = model.core.linearise(z)[1] if recursion.transport else identity
    jitter = relative_jitter(P.dtype) * predicted.variances()
    L = lax.linalg.cholesky(predicted.covariance + jitter[:, :, None] * identity, symmetrize_input=False)
    half = lax.linalg.triangular_solve(L, J @ P, left_side=True, lower=True)
    G = lax.linalg.triangular_solve(L, half, left_side=True, lower=True, transpose_a=True).mT
    mean = z + jnp.einsum("wij,wj->wi", G, later.mean - predicted.mean)
    kept = identity - G @ J
    covariance = kept @ P @ kept.mT + G @ (later.covariance + Gamma) @ G.mT
    return Belief(mean, 0.5 * (covariance + covariance.mT))


def _moments(model: StateSpaceModel, belief: Belief) -> _Moments:
    signal_std = jnp.sqrt(belief.signal_variance(model.observation))
    return belief.mean, jnp.sqrt(belief.variances()), model.observation.observe(belief.mean), signal_std
