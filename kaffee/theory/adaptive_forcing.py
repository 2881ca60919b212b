"""Measure the Kalman update as an adaptive, anisotropic forcing of gradients (proposition 3, appendix A.6).

    dz_{t|t} / dz_{t-1|t-1} = (I - K B) J + sum_j v_j dk_j/dz_{t-1|t-1}

with v = x - B z_{t|t-1}, k_j the columns of K, and Sigma_{t-1|t-1} held fixed. J is taken at z_{t-1|t-1}, so that K is
a function of that state; with b = B' Omega^-1 v the sum is

    G = (I - K B) [ d/dz (J(z) Sigma J' b) + J Sigma d/dz (J(z)' b) ].

The second form of the paper, (I - K B + R) J, writes G = R J. Such an R exists where J is invertible, and in general
only if G vanishes on the null space of J.

Over several steps the product of these factors leaves out the path through the covariance, z -> J -> Sigma -> later
gains, and is the exact derivative only where J does not depend on the state; `sensitivity` differentiates the real
recursion.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, step
from kaffee.model.core import Core
from kaffee.theory.tracing import Trace

norm = partial(jnp.linalg.norm, axis=(-2, -1))
"""The Frobenius norm of matrices; with ord=2 the largest singular value."""


class _Factors(NamedTuple):
    """The pieces of proposition 3 at every step: J_t, (I - K_t B) J_t, G_t, and the sum of the last two."""

    jacobian: Float[Array, "T W M M"]
    damped: Float[Array, "T W M M"]
    gain: Float[Array, "T W M M"]
    factor: Float[Array, "T W M M"]


@eqx.filter_jit
def filter_factors(core: Core, trace: Trace) -> _Factors:
    """Compute the factors of a run; without assimilation they are the Jacobians."""
    J, remaining = trace.jacobian, trace.remaining()
    damped = remaining @ J
    if not (trace.recursion.assimilate and trace.recursion.transport):
        return _Factors(J, damped, jnp.zeros_like(J), damped)
    Li = trace.innovation.inverse_factor
    u = trace.present * jnp.einsum("twnm,twn->twm", Li, trace.innovation.whitened)
    b = trace.observation.lift(u)
    JP = J @ trace.previous.covariance
    a = jnp.einsum("twnm,twn->twm", JP, b)  # Sigma J' b

    def products(z: Float[Array, " M"], a: Float[Array, " M"], b: Float[Array, " M"]) -> tuple[Array, Array]:
        def both(state: Float[Array, " M"]) -> tuple[Array, Array]:
            there = core.jacobian(state)
            return there @ a, b @ there

        return jax.jacfwd(both)(z)

    # One step at a time: the second derivatives of all steps at once would not fit into memory.
    direct, adjoint = jax.lax.map(lambda now: jax.vmap(products)(*now), (trace.previous.mean, a, b))
    gain = remaining @ (direct + JP @ adjoint)
    return _Factors(J, damped, gain, damped + gain)


@eqx.filter_jit
def gain_variation(factors: _Factors) -> tuple[Float[Array, "T W M M"], Float[Array, "T W"]]:
    """Solve for R_t = G_t J_t^+ such that the factor is (I - K_t B + R_t) J_t; exact where J is invertible.

    Return also ||G - R J|| / ||factor|| (Frobenius), which the paper's second form misses at a singular J.
    """
    R = factors.gain @ jnp.linalg.pinv(factors.jacobian)
    return R, norm(factors.gain - R @ factors.jacobian) / norm(factors.factor)


@eqx.filter_jit
def forcing_strengths(trace: Trace) -> Float[Array, "T W N"]:
    """Compute the eigenvalues of B K, ascending, all in [0, 1): how strongly each direction of the data is forced.

    Where B = I and K = alpha I (and R = 0), the factor is (1 - alpha) J and all of them are the alpha of generalised
    teacher forcing (Hess et al. 2023); their mean stands for alpha elsewhere. Missing entries count as 0.
    """
    Li = trace.innovation.inverse_factor
    signal = trace.observed(trace.predicted.covariance, trace.present)
    # B K = B P B' Omega^-1 is similar to this symmetric matrix.
    return jnp.linalg.eigvalsh(Li @ signal @ Li.mT) * float(trace.recursion.assimilate)


@eqx.filter_jit
def chain(factors: Float[Array, "T W M M"]) -> Float[Array, "T W M M"]:
    """Multiply F_t ... F_1 for every t: the mean-to-mean chain as the proof of proposition 3 iterates it."""

    def body(product: Array, factor: Array) -> tuple[Array, Array]:
        product = factor @ product
        return product, product

    identity = jnp.broadcast_to(jnp.eye(factors.shape[-1], dtype=factors.dtype), factors.shape[1:])
    return jax.lax.scan(body, identity, factors)[1]


@eqx.filter_jit
def sensitivity(
    recursion: Recursion, dynamics: Dynamics, observations: Observations, directions: Float[Array, "M K"] | None = None
) -> Float[Array, "T W M K"]:
    """Compute dz_{t|t} / dz_{0|0} times `directions` (the identity by default) from the real recursion.

    Everything is included: means, gains, and covariances that remember where their Jacobians were taken.
    """
    mean, covariance = dynamics.initial
    if directions is None:
        directions = jnp.eye(mean.shape[1], dtype=mean.dtype)

    def run(start: Float[Array, "W M"]) -> Float[Array, "T W M"]:
        def body(belief: Belief, row: tuple[Any, ...]) -> tuple[Belief, Any]:
            now = step(recursion, dynamics, observations.observation, belief, *row)
            return now.filtered, now.filtered.mean

        return jax.lax.scan(body, Belief(start, covariance), observations._replace(noise=None).steps)[1]

    def push(direction: Float[Array, " M"]) -> Float[Array, "T W M"]:
        return jax.jvp(run, (mean,), (jnp.broadcast_to(direction, mean.shape),))[1]

    return jax.vmap(push, in_axes=1, out_axes=-1)(directions)
