"""The index of a pandas table as times: regular steps, gaps and calendars, and how it continues."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kaffee.data.timeaxis import shown
from kaffee.data.validation import check_times
from kaffee.errors import DataError


@dataclass(frozen=True)
class Clock:
    """The index of one recording as it came, and the times of its rows.

    Attributes:
        times: For the series; None if rows are only counted, or lie on a calendar.
        frequency: Of a calendar whose steps are not equally long, such as "MS" for months; None otherwise.
        grid: Every step of that calendar, those without a row included.
    """

    index: pd.Index
    times: np.ndarray | None = None
    frequency: str | None = None
    grid: pd.Index | None = None

    def place(self, values: np.ndarray) -> np.ndarray:
        """Insert missing rows where the calendar has a step without a row."""
        if self.grid is None or len(self.grid) == len(values):
            return values
        filled = np.full((len(self.grid), values.shape[1]), np.nan)
        filled[self.grid.get_indexer(self.index)] = values
        return filled

    def labels(self, times: np.ndarray | None) -> Any:
        """Return the index of the recording's rows, with labels for those that were inserted at gaps."""
        if self.grid is not None:
            return self.grid
        if times is None or len(times) == len(self.index):
            return self.index
        if not _is_dated(self.index):
            return self._number(times)
        own = check_times(self.times, len(self.index), "index")  # type: ignore[arg-type]
        # Counted from the row before the gap, so that a clock that drifts does not overtake the next one.
        position = np.searchsorted(times, own)
        before = np.searchsorted(position, np.arange(len(times)), side="right") - 1
        return self.index.take(before) + (np.arange(len(times)) - position[before]) * self._step(len(times))

    def future(self, times: np.ndarray, num_rows: int) -> Any:
        """Return the index of steps at `times` after the last of `num_rows` rows, missing ones included."""
        steps, last, name = len(times), self.index[-1], self.index.name
        if isinstance(self.index, pd.PeriodIndex):
            return pd.period_range(last, periods=steps + 1, name=name)[1:]
        if self.times is None and self.frequency is None:
            return pd.RangeIndex(self.index.stop, self.index.stop + steps, name=name)
        if self.frequency is None and not _is_dated(self.index):
            return self._number(times)
        if num_rows > 1:
            step = self._step(num_rows)
        else:  # a single row does not say how long a step is; the times of the forecast do
            step = np.timedelta64(round(1e9 * (float(times[1] - times[0]) if steps > 1 else 1.0)), "ns")
        span = pd.timedelta_range if isinstance(self.index, pd.TimedeltaIndex) else pd.date_range
        every = self.frequency or self.index.freq or pd.Timedelta(step)
        return span(last, periods=steps + 1, freq=every, name=name)[1:]

    def elapsed(self, times: np.ndarray) -> Any:
        """Return an index of plain numbers, for runs that belong to no date."""
        return pd.Index(times, name=None if _is_dated(self.index) else self.index.name)

    def _step(self, num_rows: int) -> np.timedelta64:
        return ((self.index[-1] - self.index[0]) / (num_rows - 1)).to_timedelta64()

    def _number(self, times: np.ndarray) -> Any:
        """Make an index of numbers; whole numbers stay whole."""
        whole = self.index.dtype.kind in "iu" and np.array_equal(times, np.round(times))
        return pd.Index(times.astype(self.index.dtype) if whole else times, name=self.index.name)


def _is_dated(index: Any) -> bool:
    return isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex)


def read_index(index: Any, where: str, *, frequency: str | None = None, infer: bool = False) -> Clock:
    """Read the times of rows from a pandas index.

    Plain row numbers (a `RangeIndex` of step 1) are no times. Other numbers are, as they are; dates and durations
    count in seconds. Dates with steps of unequal length, such as months, are rows of a calendar: the one of `frequency`
    to which a model was fitted, else with `infer` the one that pandas finds.
    """
    if isinstance(index, pd.MultiIndex):
        raise DataError(
            f"{where}: an index of {index.nlevels} levels. Pass a list with a table for each recording, such as "
            "[part.droplevel(0) for _, part in X.groupby(level=0)]."
        )
    if len(index) == 0:
        return Clock(index)
    if isinstance(index, pd.PeriodIndex):
        return _read_calendar(index, index.freqstr, pd.period_range(index[0], index[-1], name=index.name), where)
    if isinstance(index, pd.DatetimeIndex):
        frequency = frequency or (_infer_calendar(index) if infer else None)
        if frequency is not None and not index.hasnans:
            grid = pd.date_range(index[0], index[-1], freq=frequency, name=index.name)
            return _read_calendar(index, frequency, grid, where)
        return Clock(index, (index if index.tz is None else index.tz_convert(None)).to_numpy())
    if isinstance(index, pd.TimedeltaIndex):
        return Clock(index, index.total_seconds().to_numpy())
    if isinstance(index, pd.RangeIndex) and index.step == 1:
        return Clock(index)
    if index.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: an index of {index.dtype} ({shown(str(index[0]))}, ...) is not a time. Set it with "
            "X.set_index(pd.to_datetime(...)) or to numbers, or count rows with X.reset_index(drop=True)."
        )
    return Clock(index, index.to_numpy(dtype=np.float64, na_value=np.nan))


def _infer_calendar(index: Any) -> str | None:
    """Find the frequency of dates whose steps are not equally long; None if they are, or if there is none."""
    if len(index) < 3 or not index.is_monotonic_increasing or index.hasnans or len(set(np.diff(index.asi8))) == 1:
        return None
    return index.freqstr or pd.DatetimeIndex(index, freq="infer").freqstr


def _read_calendar(index: Any, frequency: str, grid: Any, where: str) -> Clock:
    if not index.is_monotonic_increasing or not index.is_unique:
        wrong = "the rows are not in order, or some are there twice"
    elif (off := np.flatnonzero(grid.get_indexer(index) < 0)).size:
        wrong = f"{index[int(off[0])]} is not a step of it"
    else:
        return Clock(index, None, frequency, grid)
    raise DataError(
        f"{where}: the index should follow the frequency '{frequency}', but {wrong}. Sort the rows, or resample them: "
        f"X.asfreq('{frequency}')."
    )
