"""The index of a pandas table as times: regular steps, gaps and calendars, and how it continues."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kaffee.data._calendars import Calendar, infer_frequency, localise
from kaffee.data.timeaxis import regularise_time, shown
from kaffee.data.validation import check_times
from kaffee.errors import DataError


@dataclass(frozen=True)
class Clock:
    """The index of one recording as it came, and the times of its rows.

    Attributes:
        times: For the series; None if rows are only counted. Steps of the calendar, if there is one.
        frequency: Of steps that are not equally long, such as "MS" for months; None otherwise.
        calendar: Of dates with such steps; periods count their own.
    """

    index: pd.Index
    times: np.ndarray | None = None
    frequency: str | None = None
    calendar: Calendar | None = None

    def place(self, values: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return times and values with missing rows where a calendar has a step without a row."""
        if self.times is None or self.frequency is None:
            return self.times, values
        return regularise_time(self.times, values, step=1.0)

    def labels(self, times: np.ndarray | None) -> Any:
        """Return the index of the recording's rows, with labels for those that were inserted at gaps."""
        if times is None or len(times) == len(self.index):
            return self.index
        if self.frequency is not None:
            return self._count_on(times)
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
        if self.frequency is not None:
            return self._count_on(times)
        if self.times is None:
            return pd.RangeIndex(self.index.stop, self.index.stop + steps, name=name)
        if not _is_dated(self.index):
            return self._number(times)
        if num_rows > 1:
            step = self._step(num_rows)
        else:  # a single row does not say how long a step is; the times of the forecast do
            step = np.timedelta64(round(1e9 * (float(times[1] - times[0]) if steps > 1 else 1.0)), "ns")
        span = pd.timedelta_range if isinstance(self.index, pd.TimedeltaIndex) else pd.date_range
        every = self.index.freq or pd.Timedelta(step)
        return span(last, periods=steps + 1, freq=every, name=name)[1:]

    def elapsed(self, times: np.ndarray) -> Any:
        """Return an index of plain numbers, for runs that belong to no date."""
        return pd.Index(times, name=None if _is_dated(self.index) else self.index.name)

    def _count_on(self, steps: np.ndarray) -> Any:
        """Return the dates, or the periods, of steps of the calendar."""
        if self.calendar is None:
            whole = np.round(steps).astype(np.int64)
            return pd.PeriodIndex.from_ordinals(whole, freq=self.index.freq, name=self.index.name)
        dates = self.calendar.dates(steps).as_unit(self.index.unit).rename(self.index.name)
        return localise(dates, self.index.tz)

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
        times = np.where(index.isna(), np.nan, index.asi8)
        return Clock(index, times, index.freq.freqstr)
    if isinstance(index, pd.DatetimeIndex):
        wall = index.tz_localize(None)
        frequency = frequency or (infer_frequency(wall, days=True) if infer else None)
        if frequency is not None and not index.hasnans:
            calendar = Calendar(frequency, wall[0])
            return Clock(index, calendar.count(wall, where), frequency, calendar)
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
