"""The one recursion of kaffee: predict, score, assimilate, with two switches; and its first non-finite value.

| assimilate | transport | row of the paper              |
|------------|-----------|-------------------------------|
| yes        | yes       | KAFFEE, frozen core           |
| yes        | no        | filtered, no transport (blind)|
| no         | yes       | open loop, tied transport     |
| no         | no        | open loop, no transport       |

Training, evaluation, filtering and online use all call `step`; there is no second copy of these equations.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.errors import ConfigError
from kaffee.filtering.beliefs import Dense, Filter
from kaffee.filtering.gaussian import Belief, Innovation, Readings, Seen
from kaffee.model.core import KEPT, Core, States
from kaffee.model.discrete import Discrete
from kaffee.model.observation import ObservationMap

# Quantities of one step in the order of their computation; the index of the first non-finite one is the fault code.
QUANTITIES = ("", "predicted mean", "predicted covariance", "innovation covariance", "likelihood", "gradient")

_ADVICE = {
    "predicted mean": "the core itself blows up; lower the learning rate, clip gradients, or force more often",
    "predicted covariance": "the covariance overflows, as it does when Jacobians expand over a long window without "
    "assimilation; shorten the window",
    "innovation covariance": "it is not positive definite in this precision; use a larger observation noise",
    "likelihood": "a residual is too large for this precision; check the scaling of the data",
    "gradient": "the loss is finite but its gradient overflows; shorten the window or lower the learning rate",
}


class Recursion(eqx.Module):
    """The two switches: assimilate each observation or not, transport covariance or not; and the filter.

    Beliefs below are dense Gaussians with the default filter, and those of the filter (`kaffee.filtering.beliefs`) with
    any other.
    """

    assimilate: bool = eqx.field(static=True, default=True)
    transport: bool = eqx.field(static=True, default=True)
    filter: Filter = Dense()


class Dynamics(NamedTuple):
    """The differentiable inputs of the recursion: core, noise variances, first belief, and the map where it trains.

    Variances may have a leading axis of windows, each with its own. `discrete` is what counts are read by.
    """

    core: Core
    process_variance: Float[Array, "*W M"]
    observation_variance: Float[Array, "*W N"]
    initial: Belief
    observation: ObservationMap | None = None
    discrete: Discrete | None = None


class Observations(NamedTuple):
    """A batch of windows, time first, with map, core noise and inputs (None: none); `x` is finite where `mask` is True.

    The inputs of a row act on the step to it: z_t = F(z_{t-1}, u_t). `variance` is that of each reading, in place of
    Lambda; NaN, or None for all: Lambda.
    """

    x: Float[Array, "T W N"]
    mask: Bool[Array, "T W N"]
    observation: ObservationMap
    noise: Float[Array, "T W K"] | None = None
    inputs: Float[Array, "T W U"] | None = None
    variance: Float[Array, "T W N"] | None = None

    @property
    def steps(self) -> tuple[Array | None, ...]:
        """What `step` takes at every row, for a scan."""
        return self.x, self.mask, self.noise, self.inputs, self.variance


class Step(NamedTuple):
    """The results of one step; `fault` is an index in `QUANTITIES`, 0 if all is finite."""

    predicted: Belief
    innovation: Innovation
    filtered: Belief
    fault: Int[Array, " W"]


class Terms(NamedTuple):
    """NLL and fault code of every step of a batch of windows, and the final beliefs."""

    nll: Float[Array, "T W"]
    faults: Int[Array, "T W"]
    final: Belief


def arrange_observations(
    x: Float[Array, "W T N"],
    mask: Bool[Array, "W T N"],
    observation: ObservationMap,
    noise: Float[Array, "T W K"] | None = None,
    inputs: Float[Array, "W T U"] | None = None,
    variance: Float[Array, "W T N"] | None = None,
) -> Observations:
    """Put time first and replace missing entries by 0, since a NaN would enter gradients even where masked."""
    rows = jnp.swapaxes(jnp.where(mask, x, 0.0), 0, 1), jnp.swapaxes(mask, 0, 1)
    more = (None if each is None else jnp.swapaxes(each, 0, 1) for each in (inputs, variance))
    return Observations(*rows, observation, noise, *more)


def core_noise(
    core: Core, key: Key[Array, ""] | None, num_steps: int, num_windows: int, dtype: Any
) -> Float[Array, "T W K"] | None:
    """Draw the core's internal noise; None without a key or for a core that draws none."""
    if key is None or core.noise_dim == 0:
        return None
    return jax.random.normal(key, (num_steps, num_windows, core.noise_dim), dtype)


def predict(
    core: Core, process_variance: Float[Array, " M"], belief: Belief, *, transport: bool, by: Filter | None = None
) -> Belief:
    """Predict the next belief (Eqs. kf_predict_mean and kf_predict_cov), by the extended Kalman filter or another one.

        z_{t|t-1} = F(z_{t-1|t-1}),    Sigma_{t|t-1} = J Sigma_{t-1|t-1} J' + Gamma

    Without transport J is replaced by the identity in the covariance only (appendix C.2).
    """
    Gamma = scale_variance(core, process_variance, belief.mean)
    return (by or Dense()).predict(core, Gamma, belief, transport=transport)  # type: ignore[return-value]


