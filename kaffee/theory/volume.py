"""Measure what the log-determinant of the likelihood gains when the Jacobians shrink (proposition 1, appendix A.1).

    J_k(s) = e^s J_k,    Omega_{t+h}(s) = Lambda + sum_{l=0}^h e^{2 l s} A_l,    A_l >= 0,
    d/ds 1/2 log det Omega_{t+h}(s) = sum_{l=1}^h l e^{2 l s} tr[Omega_{t+h}(s)^-1 A_l] >= 0

A_l collects the contributions to the observed covariance that passed through l Jacobians. This derivative is called
pressure here: how many nats of likelihood an objective offers for contracting every Jacobian, per unit of -s.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.theory.tracing import Trace, inner


@eqx.filter_jit
def transport_terms(trace: Trace, horizon: int | None = None) -> Float[Array, "L W N N"]:
    """Compute A_0, ..., A_h of proposition 1 for the open-loop forecast from the first belief of a run.

        A_l = B Phi^(l) Gamma Phi^(l)' B'  (l < h),    A_h = B Phi^(h) Sigma_t Phi^(h)' B',
        Phi^(l) = J_{t+h} ... J_{t+h-l+1}

    The Jacobians are those of the run, open-loop or filtered. Without transport everything is in A_0.

    Args:
        horizon: h, from 1 to the number of steps; that number by default.
    """
    h = trace.jacobian.shape[0] if horizon is None else horizon
    initial, present = trace.previous.covariance[0], trace.present[h - 1]
    Gamma = jnp.broadcast_to(jnp.diag(trace.process_variance), initial.shape)
    if not trace.recursion.transport:
        still = trace.observed(initial + h * Gamma, present)
        return jnp.concatenate([still[None], jnp.zeros((h, *still.shape), still.dtype)])
    terms, Phi = [], jnp.broadcast_to(jnp.eye(initial.shape[-1], dtype=initial.dtype), initial.shape)
    for transports in range(h):
        terms.append(trace.observed(Phi @ Gamma @ Phi.mT, present))
        Phi = Phi @ trace.jacobian[h - 1 - transports]
    terms.append(trace.observed(Phi @ initial @ Phi.mT, present))
    return jnp.stack(terms)


class _Pressure(NamedTuple):
    """d/ds 1/2 log det Omega_t at s = 0 along J -> e^s J, in nats.

    Attributes:
        one_step: tr[Omega_t^-1 B J Sigma_{t-1|t-1} J' B'], the belief before the step held fixed: the filtered
            statement of proposition 1. At most the number of observed entries.
        through: The same through all earlier steps of the run, with its Jacobians and innovations held fixed. For an
            open-loop run this is proposition 1 at horizon t; in a filter every update damps it.
    """

    one_step: Float[Array, "T W"]
    through: Float[Array, "T W"]


@eqx.filter_jit
def pressure(trace: Trace) -> _Pressure:
    """Compute the pressure of every step of a run. With D = 1/2 dSigma/ds:

        D_pred = J (Sigma_{t-1|t-1} + D_filt) J',    D_filt = (I - K B) D_pred (I - K B)',    K = 0 in open loop

    which sums over all A_l at once, in O(T M^3) instead of O(T^2 M^3). Zero without transport.
    """
    precision = trace.precision()
    one_step = inner(precision, trace.transported())
    if not trace.recursion.transport:
        return _Pressure(one_step, jnp.zeros_like(one_step))

    def body(D: Array, inputs: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        J, P, remaining = inputs
        D_pred = J @ (P + D) @ J.mT
        return remaining @ D_pred @ remaining.mT, D_pred

    start = jnp.zeros_like(trace.previous.covariance[0])
    _, D_pred = jax.lax.scan(body, start, (trace.jacobian, trace.previous.covariance, trace.remaining()))
    return _Pressure(one_step, inner(precision, trace.observed(D_pred, trace.present)))


class _Assimilation(NamedTuple):
    """How much an update contracts a belief: log det and trace of Sigma_{t|t} beside Sigma_{t|t-1}.

    log_volume = log det Lambda - log det Omega_t over the observed entries is never positive; minus half of it is the
    information in the observation, in nats.
    """

    log_volume: Float[Array, "T W"]
    trace_ratio: Float[Array, "T W"]


@eqx.filter_jit
def assimilation(trace: Trace) -> _Assimilation:
    """Measure the update Sigma_{t|t} = Sigma_{t|t-1} - Sigma_{t|t-1} B' Omega^-1 B Sigma_{t|t-1} (proposition 1)."""
    before, after = trace.predicted.covariance, trace.filtered.covariance
    log_det_omega = -2.0 * jnp.sum(jnp.log(jnp.diagonal(trace.innovation.inverse_factor, axis1=-2, axis2=-1)), axis=-1)
    log_volume = jnp.sum(trace.present * jnp.log(trace.observation_variance), axis=-1) - log_det_omega
    if not trace.recursion.assimilate:
        log_volume = jnp.zeros_like(log_volume)
    return _Assimilation(log_volume, jnp.trace(after, axis1=-2, axis2=-1) / jnp.trace(before, axis1=-2, axis2=-1))
