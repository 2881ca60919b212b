"""Free runs against a known truth: the protocol, the reference to compare with, and axes 2 and 3 of the report card."""

from dataclasses import asdict, dataclass
from functools import cached_property
from math import nan
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.data.gaps import evenly
from kaffee.data.scaler import Scaler, context_scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.filtering.evaluation import FreeRunEvaluation, Target, evaluate_free_runs
from kaffee.metrics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from kaffee.model.statespace import StateSpaceModel
from kaffee.systems.simulation import simulate
from kaffee.systems.system import System


@dataclass(frozen=True)
class Protocol:
    """The protocol of appendix C.4; the defaults are the paper's for Lorenz-96.

    Attributes:
        horizon: Forecast steps H = floor(0.25 / (lambda_1 dt)).
        spectrum_horizons: Forecast steps of the skill spectrum: 0.13, 0.27, 0.60, 1.00 Lyapunov times (D.1).
        num_starts, num_crps_starts: Forecasts of NLL and CRPS, evenly spaced over `forecast_span` test steps.
        num_extra_starts: Of the additional columns from embedded observations, where 100 starts are too few (see
            docs/decisions.md); filtered beliefs start at `num_starts` of them.
        warm_up: Filter steps before G_tan and before a forecast from a filtered belief.
        grounding_steps: Steps pooled in G_tan.
        gates: Whose slopes transport the covariance that G_tan sees. DynaMix' are hard in either case: which of its
            Jacobians has them is `foundation.tangent`.
        rollout_steps, transient: Of free runs.
        mixture_samples: Monte Carlo draws of D_stsp.
        num_divergence_starts: Free runs that are only watched for divergence.
    """

    horizon: int = 4
    spectrum_horizons: tuple[int, ...] = (2, 4, 9, 15)
    num_members: int = 200
    num_starts: int = 100
    num_crps_starts: int = 10
    num_extra_starts: int = 500
    forecast_span: int = 20_000
    warm_up: int = 200
    grounding_steps: int = 4_000
    gates: Literal["hard", "surrogate"] = "hard"
    rollout_steps: int = 100_000
    transient: int = 1_000
    num_exponents: int = 20
    mixture_samples: int = 1_000
    num_divergence_starts: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, int) and name != "seed" and value < 1:
                raise ConfigError(f"protocol.{name} must be at least 1, not {value}.")
        if any(h < 1 for h in self.spectrum_horizons):
            raise ConfigError(f"protocol.spectrum_horizons must all be at least 1, not {self.spectrum_horizons}.")
        if self.forecast_span <= self.warm_up:
            raise ConfigError(
                f"protocol.forecast_span must exceed warm_up: {self.forecast_span} steps leave no starts after "
                f"{self.warm_up}."
            )
        if self.num_extra_starts < max(self.num_starts, self.num_crps_starts):
            raise ConfigError("protocol.num_extra_starts must not be smaller than the other numbers of starts.")

    @property
    def all_horizons(self) -> tuple[int, ...]:
        """Every horizon at which forecasts are scored, in ascending order."""
        return tuple(sorted({self.horizon, *self.spectrum_horizons}))

    def apply_gates(self, model: StateSpaceModel) -> StateSpaceModel:
        """Return the model with the slopes of `gates`."""
        return model.replace(core=model.core.with_hard_gates()) if self.gates == "hard" else model

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Reference:
    """A system with noisy training data and everything known about the truth, in data units.

    Test data continue the trajectory of the training data; `clean` is a noise-free one, after a transient.
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
                    "a truth to compare with has no gaps."
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
        """Compute J* of the flow at states, in the model's standardised coordinates: J_ij s_j / s_i."""
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

    Standardise by the clean training states (appendix C.3), or by the noisy observations (appendix C.5).
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
    states, test_states = np.split(simulation.states, [num_train_steps])
    observations, test_observations = np.split(simulation.observations, [num_train_steps])
    by_states = scaler == "states"
    return Reference(
        system=system,
        train=Series.from_arrays(observations, times=simulation.times[:num_train_steps]),
        scaler=Scaler(states.mean(axis=0), states.std(axis=0)) if by_states else context_scaler(observations),
        test_states=test_states,
        test_observations=test_observations,
        clean=simulate(system, protocol.transient + protocol.rollout_steps, seed=seed).states[protocol.transient :],
    )


class Fidelity(NamedTuple):
    """How well a free run reconstructs the dynamics; NaN where it diverged.

    Attributes:
        h, exponents: Sum of the positive Lyapunov exponents, and all of them, per unit of time.
        diverged_at: First step beyond the bound, 0 for never.
        diverged: How many of the watched runs diverged.
    """

    d_stsp: float
    dh: float
    d_h: float
    h: float
    exponents: list[float]
    diverged_at: int
    diverged: int


def measure_fidelity(
    model: StateSpaceModel, reference: Reference, protocol: Protocol, *, stochastic: bool, h_reference: float | None
) -> Fidelity:
    """Compare a free run of `protocol.rollout_steps` after a transient with the truth.

    Shell on: starts at a noisy observation, generates noisy observations, is compared with noisy observations.
    Shell off: starts at a clean state, is compared with the clean trajectory.
    `h_reference` is the true h; None: without Lyapunov exponents.
    """
    origins = reference.scaler.transform(reference.test_observations if stochastic else reference.clean)
    # With the shell on, the post-burn window of the held-out data.
    truth = origins[protocol.transient :][: protocol.rollout_steps] if stochastic else origins
    target = Target(truth, num_samples=protocol.mixture_samples, seed=protocol.seed)

    def run(starts: Float[np.ndarray, "R N"], num_steps: int, transient: int) -> FreeRunEvaluation:
        key = jax.random.key(protocol.seed + 1) if stochastic else None
        core_key = jax.random.key(protocol.seed + 2)
        return evaluate_free_runs(model, starts, target, num_steps, transient=transient, key=key, core_key=core_key)

    compared = run(origins[:1], protocol.rollout_steps, protocol.transient)
    watched = run(origins[evenly(len(origins), protocol.num_divergence_starts)], 0, protocol.rollout_steps)
    diverged_at, h, exponents, (d_stsp, d_h) = int(compared.diverged_at[0]), nan, [], (nan, nan)
    if not diverged_at:
        d_stsp, d_h = compared.distances[0][:2]
        if h_reference is not None:
            spectrum = compared.measure_exponents(protocol.num_exponents, dt=reference.system.dt)[0]
            h, exponents = spectrum.sum_positive, spectrum.exponents.tolist()
    dh = nan if h_reference is None else abs(h - h_reference)
    return Fidelity(d_stsp, dh, d_h, h, exponents, diverged_at, watched.num_diverged)
