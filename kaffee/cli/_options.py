"""What commands on recordings share: options, a model and files in, a table out."""

import inspect
import json as json_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kaffee.checkpoint.reconstruction import Reconstruction
    from kaffee.data.series import Series

SYSTEM_CONTEXT = 2000  # rows that a foundation model reads of a simulated system, as in the paper
Run = Annotated[Path, typer.Argument(help="Folder of a run, or of a model.")]
FILES = typer.Argument(help="Files, each with one or more recordings.")
OUTPUT = typer.Option("--output", "-o", help="File: .csv, .tsv, .npy, .npz or .parquet.")
Files = Annotated[list[str], FILES]
Output = Annotated[Path, OUTPUT]
Columns = Annotated[
    str | None, typer.Option(help="Columns that take the place of the model's, in its order, separated by commas.")
]
TimeColumn = Annotated[str | None, typer.Option(help="Name of the time column; none: there is none.")]
RecordingColumn = Annotated[str | None, typer.Option(help="Column that tells recordings apart; none: there is none.")]
TimeTolerance = Annotated[
    float | None,
    typer.Option(min=0.0, max=0.49, help="Allowed deviation of times from whole steps, in steps.", show_default="0.05"),
]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal mark of text files, ',' or '.'; the other one separates thousands.")
]
InputFile = Annotated[
    Path | None, typer.Option("--inputs", help="File with the inputs of the steps to come, for a driven model.")
]
Group = Annotated[str | None, typer.Option(help="Group whose map and noise to use, of a model that groups share.")]
AnyStep = Annotated[bool, typer.Option("--any-step", help="Accept another time step than the model's.")]
Quantiles = Annotated[str, typer.Option(help="Quantile levels, separated by commas; empty for none.")]
Latent = Annotated[bool, typer.Option("--latent", help="Latent states, too: z1, z2, ... in standardised units.")]
Json = Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")]
OwnCore = Annotated[
    str | None, typer.Option("--core", help="FILE.py:FUNCTION that builds your own core, for models that have one.")
]
StdColumns = Annotated[
    str | None,
    typer.Option(
        help="Columns with the standard deviation of each reading, in the order of the model's columns, separated by "
        "commas; they take the place of the model's observation noise."
    ),
]
FilterName = Annotated[
    str | None,
    typer.Option(
        "--filter",
        help="Filter: ekf, srekf, lowrank:32, moments, ukf, iekf, enkf:40, etkf:24, letkf:7 or particle:1000; options "
        "follow commas, as in enkf:40,inflation=1.05.",
        show_default="the one that the model was fitted with",
    ),
]


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: a parameter whose type is a dataclass becomes an option for each field."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += inspect.signature(groups[name]).parameters.values()
        else:
            parameters.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    options = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in options}
    return run


@dataclass(frozen=True)
class RecordingOptions:
    """The options that say how recordings are read for a model."""

    columns: Columns = None
    time_column: TimeColumn = None
    recording_column: RecordingColumn = None
    time_tolerance: TimeTolerance = None
    decimal: Decimal = None
    any_step: AnyStep = False
    group: Group = None

    def read(self, reconstruction: "Reconstruction", files: list[str]) -> "Series":
        """Read the recordings in files; columns that are named take the place of the model's."""
        from kaffee.data.reading import read_series
        from kaffee.errors import DataError
        from kaffee.inference.matching import model_columns, model_frequency

        options = reading_options(self.time_column, self.recording_column, self.time_tolerance, self.decimal)
        options["frequency"] = model_frequency(reconstruction)
        if self.columns is None:
            return read_series(files, **options)
        wanted, names = model_columns(reconstruction), [name.strip() for name in self.columns.split(",")]
        if len(names) != len(wanted):
            raise DataError(f"--columns names {len(names)} columns; the model has {len(wanted)}: {', '.join(wanted)}.")
        inputs = reconstruction.inputs
        return replace(read_series(files, columns=[*names, *inputs], **options), columns=(*wanted, *inputs))

    def read_inputs(self, reconstruction: "Reconstruction", file: Path | None) -> "Series | None":
        """Read the inputs of a driven model from a file of their own, which may have other columns; None: no file."""
        from kaffee.data.reading import read_series
        from kaffee.errors import ConfigError
        from kaffee.inference.matching import model_frequency

        if file is None:
            return None
        if not reconstruction.inputs:
            raise ConfigError(f"--inputs {file}: the model takes no inputs. Fit one with --inputs, or leave this out.")
        options = reading_options(self.time_column, self.recording_column, self.time_tolerance, self.decimal)
        options["frequency"] = model_frequency(reconstruction)
        return read_series([str(file)], columns=list(reconstruction.inputs), **options)

    def read_noise(self, files: list[str], columns: str | None) -> "Series | None":
        """Read the columns that hold standard deviations of readings, in the order of the model's columns."""
        from kaffee.data.reading import read_series

        if columns is None:
            return None
        options = reading_options(self.time_column, self.recording_column, self.time_tolerance, self.decimal)
        return read_series(files, columns=[name.strip() for name in columns.split(",")], **options)


def reading_options(
    time_column: str | None, recording_column: str | None, time_tolerance: float | None, decimal: str | None
) -> dict[str, Any]:
    """Collect the options of `read_series` that were given."""
    options: dict[str, Any] = {"time_column": time_column, "recording_column": recording_column}
    options |= {"time_tolerance": time_tolerance, "decimal": decimal}
    return {key: value != "none" and value for key, value in options.items() if value is not None}


def check_output(output: Path, inputs: Sequence[str] = ()) -> None:
    """Refuse a file that could not be written, or is one of those that are read, before the work is done."""
    from kaffee.data._arrayfiles import require_pyarrow
    from kaffee.data.reading import SUFFIXES
    from kaffee.errors import ConfigError

    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{output}: cannot write '{output.suffix}'. Supported: {', '.join(SUFFIXES)}.")
    if suffix == ".parquet":
        require_pyarrow(str(output))
    if not output.parent.is_dir():
        raise ConfigError(f"{output}: there is no folder {output.parent}. Make it first, or choose another with -o.")
    for path in map(Path, inputs):
        if output.exists() and path.exists() and output.samefile(path):
            raise ConfigError(f"-o {output} would overwrite {path}, which is read. Choose another name with -o.")


def parse_levels(quantiles: str) -> tuple[float, ...]:
    """Read the quantile levels that were typed."""
    from kaffee.errors import ConfigError
    from kaffee.inference.results import check_levels

    try:
        levels = [float(level) for level in quantiles.split(",") if level.strip()]
    except ValueError:
        raise ConfigError(
            f"--quantiles {quantiles}: numbers between 0 and 1 are needed, as in 0.05,0.5,0.95."
        ) from None
    return check_levels(levels)


def write_table(table: "Series", output: Path, facts: dict[str, Any], *, json: bool, sentence: str) -> None:
    """Write a result and say so; a .npy file holds the values alone."""
    from kaffee.data.writing import write_series

    bare = output.suffix.lower() == ".npy"
    write_series(replace(table, times=None) if bare else table, output)
    if json:
        kept = {"output": str(output), **facts, "columns": list(table.columns)}
        typer.echo(json_module.dumps({**kept, "times": table.times is not None and not bare}, indent=2))
    else:
        typer.echo(f"{output}: {table.num_steps} rows x {table.num_coordinates} columns; {sentence}")
