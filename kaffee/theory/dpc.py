"""Detect the DPC gap (definition 1): a refinement that lowers the score S_H and raises a certification loss D."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.certification.card import measure_grounding
from kaffee.certification.fidelity import Protocol, Reference
from kaffee.data.gaps import evenly, longest_stretch
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.evaluation import FreeRunEvaluation, Target, evaluate_free_runs
from kaffee.filtering.likelihood import Method
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import make_core_key
from kaffee.model.inputs import InputRuns
from kaffee.model.statespace import StateSpaceModel
from kaffee.theory.attenuation import Measured
from kaffee.training.adaptation import Adaptation, nll_objective
from kaffee.training.loop import Watcher


@dataclass(frozen=True)
class Entry:
    """The score S_H of a model during training, and its certification losses D by name; lower is better."""

    update: int
    score: float
    losses: Mapping[str, Measured]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; a number that is not finite becomes a word, such as "inf"."""
        losses = {name: {"value": _number(value), "se": _number(se)} for name, (value, se) in self.losses.items()}
        return {"update": self.update, "score": _number(self.score), "losses": losses}


def _number(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


@dataclass(frozen=True)
class Gap:
    """A step theta -> theta' between two updates with S_H(theta') < S_H(theta) but D(theta') > D(theta)."""

    before: int
    after: int
    loss: str
    score_change: float
    loss_change: float
    loss_change_se: float


def find_gaps(entries: Sequence[Entry], *, significance: float = 2.0) -> list[Gap]:
    """Find the gaps between consecutive entries.

    The score is evaluated on fixed windows and has no sampling error; a loss has to rise by `significance` combined
    standard errors, because free runs of a chaotic model are samples.

    >>> calm, broken = {"D": Measured(0.2, 0.01)}, {"D": Measured(0.9, 0.01)}
    >>> [(g.before, g.after, g.loss) for g in find_gaps([Entry(0, 1.5, calm), Entry(10, 1.2, broken)])]
    [(0, 10, 'D')]
    """
    gaps = []
    for old, new in pairwise(entries):
        if not new.score < old.score:
            continue
        for name, loss in new.losses.items():
            before = old.losses[name]
            change, se = loss.value - before.value, math.hypot(before.se, loss.se)
            if loss.value > before.value and not change <= significance * se:
                gaps.append(Gap(old.update, new.update, name, new.score - old.score, change, se))
    return gaps


def overall_gaps(entries: Sequence[Entry], *, significance: float = 2.0) -> list[Gap]:
    """Find the gaps of the run as a whole, from its first entry to its last."""
    return [] if len(entries) < 2 else find_gaps([entries[0], entries[-1]], significance=significance)


_MIN_ROWS = 100


@dataclass(frozen=True)
class Certifier:
    """Compute the certification losses D of a model: means over free runs with their standard errors.

    Always: `d_stsp_core`, `d_h_core` (shell off) and `d_stsp_stoch` (shell on). With a simulated truth also
    `dh_core`, the error of the sum of positive Lyapunov exponents, and `blindness` = 1 - G_tan. Here D_stsp is the
    paper's: by histograms up to three coordinates, by mixtures beyond; certificates of a fit use kernel densities.

    Attributes:
        noisy: Standardised observations (T, N): where free runs start and what shell-on runs are compared with.
        clean: What shell-off runs are compared with; the noise-free truth, or the observations again.
        reference, recursion: The simulated truth, if there is one, and the model's filter, for G_tan.
        seed: Of the shell's noise and of the core's own, where it draws any; also that with the shell off.
        inputs: Standardised, for free runs of driven models, which use them again when they end.
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
    inputs: Float[np.ndarray, "T K"] | None = None

    def __post_init__(self) -> None:
        length = min(len(self.noisy), len(self.clean))
        if length < _MIN_ROWS:
            needed = f"at least {_MIN_ROWS} consecutive complete rows"
            raise DataError(f"Certification compares free runs with {needed}, not {length}.")
        # Estimates of different lengths cannot be compared.
        steps = min(self.num_steps, length)
        for name, value in (("num_steps", steps), ("noisy", self.noisy[:steps]), ("clean", self.clean[:steps])):
            object.__setattr__(self, name, value)

    @classmethod
    def from_series(cls, standard: Series, **options: Any) -> "Certifier":
        """Certify against a standardised recording alone: its longest stretch of complete rows."""
        longest = longest_stretch(standard)
        inputs = None if standard.inputs is None else standard.inputs.concatenated()
        return cls(longest, longest, inputs=inputs, **options)

    @classmethod
    def from_reference(cls, reference: Reference, recursion: Recursion, **options: Any) -> "Certifier":
        """Certify against a simulated truth."""
        noisy, clean = map(reference.scaler.transform, (reference.test_observations, reference.clean))
        return cls(noisy, clean, reference, recursion, **options)

    def __call__(self, model: StateSpaceModel) -> dict[str, Measured]:
        core, noisy = self._run(model, self.clean, None), self._run(model, self.noisy, jax.random.key(self.seed))
        losses = {
            "d_stsp_core": _over_runs(core, lambda runs: [d.d_stsp for d in runs.distances]),
            "d_h_core": _over_runs(core, lambda runs: [d.d_h for d in runs.distances]),
            "d_stsp_stoch": _over_runs(noisy, lambda runs: [d.d_stsp for d in runs.distances]),
        }
        if self.reference is not None:
            losses["dh_core"] = _over_runs(core, self._entropy_errors)
            losses["blindness"] = self._blindness(model)
        return losses

    def _run(
        self, model: StateSpaceModel, rows: Float[np.ndarray, "T N"], key: Key[Array, ""] | None
    ) -> FreeRunEvaluation:
        return evaluate_free_runs(
            model,
            self.noisy[evenly(len(self.noisy), self.num_runs)],
            Target(rows, seed=self.seed, spectra=key is None),
            self.num_steps,
            transient=self.transient,
            key=key,
            core_key=make_core_key(model.core, self.seed),
            inputs=None if self.inputs is None else InputRuns.spread(self.inputs, self.num_runs, model.dtype),
        )

    def _entropy_errors(self, runs: FreeRunEvaluation) -> list[float]:
        assert self.reference is not None
        count, dt = self.reference.train.num_coordinates, self.reference.system.dt
        spectra = runs.measure_exponents(count, dt=dt, reorthonormalise_every=5)
        return [abs(spectrum.sum_positive - self.reference.lyapunov.sum_positive) for spectrum in spectra]

    def _blindness(self, model: StateSpaceModel) -> Measured:
        """Compute 1 - G_tan over as many stretches of the test data as there are free runs."""
        assert self.reference is not None
        protocol = Protocol(grounding_steps=self.grounding_steps)
        rows = protocol.warm_up + protocol.grounding_steps + 1
        values = []
        for first in np.linspace(0, len(self.reference.test_states) - rows, self.num_runs).astype(int):
            states, observations = self.reference.test_states[first:], self.reference.test_observations[first:]
            stretch = replace(self.reference, test_states=states[:rows], test_observations=observations[:rows])
            values.append(1.0 - measure_grounding(model, self.recursion, stretch, protocol)[1].pooled)
        return _mean(values)


def _over_runs(runs: FreeRunEvaluation, loss: Callable[[FreeRunEvaluation], list[float]]) -> Measured:
    """Average a loss over runs; infinite if one diverged."""
    return Measured(float("inf")) if runs.num_diverged else _mean(loss(runs))


def _mean(values: list[float]) -> Measured:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Measured(float(np.mean(values)), spread / len(values) ** 0.5)


class GapLog(Watcher):
    """Certify the model every `every` updates, and after the `last`, while it trains: `adapt(..., watcher=log)`.

    Score and losses are any functions of a model; `entries` holds their values so far.
    """

    def __init__(
        self,
        score: Callable[[StateSpaceModel], float],
        losses: Callable[[StateSpaceModel], Mapping[str, Measured]],
        *,
        every: int,
        last: int | None = None,
        inner: Watcher | None = None,
    ) -> None:
        if every < 1:
            raise ConfigError(f"A gap log looks every 1, 2, ... updates, not every {every}.")
        self.score, self.losses, self.every, self.last = score, losses, every, last
        self.inner = inner or Watcher()
        self.entries: list[Entry] = []

    def compiling(self, what: str) -> None:
        self.inner.compiling(what)

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        self.inner.advanced(update, loss, skipped)

    def visited(self, update: int, model: StateSpaceModel) -> None:
        self.inner.visited(update, model)
        if update % self.every == 0 or update == self.last:
            self.entries.append(Entry(update, self.score(model), dict(self.losses(model))))


def fixed_score(
    prior: StateSpaceModel, series: Series, method: Method, settings: Adaptation, *, num_windows: int = 128
) -> Callable[[StateSpaceModel], float]:
    """Return S_H: the method's own training objective on a fixed batch of windows of a standardised series."""
    surrogate = prior.replace(core=prior.core.surrogate())
    objective = nll_objective(surrogate, series, method, settings, method.trainable_parts)
    windows = training_windows(series, settings.burn_in + settings.scored + 1, prior.dtype)
    batch = windows.sample(jax.random.key(0), num_windows)
    evaluated = eqx.filter_jit(lambda model: objective(model, batch).loss)
    return lambda model: float(evaluated(model))
