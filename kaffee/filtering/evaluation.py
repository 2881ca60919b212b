"""The one evaluation of free runs: which of them diverge, how far the others are from data, which are trapped."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.data.gaps import evenly
from kaffee.data.scaler import Scaler
from kaffee.filtering.likelihood import start_state
from kaffee.filtering.rollout import free_run
from kaffee.metrics.attractors import AttractorDistances, Estimator, Extent, measure_distances
from kaffee.metrics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
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
        extent: What pieces of the data cover; None: no run counts as trapped.
    """

    rows: Float[np.ndarray, "T N"]
    estimator: Estimator | None = None
    num_samples: int = 1_000
    seed: int = 0
    spectra: bool = True
    length: int | None = None
    columns: Any = ...
    extent: Extent | None = None

    def measure(self, runs: list[Float[np.ndarray, "L N"]] | Float[np.ndarray, "S L N"]) -> list[AttractorDistances]:
        """Measure the distances of runs from the rows."""
        return measure_distances(
            self.rows[:, self.columns],
            [run[: self.length, self.columns] for run in runs],
            estimator=self.estimator,
            spectra=self.spectra,
            num_samples=self.num_samples,
            seed=self.seed,
        )

    def with_extent(
        self, floors: list[AttractorDistances], recordings: list[Float[np.ndarray, "T N"]], length: int
    ) -> "Target":
        """Return the target with the extent of complete recordings; `floors` are distances of pieces of one length."""
        known = [values[:, self.columns] for values in recordings]
        return replace(self, extent=Extent.measure(floors, known, length))


@dataclass(frozen=True, eq=False)
class FreeRunEvaluation:
    """Free runs of one model beside their target, in its units; arrays hold the runs that did not diverge.

    Only `diverged_at` has all runs: the step at which each diverged, 0 if it did not.
    """

    model: StateSpaceModel
    target: Target
    observations: Float[np.ndarray, "S T N"]
    states: Float[Array, "S T M"]
    diverged_at: Int[np.ndarray, " R"]

    @property
    def num_diverged(self) -> int:
        """The number of runs that diverged."""
        return int((self.diverged_at > 0).sum())

    @cached_property
    def distances(self) -> list[AttractorDistances]:
        """The distances of the runs that did not diverge."""
        return self.target.measure(self.observations)

    @cached_property
    def trapped(self) -> Bool[np.ndarray, " S"]:
        """Which of the runs that did not diverge stay in a part of the attractor, or at rest."""
        if self.target.extent is None:
            return np.zeros(len(self.observations), bool)
        return self.target.extent.find_trapped(self.distances, self.observations[:, :, self.target.columns])

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
) -> FreeRunEvaluation:
    """Run a model freely from observations and compare the runs with a target.

    Args:
        starts: Observations, standardised, or in data units if there is a `scaler`; runs are in the same units.
        num_steps, transient: Steps that are compared, and those before them; divergence counts in both.
        key, core_key: For the noise of the shell, which None turns off, and for that inside the core.
    """
    standard = starts if scaler is None else scaler.transform(starts)
    first = start_state(model, jnp.asarray(standard, model.dtype))
    run = free_run(model, first, num_steps, key=key, core_key=core_key, transient=transient)
    diverged_at = np.asarray(run.diverged_at)
    stays = diverged_at == 0
    observations = np.asarray(run.observations, np.float64)[stays]
    observations = observations if scaler is None else scaler.inverse(observations)
    return FreeRunEvaluation(model, target, observations, run.states[stays], diverged_at)
