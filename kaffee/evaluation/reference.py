"""What a surrogate is compared with: the true system's trajectories, Jacobians and Lyapunov spectra."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.data.context import context_scaler
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.evaluation.protocol import Protocol
from kaffee.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from kaffee.systems import System, simulate


@dataclass(frozen=True)
class Reference:
    """A system with training data and everything known about the truth, in data units.

    Attributes:
        train: Noisy training observations.
        scaler: Mean and spread of the training data.
        test_states, test_observations: The continuation of the same trajectory.
        clean: A noise-free trajectory, after a transient.
    """

    system: System
    train: Series
    scaler: Scaler
    test_states: Float[np.ndarray, "T N"]
    test_observations: Float[np.ndarray, "T N"]
    clean: Float[np.ndarray, "T N"]

    def __post_init__(self) -> None:
        for name in ("test_states", "test_observations", "clean"):
            bad = np.flatnonzero(~np.isfinite(getattr(self, name)).all(axis=1))
            if len(bad):
                raise ConfigError(
                    f"reference.{name} has non-finite values in {len(bad)} rows, the first is {bad[0]}; "
                    f"a truth to compare with has no gaps."
                )

    @cached_property
    def standard_train(self) -> Series:
        """The training data in standardised units."""
        return self.train.standardised(self.scaler)

    @cached_property
    def lyapunov(self) -> LyapunovSpectrum:
        """Spectrum of the deterministic flow, over as many steps as the clean trajectory has."""
        return lyapunov_spectrum(self.system, num_steps=len(self.clean))

    @cached_property
    def lyapunov_noisy(self) -> LyapunovSpectrum:
        """Spectrum of its Jacobians along the noisy test states."""
        return lyapunov_spectrum(self.system, self.test_states)

    def jacobians(self, states: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N N"]:
        """J* of the flow at states, in the model's standardised coordinates: J_ij s_j / s_i."""
        with jax.enable_x64(True):
            J = np.asarray(jax.jit(jax.vmap(self.system.jacobian))(jnp.asarray(states)))
        scale = self.scaler.scale
        return J * scale[None, None, :] / scale[None, :, None]


def simulate_reference(
    system: System,
    *,
    num_train_steps: int,
    process_noise: float,
    observation_noise: float,
    seed: int,
    protocol: Protocol,
    scaler: Literal["states", "observations"] = "states",
) -> Reference:
    """Simulate training data, test data and the clean reference of a system.

    Args:
        scaler: Standardise by the clean training states (appendix C.3), or by the noisy observations, if these are all
            that may be known (appendix C.5).
    """
    longest = max(protocol.all_horizons)
    num_test = max(
        protocol.transient + protocol.rollout_steps,
        protocol.forecast_span + longest + 1,
        protocol.warm_up + protocol.grounding_steps + longest + 1,
    )
    simulation = simulate(
        system,
        num_train_steps + num_test,
        seed=seed,
        process_noise=process_noise,
        observation_noise=observation_noise,
        num_train_steps=num_train_steps,
    )
    states, observations = simulation.states, simulation.observations
    if scaler == "states":
        known = Scaler(states[:num_train_steps].mean(axis=0), states[:num_train_steps].std(axis=0))
    else:
        known = context_scaler(observations[:num_train_steps])
    clean = simulate(system, protocol.transient + protocol.rollout_steps, seed=seed).states[protocol.transient :]
    return Reference(
        system=system,
        train=Series.from_arrays(observations[:num_train_steps], times=simulation.times[:num_train_steps]),
        scaler=known,
        test_states=states[num_train_steps:],
        test_observations=observations[num_train_steps:],
        clean=clean,
    )
