"""The stages of a fit, and where they are kept so that it can be interrupted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint import Reconstruction
from kaffee.training.loop import Trained
from kaffee.training.update import TrainState


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
