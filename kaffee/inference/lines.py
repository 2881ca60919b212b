"""One line of a stream as a reading: numbers between delimiters, or JSON. Broken lines say what is wrong with them."""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from kaffee.data.readers.text import parse_number
from kaffee.data.timeaxis import is_time_name, shown
from kaffee.data.validate import quoted
from kaffee.errors import DataError

NAN = math.nan


class BrokenLine(Exception):
    """A line that is no reading; the message says why."""


class Reading(NamedTuple):
    """A reading in the order of the model's columns; NaN is missing.

    Attributes:
        time: As it came, if the line names a time.
    """

    values: list[float]
    time: Any = None


class LineReader:
    """Reads lines for a model with these columns.

    A line is one of: numbers between commas, semicolons, tabs or spaces; a JSON array; a JSON object by column name.
    Blank lines and cells, NA, nan and null are missing. Names in a header line, or in an object, may come in any order
    and beside others; without names there must be as many numbers as the model has columns.

    Args:
        time_column: The name of the times; None: t, time, timestamp, date or datetime, also with a unit.
    """

    def __init__(self, columns: Sequence[str], time_column: str | None = None) -> None:
        self.columns = tuple(columns)
        self._time_column = time_column
        self._width = len(self.columns)
        self._positions: list[int] | None = None
        self._time: int | None = None

    def is_header(self, line: str) -> bool:
        """Take the first line as a header if it names a column of the model.

        Raises:
            DataError: if it names some of them, but not all.
        """
        cells = [cell.strip('"') for cell in _cells(line)]
        known = [name for name in self.columns if name in cells]
        if not known or line.lstrip()[:1] in ("{", "["):
            return False
        missing = [name for name in self.columns if name not in cells]
        if missing:
            raise DataError(
                f"Line 1: the header names {quoted(cells)}, but the model needs {quoted(missing)} as well. Rename the "
                "columns."
            )
        self._positions, self._width = [cells.index(name) for name in self.columns], len(cells)
        self._time = next((j for j, cell in enumerate(cells) if self._is_time(cell)), None)
        if self._time_column is not None and self._time is None:
            raise DataError(f"Line 1: the header has no '{self._time_column}', only {quoted(cells)}.")
        return True

    def _is_time(self, name: str) -> bool:
        """Whether a name is that of the times; a column of the model is none."""
        if self._time_column is not None or name in self.columns:
            return name == self._time_column
        return is_time_name(name)

    def read(self, line: str) -> Reading:
        """The reading of a line.

        Raises:
            BrokenLine: if it is none.
        """
        line = line.strip()
        if not line:
            return Reading([NAN] * len(self.columns))
        if line[0] in "{[":
            return self._json(line)
        cells = _cells(line)
        if len(cells) != self._width:
            raise BrokenLine(self._miscounted(len(cells)))
        try:
            numbers = [float(cell) for cell in cells] if self._positions is None else None
        except ValueError:
            numbers = None
        if numbers is not None and "_" not in line:
            return Reading(numbers)
        picked = cells if self._positions is None else [cells[j] for j in self._positions]
        time = None if self._time is None else _plain(cells[self._time])
        return Reading([self._number(cell, name) for cell, name in zip(picked, self.columns, strict=True)], time)

    def _number(self, cell: str, name: str) -> float:
        value = parse_number(cell.strip('"'))
        if value is None:
            raise BrokenLine(f"{name}: {shown(cell)} is not a number")
        return value

    def _miscounted(self, given: int) -> str:
        header = "the header" if self._positions is not None else f"the model ({', '.join(self.columns)})"
        return f"{given} cell{'s' * (given != 1)}, but {header} has {self._width}"

    def _json(self, line: str) -> Reading:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BrokenLine(f"not JSON ({str(error)[:80]})") from error
        if isinstance(value, list):
            if len(value) != len(self.columns):
                raise BrokenLine(f"{len(value)} values in the array, but the model has {len(self.columns)} columns")
            return Reading([_json_number(v, name) for v, name in zip(value, self.columns, strict=True)])
        if not any(name in value for name in self.columns):
            raise BrokenLine(f"none of the model's columns ({', '.join(self.columns)}) in it")
        time = next((value[key] for key in value if self._is_time(key)), None)
        return Reading([_json_number(value.get(name), name) for name in self.columns], _plain(time))


def _cells(line: str) -> list[str]:
    """The cells of a line between the first of comma, semicolon, tab and space that occurs in it."""
    for delimiter in (",", ";", "\t"):
        if delimiter in line:
            return [cell.strip() for cell in line.split(delimiter)]
    return line.split()


def _json_number(value: Any, name: str) -> float:
    if value is None:
        return NAN
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenLine(f"{name}: {shown(str(value))} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _plain(time: Any) -> Any:
    """A time that can be written as JSON: a finite number, or text."""
    if isinstance(time, str):
        number = parse_number(time)
        return time if number is None else _plain(number)
    if isinstance(time, bool) or not isinstance(time, int | float):
        return None
    try:
        return time if math.isfinite(time) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None
