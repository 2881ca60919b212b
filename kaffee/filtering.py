"""Filtering recordings with a trained model: beliefs, predictions and likelihood at every step."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.gaussian import Belief
from kaffee.objectives import dynamics_of, initial_belief
from kaffee.outcome import Outcome, locate_fault, outcome_of
from kaffee.recursion import Recursion, core_noise, observations_of, step
from kaffee.ssm import StateSpaceModel


class Filtered(NamedTuple):
    """Moments at every step after the first row, in standardised coordinates; `_std` are marginal.

    Attributes:
        mean, std: Of the latent state given all observations up to and including this step.
        signal_std: Of its observed part B z, without observation noise.
        predicted_mean, predicted_std: Of the observation given those before it (Lambda included).
        innovations: x - B z_{t|t-1}, 0 where missing.
        nis: v' Omega^-1 v, which has as many degrees of freedom as entries were observed.
        nll: -log p(x_t | x_{<t}) of the observed entries.
        faults: Codes of `kaffee.outcome`.
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
