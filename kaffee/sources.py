"""Where a fit's data come from: files, or a named system to simulate. A JSON value that can be read again."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kaffee.data import Series, read_series
from kaffee.data.readers import SUFFIXES
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.report.fit import Truth
from kaffee.settings import FitSettings
from kaffee.systems import get_system, simulate, system_names

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
