"""What all readers share: a table of columns, the roles of its columns, and its recordings."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from kaffee.data.timeaxis import DEFAULT_RECORDING, DEFAULT_TIME, Dates, Origin, is_time_name, regularise_time
from kaffee.data.validation import (
    Times,
    Values,
    as_float64,
    check_columns,
    check_finite,
    check_times,
    find_column,
    quoted,
)
from kaffee.errors import DataError

# pandas writes its index without a name to text, and under a reserved name to parquet
_INDEX_NAMES = ("", "unnamed: 0", "__index_level_0__")

# So many equal steps are no accident.
MIN_RAMP = 20

ColumnName = str | int


class Table(Protocol):
    """Columns of a file, converted only when their role is known: an unused text column is no error."""

    @property
    def source(self) -> str:
        """The file."""

    @property
    def names(self) -> tuple[str, ...]:
        """Column names; an empty one is allowed for an index in the first column."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    def place(self, row: int) -> str:
        """File and row for a message."""

    def numbers(self, column: int) -> np.ndarray:
        """A column as float64, NaN for missing."""

    def times(self, column: int) -> np.ndarray:
        """A column as float64 times, timestamps as seconds."""

    def dates(self, column: int) -> Dates | None:
        """How the times of a column are written, if they are dates."""

    def labels(self, column: int) -> Sequence[Hashable]:
        """A column as labels of recordings."""


@dataclass(frozen=True)
class ArrayTable:
    """A 2-D array as a table, optionally with times of its own."""

    source: str
    values: Values
    names: tuple[str, ...]
    own_times: np.ndarray | None = None

    @classmethod
    def from_array(
        cls,
        source: str,
        array: np.ndarray,
        names: Sequence[str] | None = None,
        times: np.ndarray | None = None,
    ) -> "ArrayTable":
        """Check an array of shape (T,) or (T, N)."""
        values = as_float64(array, source)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or values.size == 0:
            raise DataError(
                f"{source}: an array of shape {np.shape(array)} is not a recording. Save arrays of shape (T, "
                "N) with at least one row and one column."
            )
        return cls(source, values, check_columns(names, values.shape[1], source), times)

    @property
    def num_rows(self) -> int:
        return len(self.values)

    def place(self, row: int) -> str:
        return f"{self.source}, row {row}"

    def numbers(self, column: int) -> np.ndarray:
        return self.values[:, column]

    def times(self, column: int) -> np.ndarray:
        return self.values[:, column]

    def dates(self, column: int) -> Dates | None:
        return None

    def labels(self, column: int) -> Sequence[Hashable]:
        return float_labels(self.values[:, column], self.place, self.names[column])


@dataclass(frozen=True)
class Choice:
    """What the user asked for; see `read_series`."""

    time_column: ColumnName | None = None
    columns: tuple[ColumnName, ...] | None = None
    recording_column: ColumnName | None = None
    time_tolerance: float = 0.05
    delimiter: str | None = None
    header: bool | None = None


class Roles(NamedTuple):
    """Positions of the columns in a table."""

    time: int | None
    recording: int | None
    coordinates: list[int]


