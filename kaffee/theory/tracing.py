"""Trace a run of the recursion: keep everything that the propositions of appendix A need."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kaffee.errors import ConfigError
from kaffee.filtering.gaussian import Belief, Innovation, gain, innovation_covariance
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, step
from kaffee.model.observation import LinearObservation, ObservationMap


class Trace(eqx.Module):
    """Every step of a batch of windows, time first; made by `kaffee.filtering.recursion.step` alone.

    Attributes:
        observation: B; where an entry of `mask` is False its row counts as zero.
        previous: The belief at t-1 from which step t predicts, z_{t-1|t-1} and Sigma_{t-1|t-1} in a filter.
        jacobian: J_t, taken at the mean of `previous`.
        faults: Indices in `kaffee.filtering.recursion.QUANTITIES`.
    """

    recursion: Recursion
    observation: ObservationMap
    process_variance: Float[Array, " M"]
    observation_variance: Float[Array, " N"]
    mask: Bool[Array, "T W N"]
    previous: Belief
    jacobian: Float[Array, "T W M M"]
    predicted: Belief
    innovation: Innovation
    filtered: Belief
    faults: Int[Array, "T W"]

    @property
    def present(self) -> Float[Array, "T W N"]:
        """1 where an entry was observed, else 0."""
        return self.mask.astype(self.process_variance.dtype)

    def observed(self, X: Float[Array, "*batch M M"], present: Float[Array, "*batch N"]) -> Float[Array, "*batch N N"]:
        """Compute B X B' with zero rows and columns for missing entries."""
        BXB = self.observation.columns(self.observation.rows(X))
        return present[..., :, None] * BXB * present[..., None, :]

    @eqx.filter_jit
    def transported(self) -> Float[Array, "T W N N"]:
        """Compute A_t = B J Sigma_{t-1|t-1} J' B', the share of Omega_t from the Jacobians; zero without transport."""
        if not self.recursion.transport:
            return jnp.zeros_like(self.innovation.inverse_factor)
        J = self.jacobian
        return self.observed(J @ self.previous.covariance @ J.mT, self.present)

    @eqx.filter_jit
    def innovation_covariance(self) -> Float[Array, "T W N N"]:
        """Compute Omega_t, with a unit diagonal for missing entries."""

        def one(covariance: Float[Array, "W M M"], present: Float[Array, "W N"]) -> Float[Array, "W N N"]:
            return innovation_covariance(covariance, present, self.observation, self.observation_variance)[1]

        return jax.vmap(one)(self.predicted.covariance, self.present)

    @eqx.filter_jit
    def precision(self) -> Float[Array, "T W N N"]:
        """Compute Omega_t^-1."""
        return self.innovation.inverse_factor.mT @ self.innovation.inverse_factor

    @eqx.filter_jit
    def gain(self) -> Float[Array, "T W M N"]:
        """Compute K_t; zero without assimilation."""
        K = jax.vmap(gain)(self.innovation)
        return K if self.recursion.assimilate else jnp.zeros_like(K)

    @eqx.filter_jit
    def remaining(self) -> Float[Array, "T W M M"]:
        """Compute I - K_t B, the share of a prediction that the update leaves."""
        KB = self.observation.extend_columns(self.gain())
        return jnp.eye(KB.shape[-1], dtype=KB.dtype) - KB


@eqx.filter_jit
def trace(recursion: Recursion, dynamics: Dynamics, observations: Observations) -> Trace:
    """Run the recursion over whole windows and keep every step.

    >>> from kaffee.model.maps import Linear
    >>> from kaffee.model.observation import Projection
    >>> start = Belief(jnp.zeros((1, 1)), jnp.ones((1, 1, 1)))
    >>> dynamics = Dynamics(Linear(2.0 * jnp.eye(1), jnp.zeros(1)), jnp.ones(1), jnp.ones(1), start)
    >>> data = Observations(jnp.ones((1, 1, 1)), jnp.ones((1, 1, 1), bool), Projection(1, 1))
    >>> run = trace(Recursion(), dynamics, data)
    >>> round(float(run.transported().squeeze())), round(float(run.innovation_covariance().squeeze()))
    (4, 6)
    """
    if dynamics.discrete is not None:
        raise ConfigError(
            "The filter of counts or binary readings is linearised at modes, which diagnoses do not follow yet. Use "
            "the certificate, or diagnose a model with Gaussian readings."
        )

    observation = observations.observation
    if isinstance(observation, LinearObservation):  # the propositions speak of Omega in N dimensions
        observation = replace(observation, compressible=False)

    def body(belief: Belief, row: tuple[Any, ...]) -> tuple[Belief, Any]:
        now = step(recursion, dynamics, observation, belief, *row)
        J = dynamics.core.given(inputs=row[3]).linearise(belief.mean)[1]
        return now.filtered, (belief, J, now.predicted, now.innovation, now.filtered, now.fault)

    # Without the noise inside a core: the propositions speak of a deterministic F.
    _, kept = jax.lax.scan(body, dynamics.initial, observations._replace(noise=None).steps)
    variances = dynamics.process_variance, dynamics.observation_variance
    return Trace(recursion, observation, *variances, observations.mask, *kept)


def inner(X: Float[Array, "*batch K K"], Y: Float[Array, "*batch K K"]) -> Float[Array, "*batch"]:
    """Compute tr(X Y) for symmetric X."""
    return jnp.sum(X * Y, axis=(-2, -1))
