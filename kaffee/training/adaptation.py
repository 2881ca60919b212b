"""KAFFEE and its controls: train core and shell through the recursion (algorithm 1)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from kaffee.data.series import Series
from kaffee.data.windows import WindowBatch, group_rows, padded, training_windows
from kaffee.errors import ConfigError
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.likelihood import Gradient, Method, Score, window_nll
from kaffee.filtering.recursion import Recursion
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.climate import with_climate
from kaffee.training.forcing import Forcing, run_forced
from kaffee.training.guard import FreeRunGuard, Guard, ScoreGuard, confine
from kaffee.training.loop import Schedule, Trained, Watcher, train
from kaffee.training.optimiser import Optimiser

_CALIBRATION = Optimiser("adam", learning_rate=5e-2, final_learning_rate=1e-3, clip_norm=2.0)


@dataclass(frozen=True)
class Adaptation:
    """The settings of algorithm 1; the defaults are the paper's for Lorenz-96.

    Attributes:
        scored: L, steps of a window that enter the loss.
        burn_in: L_burn, steps before them that are only propagated.
        start: Mean at the start of a window: "embedding" of its first row, or "forced", the latent state of the prior
            under teacher forcing at every step. Either way the observed coordinates are then overwritten. "observed"
            is the embedding with covariance 0: the noisy first row is taken for the state (appendix A.2).
        gradient, segment: See `kaffee.filtering.likelihood.window_nll`.
        confine: Confine the trained core to the range of filtered training states, widened on both sides by this
            fraction of it, so that free runs stay bounded (see `kaffee.training.guard`); None: leave it free.
        calibration: Updates of the shell alone after training. While the core learns, the noise scales lag behind:
            Adam moves their logarithms by no more than the sum of its rates. None: no such updates, as in the paper.
        climate: Give the trained model the climate of filtered training states, which beliefs start from, before the
            calibration and again after it (see `kaffee.training.climate`). None: they start at the embedding of the
            first row as if it told all, as in the paper and, either way, in the windows that the core trains on.
        filter: The filter that the core trains through and the model is used with, such as "lowrank:32" or "etkf:24"
            (see `kaffee.filtering.filters`). None: the extended Kalman filter, as in the paper.
        guard: Updates between two checks of the core's free runs, which roll it back if they have become worse (see
            `kaffee.training.guard`). None: no checks, as in the paper.
    """

    scored: int = 32
    burn_in: int = 8
    start: Literal["embedding", "forced", "observed"] = "embedding"
    gradient: Gradient = "adjoint"
    segment: int | None = None
    confine: float | None = None
    calibration: int | None = None
    climate: bool | None = None
    guard: int | None = None
    filter: str | None = None
    optimiser: Optimiser = Optimiser("adam", learning_rate=5e-3, clip_norm=2.0)
    schedule: Schedule = Schedule(num_updates=150, report_every=5, save_every=50)

    def __post_init__(self) -> None:
        if self.scored < 1 or self.burn_in < 0:
            raise ConfigError(
                f"A window of adaptation needs scored >= 1 and burn_in >= 0, not {self.scored} and {self.burn_in}."
            )
        if self.confine is not None and not 0 <= self.confine < math.inf:
            raise ConfigError(f"confine, a fraction of the states' range, must not be negative; got {self.confine}.")
        if self.calibration is not None and self.calibration < 0:
            raise ConfigError(f"calibration, a number of updates, must not be negative; got {self.calibration}.")
        if self.guard is not None and self.guard < 1:
            raise ConfigError(f"guard, updates between two looks at free runs, must be at least 1; got {self.guard}.")
        if self.filter is not None:
            parse_filter(self.filter)
        steps = self.burn_in + self.scored
        if self.segment is not None and (self.segment < 1 or steps % self.segment):
            raise ConfigError(f"segment must divide burn_in + scored = {steps}; {self.segment} does not.")


class View(NamedTuple):
    """Another look at a model, for what judges free runs: the rows of a series, and the model of these rows."""

    series: Series
    look: Callable[[StateSpaceModel], StateSpaceModel]


class _NLLObjective(eqx.Module):
    """The window NLL of a method, with the signature of the training loop."""

    recursion: Recursion
    burn_in: int = eqx.field(static=True)
    gradient: Gradient = eqx.field(static=True, default="adjoint")
    segment: int | None = eqx.field(static=True, default=None)
    latent: Float[Array, "T M"] | None = None
    certain_start: bool = eqx.field(static=True, default=False)
    groups: Int[Array, " T"] | None = None

    def __call__(self, model: StateSpaceModel, batch: WindowBatch, /) -> Score:
        return window_nll(
            model if self.groups is None else model.select(self.groups[batch.starts]),
            batch.observations,
            batch.mask,
            self.recursion,
            burn_in=self.burn_in,
            start=None if self.latent is None else self.latent[batch.starts],
            certain_start=self.certain_start,
            gradient=self.gradient,
            segment=self.segment,
            key=batch.key,
        )


@eqx.filter_jit
def _forced_states(model: StateSpaceModel, x: Array, mask: Array) -> Float[Array, "R T M"]:
    first = model.embed(model.split(jnp.where(mask[:, 0], x[:, 0], 0.0))[0])[:, None]
    run, _ = run_forced(model, x, mask, Forcing(interval=1))
    return jnp.concatenate([first, jnp.swapaxes(run.states, 0, 1)], axis=1)


def _latent_states(model: StateSpaceModel, series: Series) -> Float[Array, "T M"]:
    """Compute the prior's teacher-forced latent state at every row of `Series.concatenated()`."""
    states = _forced_states(model.exact(), *padded(series, model.dtype))
    return jnp.concatenate([states[i, :length] for i, length in enumerate(series.lengths)])


