"""Measure dispersion, and what rescaling the Jacobians does to the likelihood (lemma 1, appendices A.4 and A.5).

Lemma 1: a model that is underdispersed, Omega <= Omega*, is not rewarded for contracting its Jacobians further.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.filtering.recursion import Dynamics, Observations, Recursion, scan_terms
from kaffee.model.core import Core
from kaffee.theory.tracing import Trace, inner


class _Rescaled(Core):
    """A core with J(s) = s J in the covariance and F unchanged in the mean (lemma 1; s = e^s' in proposition 1).

    `jacobian` is therefore not the derivative of the step unless s = 1.
    """

    inner: Core
    scale: Float[Array, ""]

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    @property
    def input_dim(self) -> int:
        return self.inner.input_dim

    def with_inputs(self, inputs: Float[Array, "W K"]) -> "_Rescaled":
        return _Rescaled(self.inner.with_inputs(inputs), self.scale)

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


@eqx.filter_jit
def anti_contraction(trace: Trace) -> Float[Array, "T W"]:
    """Compute tr(Omega^-1 A) - v' Omega^-1 A Omega^-1 v of every step: lemma 1 on data, before the expectation."""
    A, Li = trace.transported(), trace.innovation.inverse_factor
    u = jnp.einsum("twnm,twn->twm", Li, trace.innovation.whitened)
    return inner(trace.precision(), A) - jnp.einsum("twn,twnm,twm->tw", u, A, u)


@eqx.filter_jit
def measure_rescaling(recursion: Recursion, dynamics: Dynamics, observations: Observations) -> Float[Array, "T W"]:
    """Differentiate NLL_t by s at s = 1 through the recursion itself, with its later gains, means and Jacobians."""

    def terms(s: Float[Array, ""]) -> Float[Array, "T W"]:
        rescaled = dynamics._replace(core=_Rescaled(dynamics.core, s))
        return scan_terms(recursion, rescaled, observations._replace(noise=None)).nll

    one = jnp.ones((), dynamics.process_variance.dtype)
    return jax.jvp(terms, (one,), (one,))[1]


@eqx.filter_jit
def dispersion(trace: Trace) -> Float[Array, "T W N"]:
    """Compute v_j^2 / Omega_jj of every entry, NaN where missing: 1 on average if calibrated.

    Above 1 the model is underdispersed, too sure of itself.
    """
    variances = jnp.diagonal(trace.innovation_covariance(), axis1=-2, axis2=-1)
    return jnp.where(trace.mask, trace.innovation.residual**2 / variances, jnp.nan)


def dispersed_directions(
    whitened: Float[np.ndarray, "*batch N"], mask: Bool[np.ndarray, "*batch N"]
) -> Float[np.ndarray, " N"]:
    """Compute the eigenvalues, ascending, of the mean of y y' over many innovations y = L^-1 v, if finite.

    All above 1: the assumption of lemma 1, L^-1 Omega* L^-T >= I, holds on average; all below 1: the model is
    overdispersed in every direction. Even of calibrated innovations they scatter by about 2 sqrt(N / K) around 1.
    """
    finite = np.isfinite(whitened).all(axis=-1)
    y, present = whitened[finite], mask[finite].astype(np.float64)
    return np.linalg.eigvalsh((y.T @ y) / np.maximum(present.T @ present, 1.0))
