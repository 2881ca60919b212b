"""Lines of a stream: readings as numbers or JSON, the steps between their times, estimates as JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from kaffee.data._textfiles import parse_number
from kaffee.data.timeaxis import is_time_name, shown
from kaffee.data.validation import quoted
from kaffee.errors import DataError
from kaffee.filtering.recursion import QUANTITIES
from kaffee.inference.matching import STEP_TOLERANCE
from kaffee.inference.results import Estimate, check_levels, quantile_name

# Steps without a line that are filled in; after more of them nothing is left of what was known.
MOST_SKIPPED = 10_000
# Steps by which a time may be off, as in recordings; a clock that runs a little fast or slow adds to it.
JITTER = 0.05
# Significant digits that bring every number of a type back.
DIGITS = {"float32": 9, "float64": 17}


class BrokenLine(Exception):
    """A line that is no reading; the message says why."""


class Reading(NamedTuple):
    """What a line says: values in the order of the model's columns (None: no step), the time as it came, what is wrong.

    `skipped` counts the steps before this one that no line came for.
    """

    values: list[float] | None
    time: Any = None
    error: str = ""
    skipped: int = 0


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
        """Take the first line as a header if it names a column of the model; it must then name all."""
        cells = [cell.strip('"') for cell in _split(line)]
        missing = [name for name in self.columns if name not in cells]
        if len(missing) == len(self.columns) or line.lstrip()[:1] in ("{", "["):
            return False
        if missing:
            raise DataError(
                f"Line 1: the header names {quoted(cells)}, but the model needs {quoted(missing)} as well. Add or "
                "rename columns."
            )
        self._positions, self._width = [cells.index(name) for name in self.columns], len(cells)
        self._time = next((j for j, cell in enumerate(cells) if self._is_time(cell)), None)
        if self._time_column is not None and self._time is None:
            raise DataError(f"Line 1: the header has no '{self._time_column}', only {quoted(cells)}.")
        return True

    def _is_time(self, name: str) -> bool:
        # A column of the model never holds the times, unless it was named as such.
        if self._time_column is not None or name in self.columns:
            return name == self._time_column
        return is_time_name(name)

    def read(self, line: str) -> Reading:
        """Read a line, or raise `BrokenLine`."""
        line = line.strip()
        if not line:
            return Reading([math.nan] * len(self.columns))
        if line[0] in "{[":
            return self._read_json(line)
        cells = _split(line)
        if len(cells) != self._width:
            header = "the header" if self._positions is not None else f"the model ({', '.join(self.columns)})"
            raise BrokenLine(f"{len(cells)} cell{'s' * (len(cells) != 1)}, but {header} has {self._width}")
        if self._positions is None and "_" not in line:  # float() takes 1_000
            try:
                return Reading([float(cell) for cell in cells])
            except ValueError:
                pass
        picked = cells if self._positions is None else [cells[j] for j in self._positions]
        values = [_read_number(cell, name) for cell, name in zip(picked, self.columns, strict=True)]
        return Reading(values, None if self._time is None else _clean_time(cells[self._time]))

    def _read_json(self, line: str) -> Reading:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BrokenLine(f"not JSON ({str(error)[:80]})") from error
        time = None
        if isinstance(value, list):
            if len(value) != len(self.columns):
                raise BrokenLine(f"{len(value)} values in the array, but the model has {len(self.columns)} columns")
            value = dict(zip(self.columns, value, strict=True))
        elif not any(name in value for name in self.columns):
            raise BrokenLine(f"none of the model's columns ({', '.join(self.columns)}) in it")
        else:
            time = next((value[key] for key in value if self._is_time(key)), None)
        return Reading([_read_json_number(value.get(name), name) for name in self.columns], _clean_time(time))


def _split(line: str) -> list[str]:
    """Split a line into cells at the first of comma, semicolon, tab and space that occurs in it."""
    for delimiter in (",", ";", "\t"):
        if delimiter in line:
            return [cell.strip() for cell in line.split(delimiter)]
    return line.split()


def _read_number(cell: str, name: str) -> float:
    value = parse_number(cell.strip('"'))
    if value is None:
        raise BrokenLine(f"{name}: {shown(cell)} is not a number")
    return value


def _read_json_number(value: Any, name: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenLine(f"{name}: {shown(str(value))} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _clean_time(time: Any) -> Any:
    """Return a time that can be written as JSON: a finite number, or text; None for anything else."""
    if isinstance(time, str):
        number = parse_number(time)
        return time if number is None else _clean_time(number)
    if isinstance(time, bool) or not isinstance(time, int | float):
        return None
    try:
        return time if math.isfinite(time) else None
    except OverflowError:  # a whole number of hundreds of digits
        return None


class Clock:
    """Counts the model's steps between the times of lines; a reading without a time is one step.

    A time that does not fit breaks its line and is remembered: if the next one fits to it, the clock was reset.
    Without the time of a step, all lines are one step each, whatever their times are. Steps of a `frequency`, such as
    months, are counted on its calendar.
    """

    def __init__(
        self, step: float | None, time: float | None = None, steps_since_time: int = 0, frequency: str | None = None
    ) -> None:
        self._step, self.time, self.steps_since_time, self._frequency = step, time, steps_since_time, frequency
        self._odd: float | None = None
        self._dated = False
        self._steps_since_odd = 0

    def misses(self, time: Any) -> bool:
        """Tell whether steps are counted by times, and this is none."""
        return self._step is not None and self.time is not None and _read_time(time) is None

    def tick(self) -> None:
        """Take one step at an unknown time."""
        self.steps_since_time += self.time is not None
        self._steps_since_odd += 1

    def count_skipped(self, time: Any) -> int:
        """Count the steps that were left out before the one of this time.

        A time that does not lie whole steps ahead, or too many of them, raises `BrokenLine`.
        """
        now, self._dated = _read_time(time), isinstance(time, str)
        if now is None or self._step is None:
            self.tick()
            return 0
        skipped: int | str = 0 if self.time is None else self._compare(self.time, self.steps_since_time, now)
        if isinstance(skipped, str):
            since_odd = skipped if self._odd is None else self._compare(self._odd, self._steps_since_odd, now)
            if isinstance(since_odd, str):
                self._odd, self._steps_since_odd = now, 0
                raise BrokenLine(skipped)
            # The clock was reset: ahead by so much, or back by an unknown time.
            assert self.time is not None
            ahead, taken = self._count(self.time, now), 1 + self.steps_since_time
            skipped = since_odd if ahead < 1.0 else max(round(min(ahead, MOST_SKIPPED + taken)) - taken, 0)
        self.time, self.steps_since_time, self._odd = now, 0, None
        return skipped

    def _count(self, before: float, now: float) -> float:
        """Count the steps from one time to another; on a calendar NaN if it does not have them both."""
        assert self._step is not None
        if self._frequency is None or not self._dated:
            return (now - before) / self._step
        from pandas import to_datetime

        from kaffee.data._calendars import Calendar

        dates = to_datetime([before, now], unit="s")
        with suppress(DataError):
            return float(Calendar(self._frequency, dates[0]).count(dates, "time")[1])
        return math.nan

    def _compare(self, before: float, taken: int, now: float) -> int | str:
        """Count the steps between two times that were not taken yet, or say what is wrong."""
        assert self._step is not None
        if now <= before:
            return f"time {'repeats' if now == before else 'goes back'}: {now:.12g} after {before:.12g}"
        ratio = self._count(before, now)
        if math.isnan(ratio):
            return f"time is no step of the calendar '{self._frequency}'"
        if not ratio - 1.5 < MOST_SKIPPED + taken:
            return f"time jumps by {ratio:.6g} steps, from {before:.12g} to {now:.12g}; {MOST_SKIPPED} can be filled in"
        steps = round(ratio)
        # times of large magnitude (seconds since 1970) carry rounding of their own
        rounding = 4.0 * math.ulp(max(abs(now), abs(before))) / self._step
        if steps < 1 or abs(ratio - steps) > JITTER + STEP_TOLERANCE * steps + rounding:
            return f"time goes on by {ratio:.6g} steps, no whole number, from {before:.12g} to {now:.12g}"
        return max(steps - 1 - taken, 0)


def _read_time(time: Any) -> float | None:
    """Read a time as a number, ISO 8601 as seconds since 1970; None for anything else."""
    if isinstance(time, str):
        try:
            stamp = datetime.fromisoformat(time)
        except ValueError:
            return None
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    return None if time is None else float(time)


class LineWriter:
    """Writes the rows of estimates as flat JSON objects whose keys are the columns of `kaffee filter`.

    Beside them, only where they apply: `rejected`, the names of readings that were not believed; `restarted`, true
    where the belief started again; `fault`, why.
    """

    def __init__(self, columns: Sequence[str], dtype: str, levels: Sequence[float] = ()) -> None:
        self.columns, self.levels = tuple(columns), check_levels(levels)
        kinds = ["mean", "std", *map(quantile_name, self.levels), "predicted_mean", "predicted_std"]
        keys = [f"{name}_{kind}" for name in columns for kind in kinds] + ["log_likelihood", "nis"]
        self._keys = [json.dumps(key) for key in keys]
        self._number = f"%.{DIGITS[dtype]}g"
        self._template = ", ".join(f"{key.replace('%', '%%')}: {self._number}" for key in self._keys)

    def encode(self, estimate: Estimate) -> Iterator[str]:
        """Write the fields of every row, without the braces around them."""
        fields = np.stack(list(estimate.variables(self.levels).values()), axis=-1)
        tail = np.stack([estimate.log_likelihood, estimate.nis], axis=-1)
        table = np.concatenate([fields.reshape(len(fields), -1), tail], axis=1)
        plain = np.isfinite(table).all(axis=1) & ~estimate.rejected.any(axis=1) & ~estimate.restarted
        for i, (row, is_plain) in enumerate(zip(table.tolist(), plain.tolist(), strict=True)):
            yield self._template % tuple(row) if is_plain else self._encode_special(row, estimate, i)

    def _encode_special(self, row: list[float], estimate: Estimate, i: int) -> str:
        numbers = [self._number % value if np.isfinite(value) else "null" for value in row]
        parts = [f"{key}: {number}" for key, number in zip(self._keys, numbers, strict=True)]
        notes: dict[str, Any] = {}
        if estimate.rejected[i].any():
            notes["rejected"] = [name for name, bad in zip(self.columns, estimate.rejected[i], strict=True) if bad]
        if estimate.restarted[i]:
            notes["restarted"] = True
        if estimate.faults[i]:
            notes["fault"] = QUANTITIES[estimate.faults[i]]
        return ", ".join(parts + [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in notes.items()])
