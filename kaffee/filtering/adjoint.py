"""The hand-derived adjoint of the recursion: the default gradient of every objective.

Reverse step for one window, bars are cotangents, Pb symmetric, w the cotangent of this step's NLL, u = S^-1 v:

    z-bar  = A' zb - w B'u                                               A = I - K B
    P-bar  = A' Pb A + sym(A' zb (B'u)') + (w/2) B'(S^-1 - u u')B
    R-bar  = K' Pb K - sym(K' zb u') + (w/2)(S^-1 - u u')
    Gamma-bar = P-bar,   then through the prediction (`Core.pull_back_moments`): T = P-bar J, Pb_prev = J'T, ...

dP+ with respect to P- is A dP A' because the gain's own variation cancels at the optimal gain. A differs from the
identity only in what B sees, so all of this is O(M^2 N); the only M^3 products are those of the core: two forward,
three backward. Without assimilation K = 0. The jitter, c S_jj on the diagonal, is differentiated too.

Where the map trains, with S-bar the total cotangent of S (R-bar, and c of its diagonal on the diagonal),

    v-bar  = K' zb + w u,    b-bar = -v-bar,    B-bar = (u zb' - 2 K' Pb + 2 S-bar B) P - v-bar z'

A tall map is all of this in K dimensions; what it was compressed by (`kaffee.filtering.gaussian.compress`) is a
function of B, b and R alone, through which v~-bar and B~-bar go on to them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.filtering.gaussian import Belief, Innovation, Readings, Seen, any_seen, compress, is_tall, relative_jitter
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, Terms, choose_variance, scan_terms, step
from kaffee.model.observation import LinearObservation, ObservationMap

# What the reverse pass needs of every step: the belief before it, the innovation, and where the map needs it the
# prediction.
_Residuals = tuple[Belief, Innovation, Belief | None]
_Weights = Float[Array, " W"]


class _UpdateBar(NamedTuple):
    """Cotangents of an update per window: predicted belief, observation variances, and B and v where they are asked."""

    predicted: Belief
    variance: Readings
    B: Float[Array, "W N K"] | None = None
    residual: Readings | None = None


def _pull_back_update(
    switches: Recursion,
    innovation: Innovation,
    present: Readings,
    B: ObservationMap,
    weight: _Weights,
    filtered_bar: Belief,
    predicted: Belief | None,
) -> _UpdateBar:
    """Compute cotangents of the predicted belief and of the observation variances, and with `predicted` of B and v."""
    zb, Pb = filtered_bar
    Li, y = innovation.inverse_factor, innovation.normalised
    S_inv, u = Li.mT @ Li, jnp.einsum("bnm,bn->bm", Li, y)
    w = weight[:, None, None]
    scored = 0.5 * w * (S_inv - u[:, :, None] * u[:, None, :])
    R_bar = scored * present[:, :, None] * present[:, None, :]
    residual_bar = weight[:, None] * u
    if switches.assimilate:
        Kt = Li.mT @ innovation.projected
        Kz = jnp.einsum("bnm,bm->bn", Kt, zb)
        updated = zb - B.lift(Kz)
        Q = Kt @ Pb
        R_bar = R_bar + jnp.einsum("bnk,bmk->bnm", Q, Kt)
        # R_bar without its -sym(K' zb u'), which reaches P-bar through A' zb instead.
        top = 0.5 * u[:, :, None] * updated[:, None, :] - Q + 0.5 * B.extend_columns(R_bar)
        variance_bar = (jnp.diagonal(R_bar, axis1=1, axis2=2) - Kz * u) * present
    else:
        updated, top = zb, 0.5 * B.extend_columns(R_bar)
        variance_bar = jnp.diagonal(R_bar, axis1=1, axis2=2) * present
    # The jitter adds its share of every observed variance to that variance.
    spread = relative_jitter(zb.dtype) * variance_bar
    half = 0.5 * jnp.eye(present.shape[1], dtype=zb.dtype) * spread[:, None, :]
    change = top + B.extend_columns(half)
    mean_bar = updated - B.lift(residual_bar)
    belief_bar = Belief(mean_bar, B.add_rows_and_columns(Pb, change))
    if predicted is None:
        return _UpdateBar(belief_bar, variance_bar + spread)
    assert isinstance(B, LinearObservation)
    S_bar = R_bar + 2.0 * half
    G_bar = jnp.zeros_like(innovation.projected)
    if switches.assimilate:
        cross = Kz[:, :, None] * u[:, None, :]
        S_bar = S_bar - 0.5 * (cross + cross.mT)
        G_bar = u[:, :, None] * zb[:, None, :] - 2.0 * Q
        residual_bar = residual_bar + Kz
    P = B.seen(predicted.covariance)
    B_bar = G_bar @ P + 2.0 * S_bar @ B.rows(P)
    return _UpdateBar(belief_bar, variance_bar + spread, present[:, :, None] * B_bar, present * residual_bar)


def _pull_back_map(
    switches: Recursion,
    dynamics: Dynamics,
    innovation: Innovation,
    x: Readings,
    mask: Seen,
    weight: _Weights,
    filtered_bar: Belief,
    predicted: Belief | None,
) -> tuple[Belief, Readings, ObservationMap | None]:
    """Compute cotangents of the predicted belief, of the observation variances and of the map where it trains."""
    observation, present = dynamics.observation, mask.astype(x.dtype)
    assert observation is not None
    if predicted is None:
        bar = _pull_back_update(switches, innovation, present, observation, weight, filtered_bar, None)
        return bar.predicted, bar.variance, None
    assert isinstance(observation, LinearObservation)
    z = predicted.mean

    def residual_of(offset: Any, B: Any) -> Readings:
        return -LinearObservation(B, offset, observation.hidden).observe(z)

    if not observation.tall:
        bar = _pull_back_update(switches, innovation, present, observation, weight, filtered_bar, predicted)
        _, pull = jax.vjp(residual_of, observation.offset, observation.B)
        offset_bar, B_bar = pull(bar.residual)
        own = bar.B if observation.B.ndim == 3 else jnp.sum(bar.B, axis=0)  # type: ignore[arg-type]
        return bar.predicted, bar.variance, _bars(observation, B_bar + own, offset_bar)

    def few(variance: Any, offset: Any, B: Any) -> tuple[Array, Array, Array]:
        seen = LinearObservation(B, offset, observation.hidden)
        return compress(seen, variance, z, x, mask)[:3]

    (_, factor, _), pull = jax.vjp(few, dynamics.observation_variance, observation.offset, observation.B)
    some = any_seen(mask, innovation.normalised)
    seen = LinearObservation(factor, hidden=observation.hidden)
    bar = _pull_back_update(switches, innovation, some, seen, weight, filtered_bar, predicted)
    variance_bar, offset_bar, B_bar = pull((bar.residual, bar.B, weight))
    return bar.predicted, variance_bar, _bars(observation, B_bar, offset_bar)


def _bars(observation: LinearObservation, B: Array, offset: Array | None) -> LinearObservation:
    return LinearObservation(B, offset, observation.hidden, observation.compressible)


@eqx.filter_custom_vjp
def adjoint_terms(dynamics: Dynamics, recursion: Recursion, observations: Observations) -> Terms:
    """Compute `scan_terms` with the hand-derived gradient with respect to `dynamics`, the map in it included.

    Dynamics without a map take that of the observations, which then is held fixed as in the paper.
    """
    return scan_terms(recursion, dynamics, _with_map(dynamics, observations))


def _with_map(dynamics: Dynamics, observations: Observations) -> Observations:
    return observations if dynamics.observation is None else observations._replace(observation=dynamics.observation)


def _is_pulled_back(perturbed: Any, dynamics: Dynamics, observations: Observations) -> bool:
    """Tell whether the way back needs predictions: a map that trains does, and so does one that is compressed."""
    trained = dynamics.observation is not None and any(jax.tree.leaves(perturbed.observation))
    return trained or is_tall(_with_map(dynamics, observations).observation)


@adjoint_terms.def_fwd
def _forward(
    perturbed: Any, dynamics: Dynamics, recursion: Recursion, observations: Observations
) -> tuple[Terms, _Residuals]:
    observations = _with_map(dynamics, observations)
    keep = _is_pulled_back(perturbed, dynamics, observations)

    def body(belief: Belief, row: tuple[Array | None, ...]) -> tuple[Belief, Any]:
        now = step(recursion, dynamics, observations.observation, belief, *row)  # type: ignore[arg-type]
        residuals = (belief, now.innovation, now.predicted if keep else None)
        return now.filtered, (now.innovation.nll, now.fault, residuals)

    final, (nll, faults, residuals) = jax.lax.scan(body, dynamics.initial, observations.steps)
    return Terms(nll, faults, final), residuals


@adjoint_terms.def_bwd
def _backward(
    residuals: _Residuals,
    terms_bar: Terms,
    perturbed: Any,
    dynamics: Dynamics,
    recursion: Recursion,
    observations: Observations,
) -> Dynamics:
    with_core = any(jax.tree.leaves(perturbed.core))
    arrays: Any = eqx.filter(dynamics.core, eqx.is_inexact_array)
    trained: Any = arrays if with_core else None
    own = dynamics.observation
    with_map = own is not None and any(jax.tree.leaves(perturbed.observation))
    dynamics = dynamics._replace(observation=_with_map(dynamics, observations).observation)

    def body(carry: Dynamics, inputs: Any) -> tuple[Dynamics, None]:
        (previous, innovation, predicted), x, mask, weight, noise, driven_by, given = inputs
        read_with = dynamics._replace(observation_variance=choose_variance(dynamics.observation_variance, given))
        predicted_bar, variance_bar, map_bar = _pull_back_map(
            recursion, read_with, innovation, x, mask, weight, carry.initial, predicted
        )
        # A reading with a variance of its own does not depend on Lambda.
        variance_bar = variance_bar if given is None else jnp.where(jnp.isnan(given), variance_bar, 0.0)
        # Rounding leaves an antisymmetric part, which the formulas do not expect and expanding modes amplify: without
        # this line gradients of a delay model of Lorenz-63 were a million times too large in float32.
        asymmetric = predicted_bar.covariance
        predicted_bar = predicted_bar._replace(covariance=0.5 * (asymmetric + asymmetric.mT))
        core = dynamics.core.given(noise, driven_by)
        if recursion.transport:
            z, P = previous
            core_bar, *previous_bar = core.pull_back_moments(z, P, *predicted_bar, with_core=with_core)
        else:
            core_bar, mean_bar = core.pull_back_mean(previous.mean, predicted_bar.mean, with_core=with_core)
            previous_bar = [mean_bar, predicted_bar.covariance]
        diagonal = jnp.diagonal(predicted_bar.covariance, axis1=1, axis2=2)
        scale = core.noise_scale(previous.mean)
        diagonal = diagonal if scale is None else scale[:, None] * diagonal
        total: Any = None
        if with_core:
            total = jax.tree.map(jnp.add, carry.core, core_bar.without_noise().without_inputs())
        return Dynamics(
            total,
            carry.process_variance + _of_windows(diagonal, carry.process_variance),
            carry.observation_variance + _of_windows(variance_bar, carry.observation_variance),
            Belief(*previous_bar),
            jax.tree.map(jnp.add, carry.observation, map_bar) if with_map else None,
        ), None

    # The running sums are cotangents of the dynamics, with that of the belief at this step in place of the first.
    moved: Any = eqx.filter(own, eqx.is_inexact_array)
    zeros = jax.tree.map(jnp.zeros_like, dynamics._replace(core=trained, observation=moved if with_map else None))
    mean_bar, P_bar = terms_bar.final
    last = Belief(
        zeros.initial.mean if mean_bar is None else mean_bar,
        zeros.initial.covariance if P_bar is None else 0.5 * (P_bar + P_bar.mT),
    )
    weights = jnp.zeros_like(residuals[1].nll) if terms_bar.nll is None else terms_bar.nll
    more = (observations.noise, observations.inputs, observations.variance)
    xs = (residuals, observations.x, observations.mask, weights, *more)
    result, _ = jax.lax.scan(body, zeros._replace(initial=last), xs, reverse=True)
    if not with_map:
        result = result._replace(observation=jax.tree.map(lambda _: None, moved))
    return result if with_core else result._replace(core=jax.tree.map(lambda _: None, arrays))


def _of_windows(bars: Float[Array, "W K"], given: Array) -> Array:
    """Sum cotangents over windows, unless each has variances of its own; they may come as a sum already."""
    return bars if bars.ndim == given.ndim else jnp.sum(bars, axis=0)
