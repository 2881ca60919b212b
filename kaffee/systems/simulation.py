"""Trajectories with process and observation noise, as in the paper's data sets (appendix C.3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from kaffee.data.validation import check_count
from kaffee.errors import ConfigError, KaffeeError
from kaffee.systems.system import System, as_state

_REFERENCE_STEPS = 100_000  # length of the clean run that fixes the unit of the process noise


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated trajectory and all settings that reproduce it.

    Attributes:
        states: Latent states z, one row per step of `dt`: process noise included, observation noise not.
        observations: The coordinates `observed` of the state, with observation noise.
        burn_in, initial_state: Steps discarded before the first row, and the state before them.
        reference_scale: s_ref, the unit of the process noise; None without process noise.
        observation_scale: s_train, the unit of the observation noise, for all coordinates of the state.
    """

    states: Float[np.ndarray, "T M"]
    observations: Float[np.ndarray, "T N"]
    system: System
    seed: int
    process_noise: float
    observation_noise: float
    burn_in: int
    initial_state: tuple[float, ...]
    observed: tuple[int, ...]
    reference_scale: Float[np.ndarray, " M"] | None
    observation_scale: Float[np.ndarray, " M"]

    @property
    def dt(self) -> float:
        """Time step between rows."""
        return self.system.dt

    @property
    def times(self) -> Float[np.ndarray, " T"]:
        """Times of the rows, from 0."""
        return self.dt * np.arange(len(self.states))


@dataclass(frozen=True)
class Truth:
    """The true states of a simulated system behind a fit.

    Attributes:
        states: Clean states of a long run, the reference for free runs.
        again: The run's continuation, which shows the distance of a perfect model at this length.
        test_states: The states behind the held-out observations.
    """

    states: Float[np.ndarray, "T N"]
    again: Float[np.ndarray, "T N"]
    test_states: Float[np.ndarray, "T N"]
    lambda_1: float | None = None


def simulate(
    system: System,
    num_steps: int,
    *,
    seed: int = 0,
    process_noise: float = 0.0,
    observation_noise: float = 0.0,
    burn_in: int | None = None,
    initial_state: Sequence[float] | None = None,
    observed: Sequence[int] | None = None,
    num_train_steps: int | None = None,
) -> Simulation:
    """Simulate a system in raw coordinates with noise on the paper's standardized scale (appendix C.3).

        z_{t+1} = RK4(z_t) + sigma_proc sqrt(dt) diag(s_ref) eps_t,    eps_t ~ N(0, I)
        x_t     = z_t + sigma_obs diag(s_train) eta_t,                 eta_t ~ N(0, I)

    s_ref is the standard deviation of a clean run of 100,000 steps, s_train that of the simulated states without
    observation noise. The burn-in has process noise too. Everything is float64 with NumPy's random numbers, whatever
    JAX is set to, so that a seed means the same data everywhere; the process noise is the same with and without
    observation noise. For a training and a test series from one trajectory, simulate both at once with
    `num_train_steps` and split the rows.

    >>> from kaffee.systems import get_system
    >>> simulation = simulate(get_system("lorenz63"), 1000, process_noise=0.1, observation_noise=0.1)
    >>> simulation.observations.shape
    (1000, 3)
    >>> print(simulate(get_system("linear_spiral"), 3).states[:, 0].round(4))
    [1.     0.9587 0.8773]

    Args:
        num_steps: Number of rows to return.
        process_noise: sigma_proc, relative to s_ref and per square root of unit time.
        observation_noise: sigma_obs, relative to s_train.
        burn_in: Steps to discard before the first row; None: as the system recommends.
        initial_state: The state before the burn-in; None: the system's.
        observed: Indices of coordinates; None: all.
        num_train_steps: Take s_train from this many first rows; None: from all.
    """
    seed, num_steps = check_count("seed", seed, 0), check_count("num_steps", num_steps, 1)
    burn_in = check_count("burn_in", system.burn_in if burn_in is None else burn_in, 0)
    num_train_steps = check_count("num_train_steps", num_steps if num_train_steps is None else num_train_steps, 1)
    if num_train_steps > num_steps:
        raise ConfigError(f"Got num_train_steps = {num_train_steps}. Give an integer from 1 to {num_steps}.")
    _check_noise("process_noise", process_noise)
    _check_noise("observation_noise", observation_noise)
    start = system.initial_state if initial_state is None else initial_state
    start = as_state(start, f"The initial state for '{system.name}'", system.dim)
    columns = _check_observed(observed, system.dim)

    process_rng, observation_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    scale, noise = None, None
    if process_noise > 0:
        scale = _reference_scale(system)
        noise = process_rng.standard_normal((burn_in + num_steps - 1, system.dim))
        noise *= process_noise * math.sqrt(system.dt) * scale
    states = _integrate(system, start, burn_in + num_steps, noise)
    _check_finite(system, states, burn_in, process_noise)
    states = states[burn_in:].copy()

    train_scale = states[:num_train_steps].std(axis=0)
    observations = states
    if observation_noise > 0:
        if not train_scale[list(columns)].all():
            raise KaffeeError(
                f"A coordinate of '{system.name}' does not vary (standard deviations {train_scale}), so "
                "observation noise relative to it is not defined. Simulate more steps, or start elsewhere."
            )
        # Drawn for all coordinates, so that the noise of one does not depend on which others are observed.
        noise = observation_rng.standard_normal(states.shape)
        observations = states + observation_noise * train_scale * noise
    return Simulation(
        states=states,
        observations=observations[:, columns],
        system=system,
        seed=seed,
        process_noise=process_noise,
        observation_noise=observation_noise,
        burn_in=burn_in,
        initial_state=start,
        observed=columns,
        reference_scale=scale,
        observation_scale=train_scale,
    )


