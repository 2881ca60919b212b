"""The hand-derived adjoint of the recursion: the default gradient of every objective.

Reverse step for one window, bars are cotangents, Pb symmetric, w the cotangent of this step's NLL, u = S^-1 v:

    z-bar  = A' zb - w B'u                                               A = I - K B
    P-bar  = A' Pb A + sym(A' zb (B'u)') + (w/2) B'(S^-1 - u u')B
    R-bar  = K' Pb K - sym(K' zb u') + (w/2)(S^-1 - u u')
    Gamma-bar = P-bar,   then through the prediction (`Core.pull_back_moments`): T = P-bar J, Pb_prev = J'T, ...

dP+ with respect to P- is A dP A' because the gain's own variation cancels at the optimal gain. A differs from the
identity only in what B sees, so all of this is O(M^2 N); the only M^3 products are those of the core: two forward,
three backward. Without assimilation K = 0. The jitter, c S_jj on the diagonal, is differentiated too.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.filtering.gaussian import Belief, Innovation, Readings, Seen, relative_jitter
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, Terms, scan_terms, step
from kaffee.model.observation import ObservationMap

# What the reverse pass needs of every step: the belief before it, and the innovation.
_Residuals = tuple[Belief, Innovation]
_Weights = Float[Array, " W"]


def _pull_back_update(
    switches: Recursion, innovation: Innovation, mask: Seen, B: ObservationMap, weight: _Weights, filtered_bar: Belief
) -> tuple[Belief, Readings]:
    """Compute cotangents of the predicted belief and of the observation variances, per window."""
    zb, Pb = filtered_bar
    Li, y = innovation.inverse_factor, innovation.whitened
    present = mask.astype(zb.dtype)
    S_inv, u = Li.mT @ Li, jnp.einsum("bnm,bn->bm", Li, y)
    w = weight[:, None, None]
    scored = 0.5 * w * (S_inv - u[:, :, None] * u[:, None, :])
    R_bar = scored * present[:, :, None] * present[:, None, :]
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
    mean_bar = updated - B.lift(weight[:, None] * u)
    return Belief(mean_bar, B.add_rows_and_columns(Pb, change)), variance_bar + spread


@eqx.filter_custom_vjp
def adjoint_terms(dynamics: Dynamics, recursion: Recursion, observations: Observations) -> Terms:
    """Compute `scan_terms` with the hand-derived gradient with respect to `dynamics`.

    B has none, because the paper holds it fixed; training it needs automatic differentiation.
    """
    return scan_terms(recursion, dynamics, observations)


@adjoint_terms.def_fwd
def _forward(
    perturbed: Any, dynamics: Dynamics, recursion: Recursion, observations: Observations
) -> tuple[Terms, _Residuals]:
    def body(belief: Belief, row: tuple[Array | None, ...]) -> tuple[Belief, Any]:
        now = step(recursion, dynamics, observations.observation, belief, *row)  # type: ignore[arg-type]
        return now.filtered, (now.innovation.nll, now.fault, (belief, now.innovation))

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

    def body(carry: Dynamics, inputs: Any) -> tuple[Dynamics, None]:
        (previous, innovation), mask, weight, noise, driven_by, given = inputs
        predicted_bar, variance_bar = _pull_back_update(
            recursion, innovation, mask, observations.observation, weight, carry.initial
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
            carry.process_variance + jnp.sum(diagonal, axis=0),
            carry.observation_variance + jnp.sum(variance_bar, axis=0),
            Belief(*previous_bar),
        ), None

    # The running sums are cotangents of the dynamics, with that of the belief at this step in place of the first.
    zeros = jax.tree.map(jnp.zeros_like, dynamics._replace(core=trained))
    mean_bar, P_bar = terms_bar.final
    last = Belief(
        zeros.initial.mean if mean_bar is None else mean_bar,
        zeros.initial.covariance if P_bar is None else 0.5 * (P_bar + P_bar.mT),
    )
    weights = jnp.zeros_like(residuals[1].nll) if terms_bar.nll is None else terms_bar.nll
    more = (observations.noise, observations.inputs, observations.variance)
    xs = (residuals, observations.mask, weights, *more)
    result, _ = jax.lax.scan(body, zeros._replace(initial=last), xs, reverse=True)
    return result if with_core else result._replace(core=jax.tree.map(lambda _: None, arrays))
