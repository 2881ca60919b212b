"""Read a series from files: `.npy`, `.npz`, `.csv`, `.tsv`, `.txt`, `.dat`, `.parquet`."""

import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from kaffee.data.readers._table import Choice, ColumnName, Parts, Table, add_table
from kaffee.data.readers.arrays import read_npy, read_npz
from kaffee.data.readers.parquet import read_parquet
from kaffee.data.readers.text import read_text
from kaffee.data.series import Series
from kaffee.data.timeaxis import NUMBERED, check_same_step, shown
from kaffee.errors import ConfigError, DataError

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".dat")
SUFFIXES = (".npy", ".npz", *TEXT_SUFFIXES, ".parquet")

PathLike = str | os.PathLike[str]


def read_series(
    path: PathLike | Iterable[PathLike],
    *,
    time_column: ColumnName | None = None,
    columns: ColumnName | Sequence[ColumnName] | None = None,
    recording_column: ColumnName | None = None,
    time_tolerance: float = 0.05,
    delimiter: str | None = None,
    header: bool | None = None,
    name: str | None = None,
) -> Series:
    """Read a series from one file, or from several files with one or more recordings each.

    Text files may have comments (`#`), quotes, blank lines and a header; empty cells, NA, nan and null are
    missing. A column named t, time, timestamp, date or datetime (also with a unit, `time [s]`), or an index
    without a name, is kept as times and is not a coordinate; a column named recording separates recordings.
    `Series.describe()` says so. In time, a gap of whole steps becomes missing rows. In `.npz` files every
    array is a recording in the natural order of the keys, beside the optional keys `times` (or `times_0`,
    `times_1`, ...) and `columns`.

    Args:
        path: a file, or several; the files of a list must have the same columns.
        time_column: name or 0-based index of the time; numbers, or ISO 8601 timestamps, which become seconds
            since 1970 (UTC). None detects it by name, False switches that off.
        columns: the coordinates by name or 0-based index; by default every other column.
        recording_column: name or index of a column whose values tell recordings apart. None takes a column
            named recording, False switches that off.
        time_tolerance: allowed deviation of times from whole steps, in steps.
        delimiter: of text files; by default detected.
        header: whether text files start with names; by default detected.
        name: of the series; by default the name of the first file.

    Raises:
        DataError: names file, line and column, and what to do.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise DataError("No file given. Pass a path, or a list of paths.")
    if time_tolerance < 0 or time_tolerance >= 0.5:
        raise ConfigError(f"time_tolerance={time_tolerance} is not between 0 and 0.5 steps.")
    chosen = None if columns is None else (columns,) if isinstance(columns, str | int) else tuple(columns)
    choice = Choice(time_column, chosen, recording_column, time_tolerance, delimiter, header)
    parts = Parts()
    files: list[Path] = []
    for item in paths:
        for table in _tables(Path(item), choice):
            add_table(parts, table, choice)
        files += [Path(item)] * (len(parts.values) - len(files))
    times = [t for t in parts.times if t is not None]
    if times and len(times) < len(parts.times):
        lacking = parts.places[next(r for r, t in enumerate(parts.times) if t is None)]
        raise DataError(f"{lacking}: no times, but other recordings have them. Add them, or pass time_column=False.")
    check_same_step(times, parts.places, time_tolerance)
    first = Path(paths[0])
    return Series(
        recordings=tuple(parts.values),
        columns=parts.columns,
        times=tuple(times) if times else None,
        name=first.stem if name is None else name,
        source=str(first) if len(paths) == 1 else f"{first} and {len(paths) - 1} more",
        notes=tuple(parts.notes),
        origin=replace(parts.origin or NUMBERED, labels=_labels(files, parts.labels)),
    )


def _labels(files: Sequence[Path], labels: Sequence[Hashable | None]) -> tuple[Hashable, ...]:
    """What tells recordings apart: their labels, else the names of their files, else both; nothing if that fails."""
    named = [file.stem if label is None else label for file, label in zip(files, labels, strict=True)]
    both = [file.stem if label is None else f"{file.stem}: {label}" for file, label in zip(files, labels, strict=True)]
    return next((tuple(each) for each in (named, both) if len(set(each)) == len(files)), ())


def _tables(path: Path, choice: Choice) -> Sequence[Table]:
    source = str(path)
    _check_path(path)
    try:
        match path.suffix.lower():
            case ".npy":
                return read_npy(path, source)
            case ".npz":
                return read_npz(path, source)
            case ".parquet":
                return [read_parquet(path, source)]
            case _:
                return [read_text(path, source, choice)]
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror or error}). Check the permissions.") from error


def _check_path(path: Path) -> None:
    """Say what is wrong with a path before a library does."""
    try:
        exists, folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise DataError(f"{shown(str(path))}: not a usable path ({type(error).__name__}).") from error
    if folder:
        found = sorted(p.name for p in path.iterdir() if p.suffix.lower() in SUFFIXES)[:3]
        hint = f", for example {', '.join(found)}" if found else ""
        raise DataError(f"{path}: this is a folder. Pass the files in it, one or a list{hint}.")
    if not exists:
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, names, n=1)
        where = path.parent.resolve() if not path.is_absolute() else path.parent
        raise DataError(
            f"{path}: no such file in {where}." + (f" Did you mean '{near[0]}'?" if near else " Check the path.")
        )
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: files ending in '{path.suffix}' cannot be read. Supported: {', '.join(SUFFIXES)}. "
            "Convert the file, or rename it if it is one of these."
        )
    if not path.is_file():
        # a pipe or a device might never end
        raise DataError(f"{path}: not a regular file. Copy its content to a file and pass that.")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty. Check that the export has finished.")