def _integrate(
    system: System, start: tuple[float, ...], length: int, noise: Float[np.ndarray, "T-1 M"] | None
) -> Float[np.ndarray, "T M"]:
    """Integrate from `start` to `length` states, including it."""
    with jax.enable_x64(True):
        kicks = None if noise is None else jnp.asarray(noise)
        return np.asarray(_scan(system, jnp.asarray(start, jnp.float64), kicks, length))


@eqx.filter_jit
def _scan(
    system: System, start: Float[Array, " M"], kicks: Float[Array, "T-1 M"] | None, length: int
) -> Float[Array, "T M"]:
    # The system is an argument and not a closure, so that equal systems share one compiled program per length.
    def step(z: Float[Array, " M"], kick: Float[Array, " M"] | None) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
        z = system.flow(z) if kick is None else system.flow(z) + kick
        return z, z

    _, states = lax.scan(step, start, kicks, length=length - 1)
    return jnp.concatenate([start[None], states])


def _reference_scale(system: System) -> Float[np.ndarray, " M"]:
    """Return s_ref: given by the system, or the standard deviation of a long clean run."""
    if system.reference_scale is not None:
        return np.array(system.reference_scale)
    states = _integrate(system, system.initial_state, system.burn_in + _REFERENCE_STEPS, None)
    _check_finite(system, states, system.burn_in, 0.0)
    states = states[system.burn_in :]
    scale = states.std(axis=0)
    # A run that has come to rest still varies by rounding, and by what is left of its transient.
    if (states[-_REFERENCE_STEPS // 10 :].std(axis=0) <= 1e-6 * scale).any() or not scale.all():
        raise KaffeeError(
            f"Without noise '{system.name}' comes to rest, so its long clean run has no scale for the "
            "process noise. Give the system a `reference_scale`, one number per coordinate."
        )
    return scale


def _check_finite(system: System, states: Float[np.ndarray, "T M"], burn_in: int, process_noise: float) -> None:
    finite = np.isfinite(states).all(axis=1)
    if finite.all():
        return
    step = int(finite.argmin())
    phase = "burn-in" if step < burn_in else "recorded part"
    noise = f", less process noise (now {process_noise:g})" if process_noise > 0 else ""
    raise KaffeeError(
        f"The simulation of '{system.name}' diverged at step {step} of {len(states) - 1} (in the {phase}). "
        f"Try a smaller dt (now {system.dt:g}){noise} or another initial state."
    )


def _check_noise(what: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"Got {what} = {value}. It is a standard deviation: give a number >= 0.")


def _check_observed(observed: Sequence[int] | None, dim: int) -> tuple[int, ...]:
    if observed is None:
        return tuple(range(dim))
    columns = tuple(int(i) for i in observed)
    if not columns or len(set(columns)) < len(columns) or not all(0 <= i < dim for i in columns):
        raise ConfigError(
            f"Got observed = {list(observed)}. Give different indices of coordinates from 0 to {dim - 1}."
        )
    return columns
