"""The path along which proposition 1 and lemma 1 differentiate, as a core: the recursion itself can walk it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kaffee.filtering.recursion import Dynamics, Observations, Recursion, scan_terms
from kaffee.model.core import Core
from kaffee.theory.tracing import Trace, inner


class Rescaled(Core):
    """The core with J(s) = s J in the covariance and F unchanged in the mean (lemma 1; s = e^s' in proposition 1).

    `jacobian` is therefore not the derivative of the step unless s = 1.
    """

    inner: Core
    scale: Float[Array, ""]

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.inner(z)

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        return self.scale * self.inner.jacobian(z)

    def predict_mean(self, z: Float[Array, "W M"]) -> Float[Array, "W M"]:
        return self.inner.predict_mean(z)

    def predict_moments(
        self, z: Float[Array, "W M"], covariance: Float[Array, "W M M"]
    ) -> tuple[Float[Array, "W M"], Float[Array, "W M M"]]:
        mean, transported = self.inner.predict_moments(z, covariance)
        return mean, jnp.square(self.scale) * transported


# Lemma 1: an underdispersed model is not rewarded for contracting further (appendices A.4 and A.5).


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
