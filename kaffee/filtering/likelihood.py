"""Innovation and open-loop NLL (Eq. filtered_likelihood, appendices B.2 and C.2), and a self-test of its gradient."""

import time
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.errors import ConfigError, unknown
from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.beliefs import Dense, Filter
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.gaussian import Belief, Readings, Seen
from kaffee.filtering.recursion import (
    Dynamics,
    Observations,
    Recursion,
    Step,
    Terms,
    arrange_observations,
    core_noise,
    scan_terms,
    update,
)
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import States
from kaffee.model.observation import Projection
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import machine, versions

Gradient = Literal["adjoint", "autodiff"]
GRADIENT_TOLERANCE = 1e-9


class Score(NamedTuple):
    """Mean NLL per scored, observed entry of a batch of windows, and fault codes (indices in `QUANTITIES`)."""

    loss: Float[Array, ""]
    faults: Int[Array, "T W"]


def initial_belief(
    model: StateSpaceModel,
    mean: Float[Array, "W M"],
    anchored: Bool[Array, "W N"] | None = None,
    *,
    certain: bool = False,
    by: Filter | None = None,
) -> Belief:
    """Build N(mean, Gamma), the belief at the start of a window (algorithm 1), dense or as a filter represents it.

    Args:
        anchored: Which entries of the first row were observed. A missing entry also gets the variance of the data, 1 in
            standardised units; with Gamma alone, the first steps would be certain of a value that was never measured.
        certain: Build N(mean, 0) instead: the mean is taken for the state (appendix A.2).
    """
    spread = None
    if anchored is not None:
        spread = 1.0 - anchored.astype(mean.dtype)
        if model.discrete is not None:
            # One count tells little; that of the data, 1, is the most that is not known.
            noise = jnp.minimum(model.discrete.noise_variance(model.observation.observe(mean)), 1.0)
            spread = jnp.where(anchored, jax.lax.stop_gradient(noise), spread)
    Gamma = jnp.zeros_like(mean) if certain else jnp.broadcast_to(model.shell.process_variance(), mean.shape)
    if by is not None and not isinstance(by, Dense) and isinstance(model.observation, Projection):
        # Coordinates are independent: nothing of size M^2 is built.
        variance = Gamma if spread is None else Gamma + model.observation.lift(spread)
        return by.start_independent(mean, variance)  # type: ignore[return-value]
    covariance = jax.vmap(jnp.diag)(Gamma)
    if spread is not None:
        covariance = covariance + model.observation.spread(spread)
    return Belief(mean, covariance) if by is None else by.start(mean, covariance)  # type: ignore[return-value]


def start_step(
    model: StateSpaceModel,
    x: Readings,
    seen: Seen,
    recursion: Recursion | None = None,
    variance: Readings | None = None,
) -> Step:
    """Score and assimilate the first reading of a recording, predicted by the model's climate."""
    assert model.climate is not None
    switches = Recursion(filter=Dense() if recursion is None else recursion.filter)
    moments = (jnp.broadcast_to(each, (x.shape[0], *each.shape)) for each in model.climate.moments())
    predicted: Any = switches.filter.start(*moments)
    return update(switches, make_dynamics(model, predicted), model.observation, predicted, x, seen, variance)


def start_belief(
    model: StateSpaceModel,
    x: Readings,
    seen: Seen,
    recursion: Recursion | None = None,
    variance: Readings | None = None,
) -> Belief:
    """Start a belief at a row: the model's climate given what was read, N(embed(x), Gamma) if it has none."""
    x = jnp.where(seen, x, 0.0)
    if model.climate is not None:
        return start_step(model, x, seen, recursion, variance).filtered
    return initial_belief(model, model.embed(x), anchored=seen, by=None if recursion is None else recursion.filter)


def start_state(model: StateSpaceModel, x: Readings) -> States:
    """Start a free run at an observation: the state of the climate that is observed nearest to it, moved to it.

    The mean of the climate given x would be no state of the data: for one coordinate of Lorenz-63 it lies in the hole
    of a wing, where a fourth of the runs stayed. Without a climate it is the embedding.
    """
    if model.climate is None:
        return model.embed(x)
    states, observation = model.climate.states, model.observation
    distances = jnp.sum((observation.observe(states) - x[:, None]) ** 2, axis=2)
    return observation.overwrite(states[jnp.argmin(distances, axis=1)], x)


