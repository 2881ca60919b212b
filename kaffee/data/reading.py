"""Read a series from files: `.npy`, `.npz`, `.csv`, `.tsv`, `.txt`, `.dat`, `.parquet`."""

import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from kaffee.data._arrayfiles import Roles, Table, open_numpy, open_parquet
from kaffee.data._textfiles import MISSING, TextFile, parse_number, read_text
from kaffee.data.series import Series
from kaffee.data.timeaxis import (
    COMPACT,
    Dates,
    Origin,
    check_same_step,
    is_time_name,
    mean_step,
    read_compact_dates,
    regularise_time,
    seconds,
    shown,
)
from kaffee.data.validation import check_columns, check_finite, check_times, count_seconds, find_column, quoted
from kaffee.errors import ConfigError, DataError

SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".txt", ".dat", ".parquet")

# pandas writes its index without a name to text, and under a reserved name to parquet.
_INDEX_NAMES = ("", "unnamed: 0", "__index_level_0__")
# So many equal steps are no accident.
_MIN_RAMP = 20

ColumnName = str | int
PathLike = str | os.PathLike[str]


class _Recording(NamedTuple):
    """One recording of a file; `label` is None if nothing tells it apart in its file, `place` names a row of it."""

    values: np.ndarray
    times: np.ndarray | None
    where: str
    label: Hashable | None
    stem: str
    place: Callable[[int], str]


def read_series(
    path: PathLike | Iterable[PathLike],
    *,
    time_column: ColumnName | None = None,
    columns: ColumnName | Sequence[ColumnName] | None = None,
    recording_column: ColumnName | None = None,
    time_tolerance: float = 0.05,
    delimiter: str | None = None,
    header: bool | None = None,
    decimal: str | None = None,
    frequency: str | Literal[False] | None = None,
    name: str | None = None,
    inputs: Sequence[str | int] | None = None,
    group: str | None = None,
) -> Series:
    """Read a series from one file, or from several files with one or more recordings each.

    Text files may have comments (`#`), quotes, blank lines and a header; empty cells, NA, nan and null are missing. A
    column named t, time, timestamp, date or datetime (also with a unit, `time [s]`), or an index without a name, is
    kept as times and is not a coordinate; a column named recording separates recordings. `Series.describe()` says so.
    In time, a gap of whole steps becomes missing rows. In `.npz` files every array is a recording in the natural order
    of the keys, beside the optional keys `times` (or `times_0`, `times_1`, ...) and `columns`. Errors name file, line
    and column, and what to do.

    Args:
        path: A file, or several; the files of a list must have the same columns.
        time_column: Name or 0-based index of the time; numbers, or ISO 8601 timestamps, which become seconds since 1970
            (UTC). Numbers that are all dates from 1800 to 2100, such as 20240131, are dates, unless the name has a
            unit. None detects the column by its name, False switches that off.
        columns: The coordinates by name or 0-based index; by default every other column.
        recording_column: Name or index of a column whose values tell recordings apart. None takes a column named
            recording, False switches that off.
        time_tolerance: Allowed deviation of times from whole steps, in steps.
        delimiter, header: Of text files, and whether they start with names; by default detected.
        decimal: "," or ".", the decimal mark of a text file; the other one separates thousands. None detects it in
            files with semicolons, and refuses a column that can be read in two ways.
        frequency: Of dates whose steps are not equally long, as pandas names it, such as "MS" for months: times then
            count these steps. None finds months, quarters, years and others; False counts seconds all the same.
        name: Of the series; by default the name of the first file.
        inputs: Columns that are known inputs, not coordinates (`Series.with_inputs`).
        group: A column whose values name groups (subjects, sites), each a recording of its own in every file; or "file"
            for one group in each file. Groups can share a core and have maps of their own.
    """
    if group is not None and group != "file":
        recording_column = group
    paths = [Path(item) for item in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not paths:
        raise DataError("No file given. Pass a path, or a list of paths.")
    if time_tolerance < 0 or time_tolerance >= 0.5:
        raise ConfigError(f"time_tolerance={time_tolerance} is not between 0 and 0.5 steps.")
    chosen = None if columns is None else (columns,) if isinstance(columns, str | int) else tuple(columns)
    if inputs and chosen is not None:
        chosen = (*chosen, *(each for each in inputs if each not in chosen))
    names: tuple[str, ...] = ()
    origin = Origin()
    recordings: list[_Recording] = []
    notes: list[str] = []
    for file in paths:
        for table in _open(file, delimiter, header, decimal):
            roles = _find_roles(table, chosen, time_column, recording_column, notes)
            names, roles = _match_columns(table, roles, names)
            cells = table.read(roles)
            values = np.column_stack([cells[j] for j in roles.coordinates])
            check_finite(values, names, table.place)
            times, dates = _read_times(table, cells, roles.time, notes)
            if roles.time is None and table.times is not None and time_column is not False:
                times, dates = _read_own_times(table, len(values), notes)
            if times is None and time_column is None:
                _warn_of_ramps(values, names, table.source)
            if not recordings:
                time, recording = ("" if j is None else table.names[j] for j in (roles.time, roles.recording))
                origin = Origin("t" if time.lower() in _INDEX_NAMES else time, dates, recording or "recording")
            elif (dates is None) != (origin.dates is None):
                origin = replace(origin, dates=None)
            for label, rows in _group(table, cells, roles.recording, len(values)):
                where = table.source if label is None else f"{table.source}, recording {label}"
                axis, place = None if times is None else times[rows], partial(_place, table, rows)
                recordings.append(_Recording(values[rows], axis, where, label, file.stem, place))
    known = [part.times for part in recordings if part.times is not None]
    if known and len(known) < len(recordings):
        lacking = next(part.where for part in recordings if part.times is None)
        raise DataError(f"{lacking}: no times, but other recordings have them. Add them, or pass time_column=False.")
    if origin.dates is not None and frequency is not False:
        origin = replace(origin, dates=origin.dates.on_calendar(frequency, known))
    recordings = [_regularise(part, origin.dates, time_tolerance, notes) for part in recordings]
    axes = [part.times for part in recordings if part.times is not None]
    check_same_step(axes, [part.where for part in recordings], time_tolerance)
    series = Series(
        recordings=tuple(part.values for part in recordings),
        columns=names,
        times=tuple(axes) if axes else None,
        name=paths[0].stem if name is None else name,
        source=str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more",
        notes=tuple(dict.fromkeys(notes)),
        origin=replace(origin, labels=_find_labels(recordings)),
        groups=() if group is None else tuple(part.stem if group == "file" else str(part.label) for part in recordings),
    )
    return series.with_inputs(inputs) if inputs else series


def _open(path: Path, delimiter: str | None, header: bool | None, decimal: str | None) -> Sequence[Table]:
    _check_path(path)
    try:
        if path.suffix.lower() in (".npy", ".npz"):
            return open_numpy(path)
        if path.suffix.lower() == ".parquet":
            return [open_parquet(path)]
        text = read_text(path, delimiter, header, decimal)
        return [Table(text.source, text.names, partial(_read_columns, text), text.place)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}). Check the permissions.") from error


