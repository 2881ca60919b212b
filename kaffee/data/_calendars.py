"""Calendars: steps that are not equally long, such as months; times on one are counted in its steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from kaffee.data.validation import Times
from kaffee.errors import ConfigError, DataError

_LAST_COMMON_DAY = 28


@dataclass(frozen=True)
class Calendar:
    """The dates `start`, `start` + 1 step, ... of a frequency that pandas knows, such as "MS" for months.

    Dates are wall-clock times without a zone. They may lie a constant time after the frequency's own: the 15th of
    every month is a calendar of frequency "MS", too.
    """

    frequency: str
    start: pd.Timestamp

    def __post_init__(self) -> None:
        try:
            pd.tseries.frequencies.to_offset(self.frequency)
        except ValueError as error:
            raise ConfigError(f"'{self.frequency}' is no frequency of pandas, such as 'MS' for months.") from error

    @property
    def _base(self) -> pd.Timestamp:
        return pd.tseries.frequencies.to_offset(self.frequency).rollback(self.start)

    def count(self, dates: pd.DatetimeIndex, where: str) -> Times:
        """Count the steps from the start to each date; raise if one is not a step."""
        if not dates.is_monotonic_increasing or not dates.is_unique:
            wrong = "the rows are not in order, or some are there twice"
        else:
            base = self._base
            own = dates - (self.start - base)
            steps = pd.date_range(min(base, own[0]), max(base, own[-1]), freq=self.frequency)
            first, position = steps.get_indexer([base])[0], steps.get_indexer(own)
            off = np.flatnonzero(position < 0)
            if first >= 0 and not off.size:
                return (position - first).astype(np.float64)
            wrong = f"{dates[int(off[0]) if off.size else 0]} is not a step of it"
        raise DataError(
            f"{where}: the dates should follow the frequency '{self.frequency}', but {wrong}. Sort the rows, or "
            f"resample them: X.asfreq('{self.frequency}')."
        )

    def dates(self, steps: Times) -> pd.DatetimeIndex:
        """Return the dates so many steps after the start."""
        whole, base = np.round(steps).astype(np.int64), self._base
        before, after = max(0, -int(whole.min(initial=0))), max(0, int(whole.max(initial=0)))
        past = pd.date_range(end=base, periods=before + 1, freq=self.frequency)[:-1]
        known = past.append(pd.date_range(base, periods=after + 1, freq=self.frequency))
        return known.take(whole + before) + (self.start - base)


def localise(dates: pd.DatetimeIndex, zone: Any) -> pd.DatetimeIndex:
    """Put wall-clock times into a zone, if any; hours that a change of clocks leaves out become the next."""
    summer = np.zeros(len(dates), dtype=bool)
    return dates if not zone else dates.tz_localize(zone, ambiguous=summer, nonexistent="shift_forward")


def infer_frequency(dates: Any, *, days: bool) -> str | None:
    """Find the frequency of dates whose steps are not equally long; None if they are, or if there is none.

    Months, quarters and years may have gaps. With `days` also the frequencies of single days count, such as working
    days and days over a change of clocks.
    """
    if len(dates) < 3 or not dates.is_monotonic_increasing or dates.hasnans or len(set(np.diff(dates.asi8))) == 1:
        return None
    months = _count_months(dates)
    if months:
        every, kind = months
        return kind if every == 1 else f"{every}{kind}"
    found = dates.freqstr or pd.DatetimeIndex(dates, freq="infer").freqstr
    single = isinstance(pd.tseries.frequencies.to_offset(found), pd.offsets.Day | pd.offsets.BusinessDay)
    return None if single and not days else found


def _count_months(dates: pd.DatetimeIndex) -> tuple[int, str] | None:
    """Find how many whole months lie between dates on the same day, or on the last day, of a month."""
    clock = dates - dates.normalize()
    if (clock != clock[0]).any():
        return None
    if dates.is_month_end.all():
        kind = "ME"
    elif (dates.day == dates.day[0]).all() and dates.day[0] <= _LAST_COMMON_DAY:
        kind = "MS"
    else:
        return None
    return int(np.gcd.reduce(np.diff(12 * dates.year.to_numpy() + dates.month.to_numpy()))), kind