def nll_objective(
    model: StateSpaceModel, series: Series, method: Method, settings: Adaptation, parts: tuple[str, ...]
) -> _NLLObjective:
    """Build the objective of `method`."""
    return _NLLObjective(
        recursion=method.recursion,
        burn_in=settings.burn_in,
        gradient=settings.gradient,
        segment=settings.segment,
        latent=_latent_states(model, series) if settings.start == "forced" else None,
        certain_start=settings.start == "observed",
        groups=jnp.asarray(group_rows(series)) if model.num_groups else None,
    )


def build_guard(
    series: Series,
    method: Method,
    settings: Adaptation,
    score: Callable[[StateSpaceModel], float] | None = None,
    view: View | None = None,
) -> Guard | None:
    """Build the guard; None if it is disabled, the core does not train or there is nothing to look at.

    `score` is of forecasts of held-back rows. A series too short for free runs is guarded by it alone. With a `view`
    free runs and forecasts are those of the model that it shows.
    """
    if settings.guard is None or not method.train_core:
        return None
    rows, look = (series, lambda model: model) if view is None else view
    if not FreeRunGuard.possible(rows):
        return None if score is None else ScoreGuard(settings.guard, lambda model: score(look(model)))
    return FreeRunGuard(rows, settings.guard, lambda model: look(_confine(model, series, method, settings)), score)


def _confine(model: StateSpaceModel, series: Series, method: Method, settings: Adaptation) -> StateSpaceModel:
    """Put the confining box around the core if `settings.confine` asks for it."""
    if settings.confine is None:
        return model
    return confine(model, series, method.filter, margin=settings.confine)


def _add_climate(model: StateSpaceModel, series: Series, method: Method, settings: Adaptation) -> StateSpaceModel:
    """Give the model the climate of the series if `settings.climate` asks for it; take away an earlier one if not."""
    return with_climate(model, series, method.filter) if settings.climate else model.replace(climate=None)


def adapt(
    model: StateSpaceModel,
    series: Series,
    method: Method,
    settings: Adaptation,
    *,
    seed: int,
    parts: tuple[str, ...] | None = None,
    score: Callable[[StateSpaceModel], float] | None = None,
    view: View | None = None,
    watcher: Watcher | None = None,
    save: Callable[..., Any] | None = None,
    **resume: Any,
) -> Trained:
    """Make a prior probabilistic on a standardised series; `method` chooses the row of Table 1.

    The shell should have been initialised (`initialise_shell`). The core trains with its surrogate gates. The guard
    takes a model whose `score` on held-back rows has become worse for a worse one.
    """
    parts = method.trainable_parts if parts is None else parts
    method = replace(method, filter_name=settings.filter or method.filter_name)

    def run(model: StateSpaceModel, parts: tuple[str, ...], **options: Any) -> Trained:
        windows = training_windows(series, settings.burn_in + settings.scored + 1, model.dtype)
        return train(model, nll_objective(model, series, method, settings, parts), windows, parts=parts, **options)

    trained = run(
        model.replace(core=model.core.surrogate()),
        parts,
        optimiser=settings.optimiser,
        schedule=settings.schedule,
        seed=seed,
        watcher=watcher,
        guard=build_guard(series, method, settings, score, view) if "core" in parts else None,
        save=save,
        **resume,
    )
    final = _add_climate(trained.model, series, method, settings)
    if settings.calibration and trained.completed:
        # A faster rate of the shell during training would calibrate it as well, but leaves a worse core.
        schedule = replace(settings.schedule, num_updates=settings.calibration)
        final = run(final, ("shell",), optimiser=_CALIBRATION, schedule=schedule, seed=seed + 1).model
        final = _add_climate(final, series, method, settings)
    return replace(trained, model=_confine(final, series, method, settings))
