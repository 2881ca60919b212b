"""KAFFEE and its controls: train core and shell through the recursion (algorithm 1)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.data.series import Series
from kaffee.data.windows import WindowBatch, padded, training_windows
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import Gradient, Method, Score, window_nll
from kaffee.filtering.recursion import Recursion
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.forcing import Forcing, run_forced
from kaffee.training.guard import FreeRunGuard, confine
from kaffee.training.loop import Schedule, Trained, Watcher, train
from kaffee.training.optimiser import Optimiser

CALIBRATION = Optimiser("adam", learning_rate=5e-2, final_learning_rate=1e-3, clip_norm=2.0)


@dataclass(frozen=True)
class Adaptation:
    """The settings of algorithm 1; the defaults are the paper's for Lorenz-96.

    Attributes:
        scored: L, steps of a window that enter the loss.
        burn_in: L_burn, steps before them that are only propagated.
        start: Where a window's mean starts: "embedding" of its first row, or "forced", the latent state of the prior
            under teacher forcing at every step. Either way the observed coordinates are then overwritten. "observed"
            is the embedding with covariance 0: the noisy first row is taken for the state (appendix A.2).
        gradient: "adjoint" (hand-derived) or "autodiff".
        confine: Confine the trained core to the range of filtered training states, widened on both sides by this
            fraction of it, so that free runs stay bounded (see `kaffee.training.guard`); None: leave it free.
        segment: See `kaffee.filtering.likelihood.run_terms`; for windows that do not fit in memory.
        calibration: Updates of the shell alone that follow, by `CALIBRATION`. While the core learns, the scales of the
            noise lag behind what it has learnt: Adam moves their logarithms by no more than the sum of its rates. None:
            no such updates, as in the paper.
        guard: Updates between two looks at the core's free runs, which send it back where they have become worse (see
            `kaffee.training.guard`). None: nobody looks, as in the paper.
    """

    scored: int = 32
    burn_in: int = 8
    start: Literal["embedding", "forced", "observed"] = "embedding"
    gradient: Gradient = "adjoint"
    segment: int | None = None
    confine: float | None = None
    calibration: int | None = None
    guard: int | None = None
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
        steps = self.burn_in + self.scored
        if self.segment is not None and (self.segment < 1 or steps % self.segment):
            raise ConfigError(f"segment must divide burn_in + scored = {steps}; {self.segment} does not.")


class NLLObjective(eqx.Module):
    """The window NLL of a method as the training loop wants it."""

    recursion: Recursion
    burn_in: int = eqx.field(static=True)
    gradient: Gradient = eqx.field(static=True, default="adjoint")
    segment: int | None = eqx.field(static=True, default=None)
    latent: Float[Array, "T M"] | None = None
    certain_start: bool = eqx.field(static=True, default=False)

    def __call__(self, model: StateSpaceModel, batch: WindowBatch, /) -> Score:
        start = None if self.latent is None else self.latent[batch.starts]
        return window_nll(
            model,
            batch.observations,
            batch.mask,
            self.recursion,
            burn_in=self.burn_in,
            start=start,
            certain_start=self.certain_start,
            gradient=self.gradient,
            segment=self.segment,
            key=batch.key,
        )


@eqx.filter_jit
def forced_states(model: StateSpaceModel, x: Array, mask: Array, forcing: Forcing) -> Float[Array, "R T M"]:
    """The latent states of the prior along recordings, under teacher forcing."""
    first = model.embed(jnp.where(mask[:, 0], x[:, 0], 0.0))[:, None]
    run, _ = run_forced(model, x, mask, forcing)
    return jnp.concatenate([first, jnp.swapaxes(run.states, 0, 1)], axis=1)


def latent_states(model: StateSpaceModel, series: Series) -> Float[Array, "T M"]:
    """The prior's teacher-forced latent state at every row of `Series.concatenated()`."""
    states = forced_states(model.exact(), *padded(series, model.dtype), Forcing(interval=1))
    return jnp.concatenate([states[i, :length] for i, length in enumerate(series.lengths)])


def nll_objective(
    model: StateSpaceModel, series: Series, method: Method, settings: Adaptation, parts: tuple[str, ...]
) -> NLLObjective:
    """The objective of `method`; B has no hand-derived gradient, so training it goes through autodiff."""
    return NLLObjective(
        recursion=method.recursion,
        burn_in=settings.burn_in,
        gradient="autodiff" if "observation" in parts else settings.gradient,
        segment=settings.segment,
        latent=latent_states(model, series) if settings.start == "forced" else None,
        certain_start=settings.start == "observed",
    )


def guard_of(series: Series, method: Method, settings: Adaptation) -> FreeRunGuard | None:
    """Who looks after the core while it trains on a standardised series, if anybody can and shall."""
    if settings.guard is None or not method.train_core or not FreeRunGuard.possible(series):
        return None
    return FreeRunGuard(series, settings.guard, lambda model: finished(model, series, method, settings))


def finished(model: StateSpaceModel, series: Series, method: Method, settings: Adaptation) -> StateSpaceModel:
    """The trained model as it is used: confined, if it shall be."""
    if settings.confine is None:
        return model
    return confine(model, series, method.filter, margin=settings.confine)


def adapt(
    model: StateSpaceModel,
    series: Series,
    method: Method,
    settings: Adaptation,
    *,
    seed: int,
    parts: tuple[str, ...] | None = None,
    watcher: Watcher | None = None,
    save: Callable[..., Any] | None = None,
    **resume: Any,
) -> Trained:
    """Make a prior probabilistic on a standardised series: the rows of the paper by `method`.

    The shell should have been initialised (`initialise_shell`). The core trains under its surrogate gates.
    """
    parts = method.trainable_parts if parts is None else parts
    model = model.replace(core=model.core.surrogate())
    windows = training_windows(series, settings.burn_in + settings.scored + 1, model.dtype)
    trained = train(
        model,
        nll_objective(model, series, method, settings, parts),
        windows,
        parts=parts,
        optimiser=settings.optimiser,
        schedule=settings.schedule,
        seed=seed,
        watcher=watcher,
        guard=guard_of(series, method, settings) if "core" in parts else None,
        save=save,
        **resume,
    )
    final = trained.model
    if settings.calibration and trained.completed:
        final = calibrated(final, series, method, settings, seed=seed + 1)
    return replace(trained, model=finished(final, series, method, settings))


def calibrated(
    model: StateSpaceModel, series: Series, method: Method, settings: Adaptation, *, seed: int
) -> StateSpaceModel:
    """The model with a shell that fits its core: updates of the shell alone."""
    return train(
        model,
        nll_objective(model, series, method, settings, ("shell",)),
        training_windows(series, settings.burn_in + settings.scored + 1, model.dtype),
        parts=("shell",),
        optimiser=CALIBRATION,
        schedule=replace(settings.schedule, num_updates=settings.calibration or 0),
        seed=seed,
    ).model
