"""Teacher forcing: the deterministic pretraining of appendix C.1, and the residuals that seed the shell.

    zhat_{t+1} = F(z_t),    z_{t+1} = zhat_{t+1} + s_{t+1} B^+ (x_{t+1} - B zhat_{t+1})

s_t = alpha where t is a multiple of the interval, else 0. Sparse identity forcing (the paper): interval 20, alpha 1.
Generalised teacher forcing: interval 1, 0 < alpha < 1. The loss compares zhat with the data; z is carried on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.errors import ConfigError
from kaffee.filtering.gaussian import Readings, Seen
from kaffee.filtering.recursion import Observations, arrange_observations
from kaffee.model.core import Core, States
from kaffee.model.observation import ObservationMap
from kaffee.model.statespace import StateSpaceModel

_Windows = Float[Array, "W L N"]
_Masks = Bool[Array, "W L N"]
_Strengths = Float[Array, " T"]
_Path = Float[Array, "T W M"]


@dataclass(frozen=True)
class Forcing:
    """Interval and strength with which the data overwrite the observed part of the state."""

    interval: int = 20
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ConfigError(f"The forcing interval is at least 1 step, not {self.interval}.")
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"The forcing strength alpha lies in [0, 1], not {self.alpha}.")

    def strengths(self, num_steps: int) -> np.ndarray:
        """Compute s_1, ..., s_T, counted from the start of a window."""
        interval = min(self.interval, num_steps + 1)  # no overflow in 64 bits
        return np.where(np.arange(1, num_steps + 1) % interval == 0, self.alpha, 0.0)


class _ForcedRun(NamedTuple):
    """The unforced predictions of a forced run, and the forced states that it carries on."""

    predictions: Float[Array, "T W N"]
    states: _Path


class _Start(NamedTuple):
    core: Core
    z: States


def _make_force(observation: ObservationMap) -> Callable[[States, Readings, Seen, Float[Array, ""]], States]:
    overwrite = observation.overwriter()

    def force(z: States, x: Readings, mask: Seen, strength: Float[Array, ""]) -> States:
        target = jnp.where(mask, x, observation.observe(z))
        return z + strength * (overwrite(z, target) - z)

    return force


@eqx.filter_custom_vjp
def _run(start: _Start, strengths: _Strengths, observations: Observations) -> _ForcedRun:
    """Run the core under forcing.

    The gradient walks back through the states only and collects the cotangents of all steps; the core's parameters
    then get theirs in one batched product, which is faster than one small product per step.
    """
    return _scan(start, strengths, observations)[0]


def _scan(start: _Start, strengths: _Strengths, observations: Observations) -> tuple[_ForcedRun, _Path]:
    observation, advance = observations.observation, start.core.stepper()
    force = _make_force(observation)

    def body(z: Array, inputs: tuple[Array, Array, Array, Any]) -> tuple[Array, tuple[Array, Array, Array]]:
        strength, x, mask, u = inputs
        predicted = advance(z) if u is None else start.core.with_inputs(u).stepper()(z)
        forced = force(predicted, x, mask, strength)
        return forced, (observation.observe(predicted), forced, z)

    xs = (strengths, observations.x, observations.mask, observations.inputs)
    _, (predictions, states, before) = jax.lax.scan(body, start.z, xs)
    return _ForcedRun(predictions, states), before


_run.def_fwd(lambda perturbed, *arguments: _scan(*arguments))


@_run.def_bwd
def _backward(
    before: _Path, run_bar: _ForcedRun, perturbed: Any, start: _Start, strengths: _Strengths, observations: Observations
) -> _Start:
    observation = observations.observation
    force = _make_force(observation)
    states_bar = jnp.zeros_like(before) if run_bar.states is None else run_bar.states
    predictions_bar = jnp.zeros_like(observations.x) if run_bar.predictions is None else run_bar.predictions

    def body(z_bar: Array, inputs: tuple[Any, ...]) -> tuple[Array, Array]:
        strength, x, mask, z, prediction_bar, state_bar, u = inputs
        # The forced state is affine in the prediction, so any point serves to pull back through it.
        _, force_vjp = jax.vjp(lambda p: force(p, x, mask, strength), z)
        predicted_bar = force_vjp(z_bar + state_bar)[0] + observation.lift(prediction_bar)
        return start.core.given(inputs=u).pull_back_mean(z, predicted_bar, with_core=False)[1], predicted_bar

    xs = (strengths, observations.x, observations.mask, before, predictions_bar, states_bar, observations.inputs)
    z_bar, predicted_bars = jax.lax.scan(body, jnp.zeros_like(start.z), xs, reverse=True)
    core_bar = jax.tree.map(lambda _: None, eqx.filter(start.core, eqx.is_inexact_array))
    if any(jax.tree.leaves(perturbed.core)):
        u = observations.inputs
        core = start.core if u is None else start.core.with_inputs(u.reshape(-1, u.shape[-1]))
        flat = (a.reshape(-1, a.shape[-1]) for a in (before, predicted_bars))
        core_bar = core.pull_back_mean(*flat, with_core=True)[0].without_inputs()
    return _Start(core_bar, z_bar)


def run_forced(model: StateSpaceModel, x: _Windows, mask: _Masks, forcing: Forcing) -> tuple[_ForcedRun, Observations]:
    """Run whole windows under forcing, from the embedding of their first rows."""
    fixed_map = jax.lax.stop_gradient(model.observation)
    (x, inputs), mask = model.split(x), model.split(mask)[0]
    later = None if inputs is None else inputs[:, 1:]
    observations = arrange_observations(x[:, 1:], mask[:, 1:], fixed_map, inputs=later)
    start = _Start(model.core, model.embed(jnp.where(mask[:, 0], x[:, 0], 0.0)))
    strengths = jnp.asarray(forcing.strengths(observations.x.shape[0]), x.dtype)
    return _run(start, strengths, observations), observations


def forced_errors(
    model: StateSpaceModel, x: _Windows, mask: _Masks, forcing: Forcing
) -> tuple[Float[Array, "T W N"], Bool[Array, "T W N"]]:
    """Compute the errors of the unforced one-step predictions, 0 where missing, and the mask of observed entries."""
    run, observations = run_forced(model, x, mask, forcing)
    return jnp.where(observations.mask, run.predictions - observations.x, 0.0), observations.mask


def forcing_loss(model: StateSpaceModel, x: _Windows, mask: _Masks, forcing: Forcing) -> Float[Array, ""]:
    """Compute L_ITF, the mean squared one-step error over all observed entries (appendix C.1)."""
    error, present = forced_errors(model, x, mask, forcing)
    return jnp.sum(error**2) / jnp.maximum(jnp.sum(present), 1).astype(error.dtype)