@dataclass
class Parts:
    """Recordings collected from one or several tables.

    Attributes:
        labels: What tells a recording apart in its file; None where nothing does.
        origin: Of the first table.
    """

    columns: tuple[str, ...] = ()
    origin: Origin | None = None
    labels: list[Hashable | None] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    times: list[Times | None] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a sentence once."""
        if text not in self.notes:
            self.notes.append(text)


def find_roles(table: Table, choice: Choice, note: Callable[[str], None]) -> Roles:
    """Which column is the time, which labels recordings, and which are coordinates."""
    names, source = table.names, table.source
    chosen = None
    if choice.columns is not None:
        chosen = [find_column(column, names, source) for column in choice.columns]
        if not chosen:
            raise DataError(f"{source}: no column selected. Name at least one of: {quoted(names)}.")
    free = [j for j in range(len(names)) if chosen is None or j not in chosen]
    time = _named_role(choice.time_column, "time_column", names, source)
    if choice.time_column is None and getattr(table, "own_times", None) is None:
        alike = [j for j in free if is_time_name(names[j])]
        if len(alike) > 1:
            raise DataError(
                f"{source}: columns {quoted([names[j] for j in alike])} all look like a time. Name one with "
                "time_column= and the coordinates with columns=."
            )
        if not alike and len(names) > 1 and free[:1] == [0] and names[0].lower() in _INDEX_NAMES:
            alike = [0]
        time = alike[0] if alike else None
    recording = _named_role(choice.recording_column, "recording_column", names, source)
    if choice.recording_column is None:
        recording = next((j for j in free if names[j].lower() == "recording" and j != time), None)
    if time is not None and time == recording:
        raise DataError(
            f"{source}: column '{names[time]}' cannot be both time and recording label. Choose different columns."
        )
    coordinates = chosen if chosen is not None else [j for j in free if j not in (time, recording)]
    if not coordinates:
        used = [names[j] for j in (time, recording) if j is not None]
        raise DataError(
            f"{source}: no coordinate is left beside {quoted(used)}. Add columns, or pass "
            "time_column=False or recording_column=False."
        )
    if time is not None:
        note(f"column '{names[time] or 'unnamed'}' is kept as time, not as a coordinate")
    if recording is not None:
        note(f"column '{names[recording]}' separates recordings, it is not a coordinate")
    return Roles(time, recording, coordinates)


def _named_role(given: ColumnName | None, option: str, names: Sequence[str], source: str) -> int | None:
    if given is True:
        raise DataError(f"{option}=True is not a column. Give a name or an index, or leave it out to detect it.")
    return None if given is None or given is False else find_column(given, names, source)


def add_table(parts: Parts, table: Table, choice: Choice) -> None:
    """Add the recordings of one table, checked and on a regular time axis."""
    roles = find_roles(table, choice, parts.note)
    coordinates = roles.coordinates
    columns = check_columns([table.names[j] or f"x{j + 1}" for j in coordinates], len(coordinates), table.source)
    if parts.columns and columns != parts.columns:
        if sorted(columns) != sorted(parts.columns):
            raise DataError(
                f"{table.source}: columns {quoted(columns)} differ from {quoted(parts.columns)} in the first "
                "recording. Select the common ones with columns=."
            )
        coordinates = [coordinates[columns.index(name)] for name in parts.columns]
        columns = parts.columns
    parts.columns = columns
    parts.origin = parts.origin or _origin(table, roles)
    values = np.column_stack([table.numbers(j) for j in coordinates])
    check_finite(values, columns, table.place)
    times = _times(table, roles, choice)
    if times is None and choice.time_column is None:
        _doubt_ramps(values, columns, table.source)
    for rows, label in _groups(table, roles.recording):

        def place(row: int, rows: np.ndarray = rows) -> str:
            return table.place(int(rows[row]))

        part, part_times = values[rows], None
        source = table.source if label is None else f"{table.source}, recording {label}"
        if times is not None:
            part_times, part = regularise_time(
                times[rows], part, tolerance=choice.time_tolerance, where=source, place=place
            )
        if len(part) > len(rows):
            parts.note(f"{source}: {len(part) - len(rows)} missing rows inserted at gaps in time")
        parts.values.append(part)
        parts.times.append(part_times)
        parts.places.append(source)
        parts.labels.append(label)


def _times(table: Table, roles: Roles, choice: Choice) -> np.ndarray | None:
    """Times of all rows, from a column or from an array beside the values."""
    if roles.time is not None:
        return table.times(roles.time)
    times = getattr(table, "own_times", None)
    return None if times is None or choice.time_column is False else check_times(times, table.num_rows, table.source)


def _doubt_ramps(values: Values, columns: Sequence[str], source: str) -> None:
    """Warn of a coordinate that looks like a time under another name."""
    if len(values) <= MIN_RAMP or values.shape[1] < 2:
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
            stacklevel=4,
        )


def _origin(table: Table, roles: Roles) -> Origin:
    """The names of the columns that are no coordinates; an index without one gets a name."""
    time = "" if roles.time is None else table.names[roles.time]
    return Origin(
        time=DEFAULT_TIME if time.lower() in _INDEX_NAMES else time,
        dates=None if roles.time is None else table.dates(roles.time),
        recording=DEFAULT_RECORDING if roles.recording is None else table.names[roles.recording],
    )


def _groups(table: Table, column: int | None) -> list[tuple[np.ndarray, Hashable | None]]:
    """Rows of each recording in the order of first appearance, with its label."""
    if column is None:
        return [(np.arange(table.num_rows), None)]
    groups: dict[Hashable, list[int]] = {}
    for row, label in enumerate(table.labels(column)):
        groups.setdefault(label, []).append(row)
    return [(np.array(rows), label) for label, rows in groups.items()]


def float_labels(values: np.ndarray, place: Callable[[int], str], column: str) -> Sequence[Hashable]:
    """Numbers as labels; a missing one is an error."""
    missing = np.flatnonzero(np.isnan(values))
    if missing.size:
        raise missing_label(place(int(missing[0])), column)
    return [int(value) if value.is_integer() else value for value in values.tolist()]


def missing_label(place: str, column: str) -> DataError:
    """The error for a row without a recording label."""
    return DataError(f"{place}, column '{column}': no recording label. Fill it in, or remove the row.")
