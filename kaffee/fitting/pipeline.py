"""The stages of a fit, and where they are kept so that it can be interrupted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.validation import check_observed
from kaffee.data.windows import training_windows
from kaffee.errors import KaffeeError
from kaffee.filtering.likelihood import get_method
from kaffee.fitting.config import to_dict
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.initial_core import starting_point
from kaffee.fitting.settings import FitSettings
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import versions
from kaffee.training.adaptation import adapt, build_guard
from kaffee.training.loop import Trained, Watcher
from kaffee.training.pretraining import initialise_shell, pretrain
from kaffee.training.update import TrainState, initial_state


class Stage(NamedTuple):
    """A finished stage of a fit.

    Attributes:
        report: What the training said at its end.
    """

    reconstruction: Reconstruction
    losses: Float[np.ndarray, " T"]
    skipped: int
    completed: bool
    report: str


class StageStore(Protocol):
    """Where a fit keeps its stages, so that it can be interrupted."""

    def finished(self, name: str) -> Stage | None:
        """The stage, if it was finished before."""
        ...

    def interrupted(self, name: str, template: TrainState) -> tuple[TrainState, np.ndarray] | None:
        """The state at which the stage stopped before, if it did."""
        ...

    def save_progress(self, name: str, state: TrainState, losses: np.ndarray) -> None:
        """Keep the state of a running stage."""
        ...

    def save_stage(self, name: str, stage: Stage) -> None:
        """Keep a finished stage."""
        ...


class NoStore:
    """Keeps nothing: a fit in memory."""

    def finished(self, name: str) -> Stage | None:
        return None

    def interrupted(self, name: str, template: TrainState) -> tuple[TrainState, np.ndarray] | None:
        return None

    def save_progress(self, name: str, state: TrainState, losses: np.ndarray) -> None:
        return

    def save_stage(self, name: str, stage: Stage) -> None:
        return


def run_stage(
    name: str,
    store: StageStore,
    template: TrainState,
    run: Callable[..., Trained],
    finish: Callable[[Trained], Reconstruction],
) -> Stage:
    """Take a stage from the store, or run it, from where it was interrupted if it was, and keep it there."""
    done = store.finished(name)
    if done is not None:
        return done
    earlier = store.interrupted(name, template)
    resume: dict[str, Any] = {} if earlier is None else {"state": earlier[0], "losses": earlier[1]}
    trained = run(save=lambda state, losses: store.save_progress(name, state, losses), **resume)
    end = {"skipped": trained.skipped, "completed": trained.completed, "report": str(trained)}
    finished = finish(trained)
    finished = replace(finished, provenance={**finished.provenance, "training": end})
    stage = Stage(finished, trained.losses, trained.skipped, trained.completed, str(trained))
    store.save_stage(name, stage)
    return stage


# From a series to a probabilistic surrogate: standardise, pretrain, initialise the shell, adapt.


@dataclass(frozen=True)
class Fit:
    """The two stages of a fit and the data they saw.

    Attributes:
        prior: The deterministic surrogate with its initial, untrained shell.
        fitted: After the probabilistic method.
        train, test: In data units.
    """

    prior: Stage
    fitted: Stage
    train: Series
    test: Series
    settings: FitSettings


def fit(
    series: Series,
    settings: FitSettings | None = None,
    *,
    dt: float | None = None,
    store: StageStore | None = None,
    watcher: Callable[[str, int], Watcher] | None = None,
) -> Fit:
    """Fit a probabilistic surrogate to a series.

    Args:
        settings: By default those that the data suggest (`kaffee.fitting.defaults`).
        dt: Time between rows; by default from the series' time column, else 1.
        store: Where stages are kept; the same call with the same store continues where it stopped.
        watcher: Called with a stage's title and its number of updates; returns who watches its progress.
    """
    if settings is None:
        settings = settings_for(series)
    store = store or NoStore()
    method = get_method(settings.method)
    watch = watcher or (lambda title, total: Watcher())
    keys = settings.keys()
    started = None
    if settings.core.start is not None:
        started = starting_point(settings.core.start, series, settings.test_fraction, key=keys["embedding"])
        series = started.series
    train, test = series.split(1.0 - settings.test_fraction)
    if started is None:
        scaler = Scaler.fit(train)
    else:
        check_observed(train.recordings, train.columns, train.label)
        scaler = started.scaler
    standard = train.standardised(scaler)
    pre, ada = settings.pretraining, settings.adaptation
    for steps in (pre.window, ada.burn_in + ada.scored):
        training_windows(standard, steps + 1)  # too short a series is an error now and not after the first stage
    if started is None:
        core = settings.core.create(series.num_coordinates, key=keys["core"])
        model = StateSpaceModel.create(core, series.num_coordinates, key=keys["embedding"])
    else:
        model = started.model
    blank = Reconstruction(
        model=model,
        scaler=scaler,
        columns=series.columns,
        dt=dt if dt is not None else series.time_step or 1.0,
        provenance={
            "seed": settings.seed,
            "fingerprint": series.fingerprint,
            "train_fingerprint": train.fingerprint,
            "versions": versions(),
            "settings": to_dict(settings),
        },
    )

    def finish_prior(trained: Trained) -> Reconstruction:
        if not trained.completed:
            raise KaffeeError(f"Pretraining: {trained}.")
        prior = initialise_shell(
            trained.model,
            standard,
            residuals=settings.shell.residuals,
            forcing=pre.forcing,
            alpha=settings.shell.alpha,
        )
        return blank.with_model(prior, "prior")

    prior = run_stage(
        "prior",
        store,
        initial_state(model.exact(), ("core", "embedding"), pre.optimiser, pre.schedule.num_updates),
        lambda **kwargs: pretrain(
            model,
            standard,
            pre,
            seed=settings.seed,
            watcher=watch("Pretraining", pre.schedule.num_updates),
            **kwargs,
        ),
        finish_prior,
    )

    start = prior.reconstruction.model
    surrogate = start.replace(core=start.core.surrogate())
    fitted = run_stage(
        settings.method,
        store,
        initial_state(
            surrogate,
            method.trainable_parts,
            ada.optimiser,
            ada.schedule.num_updates,
            guarded=build_guard(standard, method, ada) is not None,
        ),
        lambda **kwargs: adapt(
            start,
            standard,
            method,
            ada,
            seed=settings.seed,
            watcher=watch(f"Adaptation ({settings.method})", ada.schedule.num_updates),
            **kwargs,
        ),
        lambda trained: blank.with_model(trained.model, settings.method),
    )
    return Fit(prior, fitted, train, test, settings)
