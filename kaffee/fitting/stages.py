"""The stages of a fit: what each leaves, where it is kept, and how one that was interrupted goes on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.fitting.settings import FitSettings
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.loop import Trained, Watcher
from kaffee.training.update import TrainState

Watching = Watcher | Callable[[], Watcher] | None
"""Who hears of the progress, or a function that is called for it if there is anything to train."""


class Stage(NamedTuple):
    """A finished stage of a fit; `report` is what the training said at its end."""

    reconstruction: Reconstruction
    losses: Float[np.ndarray, " T"]
    skipped: int
    completed: bool
    report: str

    @property
    def model(self) -> StateSpaceModel:
        """The trained state-space model."""
        return self.reconstruction.model


class StageStore:
    """Where a fit keeps its stages, so that it can be interrupted; this one keeps nothing."""

    def finished(self, name: str) -> Stage | None:
        """Return the stage if it was finished before."""
        return None

    def interrupted(self, name: str, template: TrainState) -> tuple[TrainState, np.ndarray] | None:
        """Return state and losses at which the stage stopped before, if it did."""
        return None

    def save_progress(self, name: str, state: TrainState | None, losses: np.ndarray) -> None:
        """Keep the state of a running stage."""

    def save_stage(self, name: str, stage: Stage) -> None:
        """Keep a finished stage."""


@dataclass(frozen=True)
class Fit:
    """The prior with its untrained shell, what the method made of it, and the data in their own units.

    `linear` is the linear model that the AL-RNN started from, if it did.
    """

    prior: Stage
    fitted: Stage
    train: Series
    test: Series
    settings: FitSettings
    linear: Stage | None = None

    def group(self, name: str) -> "Fit":
        """Take the part of one group of recordings that share a core."""

        def of(stage: Stage) -> Stage:
            return stage._replace(reconstruction=stage.reconstruction.group(name))

        linear = None if self.linear is None else of(self.linear)
        train, test = self.train.of_group(name), self.test.of_group(name)
        return replace(self, prior=of(self.prior), fitted=of(self.fitted), train=train, test=test, linear=linear)


def run_stage(
    name: str,
    store: StageStore | None,
    template: TrainState,
    run: Callable[..., Trained],
    finish: Callable[[Trained], Reconstruction],
    watcher: Watching,
) -> Stage:
    """Take a stage from the store; or run it, from where it was interrupted if it was, and keep it there."""
    store = store or StageStore()
    done = store.finished(name)
    if done is not None:
        return done
    earlier = store.interrupted(name, template)
    resume = {} if earlier is None else {"state": earlier[0], "losses": earlier[1]}
    watcher = watcher() if callable(watcher) else watcher
    trained = run(watcher=watcher, save=partial(store.save_progress, name), **resume)
    end: dict[str, Any] = {"skipped": trained.skipped, "completed": trained.completed, "report": str(trained)}
    made = finish(trained)
    stage = Stage(replace(made, provenance={**made.provenance, "training": end}), trained.losses, **end)
    store.save_stage(name, stage)
    return stage


def keep_stage(store: StageStore, name: str, made: Reconstruction, report: str) -> Stage:
    """Keep a stage that nothing was trained for by gradients alone."""
    end: dict[str, Any] = {"skipped": 0, "completed": True, "report": report}
    stage = Stage(replace(made, provenance={**made.provenance, "training": end}), np.zeros(0, np.float32), **end)
    store.save_progress(name, None, stage.losses)
    store.save_stage(name, stage)
    return stage