def make_dynamics(model: StateSpaceModel, initial: Belief) -> Dynamics:
    """Collect the inputs of the recursion from a model."""
    variances = model.shell.process_variance(), model.shell.observation_variance()
    return Dynamics(model.core, *variances, initial, model.observation, model.discrete)


def _run_terms(
    model: StateSpaceModel,
    initial: Belief,
    observations: Observations,
    recursion: Recursion,
    gradient: Gradient,
    segment: int | None,
) -> Terms:
    """Compute the NLL terms of a batch of windows, all at once or in segments (see `window_nll`)."""

    def run(belief: Belief, part: Observations) -> Terms:
        dynamics = make_dynamics(model, belief)
        if gradient == "adjoint" and recursion.filter.adjoint and model.discrete is None:
            fixed = part._replace(observation=jax.lax.stop_gradient(part.observation))
            return adjoint_terms(dynamics, recursion, fixed)  # the map that trains is that of the dynamics
        return scan_terms(recursion, dynamics, part)

    if segment is None:
        return run(initial, observations)
    num_steps = observations.x.shape[0]
    if num_steps % segment:
        raise ConfigError(f"segment = {segment} does not divide the window of {num_steps} steps.")

    @jax.checkpoint
    def one(belief: Belief, part: Any) -> tuple[Belief, tuple[Array, Array]]:
        x, mask, *more = part
        terms = run(belief, Observations(x, mask, observations.observation, *more))
        return terms.final, (terms.nll, terms.faults)

    parts = jax.tree.map(lambda a: a.reshape(num_steps // segment, segment, *a.shape[1:]), observations.steps)
    final, (nll, faults) = jax.lax.scan(one, initial, parts)
    return Terms(nll.reshape(num_steps, -1), faults.reshape(num_steps, -1), final)


def window_nll(
    model: StateSpaceModel,
    x: Float[Array, "W L D"],
    mask: Bool[Array, "W L D"],
    recursion: Recursion,
    *,
    burn_in: int = 8,
    start: Float[Array, "W M"] | None = None,
    certain_start: bool = False,
    gradient: Gradient = "adjoint",
    segment: int | None = None,
    key: Key[Array, ""] | None = None,
    variance: Float[Array, "W L N"] | None = None,
) -> Score:
    """Compute the training loss of algorithm 1 on a batch of windows.

        L = 1/(|B| L N) sum_{t > L_burn} 1/2 [log det Omega_t + v_t' Omega_t^-1 v_t + N log 2 pi]

    The first row of each window only anchors the mean; the following `burn_in` rows are propagated but not scored.

    Args:
        x, mask: Rows of readings, and after them the inputs of a model that takes any (`StateSpaceModel.split`).
        start: Latent states zbar_{t0}; by default the belief is that of `start_belief`.
        certain_start: Begin with covariance 0 instead of Gamma, as if the start were the state (appendix A.2).
        gradient: "adjoint" is hand-derived and does not reach the data; "autodiff" reaches everything.
        segment: Keep the belief only every `segment` steps and recompute the rest in the backward pass: memory
            O(T / segment + segment) instead of O(T). Must divide the number of steps.
        key: Random key of the core's internal noise, one realisation per window and step; None: no noise.
        variance: Of each reading, in place of Lambda; NaN, or None for all: Lambda.
    """
    if not 0 <= burn_in < x.shape[1] - 1:
        raise ConfigError(
            f"A window of {x.shape[1]} rows has {x.shape[1] - 1} steps after its first row; burn_in = {burn_in} must "
            "not be negative and must leave at least one of them to score."
        )
    anchor = model.observation
    (x, inputs), mask = model.split(x), model.split(mask)[0]
    first, first_mask = jnp.where(mask[:, 0], x[:, 0], 0.0), mask[:, 0]
    if start is None and not certain_start:
        initial = start_belief(model, first, first_mask, recursion, None if variance is None else variance[:, 0])
    else:
        if start is None:
            start = model.embed(first)
        else:
            start = anchor.overwrite(start, jnp.where(first_mask, first, anchor.observe(start)))
        by = recursion.filter
        initial = initial_belief(model, start, anchored=first_mask, certain=certain_start, by=by)
    noise = core_noise(model.core, key, x.shape[1] - 1, x.shape[0], initial.mean.dtype)
    later = (None if each is None else each[:, 1:] for each in (inputs, variance))
    observations = arrange_observations(x[:, 1:], mask[:, 1:], anchor, noise, *later)
    terms = _run_terms(model, initial, observations, recursion, gradient, segment)
    # Per observed entry, so that missing data do not change the scale; the paper's |B| L N on complete data.
    count = jnp.sum(observations.mask[burn_in:]).astype(terms.nll.dtype)
    return Score(jnp.sum(terms.nll[burn_in:]) / jnp.maximum(count, 1.0), terms.faults)


@dataclass(frozen=True)
class Method:
    """A probabilistic row of Table 1: objective, covariance recursion, trained parts.

    Attributes:
        objective: "filtered" scores innovations, "open_loop" scores the free run of the window.
        transport: Covariance by the core's Jacobian (tied) or state-invariant (none).
        train_core: Whether the core trains; the shell always does.
        filter_name: The filter, as in `kaffee.filtering.filters`.
    """

    objective: Literal["filtered", "open_loop"]
    transport: bool
    train_core: bool
    filter_name: str = "ekf"

    @property
    def recursion(self) -> Recursion:
        """Switches of the recursion for training."""
        return Recursion(self.objective == "filtered", self.transport, parse_filter(self.filter_name))

    @property
    def filter(self) -> Recursion:
        """Switches for filtering with the trained model: the method's covariance, always assimilating."""
        return Recursion(True, self.transport, parse_filter(self.filter_name))

    @property
    def trainable_parts(self) -> tuple[str, ...]:
        """Arguments of `kaffee.model.statespace.trainable`."""
        return ("core", "shell") if self.train_core else ("shell",)


KAFFEE = Method("filtered", transport=True, train_core=True)
BLIND = Method("filtered", transport=False, train_core=True)
CORE_COLLAPSE = Method("open_loop", transport=True, train_core=True)
NOISE_MASKING = Method("open_loop", transport=False, train_core=True)
FROZEN_CORE = Method("filtered", transport=True, train_core=False)

_NAMES = ("kaffee", "blind", "core_collapse", "noise_masking", "frozen_core")
METHODS = dict(zip(_NAMES, (KAFFEE, BLIND, CORE_COLLAPSE, NOISE_MASKING, FROZEN_CORE), strict=True))


def get_method(name: str) -> Method:
    """Look up a method by name."""
    try:
        return METHODS[name.lower().replace("-", "_")]
    except KeyError:
        raise ConfigError(unknown("method", name, METHODS)) from None


def _problem(latent_dim: int, num_observed: int, windows: int, steps: int, dtype: Any) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 3)
    core = ALRNN.create(latent_dim, latent_dim // 2, key=keys[0], dtype=dtype).surrogate()
    model = StateSpaceModel.create(core, num_observed, key=keys[1], dtype=dtype)
    x = jax.random.normal(keys[2], (windows, steps + 1, num_observed), dtype)
    return model, x, jnp.ones(x.shape, bool)


def _value_and_gradient(gradient: Gradient) -> Any:
    return eqx.filter_jit(
        eqx.filter_value_and_grad(lambda m, x, mask: window_nll(m, x, mask, KAFFEE.recursion, gradient=gradient).loss)
    )


def _gradient_error() -> float:
    """Compute the largest relative difference between adjoint and automatic differentiation, in float64."""
    with jax.enable_x64(True):
        problem = _problem(8, 3, 4, 12, jnp.float64)
        (_, ours), (_, theirs) = (_value_and_gradient(kind)(*problem) for kind in ("adjoint", "autodiff"))
        pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
        return max(float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) + 1e-30)) for a, b in pairs)


def _gradient_seconds() -> float:
    """Time one value and gradient at the paper's Lorenz-96 size; median of five."""
    problem, run, times = _problem(100, 20, 16, 40, jnp.float32), _value_and_gradient("adjoint"), []
    for _ in range(6):  # the first compiles
        jax.block_until_ready(run(*problem))
        times.append(time.perf_counter())
    return float(np.median(np.diff(times)))


def examine_installation() -> tuple[dict[str, Any], list[str]]:
    """Collect facts about this installation (exactness and speed of the gradient), and its problems."""
    error = _gradient_error()
    facts = {
        **versions(),
        **machine(),
        "devices": ", ".join(str(device) for device in jax.devices()),
        "64-bit mode": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "gradient error (float64)": error,
        "KAFFEE gradient, M=100, N=20, 16 x 40 (s)": _gradient_seconds(),
    }
    problem = f"the hand-derived gradient differs from automatic differentiation by {error:.1e}"
    return facts, [] if error < GRADIENT_TOLERANCE else [problem]