def _read_columns(text: TextFile, roles: Roles) -> dict[int, np.ndarray]:
    """Read the columns of a text file; labels become integers only if they are written like integers."""
    cells = dict(enumerate(text.read(roles.coordinates, roles.time)))
    if roles.recording is not None and roles.recording not in roles.coordinates:
        labels = cells[roles.recording].tolist()
        if all(len(label) < 19 and label.isdecimal() and str(int(label)) == label for label in labels):
            labels = [int(label) for label in labels]
        else:
            labels = [None if label.lower() in MISSING else label for label in labels]
        cells[roles.recording] = np.array(labels, dtype=object)
    return cells


def _check_path(path: Path) -> None:
    """Refuse paths that cannot be read, with better advice than a library gives."""
    try:
        exists, folder = path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise DataError(f"{shown(str(path))}: not a usable path ({type(error).__name__}).") from error
    if folder:
        files = sorted(p.name for p in path.iterdir() if p.suffix.lower() in SUFFIXES)[:3]
        hint = f", for example {', '.join(files)}" if files else ""
        raise DataError(f"{path}: this is a folder. Pass the files in it, one or a list{hint}.")
    if not exists:
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, names, n=1)
        where = path.parent.resolve() if not path.is_absolute() else path.parent
        advice = f"Did you mean '{near[0]}'?" if near else "Check the path."
        raise DataError(f"{path}: no such file in {where}. {advice}")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: files ending in '{path.suffix}' cannot be read. Supported: {', '.join(SUFFIXES)}. "
            "Convert the file, or rename it if it is one of these."
        )
    if not path.is_file():  # a pipe or a device might never end
        raise DataError(f"{path}: not a regular file. Copy its content to a file and pass that.")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty. Check that the export has finished.")