def scale_variance(core: Core, process_variance: Float[Array, " M"], z: States) -> Float[Array, "#W M"]:
    """Compute Gamma's diagonal at states: the same everywhere, unless the core knows where its errors are larger."""
    scale = core.noise_scale(z)
    if scale is None:
        return jnp.atleast_2d(process_variance)
    return jax.lax.stop_gradient(scale)[:, None] * process_variance


def step(
    recursion: Recursion,
    dynamics: Dynamics,
    observation: ObservationMap,
    belief: Belief,
    x: Readings,
    mask: Seen,
    noise: Float[Array, "W K"] | None = None,
    inputs: Float[Array, "W U"] | None = None,
    variance: Readings | None = None,
) -> Step:
    """Predict, score and (unless switched off) assimilate one observation per window."""
    core = dynamics.core.given(noise, inputs)
    predicted = predict(core, dynamics.process_variance, belief, transport=recursion.transport, by=recursion.filter)
    return update(recursion, dynamics, observation, predicted, x, mask, variance)


def update(
    recursion: Recursion,
    dynamics: Dynamics,
    observation: ObservationMap,
    predicted: Belief,
    x: Readings,
    mask: Seen,
    variance: Readings | None = None,
) -> Step:
    """Take the part of a step after its prediction: score the observation and, if the recursion does, assimilate it."""
    by: Any = recursion.filter
    if dynamics.discrete is None:
        R = choose_variance(dynamics.observation_variance, variance)
        innovation = used = by.score(predicted, x, mask, observation, R)
    else:
        if variance is not None:
            raise ConfigError("Counts and binary readings have no standard deviations of their own; leave them out.")
        innovation = by.score_discrete(predicted, x, mask, observation, dynamics.discrete)
        used = innovation.by
    filtered = by.assimilate(predicted, used) if recursion.assimilate else predicted
    return Step(predicted, innovation, filtered, _fault_code(by, predicted, innovation, used))


def choose_variance(Lambda: Float[Array, " N"], given: Readings | None) -> Float[Array, "*#W N"]:
    """Take the variances of readings that have their own, and Lambda for the others (NaN)."""
    return Lambda if given is None else jnp.where(jnp.isnan(given), Lambda, given)


def _fault_code(by: Filter, predicted: Belief, innovation: Innovation, used: Innovation) -> Int[Array, " W"]:
    """Find the first non-finite quantity of a step: its index in `QUANTITIES`, 0 if all is finite."""
    finite = [
        jnp.isfinite(jnp.sum(predicted.mean, axis=1)),
        jnp.isfinite(jnp.sum(predicted.variances(), axis=1)),
        by.is_definite(used),
        jnp.isfinite(innovation.nll),
    ]
    code = jnp.zeros(finite[0].shape, jnp.int32)
    for index in range(len(finite), 0, -1):
        code = jnp.where(finite[index - 1], code, index)
    return code


def scan_terms(recursion: Recursion, dynamics: Dynamics, observations: Observations) -> Terms:
    """Run the recursion over whole windows, open to automatic differentiation."""

    def body(belief: Belief, row: tuple[Array | None, ...]) -> tuple[Belief, tuple[Array, Array]]:
        now = step(recursion, dynamics, observations.observation, belief, *row)  # type: ignore[arg-type]
        return now.filtered, (now.innovation.nll, now.fault)

    # Where the gradient is automatic, only beliefs are kept for the way back, and what a filter has marked as dear
    # (`keep`); all else of a step is computed again.
    if not recursion.filter.adjoint or dynamics.discrete is not None:
        body = jax.checkpoint(body, policy=jax.checkpoint_policies.save_only_these_names(KEPT))
    final, (nll, faults) = jax.lax.scan(body, dynamics.initial, observations.steps)
    return Terms(nll, faults, final)


@dataclass(frozen=True)
class Outcome:
    """Whether a computation stayed finite; if not, the first bad step (from 1), its window and its quantity."""

    step: int | None = None
    window: int | None = None
    quantity: str = ""

    @property
    def ok(self) -> bool:
        return self.step is None

    def __str__(self) -> str:
        if self.ok:
            return "all values are finite"
        place = "" if self.step == 0 else f" at step {self.step} of window {self.window}"
        return f"the {self.quantity} became non-finite{place}: {_ADVICE[self.quantity]}"


def locate_fault(faults: Int[Array, "T W"]) -> Int[Array, " 3"]:
    """Find (step, window, code) of the earliest fault; zeros if there is none. For use inside jit."""
    position = jnp.argmax(faults.ravel() > 0).astype(jnp.int32)
    code = faults.ravel()[position]
    place = jnp.stack([position // faults.shape[1] + 1, position % faults.shape[1], code]).astype(jnp.int32)
    return jnp.where(code > 0, place, 0)


def decode_outcome(located: Int[Array, " 3"]) -> Outcome:
    """Convert the result of `locate_fault` into an `Outcome`."""
    step, window, code = (int(n) for n in located)
    return Outcome(step, window, QUANTITIES[code]) if code else Outcome()
