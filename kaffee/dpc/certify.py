"""Certification losses D of any model, from free runs against what is known of the truth."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.data.series import Series
from kaffee.data.stretches import bounds, evenly
from kaffee.dpc.gaps import Measured
from kaffee.errors import DataError
from kaffee.evaluation.dynamics import state_space_divergence
from kaffee.evaluation.local import tangent_grounding
from kaffee.evaluation.protocol import Protocol
from kaffee.evaluation.reference import Reference
from kaffee.lyapunov import lyapunov_spectrum
from kaffee.metrics.spectra import d_hellinger
from kaffee.recursion import Recursion
from kaffee.rollout import Rollout, core_key_of, free_run
from kaffee.ssm import StateSpaceModel

MIN_ROWS = 100
LossOfRun = Callable[[Float[np.ndarray, "T N"], Float[Array, "T M"]], float]


@dataclass(frozen=True)
class Certifier:
    """Maps a model to its certification losses; every number is a mean over free runs with its standard error.

    Always: `d_stsp_core`, `d_h_core` (shell off) and `d_stsp_stoch` (shell on). With a simulated truth also
    `dh_core`, the error of the sum of positive Lyapunov exponents, and `blindness` = 1 - G_tan.

    Attributes:
        noisy: Standardised observations (T, N): where free runs start and what shell-on runs are compared with.
        clean: What shell-off runs are compared with; the noise-free truth, or the observations again.
        reference: The simulated truth, if there is one.
        recursion: The filter that goes with the model, for G_tan.
        seed: Of the shell's noise and of the core's own, where it draws any; also that with the shell off.
    """

    noisy: Float[np.ndarray, "T N"]
    clean: Float[np.ndarray, "T N"]
    reference: Reference | None = None
    recursion: Recursion = field(default_factory=Recursion)
    num_runs: int = 4
    num_steps: int = 5_000
    transient: int = 500
    grounding_steps: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        length = min(len(self.noisy), len(self.clean))
        if length < MIN_ROWS:
            raise DataError(
                f"Certification compares free runs with at least {MIN_ROWS} consecutive complete rows, not {length}."
            )
        # Estimates of different lengths cannot be compared.
        steps = min(self.num_steps, length)
        object.__setattr__(self, "num_steps", steps)
        object.__setattr__(self, "noisy", self.noisy[:steps])
        object.__setattr__(self, "clean", self.clean[:steps])

    @classmethod
    def from_series(cls, standard: Series, **options: Any) -> "Certifier":
        """Against a standardised recording alone: its longest stretch of complete rows."""
        complete = [values[start:stop] for values in standard.recordings for start, stop in bounds(values)]
        longest = max(complete, key=len, default=np.zeros((0, standard.num_coordinates)))
        return cls(longest, longest, **options)

    @classmethod
    def from_reference(cls, reference: Reference, recursion: Recursion, **options: Any) -> "Certifier":
        """Against a simulated truth."""
        noisy = reference.scaler.transform(reference.test_observations)
        clean = reference.scaler.transform(reference.clean)
        return cls(noisy, clean, reference, recursion, **options)

    def __call__(self, model: StateSpaceModel) -> dict[str, Measured]:
        core = self._run(model, None)
        noisy = self._run(model, jax.random.key(self.seed))
        losses = {
            "d_stsp_core": self._over_runs(core, lambda x, _: state_space_divergence(self.clean, x, seed=self.seed)),
            "d_h_core": self._over_runs(core, lambda x, _: d_hellinger(self.clean, x)),
            "d_stsp_stoch": self._over_runs(noisy, lambda x, _: state_space_divergence(self.noisy, x, seed=self.seed)),
        }
        if self.reference is not None:
            losses["dh_core"] = self._over_runs(core, lambda _, z: self._entropy_error(model, z))
            losses["blindness"] = self._blindness(model)
        return losses

    def _run(self, model: StateSpaceModel, key: Key[Array, ""] | None) -> Rollout:
        origins = self.noisy[evenly(len(self.noisy), self.num_runs)]
        starts = model.embed(jnp.asarray(origins, model.dtype))
        noise = core_key_of(model.core, self.seed)
        return free_run(model, starts, self.num_steps, key=key, core_key=noise, transient=self.transient)

    def _over_runs(self, runs: Rollout, loss: LossOfRun) -> Measured:
        if bool(jnp.any(runs.diverged_at > 0)):
            return Measured(float("inf"))
        observed, states = np.asarray(runs.observations, np.float64), runs.states
        return _mean([loss(observed[i], states[i]) for i in range(self.num_runs)])

    def _entropy_error(self, model: StateSpaceModel, states: Array) -> float:
        assert self.reference is not None
        count = min(self.reference.train.num_coordinates, model.latent_dim)
        spectrum = lyapunov_spectrum(
            model.core.exact(), states, num_exponents=count, dt=self.reference.system.dt, reorthonormalise_every=5
        )
        return abs(spectrum.sum_positive - self.reference.lyapunov.sum_positive)

    def _blindness(self, model: StateSpaceModel) -> Measured:
        """1 - G_tan, over as many stretches of the test data as there are free runs."""
        assert self.reference is not None
        protocol = Protocol(grounding_steps=self.grounding_steps)
        rows = protocol.warm_up + protocol.grounding_steps + 1
        values = []
        for first in np.linspace(0, len(self.reference.test_states) - rows, self.num_runs).astype(int):
            stretch = replace(
                self.reference,
                test_states=self.reference.test_states[first : first + rows],
                test_observations=self.reference.test_observations[first : first + rows],
            )
            values.append(1.0 - tangent_grounding(model, self.recursion, stretch, protocol)[1].pooled)
        return _mean(values)


def _mean(values: list[float]) -> Measured:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Measured(float(np.mean(values)), spread / len(values) ** 0.5)