def _find_roles(
    table: Table,
    columns: Sequence[ColumnName] | None,
    time_column: ColumnName | None,
    recording_column: ColumnName | None,
    notes: list[str],
) -> Roles:
    """Find the column of the time, the one that labels recordings, and the coordinates."""
    names, source = table.names, table.source
    chosen = [find_column(column, names, source) for column in columns or ()]
    if columns is not None and not chosen:
        raise DataError(f"{source}: no column selected. Name at least one of: {quoted(names)}.")
    free = [j for j in range(len(names)) if j not in chosen]
    time = _find_role(time_column, "time_column", names, source)
    if time_column is None and table.times is None:
        alike = [j for j in free if is_time_name(names[j])]
        if len(alike) > 1:
            raise DataError(
                f"{source}: columns {quoted([names[j] for j in alike])} all look like a time. Name one with "
                "time_column= and the coordinates with columns=."
            )
        if not alike and len(names) > 1 and free[:1] == [0] and names[0].lower() in _INDEX_NAMES:
            alike = [0]
        time = alike[0] if alike else None
    recording = _find_role(recording_column, "recording_column", names, source)
    if recording_column is None:
        recording = next((j for j in free if names[j].lower() == "recording" and j != time), None)
    if time is not None and time == recording:
        raise DataError(
            f"{source}: column '{names[time]}' cannot be both time and recording label. Choose different columns."
        )
    coordinates = chosen or [j for j in free if j not in (time, recording)]
    if not coordinates:
        used = [names[j] for j in (time, recording) if j is not None]
        raise DataError(
            f"{source}: no coordinate is left beside {quoted(used)}. Add columns, or pass "
            "time_column=False or recording_column=False."
        )
    if time is not None:
        notes.append(f"column '{names[time] or 'unnamed'}' is kept as time, not as a coordinate")
    if recording is not None:
        notes.append(f"column '{names[recording]}' separates recordings, it is not a coordinate")
    return Roles(time, recording, coordinates)


def _find_role(given: ColumnName | None, option: str, names: Sequence[str], source: str) -> int | None:
    if given is True:
        raise DataError(f"{option}=True is not a column. Give a name or an index, or leave it out to detect it.")
    return None if given is None or given is False else find_column(given, names, source)


def _match_columns(table: Table, roles: Roles, wanted: tuple[str, ...]) -> tuple[tuple[str, ...], Roles]:
    """Name the coordinates, and put them in the order of the first recording."""
    positions = roles.coordinates
    names = check_columns([table.names[j] or f"x{j + 1}" for j in positions], len(positions), table.source)
    if wanted and sorted(names) != sorted(wanted):
        raise DataError(
            f"{table.source}: columns {quoted(names)} differ from {quoted(wanted)} in the first "
            "recording. Select the common ones with columns=."
        )
    wanted = wanted or names
    return wanted, roles._replace(coordinates=[positions[names.index(name)] for name in wanted])


def _read_times(
    table: Table, cells: Any, column: int | None, notes: list[str]
) -> tuple[np.ndarray | None, Dates | None]:
    """Convert a column of numbers, datetimes or text to times, and find how its dates are written."""
    if column is None:
        return None, None
    name, raw = table.names[column], cells[column]
    if raw.dtype.kind == "f":
        return _read_numbers(raw, name, notes)
    if raw.dtype.kind == "M":
        return count_seconds(raw, f"{table.source}, column '{name}'"), table.dates[column]
    texts = ["" if cell is None else cell for cell in raw.tolist()]
    numbers = [parse_number(text) for text in texts]
    first = next((row for row, number in enumerate(numbers) if number is None), None)
    if first is None:
        return _read_numbers(np.array(numbers, dtype=np.float64), name, notes)
    missing = next((row for row, text in enumerate(texts) if text.lower() in MISSING), None)
    if missing is not None:
        raise DataError(
            f"{table.place(missing)}, column '{name}': the time is missing. Fill it in, or remove the row: a row that "
            "is left out is treated as missing."
        )
    if first > 0:
        raise DataError(
            f"{table.place(first)}, column '{name}': {shown(texts[first])} is not a number as the times above it are. "
            "Fix the cell, or choose another column with time_column=."
        )
    return seconds(texts, table.place, name), Dates.like(texts[0])


