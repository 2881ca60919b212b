"""Propagation without observations: free runs and ensembles, with the shell off (core) or on (stochastic)."""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.errors import DataError
from kaffee.filtering.beliefs import AnyBelief
from kaffee.model.core import Core
from kaffee.model.inputs import InputRuns
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import Confined

# Standardised attractors live within a few units; a state beyond this has left for good.
DIVERGENCE_BOUND = 1e3
# A run that its core has to hold back in more steps than this share lives at the wall, and not on the attractor.
AT_WALL = 0.1
# One that goes on from a training state is outside for a single step each time; runs of good models never are.
OFTEN_OUT = 0.01
# Steps whose noise is drawn at once: as vectors it costs a tenth of what it does step by step.
_CHUNK = 128
_Pair = tuple[Array, Array]
_Carry = tuple[Array, Array, Array]


class _Rollout(NamedTuple):
    """A batch of free runs.

    Attributes:
        diverged_at: The first step (from 1) at which a state was beyond the bound, or 0.
        clipped: Share of all steps that ended where the core takes no state as it is (`Core.contains`).
    """

    states: Float[Array, "S T M"]
    observations: Float[Array, "S T N"]
    diverged_at: Int[Array, " S"]
    clipped: Float[Array, " S"]


@eqx.filter_jit
def free_run(
    model: StateSpaceModel,
    start: Float[Array, "S M"],
    num_steps: int,
    *,
    key: Key[Array, ""] | None = None,
    core_key: Key[Array, ""] | None = None,
    transient: int | Int[Array, ""] = 0,
    bound: float = DIVERGENCE_BOUND,
    inputs: InputRuns | None = None,
) -> _Rollout:
    """Run the surrogate on its own from latent states, in standardised coordinates.

    Where a run leaves the box of a confined core with a climate, it goes on from the nearest state of training data.

    Args:
        key: Turns the shell on: process noise at each step, observation noise on the output. None: the bare core.
        core_key: Draws the noise inside the core, which belongs to it and not to the shell (DynaMix's gate).
        transient: Steps that are run first and not kept; divergence within them counts. As an array one program serves
            any number of them.
        bound: Largest coordinate that still counts as on the attractor.
        inputs: Of a model that takes any, from the first step of the transient on; None: their mean throughout.
    """
    model, transient = _let_return(model.exact()), jnp.asarray(transient, jnp.int32)

    def body(carry: _Carry, now: tuple[Array, Array | None, _Pair | None]) -> tuple[_Carry, _Pair]:
        (z, diverged_at, outside), (t, eps, noise) = carry, now
        core = model.core.given(eps, None if inputs is None else inputs.at(t))
        z, x = _propagate(model, core, z, noise)
        away = ~(jnp.max(jnp.abs(z), axis=1) < bound)
        diverged_at = jnp.where((diverged_at == 0) & away, (t + 1).astype(jnp.int32), diverged_at)
        return (z, diverged_at, outside + (~model.core.contains(z)).astype(jnp.int32)), (z, x)

    @jax.vmap
    def draw(t: Array) -> tuple[Array, Array | None, _Pair | None]:
        eps = None if core_key is None else _draw_noise(model.core, jax.random.fold_in(core_key, t), start)
        return t, eps, None if key is None else _draw_shell(model, jax.random.fold_in(key, t), start)

    def pass_chunk(index: Array, carry: _Carry) -> _Carry:
        first = index * _CHUNK
        drawn = draw(first + jnp.arange(_CHUNK, dtype=jnp.int32))
        take = lambda i, carry: body(carry, jax.tree.map(lambda each: each[i], drawn))[0]  # noqa: E731
        return jax.lax.fori_loop(0, jnp.minimum(_CHUNK, transient - first), take, carry)

    none = jnp.zeros(start.shape[0], jnp.int32)
    carry = jax.lax.fori_loop(0, -(-transient // _CHUNK), pass_chunk, (start, none, none))
    (_, diverged_at, outside), (states, xs) = jax.lax.scan(
        body, carry, draw(transient + jnp.arange(num_steps, dtype=jnp.int32))
    )
    clipped = outside.astype(model.dtype) / jnp.maximum(transient + num_steps, 1).astype(model.dtype)
    return _Rollout(jnp.swapaxes(states, 0, 1), jnp.swapaxes(xs, 0, 1), diverged_at, clipped)


@eqx.filter_jit
def forecast_ensemble(
    model: StateSpaceModel,
    start: Float[Array, "S M"] | AnyBelief,
    num_steps: int,
    num_members: int,
    *,
    key: Key[Array, ""],
    observation_noise: bool = True,
    inputs: Float[Array, "S H U"] | None = None,
) -> Float[Array, "K S H N"]:
    """Sample the observations of the `num_steps` after each start, standardised, in `num_members` trajectories.

    Every member draws process noise at each step and observation noise on its output, so that the ensemble's spread is
    that of a future reading; without `observation_noise` that of the signal B z. All members start at the same latent
    states, as in the paper, or each draws its own from beliefs. `inputs` are those of the forecast rows.
    """
    if inputs is not None and inputs.shape[1] < num_steps:
        raise DataError(f"A forecast of {num_steps} steps needs {num_steps} rows of inputs, not {inputs.shape[1]}.")
    model = model.exact()
    key_start, key_path = jax.random.split(key)
    if isinstance(start, jax.Array):
        z = jnp.broadcast_to(start, (num_members, *start.shape))
    else:
        z = start.draw(key_start, num_members)

    def body(z: Array, now: tuple[Any, Array | None]) -> tuple[Array, Array]:
        key, u = now
        eps = _draw_noise(model.core, jax.random.fold_in(key, 2), z)
        core = model.core.given(eps, None if u is None else jnp.tile(u, (num_members, 1)))
        return _propagate(model, core, z, _draw_shell(model, key, z), observation_noise=observation_noise)

    driven_by = None if inputs is None else jnp.swapaxes(inputs[:, :num_steps], 0, 1)
    _, xs = jax.lax.scan(body, z.reshape(-1, z.shape[2]), (jax.random.split(key_path, num_steps), driven_by))
    return jnp.moveaxis(xs.reshape(num_steps, *z.shape[:2], -1), 0, 2)


def _let_return(model: StateSpaceModel) -> StateSpaceModel:
    """Let a run that leaves the box around training states go on from the nearest of them, not from the wall.

    Noise kicks a run out of the basin once in thousands of steps. What was never trained there drives it outward, and a
    wall would hold it for good. Filters and forecasts keep the wall: what they start from was read.
    """
    if model.climate is None or not isinstance(model.core, Confined):
        return model
    return model.replace(core=replace(model.core, home=model.climate.states))


def wall_limit(model: StateSpaceModel) -> float:
    """Return the share of steps outside beyond which a free run of this model lives at the wall of its box."""
    core = _let_return(model).core
    return OFTEN_OUT if isinstance(core, Confined) and core.home is not None else AT_WALL


def _propagate(
    model: StateSpaceModel, core: Core, z: Array, noise: _Pair | None, *, observation_noise: bool = True
) -> tuple[Float[Array, "S M"], Float[Array, "S N"]]:
    """Take one step: z' = F(z) + process noise, x = B z' + observation noise; bare without the noise of the shell."""
    before, z = z, core.predict_mean(z)
    if noise is None:
        return z, model.observation.observe(z)
    std, scale = jnp.sqrt(model.shell.process_variance()), model.core.noise_scale(before)
    std = std if scale is None else std * jnp.sqrt(scale)[:, None]
    z = z + std * noise[0]
    x = model.observation.observe(z)
    if not observation_noise:
        return z, x
    if model.discrete is not None:
        return z, model.discrete.draw(noise[1], x)
    return z, x + jnp.sqrt(model.shell.observation_variance()) * noise[1]


def _draw_shell(model: StateSpaceModel, key: Key[Array, ""], z: Float[Array, "S M"]) -> _Pair:
    """Draw the standard normal numbers of the shell for one step, of the process and of the observation.

    Counts and binary readings depend on the state, so that their second part is the key that draws them.
    """
    key_process, key_observation = jax.random.split(key)
    process = jax.random.normal(key_process, z.shape, z.dtype)
    if model.discrete is not None:
        return process, key_observation
    shape = (z.shape[0], model.observation.num_observed)
    return process, jax.random.normal(key_observation, shape, z.dtype)


def _draw_noise(core: Core, key: Key[Array, ""], z: Float[Array, "S M"]) -> Float[Array, "S K"] | None:
    """Draw the noise inside the core, if it has any."""
    return jax.random.normal(key, (z.shape[0], core.noise_dim), z.dtype) if core.noise_dim else None


def make_core_key(core: Core, seed: int) -> Key[Array, ""] | None:
    """Make the `core_key` of a seed; None for a core that draws no noise, so that no seed touches its runs."""
    # Not key(seed) itself, which may draw the shell's noise.
    return jax.random.fold_in(jax.random.key(seed), 1) if core.noise_dim else None


def mask_diverged(values: Float[np.ndarray, "*batch T N"]) -> Bool[np.ndarray, "*batch T"]:
    """Mark every step of standardised runs from the first one that is non-finite or beyond the bound."""
    return np.logical_or.accumulate(~(np.abs(values) < DIVERGENCE_BOUND).all(axis=-1), axis=-1)


def describe_divergence(
    diverged_at: Int[Array, " S"], clipped: Float[Array, " S"] | None = None, model: StateSpaceModel | None = None
) -> str:
    """Say how many runs left the attractor, and when first, and how many stay only because they are held back."""
    steps, limit = np.asarray(diverged_at), AT_WALL if model is None else wall_limit(model)
    bad, held = steps[steps > 0], np.zeros(0) if clipped is None else np.asarray(clipped)[steps == 0]
    words = f"none of {steps.size} rollouts diverged"
    if bad.size:
        words = f"{bad.size} of {steps.size} rollouts diverged, the first at step {bad.min()}"
    if held.size and held.max() > limit:
        count = f"{(held > limit).sum()} of {steps.size} {'live' if (held > limit).sum() > 1 else 'lives'}"
        return f"{words}; {count} at the wall of the data's region, up to {100 * held.max():.0f} % of its steps"
    return f"{words}; up to {100 * held.max():.2g} % of steps at the wall" if held.size and held.max() > 0 else words
