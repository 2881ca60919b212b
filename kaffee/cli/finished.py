"""A finished stage of a run with the data it was fitted to, for commands that look at both again."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kaffee.checkpoint.reconstruction import Reconstruction
    from kaffee.data.series import Series
    from kaffee.fitting.pipeline import Fit
    from kaffee.fitting.run import Loaded, Source
    from kaffee.fitting.settings import FitSettings


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


class FinishedFit(NamedTuple):
    """A finished run as `kaffee fit` left it.

    Attributes:
        output: Where its certificate belongs.
        doubt: Why the held-out data are not held out, if so.
    """

    output: Path
    fit: "Fit"
    loaded: "Loaded"
    title: str
    doubt: str = ""


def finished_fit(run: Path, core: str | None = None, *, on: list[str] | None = None) -> FinishedFit:
    """Both stages of a run with its data; nothing is trained.

    Args:
        core: `FILE.py:FUNCTION` of the user's own core, if the run has one.
        on: Files that take the place of the held-out data.

    Raises:
        CheckpointError: There is no run, or it is not finished.
    """
    from dataclasses import replace

    from kaffee.data.gaps import training_rows_note
    from kaffee.errors import CheckpointError
    from kaffee.fitting.initial_core import core_option, own_core
    from kaffee.fitting.pipeline import fit
    from kaffee.fitting.run import RunFolder, Source, check_unchanged, load_source, title_of
    from kaffee.inference.matching import match_series

    folder = RunFolder(run)
    settings, record = folder.settings(), folder.record()
    source = Source.from_dict(record["data"].get("source"))
    loaded = load_source(source, settings)
    check_unchanged(loaded.series, record["data"]["fingerprint"], source)
    if core is not None:
        folder = RunFolder(run, core=own_core(core, loaded.series.num_coordinates))
    for name in ("prior", settings.method):
        with core_option(run, core):
            finished = folder.finished(name)
        if finished is None:
            raise CheckpointError(f"{run} has no finished {name} yet. First: kaffee resume {run}")
    found = fit(loaded.series, settings, dt=loaded.dt, store=folder)
    title = title_of(source)
    if not on:
        return FinishedFit(run, found, loaded, title)
    test = match_series(found.fitted.reconstruction, _read_like(source, on))
    name = Path(on[0]).stem + (f"-and-{len(on) - 1}-more" if len(on) > 1 else "")
    return FinishedFit(
        place_for(run / f"on-{name}", test.fingerprint),
        replace(found, test=test),
        replace(loaded, truth=None),
        f"{title} on {test.name or on[0]}",
        training_rows_note(found.train, test),
    )


def _read_like(source: "Source", files: list[str]) -> "Series":
    """Files read as those of a run, if they have the columns that it names."""
    from kaffee.data.reading import read_series
    from kaffee.errors import DataError

    try:
        return read_series(files, **{key: value for key, value in source.options.items() if key != "columns"})
    except DataError as error:
        try:
            return read_series(files)
        except DataError:
            raise error from None


def place_for(folder: Path, fingerprint: str) -> Path:
    """The folder for a certificate on these data: with a number where other data of the same name have theirs."""
    from kaffee.errors import CheckpointError
    from kaffee.report.compare import read_certificate

    place, number = folder, 1
    while (place / "certificate.json").exists():
        try:
            if read_certificate(place)["about"]["test"]["fingerprint"] == fingerprint:
                break
        except (CheckpointError, KeyError, TypeError):
            break  # no certificate that would be lost
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place


def finished_stage(run: Path, stage: str | None = None, core: str | None = None) -> FinishedStage:
    """Load a stage of a run, that of its method by default, and the data; they must not have changed since.

    Args:
        core: `FILE.py:FUNCTION` of the user's own core, if the run has one.

    Raises:
        CheckpointError: There is no run, or the stage is not finished.
    """
    from kaffee.errors import CheckpointError
    from kaffee.fitting.initial_core import core_option, own_core
    from kaffee.fitting.run import RunFolder, Source, check_unchanged, load_source

    folder = RunFolder(run)
    settings, record = folder.settings(), folder.record()
    source = Source.from_dict(record["data"].get("source"))
    loaded = load_source(source, settings)
    check_unchanged(loaded.series, record["data"]["fingerprint"], source)
    if core is not None:
        folder = RunFolder(run, core=own_core(core, loaded.series.num_coordinates))
    with core_option(run, core):
        fitted = folder.finished(settings.method if stage is None else stage)
    if fitted is None:
        what = "model" if stage is None else stage
        raise CheckpointError(f"{run} has no finished {what} yet. First: kaffee resume {run}")
    train, _ = loaded.series.split(1.0 - settings.test_fraction)
    return FinishedStage(settings, source, train, fitted.reconstruction)
