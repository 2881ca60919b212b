"""A finished stage of a run with the data it was fitted to, for commands that look at both again."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kaffee.checkpoint import Reconstruction
    from kaffee.data import Series
    from kaffee.settings import FitSettings
    from kaffee.sources import Source


class FinishedStage(NamedTuple):
    """The settings of a run, where its data came from, its training part and the model of a stage."""

    settings: "FitSettings"
    source: "Source"
    train: "Series"
    reconstruction: "Reconstruction"

    @property
    def standard(self) -> "Series":
        """The training data in the units of the model."""
        return self.train.standardised(self.reconstruction.scaler)


def finished_stage(run: Path, stage: str | None = None) -> FinishedStage:
    """Load a stage of a run, that of its method by default, and the data; they must not have changed since.

    Raises:
        CheckpointError: There is no run, or the stage is not finished.
    """
    from kaffee.errors import CheckpointError
    from kaffee.runs import RunFolder
    from kaffee.sources import Source, check_unchanged, load_source

    folder = RunFolder(run)
    settings, record = folder.settings(), folder.record()
    name = settings.method if stage is None else stage
    fitted = folder.finished(name)
    if fitted is None:
        what = "model" if stage is None else stage
        raise CheckpointError(f"{run} has no finished {what} yet. First: kaffee resume {run}")
    source = Source.from_dict(record["data"].get("source"))
    loaded = load_source(source, settings)
    check_unchanged(loaded.series, record["data"]["fingerprint"], source)
    train, _ = loaded.series.split(1.0 - settings.test_fraction)
    return FinishedStage(settings, source, train, fitted.reconstruction)
