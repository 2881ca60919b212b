"""The one recursion of kaffee: predict, score, assimilate, with two switches.

| assimilate | transport | row of the paper              |
|------------|-----------|-------------------------------|
| yes        | yes       | KAFFEE, frozen core           |
| yes        | no        | filtered, no transport (blind)|
| no         | yes       | open loop, tied transport     |
| no         | no        | open loop, no transport       |

Training, evaluation, filtering and online use all call `step`; there is no second copy of these equations.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.filtering.gaussian import Belief, Innovation, assimilate, innovate
from kaffee.filtering.outcome import fault_code
from kaffee.model.core import Core
from kaffee.model.observation import ObservationMap


class Recursion(eqx.Module):
    """The two switches: assimilate each observation or not; transport covariance by the Jacobian or not."""

    assimilate: bool = eqx.field(static=True, default=True)
    transport: bool = eqx.field(static=True, default=True)


class Dynamics(NamedTuple):
    """All that the recursion differentiates: the core, the shell's variances, the first belief."""

    core: Core
    process_variance: Float[Array, " M"]
    observation_variance: Float[Array, " N"]
    initial: Belief


class Observations(NamedTuple):
    """A batch of windows, time first, with the map that made them; `x` is finite where `mask` is True.

    Attributes:
        noise: The realisation of the core's internal noise at every step; None for cores without, or none of it.
    """

    x: Float[Array, "T W N"]
    mask: Bool[Array, "T W N"]
    observation: ObservationMap
    noise: Float[Array, "T W K"] | None = None


class Step(NamedTuple):
    """Everything that one step computes."""

    predicted: Belief
    innovation: Innovation
    filtered: Belief
    fault: Int[Array, " W"]


class Terms(NamedTuple):
    """The scored terms of a batch of windows, and where each ended."""

    nll: Float[Array, "T W"]
    faults: Int[Array, "T W"]
    final: Belief


def observations_of(
    x: Float[Array, "W T N"],
    mask: Bool[Array, "W T N"],
    observation: ObservationMap,
    noise: Float[Array, "T W K"] | None = None,
) -> Observations:
    """Time first, and no NaN left to enter a gradient."""
    clean = jnp.where(mask, x, 0.0)
    return Observations(jnp.swapaxes(clean, 0, 1), jnp.swapaxes(mask, 0, 1), observation, noise)


def core_noise(
    core: Core, key: Key[Array, ""] | None, num_steps: int, num_windows: int, dtype: Any
) -> Float[Array, "T W K"] | None:
    """Standard normal numbers for the core's internal noise; None without a key or for a core that draws none."""
    if key is None or core.noise_dim == 0:
        return None
    return jax.random.normal(key, (num_steps, num_windows, core.noise_dim), dtype)


def predict(core: Core, process_variance: Float[Array, " M"], belief: Belief, *, transport: bool) -> Belief:
    """The predict step (Eqs. kf_predict_mean and kf_predict_cov).

        z_{t|t-1} = F(z_{t-1|t-1}),    Sigma_{t|t-1} = J Sigma_{t-1|t-1} J' + Gamma

    Without transport J is replaced by the identity in the covariance only (appendix C.2).
    """
    Gamma = jnp.diag(process_variance)
    if transport:
        mean, covariance = core.predict_moments(*belief)
    else:
        mean, covariance = core.predict_mean(belief.mean), belief.covariance
    # Rounding leaves an antisymmetric part, which no update corrects and an expanding core amplifies.
    return Belief(mean, 0.5 * (covariance + covariance.mT) + Gamma)


def step(
    recursion: Recursion,
    dynamics: Dynamics,
    observation: ObservationMap,
    belief: Belief,
    x: Float[Array, "W N"],
    mask: Bool[Array, "W N"],
    noise: Float[Array, "W K"] | None = None,
) -> Step:
    """One step from t-1 to t for a batch of windows."""
    core = dynamics.core if noise is None else dynamics.core.with_noise(noise)
    predicted = predict(core, dynamics.process_variance, belief, transport=recursion.transport)
    return update(recursion, dynamics, observation, predicted, x, mask)


def update(
    recursion: Recursion,
    dynamics: Dynamics,
    observation: ObservationMap,
    predicted: Belief,
    x: Float[Array, "W N"],
    mask: Bool[Array, "W N"],
) -> Step:
    """The part of a step after its prediction: score the observation and, if the recursion does, assimilate it."""
    innovation = innovate(predicted, x, mask, observation, dynamics.observation_variance)
    filtered = assimilate(predicted, innovation) if recursion.assimilate else predicted
    return Step(predicted, innovation, filtered, fault_code(predicted, innovation))


def scan_terms(recursion: Recursion, dynamics: Dynamics, observations: Observations) -> Terms:
    """The recursion over whole windows; plain automatic differentiation goes through it."""

    def body(belief: Belief, inputs: tuple[Array, Array, Array | None]) -> tuple[Belief, tuple[Array, Array]]:
        now = step(recursion, dynamics, observations.observation, belief, *inputs)
        return now.filtered, (now.innovation.nll, now.fault)

    xs = (observations.x, observations.mask, observations.noise)
    final, (nll, faults) = jax.lax.scan(body, dynamics.initial, xs)
    return Terms(nll, faults, final)
