"""From a series to a probabilistic surrogate: standardise, pretrain, initialise the shell, adapt."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint import Reconstruction
from kaffee.config import to_dict
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import KaffeeError
from kaffee.methods import get_method
from kaffee.provenance import versions
from kaffee.settings import FitSettings
from kaffee.ssm import StateSpaceModel
from kaffee.training.adaptation import adapt
from kaffee.training.initialise import initialise_shell
from kaffee.training.loop import Trained, TrainState, Watcher, initial_state
from kaffee.training.pretraining import pretrain
from kaffee.training.sampling import training_windows


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


def _run_stage(
    name: str,
    store: StageStore,
    template: TrainState,
    run: Callable[..., Trained],
    finish: Callable[[Trained], Reconstruction],
) -> Stage:
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
        dt: Time between rows; by default from the series' time column, else 1.
        store: Where stages are kept; the same call with the same store continues where it stopped.
        watcher: Called with a stage's title and its number of updates; returns who watches its progress.
    """
    settings = settings or FitSettings()
    store = store or NoStore()
    method = get_method(settings.method)
    watch = watcher or (lambda title, total: Watcher())
    train, test = series.split(1.0 - settings.test_fraction)
    scaler = Scaler.fit(train)
    standard = train.standardised(scaler)
    pre, ada = settings.pretraining, settings.adaptation
    for steps in (pre.window, ada.burn_in + ada.scored):
        training_windows(standard, steps + 1)  # too short a series is an error now and not after the first stage
    keys = settings.keys()
    core = settings.core.create(series.num_coordinates, key=keys["core"])
    model = StateSpaceModel.create(core, series.num_coordinates, key=keys["embedding"])
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

    prior = _run_stage(
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
    fitted = _run_stage(
        settings.method,
        store,
        initial_state(surrogate, method.trainable_parts, ada.optimiser, ada.schedule.num_updates),
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