def _read_numbers(times: np.ndarray, name: str, notes: list[str]) -> tuple[np.ndarray, Dates | None]:
    """Take numbers for times; those that are all dates, such as 20240131, for dates."""
    dated = None if name[-1:] in ("]", ")") else read_compact_dates(times)
    if dated is None:
        return times, None
    notes.append(f"column '{name or 'unnamed'}' holds dates, written as {int(times[0])}")
    return dated, COMPACT


def _read_own_times(table: Table, num_rows: int, notes: list[str]) -> tuple[np.ndarray, Dates | None]:
    """Read times that a file keeps beside its rows."""
    raw = np.asarray(table.times)
    times = check_times(raw, num_rows, table.source)
    return (times, Dates(days=True)) if raw.dtype.kind == "M" else _read_numbers(times, "times", notes)


def _regularise(part: _Recording, dates: Dates | None, tolerance: float, notes: list[str]) -> _Recording:
    """Put a recording on a regular grid of seconds, of steps of its calendar, or of what its numbers count."""
    if part.times is None:
        return part
    times, step = part.times, None
    if dates is not None and dates.calendar is not None:
        step, times = 1.0, dates.count(check_times(times, len(times), part.where, part.place), part.where)
        notes.append(f"dates are counted in steps of the calendar '{dates.calendar.frequency}'")
    how: dict[str, Any] = {"tolerance": tolerance, "step": step, "where": part.where, "place": part.place}
    axis, values = regularise_time(times, part.values, **how)
    if len(values) > len(part.values):
        notes.append(f"{part.where}: {len(values) - len(part.values)} missing rows inserted at gaps in time")
    elif not np.array_equal(axis, times):
        notes.append(f"{part.where}: times were rounded as they were written; the step is {mean_step(axis):.6g}")
    return part._replace(values=values, times=axis)


def _warn_of_ramps(values: np.ndarray, columns: Sequence[str], source: str) -> None:
    """Warn of a coordinate that looks like a time under another name."""
    if len(values) <= _MIN_RAMP or values.shape[1] < 2:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.diff(values, axis=0)
        mean = steps.mean(axis=0)
        ramps = (mean > 0) & (np.abs(steps - mean) <= 1e-3 * mean).all(axis=0)
    for j in np.flatnonzero(ramps).tolist():
        warnings.warn(
            f"{source}: column '{columns[j]}' rises in equal steps, as a time does, but is taken for a coordinate. If "
            f"it is the time, pass time_column={columns[j]!r}; if not, time_column=False.",
            UserWarning,
            stacklevel=3,
        )


def _group(table: Table, cells: Any, column: int | None, num_rows: int) -> Iterable[tuple[Hashable, np.ndarray]]:
    """Find label and rows of each recording, in the order of first appearance."""
    import pandas as pd

    if column is None:
        return [(None, np.arange(num_rows))]
    name = table.names[column]
    try:
        codes, labels = pd.factorize(cells[column])
    except TypeError as error:
        raise DataError(
            f"{table.source}, column '{name}': {error}, no recording label. Use numbers or text."
        ) from error
    if (codes < 0).any():
        place = table.place(int(np.argmin(codes)))
        raise DataError(f"{place}, column '{name}': no recording label. Fill it in, or remove the row.")
    whole = [int(label) if isinstance(label, float) and label.is_integer() else label for label in labels.tolist()]
    ends = np.cumsum(np.bincount(codes))
    return zip(whole, np.split(np.argsort(codes, kind="stable"), ends[:-1]), strict=True)


def _place(table: Table, rows: np.ndarray, row: int) -> str:
    return table.place(int(rows[row]))


def _find_labels(recordings: Sequence[_Recording]) -> tuple[Hashable, ...]:
    """Tell recordings apart by their labels, else by file, else by both; return nothing if that fails."""
    named = tuple(part.stem if part.label is None else part.label for part in recordings)
    both = tuple(part.stem if part.label is None else f"{part.stem}: {part.label}" for part in recordings)
    return next((labels for labels in (named, both) if len(set(labels)) == len(recordings)), ())
