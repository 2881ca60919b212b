"""A fit as a folder: settings, data fingerprint, stages; running the same command again continues it.

run.json          settings, where the data came from and their fingerprint, versions
prior/, kaffee/   model.json + weights (when the stage is finished), training.json + state and losses
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaffee.checkpoint.reconstruction import load, load_state, save, save_state
from kaffee.data.reading import SUFFIXES, read_series
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.fitting.config import differences, to_dict, update
from kaffee.fitting.pipeline import Stage
from kaffee.fitting.settings import FitSettings
from kaffee.records import machine, read_json, read_record, versions, write_json
from kaffee.systems.catalogue import get_system, system_names
from kaffee.systems.simulation import Truth, simulate
from kaffee.training.update import TrainState

FORMAT = "kaffee-run"
FORMAT_VERSION = 1


class RunFolder:
    """The `StageStore` of the command line.

    Args:
        core: An object of the user's own class of core, for runs that have one.
    """

    def __init__(self, path: str | Path, *, core: Any = None) -> None:
        self.path, self._core = Path(path), core

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    @property
    def started(self) -> bool:
        """Whether there is anything to continue: a run that was refused at its start is no run."""
        return self.exists and any(self.path.glob("*/training.json"))

    def open(self, settings: FitSettings, data: Mapping[str, Any]) -> None:
        """Start a run here, or check that the one that is here is the same.

        Args:
            data: Source and fingerprint of the series; JSON values.
        """
        record = {"settings": to_dict(settings), "data": dict(data)}
        if self.exists:
            earlier = self.record()
            changes = differences(record, {key: earlier.get(key) for key in record})
            if changes and self.started:
                raise CheckpointError(
                    f"{self.path} holds another run ({'; '.join(changes)}). Choose another folder, or delete it."
                )
            if not changes:
                return
        # A process that was killed may leave a hidden file of its first write.
        elif self.path.exists() and (not self.path.is_dir() or list(self.path.glob("[!.]*"))):
            raise CheckpointError(f"{self.path} exists and is not a run of kaffee. Choose another folder.")
        write_json(
            self.path / "run.json",
            {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                **record,
                "versions": versions(),
                "machine": machine(),
            },
        )

    def record(self) -> dict[str, Any]:
        """What `run.json` says."""
        record = read_json(self.path / "run.json", "run")
        if record.get("format") != FORMAT:
            raise CheckpointError(f"{self.path}/run.json is not a run of kaffee. Check the path.")
        if record.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.path}/run.json is in format {record.get('format_version')!r}; this version of kaffee reads "
                f"{FORMAT_VERSION}. Upgrade: pip install -U kaffee"
            )
        data = record.get("data")
        if not isinstance(record.get("settings"), dict) or not isinstance(data, dict) or "fingerprint" not in data:
            raise CheckpointError(f"{self.path}/run.json is incomplete or was edited. Start a new run.")
        return record

    def settings(self) -> FitSettings:
        """The settings that the run was started with."""
        try:
            return update(FitSettings(), self.record()["settings"])
        except ConfigError as error:
            raise CheckpointError(
                f"{self.path}/run.json is damaged, was edited or is of another version. {error} Start a new run."
            ) from error

    def finished(self, name: str) -> Stage | None:
        folder = self.path / name
        if not (folder / "model.json").exists():
            return None
        reconstruction = load(folder, core=self._core)
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
        _, meta = read_record(folder, "training", "training state")
        number = meta.get("num_losses")
        if type(number) is not int or number < 0:
            raise CheckpointError(f"{folder}/training.json does not say how many losses there are. Start a new run.")
        losses = jax.ShapeDtypeStruct((number,), jnp.float32)
        tree, _ = load_state(folder, "training", {"state": template, "losses": losses})
        return tree["state"], np.asarray(tree["losses"])

    def save_progress(self, name: str, state: TrainState, losses: np.ndarray) -> None:
        tree = {"state": state, "losses": np.asarray(losses, np.float32)}
        save_state(self.path / name, "training", tree, {"num_losses": len(losses)})

    def save_stage(self, name: str, stage: Stage) -> None:
        save(stage.reconstruction, self.path / name)


# Where a fit's data come from: files, or a named system to simulate. A JSON value that can be read again.


TRUTH_STEPS = 20_000


@dataclass(frozen=True)
class Source:
    """Either the name of a system or paths with reading options."""

    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "paths": list(self.paths)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Source":
        """The source that `to_dict` wrote."""
        try:
            return cls(data["system"], dict(data["parameters"]), tuple(data["paths"]), dict(data["options"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("The run does not say where its data came from. Start a new run.") from error


@dataclass(frozen=True)
class Loaded:
    """A series ready to be fitted, its time step, and the truth where it is known."""

    series: Series
    dt: float | None = None
    truth: Truth | None = None


def parse_source(data: list[str], parameters: dict[str, Any], options: dict[str, Any]) -> Source:
    """What the user typed: existing files, or the name of a system.

    A system stays a system beside a folder of its name, such as that of its run.
    """
    looks_like_file = [Path(d).suffix.lower() in SUFFIXES or Path(d).is_file() for d in data]
    if all(looks_like_file):
        if parameters:
            raise ConfigError(f"--param is for systems; {data[0]} is a file.")
        return Source(paths=tuple(str(Path(d).resolve()) for d in data), options=options)
    if len(data) > 1:
        missing = next(d for d, ok in zip(data, looks_like_file, strict=True) if not ok)
        raise DataError(f"There is no file {missing}.")
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


def load_source(source: Source, settings: FitSettings) -> Loaded:
    """Read or simulate the data."""
    if source.system is None:
        return Loaded(read_series(list(source.paths), **source.options))
    system = get_system(source.system, **source.parameters)
    wanted = settings.simulation
    num_train = round((1.0 - settings.test_fraction) * wanted.num_steps)
    simulation = simulate(
        system,
        wanted.num_steps,
        seed=settings.seed,
        process_noise=wanted.process_noise,
        observation_noise=wanted.observation_noise,
        num_train_steps=num_train,
    )
    series = Series.from_arrays(simulation.observations, times=simulation.times, name=system.name)
    _, test = series.split(1.0 - settings.test_fraction)
    clean = simulate(system, 2 * TRUTH_STEPS, seed=settings.seed).states
    truth = Truth(clean[:TRUTH_STEPS], clean[TRUTH_STEPS:], simulation.states[-test.num_steps :], system.lambda_1)
    return Loaded(series, system.dt, truth)


def check_unchanged(series: Series, fingerprint: str, source: Source) -> None:
    """Raise if the data are not those that a run was started with."""
    if series.fingerprint != fingerprint:
        where = ", ".join(source.paths) or str(source.system)
        raise CheckpointError(
            f"The data in {where} changed since this run was started (fingerprint {series.fingerprint[:12]}, then "
            f"{fingerprint[:12]}). Restore the file, or start a new run."
        )


def title_of(source: Source) -> str:
    """What a report of these data is called."""
    if source.system is not None:
        return f"kaffee: {source.system}"
    more = f" and {len(source.paths) - 1} more" if len(source.paths) > 1 else ""
    return f"kaffee: {Path(source.paths[0]).name}{more}"


def summary(series: Series) -> str:
    """One line about a series."""
    missing = f", {100 * series.missing_fraction:.1f} % missing" if series.missing_fraction else ""
    lengths = np.asarray(series.lengths)
    many = f" in {series.num_recordings} recordings of {lengths.min()}-{lengths.max()}" if len(lengths) > 1 else ""
    return f"{series.num_steps} steps{many} x {series.num_coordinates} coordinates{missing}"


def short_recordings(series: Series, settings: FitSettings) -> list[str]:
    """Sentences about recordings whose training part is too short for a window and therefore not used."""
    windows = {
        "pretraining": settings.pretraining.window + 1,
        "adaptation": settings.adaptation.burn_in + settings.adaptation.scored + 1,
    }
    train, _ = series.split(1.0 - settings.test_fraction)
    notes = []
    for stage, length in windows.items():
        short = [i for i, steps in enumerate(train.lengths) if steps < length]
        if short and len(short) < train.num_recordings:
            which = ", ".join(map(str, short[:5])) + (" ..." if len(short) > 5 else "")
            notes.append(f"{stage} does not use recording {which}: shorter than its windows of {length} rows")
    return notes
