"""The one evaluation of free runs: which of them diverge, how far the others are from data, which are trapped."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.data.gaps import evenly
from kaffee.data.scaler import Scaler
from kaffee.filtering.likelihood import start_state
from kaffee.filtering.rollout import free_run, wall_limit
from kaffee.metrics.attractors import AttractorDistances, Estimator, Extent, measure_distances
from kaffee.metrics.delays import Delays, choose_delays
from kaffee.metrics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from kaffee.metrics.spectra import FLAT, d_hellinger
from kaffee.model.inputs import InputRuns
from kaffee.model.statespace import StateSpaceModel


@dataclass(frozen=True)
class Target:
    """What free runs are compared with.

    Attributes:
        rows: Complete, in the units of the runs.
        estimator, num_samples, seed: Of D_stsp (`kaffee.metrics.attractors.measure_distances`).
        spectra: Whether rows follow each other in time, so that there is a D_H.
        length: Steps of a run that are compared; None: all.
        columns: Mask of the coordinates that are compared; `...`: all.
        extent: What the data cover; None: no run counts as trapped.
        delays: Delay coordinates in which D_stsp is measured; None: the coordinates as they are.
        past: The rows in delay coordinates, where they are not made of `rows`, which then need not follow each other.
    """

    rows: Float[np.ndarray, "T N"]
    estimator: Estimator | None = None
    num_samples: int = 1_000
    seed: int = 0
    spectra: bool = True
    length: int | None = None
    columns: Any = ...
    extent: Extent | None = None
    delays: Delays | None = None
    past: Float[np.ndarray, "R K"] | None = None

    def measure(self, runs: list[Float[np.ndarray, "L N"]] | Float[np.ndarray, "S L N"]) -> list[AttractorDistances]:
        """Measure the distances of runs from the rows."""
        found = self._occupy([self._view(run) for run in runs])
        if not self.spectra:
            return found
        rows = self.rows[:, self.columns]
        spectral = [d_hellinger(rows, run[: self.length, self.columns]) for run in runs]
        return [each._replace(d_h=d_h) for each, d_h in zip(found, spectral, strict=True)]

    def measure_together(self, runs: Float[np.ndarray, "S L N"], most: int) -> float:
        """Measure D_stsp of all runs together, by at most so many of their rows; infinite without any."""
        rows = np.concatenate([self._view(run) for run in runs]) if len(runs) else np.zeros((0, 1))
        return self._occupy([rows[evenly(len(rows), min(most, len(rows)))]])[0].d_stsp if len(rows) else float("inf")

    def _view(self, run: Float[np.ndarray, "L N"]) -> Float[np.ndarray, "L K"]:
        """Return what is compared of a run: columns, and delays of them."""
        return self._delay(run[: self.length, self.columns])

    def _delay(self, values: Float[np.ndarray, "L N"]) -> Float[np.ndarray, "L K"]:
        return values if self.delays is None else self.delays.embed(values)

    def _occupy(self, views: list[Float[np.ndarray, "L K"]]) -> list[AttractorDistances]:
        reference = self._delay(self.rows[:, self.columns]) if self.past is None else self.past
        how: dict[str, Any] = {"estimator": self.estimator, "num_samples": self.num_samples, "seed": self.seed}
        return measure_distances(reference, views, spectra=False, **how)

    def with_extent(self, recordings: list[Float[np.ndarray, "T N"]], length: int) -> "Target":
        """Return the target with the extent of complete recordings, by pieces of one length."""
        known = [values[:, self.columns] for values in recordings]
        return replace(self, extent=Extent.measure(known, length, self.delays))

    def with_delays(self, recordings: list[Float[np.ndarray, "T N"]]) -> "Target":
        """Return the target with the delay coordinates that suit complete recordings, if they have few coordinates."""
        return replace(self, delays=choose_delays([values[:, self.columns] for values in recordings]))

    @cached_property
    def noise_bound(self) -> Float[np.ndarray, " N"]:
        """The largest standard deviation that white observation noise can have: that of one step, over root two."""
        if not self.spectra or len(self.rows) < 2:
            return self.rows.std(axis=0) if len(self.rows) else np.zeros(self.rows.shape[1])
        return np.sqrt(0.5 * np.mean(np.diff(self.rows, axis=0) ** 2, axis=0))


@dataclass(frozen=True, eq=False)
class FreeRunEvaluation:
    """Free runs of one model beside their target, in its units; arrays hold the runs that did not diverge.

    Attributes:
        diverged_at: Of all runs, the step at which each diverged, 0 if it did not.
        clipped: Share of steps at which the core held a run back (`Core.contains`).
        noise: Standard deviation of the observation noise that runs with the shell off lack; None if it is on.
        as_readings: Whether they are compared with it.
        repeats: Whether inputs repeat themselves within a run, so that a run that does so may be right.
        readings: Counts or binary readings drawn from the runs, in place of noise, to be compared with data.
    """

    model: StateSpaceModel
    target: Target
    observations: Float[np.ndarray, "S T N"]
    states: Float[Array, "S T M"]
    diverged_at: Int[np.ndarray, " R"]
    clipped: Float[np.ndarray, " S"]
    noise: Float[np.ndarray, " N"] | None = None
    as_readings: bool = False
    repeats: bool = False
    readings: Float[np.ndarray, "S T N"] | None = None

    @property
    def num_diverged(self) -> int:
        """The number of runs that diverged."""
        return int((self.diverged_at > 0).sum())

    @cached_property
    def distances(self) -> list[AttractorDistances]:
        """The distances of the runs that did not diverge."""
        if self.readings is not None:
            return self.target.measure(self.readings)
        if self.noise is None or not self.as_readings or not len(self.observations):
            return self.target.measure(self.observations)
        rng, unit = np.random.default_rng(0), self.target.rows.std(axis=0)
        # A coordinate at rest stays what it is: noise would give it a spectrum.
        noise = [self.noise * (run.std(axis=0) > FLAT * unit) for run in self.observations]
        readings = [
            run + std * rng.standard_normal(run.shape) for run, std in zip(self.observations, noise, strict=True)
        ]
        return self.target.measure(readings)

    @property
    def at_wall(self) -> Bool[np.ndarray, " S"]:
        """Which of the runs that did not diverge are held back so often that they live at the wall."""
        return self.clipped > wall_limit(self.model)

    @cached_property
    def trapped(self) -> Bool[np.ndarray, " S"]:
        """Which of the others stay in a part of the attractor, or at rest; by the signal, which noise would hide."""
        if self.target.extent is None:
            return np.zeros(len(self.observations), bool)
        return self.target.extent.find_trapped(self.observations[:, :, self.target.columns]) & ~self.at_wall

    def find_periods(self, noisy: "FreeRunEvaluation | None" = None) -> Int[np.ndarray, " S"]:
        """Find the periods of other runs that repeat themselves where the data do not; 0 for those that do not.

        Unless the same model with noise, `noisy`, forgets as fast as the data do.
        """
        if self.target.extent is None or self.noise is None or self.repeats:
            return np.zeros(len(self.observations), int)
        columns, extent = self.target.columns, self.target.extent
        share = float(np.mean(self.noise[columns] ** 2 / extent.unit))
        beside = [] if noisy is None else list(noisy.observations[:, :, columns])
        periods = extent.find_periods(self.observations[:, :, columns], share, beside)
        return np.where(self.trapped | self.at_wall, 0, periods)

    def measure_exponents(
        self, count: int, *, dt: float, max_runs: int | None = None, max_steps: int | None = None, **options: Any
    ) -> list[LyapunovSpectrum]:
        """Measure up to `count` Lyapunov exponents of the core along each run, or along `max_runs` of them."""
        core, count, runs = self.model.core.exact(), min(count, self.model.latent_dim), len(self.states)
        some = self.states[evenly(runs, min(max_runs or runs, runs))]
        return [lyapunov_spectrum(core, run[:max_steps], num_exponents=count, dt=dt, **options) for run in some]


def evaluate_free_runs(
    model: StateSpaceModel,
    starts: Float[np.ndarray, "R N"],
    target: Target,
    num_steps: int,
    *,
    transient: int,
    key: Key[Array, ""] | None = None,
    core_key: Key[Array, ""] | None = None,
    scaler: Scaler | None = None,
    as_readings: bool = False,
    inputs: InputRuns | None = None,
) -> FreeRunEvaluation:
    """Run a model freely from observations and compare the runs with a target.

    Args:
        starts: Observations, standardised, or in data units if there is a `scaler`; runs are in the same units.
        num_steps, transient: Steps that are compared, and those before them; divergence counts in both.
        key, core_key: For the noise of the shell, which None turns off, and for that inside the core.
        as_readings: Compare runs without a `key` as readings of them would be, with the shell's observation noise: data
            have theirs, and without it even the true system would differ. No more of it than the target can have, so
            that a model which takes its own errors for noise cannot hide behind them.
        inputs: Of a driven model, standardised; None: the mean input at every step.
    """
    standard = starts if scaler is None else scaler.transform(starts)
    first = start_state(model, jnp.asarray(standard, model.dtype))
    whole = jnp.asarray(transient, jnp.int32)
    run = free_run(model, first, num_steps, key=key, core_key=core_key, transient=whole, inputs=inputs)
    diverged_at = np.asarray(run.diverged_at)
    stays = diverged_at == 0
    observations = np.asarray(run.observations, np.float64)[stays]
    readings = None
    if model.discrete is not None and key is None and as_readings:
        drawn = np.asarray(model.discrete.draw(jax.random.key(0), run.observations), np.float64)[stays]
        readings = drawn if scaler is None else scaler.inverse(drawn)
    if scaler is not None:
        observations = scaler.inverse_signal(observations) if key is None else scaler.inverse(observations)
    noise = None
    if key is None:
        std = np.sqrt(np.asarray(model.shell.observation_variance(), np.float64))
        noise = np.minimum(std if scaler is None or scaler.discrete else std * scaler.scale, target.noise_bound)
    clipped = np.asarray(run.clipped, np.float64)[stays]
    repeats = inputs is not None and len(inputs.rows) < num_steps
    known = (model, target, observations, run.states[stays], diverged_at, clipped)
    return FreeRunEvaluation(*known, noise, as_readings, repeats, readings)
