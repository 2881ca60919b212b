"""Lemma 1: an underdispersed model is not rewarded for contracting further (appendices A.4 and A.5).

    Omega_t(s) = s^2 A_t + C,    A_t = B J Sigma_{t-1|t-1} J' B',    C = B Gamma B' + Lambda,
    L(s) = 1/2 sum_t log det Omega_t(s) + tr(Omega_t(s)^-1 Omega*_t),    Omega*_t = Cov(x_t | x_{<t}),
    L'(s) = s sum_t tr(Omega_t^-1 A_t) - tr(Omega_t^-1 A_t Omega_t^-1 Omega*_t)

If Omega_t(s0) <= Omega*_t for all t, strictly for one with A_t not zero, then L'(s) < 0 on (0, s0].
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kaffee.diagnostics.path import Rescaled
from kaffee.diagnostics.tracing import Trace, inner
from kaffee.recursion import Dynamics, Observations, Recursion, scan_terms


@eqx.filter_jit
def rescaling_derivative(
    transported: Float[Array, "*batch N N"],
    fixed: Float[Array, "*batch N N"],
    true: Float[Array, "*batch N N"],
    s: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*batch"]:
    """The summands of L'(s) of lemma 1 for given A, C and Omega*.

    >>> one = jnp.ones((1, 1))
    >>> float(rescaling_derivative(one, one, 6.0 * one)), float(rescaling_derivative(one, one, one))
    (-1.0, 0.25)
    """
    precision = jnp.linalg.inv(s**2 * transported + fixed)
    return s * (inner(precision, transported) - inner(precision @ true @ precision, transported))


def underdispersed(omega: Float[Array, "*batch N N"], true: Float[Array, "*batch N N"]) -> Bool[Array, "*batch"]:
    """The assumption of lemma 1, Omega <= Omega*: in no direction does the model predict more than the true variance.

    >>> bool(underdispersed(jnp.diag(jnp.array([1.0, 1.0])), jnp.diag(jnp.array([2.0, 0.9]))))
    False
    """
    return jnp.linalg.eigvalsh(true - omega)[..., 0] >= 0.0


@eqx.filter_jit
def anti_contraction(trace: Trace) -> Float[Array, "T W"]:
    """tr(Omega^-1 A) - v' Omega^-1 A Omega^-1 v for every step of a run: lemma 1 on data, before the expectation."""
    A, Li = trace.transported(), trace.innovation.inverse_factor
    u = jnp.einsum("twnm,twn->twm", Li, trace.innovation.whitened)
    return inner(trace.precision(), A) - jnp.einsum("twn,twnm,twm->tw", u, A, u)


@eqx.filter_jit
def rescaling_of_run(recursion: Recursion, dynamics: Dynamics, observations: Observations) -> Float[Array, "T W"]:
    """d NLL_t / ds at s = 1 of the recursion itself, with every effect on later gains, means and Jacobians."""

    def terms(s: Float[Array, ""]) -> Float[Array, "T W"]:
        rescaled = dynamics._replace(core=Rescaled(dynamics.core, s))
        return scan_terms(recursion, rescaled, observations._replace(noise=None)).nll

    one = jnp.ones((), dynamics.process_variance.dtype)
    return jax.jvp(terms, (one,), (one,))[1]


class Dispersion(NamedTuple):
    """Whether innovations are larger than predicted: above 1 the model is underdispersed, too sure of itself.

    Attributes:
        coordinates: v_j^2 / Omega_jj of every entry, NaN where missing; 1 on average if calibrated.
        steps: y'y / (number observed) with y = L^-1 v, the normalised innovation squared; NaN where nothing was seen.
    """

    coordinates: Float[Array, "T W N"]
    steps: Float[Array, "T W"]


@eqx.filter_jit
def dispersion(trace: Trace) -> Dispersion:
    """Compare the innovations of a run with their predicted covariance."""
    variances = jnp.diagonal(trace.innovation_covariance(), axis1=-2, axis2=-1)
    coordinates = jnp.where(trace.mask, trace.innovation.residual**2 / variances, jnp.nan)
    squared = jnp.sum(trace.innovation.whitened**2, axis=-1)
    return Dispersion(coordinates, squared / jnp.sum(trace.present, axis=-1))


def dispersed_directions(whitened: Float[Array, "K N"], mask: Bool[Array, "K N"]) -> Float[Array, " N"]:
    """The eigenvalues, ascending, of the mean of y y' over many innovations y = L^-1 v, with v v' for Omega*.

    All above 1: the assumption of lemma 1, L^-1 Omega* L^-T >= I, holds on average; all below 1: the model is
    overdispersed in every direction. Even of calibrated innovations they scatter by about 2 sqrt(N / K) around 1.
    """
    present = mask.astype(whitened.dtype)
    return jnp.linalg.eigvalsh((whitened.T @ whitened) / jnp.maximum(present.T @ present, 1.0))
