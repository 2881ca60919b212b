"""The index of a table as times: regular steps, gaps, calendars; and how it goes on into the future.

Everything here works on an index of pandas that the user passed, so pandas is there; kaffee does not depend on it.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.data.timeaxis import shown
from kaffee.data.validation import check_times
from kaffee.errors import DataError


def pandas() -> Any:
    """The module, which is loaded: someone made the index."""
    return sys.modules["pandas"]


@dataclass(frozen=True)
class Clock:
    """When the rows of one recording were taken.

    Attributes:
        index: As it came.
        times: As a series wants them; None if rows are only counted, or lie on a calendar.
        frequency: Of a calendar whose steps are not equally long, such as "MS" for months; None otherwise.
        grid: Every step of that calendar, those without a row included.
    """

    index: Any
    times: np.ndarray | None = None
    frequency: str | None = None
    grid: Any = None

    def place(self, values: np.ndarray) -> np.ndarray:
        """Rows of a table, with missing ones where the calendar has a step without a row."""
        if self.grid is None or len(self.grid) == len(values):
            return values
        filled = np.full((len(self.grid), values.shape[1]), np.nan)
        filled[self.grid.get_indexer(self.index)] = values
        return filled

    def labels(self, times: np.ndarray | None) -> Any:
        """The index of the recording's rows, with labels for those that were inserted at gaps."""
        if self.grid is not None:
            return self.grid
        if times is None or len(times) == len(self.index):
            return self.index
        own = check_times(self.times, len(self.index), "index")  # type: ignore[arg-type]
        if not _is_datetime_like(self.index):
            return self._numbers(times)
        # Counted from the row before the gap, so that a clock that drifts does not overtake the next one.
        position = np.searchsorted(times, own)
        before = np.searchsorted(position, np.arange(len(times)), side="right") - 1
        ahead = np.arange(len(times)) - position[before]
        return self.index.take(before) + ahead * self._step(len(times))

    def future(self, times: np.ndarray, num_rows: int) -> Any:
        """The index of the steps after the last row.

        Args:
            times: The same as numbers.
            num_rows: Rows of the recording, missing ones included.
        """
        pd = pandas()
        steps, last, name = len(times), self.index[-1], self.index.name
        if isinstance(self.index, pd.PeriodIndex):
            return pd.period_range(last, periods=steps + 1, name=name)[1:]
        if self.times is None and self.frequency is None:
            return pd.RangeIndex(self.index.stop, self.index.stop + steps, name=name)
        if self.frequency is None and not _is_datetime_like(self.index):
            return self._numbers(times)
        # A single row does not say how long a step is; the forecast's times do.
        step = self._step(num_rows) if num_rows > 1 else np.timedelta64(round(1e9 * _first_step(times)), "ns")
        span = pd.timedelta_range if isinstance(self.index, pd.TimedeltaIndex) else pd.date_range
        frequency = self.frequency or self.index.freq or pd.Timedelta(step)
        return span(last, periods=steps + 1, freq=frequency, name=name)[1:]

    def elapsed(self, times: np.ndarray) -> Any:
        """An index of plain numbers, for runs that belong to no date."""
        pd = pandas()
        return pd.Index(times, name=None if _is_datetime_like(self.index) else self.index.name)

    def _step(self, num_rows: int) -> np.timedelta64:
        return ((self.index[-1] - self.index[0]) / (num_rows - 1)).to_timedelta64()

    def _numbers(self, times: np.ndarray) -> Any:
        """Times as an index of the kind that it was: whole numbers stay whole."""
        pd = pandas()
        whole = self.index.dtype.kind in "iu" and np.array_equal(times, np.round(times))
        return pd.Index(times.astype(self.index.dtype) if whole else times, name=self.index.name)


def _first_step(times: np.ndarray) -> float:
    return float(times[1] - times[0]) if len(times) > 1 else 1.0


def _is_datetime_like(index: Any) -> bool:
    pd = pandas()
    return isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex)


def read_index(index: Any, where: str, *, frequency: str | None = None, infer: bool = False) -> Clock:
    """What an index says of the times of its rows.

    Plain row numbers (a `RangeIndex` of step 1) are no times. Other numbers are, as they stand; dates and durations
    count in seconds. Dates with steps of unequal length, such as months, are rows of a calendar if pandas finds one.

    Args:
        frequency: The calendar of the data that a model was fitted to.
        infer: Look for a calendar if there is none yet.
    """
    pd = pandas()
    if isinstance(index, pd.MultiIndex):
        raise DataError(
            f"{where}: an index of {index.nlevels} levels. Pass a list with a table for each recording, such as "
            "[part.droplevel(0) for _, part in X.groupby(level=0)]."
        )
    if len(index) == 0:
        return Clock(index)
    if isinstance(index, pd.PeriodIndex):
        return _on_calendar(index, index.freqstr, pd.period_range(index[0], index[-1], name=index.name), where)
    if isinstance(index, pd.DatetimeIndex):
        frequency = frequency or (_calendar(index) if infer else None)
        if frequency is not None and not index.hasnans:
            grid = pd.date_range(index[0], index[-1], freq=frequency, name=index.name)
            return _on_calendar(index, frequency, grid, where)
        return Clock(index, (index if index.tz is None else index.tz_convert(None)).to_numpy())
    if isinstance(index, pd.TimedeltaIndex):
        return Clock(index, index.total_seconds().to_numpy())
    if isinstance(index, pd.RangeIndex) and index.step == 1:
        return Clock(index)
    if index.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: an index of {index.dtype} ({shown(str(index[0]))}, ...) is no time. Set it with "
            "X.set_index(pd.to_datetime(...)) or to numbers, or count rows with X.reset_index(drop=True)."
        )
    return Clock(index, index.to_numpy(dtype=np.float64, na_value=np.nan))


def _calendar(index: Any) -> str | None:
    """The frequency of dates whose steps are not equally long; None if they are, or if there is none."""
    pd = pandas()
    if len(index) < 3 or not index.is_monotonic_increasing or index.hasnans or len(set(np.diff(index.asi8))) == 1:
        return None
    return index.freqstr or pd.DatetimeIndex(index, freq="infer").freqstr


def _on_calendar(index: Any, frequency: str, grid: Any, where: str) -> Clock:
    if not index.is_monotonic_increasing or not index.is_unique:
        wrong = "the rows are not in order, or some are there twice"
    elif (off := np.flatnonzero(grid.get_indexer(index) < 0)).size:
        wrong = f"{index[int(off[0])]} is no step of it"
    else:
        return Clock(index, None, frequency, grid)
    raise DataError(
        f"{where}: the index should follow the frequency '{frequency}', but {wrong}. Sort the rows, or resample them: "
        f"X.asfreq('{frequency}')."
    )
