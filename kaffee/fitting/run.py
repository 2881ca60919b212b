"""A fit as a folder that can be interrupted, continued and opened again.

run.json          settings, where the data came from and their fingerprint, versions
linear/, prior/, kaffee/   model.json + weights (when the stage is finished), training.json + state and losses
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from kaffee.checkpoint.reconstruction import Reconstruction, fill_arrays, named_arrays, save
from kaffee.data.gaps import training_rows_note
from kaffee.data.reading import SUFFIXES, read_series
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.fitting.config import differences, to_dict, update
from kaffee.fitting.initial_core import load_with_core
from kaffee.fitting.learned_maps import standardise_groups
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import UNTRAINED_RUNGS, FitSettings
from kaffee.fitting.stages import Fit, Stage, StageStore
from kaffee.foundation.context import split_context
from kaffee.inference.matching import match_series, model_frequency
from kaffee.records import jsonable, machine, read_json, read_record, versions, write_json, write_record
from kaffee.systems.catalogue import get_system, system_names
from kaffee.systems.simulation import Truth, simulate
from kaffee.training.loop import Watcher
from kaffee.training.selection import HeldBack, hold_back
from kaffee.training.update import TrainState

_FORMAT, _FORMAT_VERSION = "kaffee-run", 1
_TRUTH_STEPS = 20_000


@dataclass(frozen=True)
class Loaded:
    """A series ready to be fitted, its time step, and the truth where it is known."""

    series: Series
    dt: float | None = None
    truth: Truth | None = None


@dataclass(frozen=True)
class Source:
    """Where the data of a fit come from: the name of a system to simulate, or paths with reading options.

    A system has one option: the `seed` of its simulation, where it is not that of the fit.
    """

    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Source":
        """Read a source from its JSON values."""
        try:
            return cls(data["system"], dict(data["parameters"]), tuple(data["paths"]), dict(data["options"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("The run does not say where its data came from. Start a new run.") from error

    def load(self, settings: FitSettings) -> Loaded:
        """Read or simulate the data."""
        if self.system is None:
            return Loaded(read_series(list(self.paths), **self.options))
        system, wanted = get_system(self.system, **self.parameters), vars(settings.simulation)
        seed = self.options.get("seed", settings.seed)
        num_train_steps = round((1.0 - settings.test_fraction) * settings.simulation.num_steps)
        simulation = simulate(system, **wanted, seed=seed, num_train_steps=num_train_steps)
        series = Series.from_arrays(simulation.observations, times=simulation.times, name=system.name)
        _, test = series.split(1.0 - settings.test_fraction)
        clean, again = np.split(simulate(system, 2 * _TRUTH_STEPS, seed=seed).states, 2)
        return Loaded(series, system.dt, Truth(clean, again, simulation.states[-test.num_steps :], system.lambda_1))

    def check_unchanged(self, series: Series, fingerprint: str) -> None:
        """Raise if the data are not those that a run was started with."""
        if series.fingerprint != fingerprint:
            where = ", ".join(self.paths) or str(self.system)
            raise CheckpointError(
                f"The data in {where} changed since this run was started (fingerprint {series.fingerprint[:12]}, then "
                f"{fingerprint[:12]}). Restore the file, or start a new run."
            )


def parse_source(data: list[str], parameters: dict[str, Any], options: dict[str, Any]) -> Source:
    """Read what the user typed: files, or the name of a system, even if there is a folder of its name."""
    other = [d for d in data if Path(d).suffix.lower() not in SUFFIXES and not Path(d).is_file()]
    if not other:
        if parameters:
            raise ConfigError(f"--param is for systems; {data[0]} is a file.")
        return Source(paths=tuple(str(Path(d).resolve()) for d in data), options=options)
    if len(data) > 1:
        raise DataError(f"There is no file {other[0]}.")
    try:
        system = get_system(data[0]).name
    except ConfigError as error:
        if Path(data[0]).is_dir():
            raise DataError(f"{data[0]} is a folder. Pass the files in it.") from None
        raise DataError(
            f"'{data[0]}' is neither a file nor a system. {error} "
            f"Files: {', '.join(SUFFIXES)}; systems: {', '.join(system_names()[:3])}, ..."
        ) from None
    if options:
        raise ConfigError(f"{', '.join(sorted(options))}: for files only; {system} is simulated.")
    get_system(system, **parameters)
    return Source(system=system, parameters=parameters)


class Run(StageStore):
    """A run of `kaffee fit` or `kaffee adapt` in its folder, or the folder of a model alone; parts load when asked for.

    Attributes:
        core: For a model with a core of the user's own: an object of its class, or `FILE.py:NAME`, which builds it.
        output: Where certificate and page belong.
        doubt: Why the held-out data are not held out, if so.
    """

    doubt: str = ""

    def __init__(self, path: str | Path, *, core: Any = None) -> None:
        self.path, self.core = Path(path), core
        self.output = self.path

    @classmethod
    def open(cls, path: str | Path, *, core: Any = None) -> Self:
        """Open the folder of a run or of a model, which a file in it names as well; raise if it is neither."""
        path, names = Path(path), ("run.json", "model.json")
        inside = path.is_file() and any((path.parent / name).exists() for name in names)
        run = cls(path.parent if inside else path, core=core)
        if not (run.path / "model.json").exists():
            run.record  # noqa: B018
        return run

    @classmethod
    def start(
        cls, path: str | Path, settings: FitSettings, source: Source, loaded: Loaded, *, core: Any = None
    ) -> Self:
        """Start a run in a folder, or check that the one that is there has the same settings and data."""
        run, typed = cls(path, core=core), jsonable(source)
        data = {"source": typed, "fingerprint": loaded.series.fingerprint}
        record: dict[str, Any] = {"settings": to_dict(settings), "data": data}
        changes = None
        if (run.path / "run.json").exists():
            earlier: dict[str, Any] = {key: run.record[key] for key in record}
            changes = differences(record, earlier)
            # A run that was refused at its start has nothing to continue: another may take its place.
            if changes and any(run.path.rglob("training.json")):
                if earlier["settings"] == record["settings"] and earlier["data"].get("source") == typed:
                    source.check_unchanged(loaded.series, earlier["data"]["fingerprint"])
                raise CheckpointError(
                    f"{run.path} holds another run ({'; '.join(changes)}). Choose another folder, or delete it."
                )
        # A process that was killed may leave a hidden file of its first write.
        elif run.path.exists() and (not run.path.is_dir() or list(run.path.glob("[!.]*"))):
            raise CheckpointError(f"{run.path} exists and is not a run of kaffee. Choose another folder.")
        if changes != []:
            head = {"format": _FORMAT, "format_version": _FORMAT_VERSION}
            run.record = {**head, **record, "versions": versions(), "machine": machine()}
            write_json(run.path / "run.json", run.record)
        run.loaded = loaded
        return run

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of `run.json`, checked."""
        record = read_json(self.path / "run.json", "run")
        if record.get("format") != _FORMAT:
            raise CheckpointError(f"{self.path}/run.json is not a run of kaffee. Check the path.")
        if record.get("format_version") != _FORMAT_VERSION:
            raise CheckpointError(
                f"{self.path}/run.json is in format {record.get('format_version')!r}; this version of kaffee reads "
                f"{_FORMAT_VERSION}. Upgrade: pip install -U kaffee"
            )
        data = record.get("data")
        if not isinstance(record.get("settings"), dict) or not isinstance(data, dict) or "fingerprint" not in data:
            raise CheckpointError(f"{self.path}/run.json is incomplete or was edited. Start a new run.")
        return record

    @cached_property
    def settings(self) -> FitSettings:
        """The settings that the run was started with."""
        try:
            return update(FitSettings(), self.record["settings"])
        except ConfigError as error:
            raise CheckpointError(
                f"{self.path}/run.json is damaged, was edited or is of another version. {error} Start a new run."
            ) from error

    @cached_property
    def source(self) -> Source:
        """Where the data came from."""
        return Source.from_dict(self.record["data"].get("source"))

    @cached_property
    def title(self) -> str:
        """The title of the report."""
        paths = self.source.paths
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"kaffee: {self.source.system or Path(paths[0]).name}{more}"

    @cached_property
    def loaded(self) -> Loaded:
        """The data, which must not have changed since the run was started."""
        loaded = self.source.load(self.settings)
        if loaded.series.frequency and loaded.series.fingerprint != self.record["data"]["fingerprint"]:
            # Runs of earlier versions counted dates in seconds.
            options = {**self.source.options, "frequency": False}
            loaded = replace(self.source, options=options).load(self.settings)
        self.source.check_unchanged(loaded.series, self.record["data"]["fingerprint"])
        return loaded

    def train(self, watcher: Callable[[str, int], Watcher] | None = None) -> Fit:
        """Fit, from where the run was interrupted if it was."""
        return fit(self.loaded.series, self.settings, dt=self.loaded.dt, store=self, watcher=watcher)

    @cached_property
    def _parts(self) -> tuple[Series, Series]:
        """The training and the held-out data, in the columns of the model."""
        model = self.prior.reconstruction
        first = model.group(model.groups[0]) if model.groups else model  # columns and step are those of all
        series = match_series(first, self.loaded.series, any_step=True)
        return series.split(1.0 - self.settings.test_fraction)

    @cached_property
    def fit(self) -> Fit:
        """Both stages and the data as `train` returned them; raises if a stage is not finished."""
        return Fit(self.prior, self.fitted, *self._parts, self.settings, self.finished("linear"))

    @cached_property
    def standard(self) -> Series:
        """The training data in the units of the model."""
        model = self.prior.reconstruction
        return standardise_groups(self._parts[0], model.groups, model.scalers or (model.scaler,))

    @cached_property
    def held(self) -> HeldBack | None:
        """The rows that an AL-RNN did and did not train on; None if there is none, or it trained on all."""
        maps = self.settings.observation
        size = None if maps is None else maps.components
        return hold_back(self.standard, num_coordinates=size) if self.settings.rung in ("auto", "alrnn") else None

    @property
    def rows(self) -> Series:
        """The standardised rows that the prior is adapted on: not those that are held back to choose a rung.

        Of a foundation model's context it is what that did not read.
        """
        foundation = self.settings.foundation
        if self.held is not None:
            return self.held.part
        if foundation is None or not foundation.held_out:
            return self.standard
        return Series.from_arrays(split_context(self.standard.recordings[0], foundation.held_out)[1])

    @cached_property
    def prior(self) -> Stage:
        """The deterministic stage; raises if it is not finished."""
        return self._load_stage("prior", "prior")

    @cached_property
    def fitted(self) -> Stage:
        """The stage of the run's method; raises if it is not finished."""
        return self._load_stage(self.settings.method, "model")

    def _load_stage(self, name: str, title: str) -> Stage:
        stage = self.finished(name)
        if stage is None:
            raise CheckpointError(f"{self.path} has no finished {title} yet. First: kaffee resume {self.path}")
        return stage

    @property
    def model(self) -> Reconstruction:
        """The fitted model of the run, or the model in the folder."""
        own = (self.path / "model.json").exists()
        folder = self.path if own else self.path / self.settings.method
        if not (folder / "model.json").exists():
            raise CheckpointError(f"{self.path} has no finished model yet. First: kaffee resume {self.path}")
        return load_with_core(folder, self.core)

    @property
    def prior_model(self) -> Reconstruction | None:
        """The prior beside the model, if it was stored."""
        folder = self.path / "prior"
        return load_with_core(folder, self.core) if (folder / "model.json").exists() else None

    def on(self, files: list[str]) -> "Run":
        """Take the recordings in these files for the held-out data; the certificate goes to the folder on-NAME."""
        frequency = model_frequency(self.prior.reconstruction)
        try:
            series = read_series(files, **{**self.source.options, "columns": None, "frequency": frequency})
        except DataError as error:  # the files may have other columns of times and recordings
            try:
                series = read_series(files, frequency=frequency)
            except DataError:
                raise error from None
        test = match_series(self.fit.fitted.reconstruction, series)
        name = Path(files[0]).stem + (f"-and-{len(files) - 1}-more" if len(files) > 1 else "")
        other = copy.copy(self)
        other.fit, other.loaded = replace(self.fit, test=test), replace(self.loaded, truth=None)
        other.output = _find_place(self.path / f"on-{name}", test.fingerprint)
        other.title = f"{self.title} on {test.name or files[0]}"
        other.doubt = training_rows_note(self.fit.train, test)
        return other

    def finished(self, name: str) -> Stage | None:
        folder = self.path / name
        if not (folder / "model.json").exists():
            return None
        reconstruction = load_with_core(folder, self.core)
        arrays, _ = read_record(folder, "training", "training state")
        try:
            end = reconstruction.provenance["training"]
            return Stage(reconstruction, arrays["losses"], end["skipped"], end["completed"], end["report"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{folder} is not a stage of a run: it has no {error}. Start a new run.") from error

    def interrupted(self, name: str, template: TrainState) -> tuple[TrainState, np.ndarray] | None:
        folder = self.path / name
        if not (folder / "training.json").exists():
            return None
        arrays, _ = read_record(folder, "training", "training state")
        losses = jax.ShapeDtypeStruct(np.shape(arrays.get("losses", ())), np.float32)
        tree = fill_arrays({"state": template, "losses": losses}, arrays, f"{folder}/training")
        return tree["state"], np.asarray(tree["losses"])

    def save_progress(self, name: str, state: TrainState | None, losses: np.ndarray) -> None:
        tree = {"state": state, "losses": np.asarray(losses, np.float32)}
        write_record(self.path / name, "training", named_arrays(tree), {"num_losses": len(losses)})

    def save_stage(self, name: str, stage: Stage) -> None:
        save(stage.reconstruction, self.path / name)


def load(folder: str | Path, *, core: Any = None) -> Reconstruction:
    """Read a model from its folder, or the fitted model of a run, or from a file in one of them.

    Nothing in the folder can execute code.

    Args:
        core: Needed only for a core of the user's own class: an object of that class with the same shapes, whose
            arrays are replaced by the stored ones; or `FILE.py:NAME`, a function that builds one.
    """
    return Run.open(folder, core=core).model


def recorded_inputs(folder: str | Path, reconstruction: Reconstruction) -> Series | None:
    """Return the inputs that the training data of a run had; None for a model that takes none, or is alone."""
    if not reconstruction.inputs or not (Path(folder) / "run.json").exists():
        return None
    return Run.open(folder)._parts[0].inputs


def _find_place(folder: Path, fingerprint: str) -> Path:
    """Find the folder for a certificate on these data: with a number if other data of the same name have theirs."""
    place, number = folder, 1
    while (place / "certificate.json").exists():
        try:
            if read_json(place / "certificate.json", "certificate")["about"]["test"]["fingerprint"] == fingerprint:
                break
        except (CheckpointError, KeyError, TypeError):
            break  # no certificate that would be lost
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place


def summarise(series: Series) -> str:
    """Describe a series in one line."""
    missing = f", {100 * series.missing_fraction:.1f} % missing" if series.missing_fraction else ""
    lengths = np.asarray(series.lengths)
    many = f" in {series.num_recordings} recordings of {lengths.min()}-{lengths.max()}" if len(lengths) > 1 else ""
    driven = "" if series.inputs is None else f", driven by {', '.join(series.inputs.columns)}"
    return f"{series.num_steps} steps{many} x {series.num_coordinates} coordinates{missing}{driven}"


def short_recordings(series: Series, settings: FitSettings) -> list[str]:
    """Name the recordings whose training part is too short for a window and therefore not used."""
    steps = settings.adaptation.burn_in + settings.adaptation.scored
    windows = {"pretraining": settings.pretraining.window + 1, "adaptation": steps + 1}
    train, _ = series.split(1.0 - settings.test_fraction)
    notes: list[str] = []
    for stage, length in windows.items() if settings.rung not in UNTRAINED_RUNGS else ():  # which have no windows
        short = [i for i, rows in enumerate(train.lengths) if rows < length]
        if short and len(short) < train.num_recordings:
            which = ", ".join(map(str, short[:5])) + (" ..." if len(short) > 5 else "")
            notes.append(f"{stage} does not use recording {which}: shorter than its windows of {length} rows")
    return notes
