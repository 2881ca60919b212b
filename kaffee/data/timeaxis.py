"""The time axis of a recording: regular steps with gaps filled, and dates and labels as they were written."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike

from kaffee.data.validation import Times, Values, as_float64, check_times
from kaffee.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from kaffee.data._calendars import Calendar

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = (datetime(year, 1, 2, tzinfo=UTC).timestamp() for year in (1, 9999))
_TIME_NAME = re.compile(r"(t|time|timestamp|date|datetime)(\s*[\[(].*[\])])?", re.IGNORECASE)
_COMPACT, _MONTHS = "%Y%m%d", "%Y-%m"
# Digits of a time beyond which it was computed and not rounded; and times of another number of rows than most.
_MOST_DIGITS, _LEAST_UNLIKE = 12, 8
_MONTH = re.compile(r"\d{4}-\d{2}")


@dataclass(frozen=True)
class Dates:
    """The way calendar times are written; in memory they are seconds since 1970, or steps of a `calendar`.

    The `zone` is empty for times without one, "Z", an offset such as "+02:00", or a name such as "Europe/Berlin";
    `days` writes dates alone if all times are midnight, in the form of `pattern` if that is given.
    """

    separator: str = "T"
    zone: str = ""
    days: bool = False
    pattern: str = ""
    calendar: "Calendar | None" = None

    @classmethod
    def like(cls, cell: str) -> "Dates":
        """Recognise the form of an ISO 8601 text."""
        stamp = datetime.fromisoformat(_complete(cell))
        pattern = _MONTHS if _MONTH.fullmatch(cell) else _COMPACT if cell.isdecimal() else ""
        zone = "" if stamp.tzinfo is None else "Z" if cell.endswith("Z") else stamp.isoformat()[-6:]
        return cls(" " if " " in cell else "T", zone, days=len(cell) <= len("2024-05-31"), pattern=pattern)

    def texts(self, times: Times) -> list[str]:
        """Write ISO 8601, to the coarsest of seconds, milliseconds and microseconds that tells all times apart."""
        stamps = self.stamps(times)
        if stamps is None:
            texts = [repr(time) for time in times.tolist()]
        elif self.days and (stamps == stamps.normalize()).all():
            pattern = self.pattern if self.pattern != _MONTHS or (stamps.day == 1).all() else ""
            texts = [date.strftime(pattern) if pattern else date.isoformat() for date in stamps.date]
        else:
            unit, _ = _round(times if self.calendar is None else stamps.as_unit("us").asi8 / 1e6)
            texts = [stamp.isoformat(self.separator, unit) for stamp in stamps.to_pydatetime()]
        return [text.replace("+00:00", "Z") for text in texts] if self.zone == "Z" else texts

    def stamps(self, times: Times) -> "pd.DatetimeIndex | None":
        """Convert seconds to a pandas index in the zone; None beyond the calendar. An unknown zone counts as UTC."""
        import pandas as pd

        if self.calendar is not None:
            from kaffee.data._calendars import localise

            return localise(self.calendar.dates(times), "UTC" if self.zone == "Z" else self.zone)
        if not ((times > _FIRST) & (times < _LAST)).all():
            return None
        utc = pd.DatetimeIndex(_round(times)[1].astype("datetime64[us]"), tz=UTC)
        try:
            return utc.tz_convert("UTC" if self.zone == "Z" else self.zone or None)
        except (KeyError, ValueError, OSError):  # not every machine knows every zone
            return utc

    def count(self, times: Times, where: str) -> Times:
        """Convert seconds since 1970 to the unit of the times: steps of the calendar, if there is one."""
        if self.calendar is None:
            return times
        stamps = replace(self, calendar=None).stamps(times)
        if stamps is None:
            raise DataError(f"{where}: a time beyond the years 1 to 9999 is on no calendar. Correct the times.")
        return self.calendar.count(stamps.tz_localize(None), where)

    def on_calendar(self, frequency: str | None, times: Sequence[Times]) -> "Dates":
        """Count in steps of a calendar from now on: of `frequency`, else of what recordings at these seconds follow."""
        from kaffee.data._calendars import Calendar, infer_frequency

        stamps = [known.tz_localize(None) for t in times if (known := self.stamps(t)) is not None]
        found = (infer_frequency(dates, days=False) for dates in stamps)
        frequency = frequency or next((each for each in found if each is not None), None)
        return self if frequency is None or not stamps else replace(self, calendar=Calendar(frequency, stamps[0][0]))


def _round(times: Times) -> tuple[str, Int[np.ndarray, " T"]]:
    """Round to microseconds; also return the coarsest unit that holds them."""
    # Seconds since 1970 as floats are known to a fraction of a microsecond; times that were added are less exact.
    slack = 4e6 * np.spacing(np.abs(times).max(initial=1.0))
    sizes = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
    rounded = {unit: np.round(times * (1e6 / size)) * size for unit, size in sizes.items()}
    fits = (unit for unit, micro in rounded.items() if np.abs(times * 1e6 - micro).max(initial=0.0) <= slack)
    unit = next(fits, "microseconds")
    return unit, rounded[unit].astype(np.int64)


@dataclass(frozen=True)
class Origin:
    """Names of the columns of times and recordings in the file of a series, so that results are written like it.

    The `dates` tell how times were written if they were dates; `labels` are empty if recordings are numbered.
    """

    time: str = "t"
    dates: Dates | None = None
    recording: str = "recording"
    labels: tuple[Hashable, ...] = ()

    def of(self, recordings: Sequence[int]) -> "Origin":
        """Keep the labels of some recordings; drop all of them if one recording is given twice."""
        unique = self.labels and len(set(recordings)) == len(recordings)
        return replace(self, labels=tuple(self.labels[r] for r in recordings) if unique else ())


NUMBERED = Origin()
"""Times and recordings are plain numbers."""


def regularise_time(
    times: ArrayLike,
    values: ArrayLike,
    *,
    tolerance: float = 0.05,
    step: float | None = None,
    where: str = "series",
    place: Callable[[int], str] | None = None,
) -> tuple[Times, Values]:
    r"""Put a recording on a regular grid: a gap of k steps becomes k - 1 missing rows.

    A surrogate is one map applied once per step, so samples must be equally spaced. The step is the mean over all
    differences $\Delta_i$ of $\Delta_i / k_i$, weighted by $k_i = \mathrm{round}(\Delta_i / \Delta_0)$, where
    $\Delta_0$ is the typical smallest difference. Observed rows keep their own times to the last bit, unless they are
    irregular, or repeat, only because an even clock was rounded as it was written; then they get that clock.

    Args:
        times: Increasing times (T,), or datetimes.
        values: Rows (T, N); NaN is missing.
        tolerance: Largest deviation from a whole number of steps, in steps.
        step: If it is known, as on a calendar.
        where: What messages call the data.
        place: Names a row in messages, for example by its line in a file.

    >>> times, values = regularise_time([0.0, 0.1, 0.4], [[1.0], [2.0], [3.0]])
    >>> values.ravel().tolist()
    [1.0, 2.0, nan, nan, 3.0]
    """
    rows = as_float64(values, where)
    try:
        return _fill_gaps(times, rows, tolerance, step, where, place or (lambda row: f"{where}, row {row}"))
    except DataError:
        clock = _undo_rounding(times) if step is None else None
        if clock is None or len(clock) != len(rows):
            raise
        return clock, rows


def _undo_rounding(times: ArrayLike) -> Times | None:
    """Find the even clock that was rounded to these times when they were written; None if there is none.

    Every time lies within half a unit of its last digit. How many digits were written, altogether and after the point,
    is seen from the longest of them. If times repeat, some have to do so more often than others: a row that is there
    twice, or a table with several rows for every time, could be a rounded clock as well.

    >>> _undo_rounding([0.0, 0.03, 0.07, 0.1, 0.13]).round(3).tolist()
    [0.0, 0.033, 0.067, 0.1, 0.133]
    """
    from scipy.optimize import linprog

    t = np.asarray(times)
    if t.dtype.kind not in "iuf" or t.ndim != 1 or len(t) < 3 or not np.isfinite(t).all():
        return None
    t = t.astype(np.float64)
    if (np.diff(t) < 0).any():
        return None
    counts = np.unique(t, return_counts=True)[1]
    if counts.max() > 1 and (counts != np.bincount(counts).argmax()).sum() < _LEAST_UNLIKE:
        return None
    written = [(len(d), int(e)) for _, d, e in (Decimal(repr(each)).normalize().as_tuple() for each in t.tolist())]
    digits = max(count + max(exponent, 0) for count, exponent in written)
    if digits > _MOST_DIGITS:
        return None
    order = np.floor(np.log10(np.where(t == 0, 1e-300, np.abs(t))))
    half = 0.5 * np.maximum(10.0 ** -max(max(-exponent, 0) for _, exponent in written), 10.0 ** (order - digits + 1))
    half += 4 * np.spacing(np.abs(t).max())  # times of large magnitude carry rounding of their own
    # The clock a + b i with the smallest largest deviation s, in units of what rounding allows.
    line = np.stack([np.ones(len(t)), np.arange(len(t)) / len(t)], axis=1) / half[:, None]
    sides = np.concatenate([np.c_[line, -np.ones(len(t))], np.c_[-line, -np.ones(len(t))]])
    later = (t - t[0]) / half
    found = linprog([0, 0, 1], sides, np.r_[later, -later], bounds=[(None, None)] * 3)
    if found.x is None or found.x[2] > 1.0 + 1e-6 or found.x[1] <= 0:
        return None
    return t[0] + found.x[0] + found.x[1] / len(t) * np.arange(len(t))


def _fill_gaps(
    times: ArrayLike, rows: Values, tolerance: float, step: float | None, where: str, place: Callable[[int], str]
) -> tuple[Times, Values]:
    grid = check_times(times, len(rows), where, place)
    if len(grid) < (3 if step is None else 2):  # one or two samples are always equally spaced
        return grid, rows
    with np.errstate(over="ignore"):
        difference = np.diff(grid)
        base = step or np.median(difference[difference < 1.5 * difference.min()])
        count = np.round(difference / base)
    inserted = count.sum() - len(difference)
    # A clock that jumps by years would otherwise fill the memory with missing rows.
    if not inserted <= max(10 * len(grid), 1000):
        worst = int(np.argmax(count))
        raise DataError(
            f"{place(worst + 1)}: a gap of {count[worst]:.4g} steps (from {float(grid[worst])!r} to "
            f"{float(grid[worst + 1])!r}); filling all gaps would add {inserted:.4g} missing rows to "
            f"{len(grid)}. Split the data into recordings at the gaps, or correct the times."
        )
    step = difference.sum() / count.sum()
    # Times of large magnitude (seconds since 1970) carry rounding of their own.
    slack = 4 * np.spacing(np.abs(grid).max()) / step
    deviation = np.abs(difference / step - count)
    if deviation.max() > tolerance + slack:
        worst = int(np.argmax(deviation))
        raise DataError(
            f"{place(worst + 1)}: irregular sampling. The step is about {step:.6g}, but the difference from "
            f"{float(grid[worst])!r} to {float(grid[worst + 1])!r} is {difference[worst] / step:.4g} steps, "
            f"{deviation.max():.2g} off a whole number (allowed: {tolerance:g}). Resample to equal steps, "
            "raise time_tolerance= if it is jitter; for a file, time_column=False says that this is not a time."
        )
    if not inserted:
        return grid, rows
    position = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    filled = np.full((position[-1] + 1, rows.shape[1]), np.nan)
    filled[position] = rows
    new_times = np.interp(np.arange(len(filled)), position, grid)
    new_times[position] = grid
    return new_times, filled


def mean_step(times: Times) -> float | None:
    """Return the mean step of one recording, None for a single sample."""
    return float((times[-1] - times[0]) / (len(times) - 1)) if len(times) > 1 else None


def check_same_step(times: Sequence[Times], where: Sequence[str], tolerance: float) -> None:
    """Refuse recordings sampled at different steps: one map cannot represent two step sizes."""
    known = [(r, step) for r, t in enumerate(times) if (step := mean_step(t)) is not None]
    for r, step in known[1:]:
        first, reference = known[0]
        slack = 4 * max(np.spacing(np.abs(times[i]).max()) for i in (r, first))
        if abs(step - reference) > tolerance * reference + slack:
            raise DataError(
                f"{where[r]}: the time step is {step:.6g}, but {reference:.6g} in {where[first]}. "
                "Resample all recordings to the same step, or read them as separate series."
            )


def seconds(cells: Sequence[str], place: Callable[[int], str], column: str) -> Times:
    """Convert ISO 8601 timestamps to seconds since 1970-01-01 UTC; without an offset they count as UTC."""
    result = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            stamp = datetime.fromisoformat(_complete(cell))
        except ValueError as error:
            raise DataError(
                f"{place(row)}, column '{column}': {shown(cell)} is neither a number nor an ISO 8601 time "
                "such as '2024-05-31T12:00:00'. Fix the cell, or choose another column with time_column=."
            ) from error
        stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        result[row] = (stamp - _EPOCH).total_seconds()
    return result


def is_time_name(name: str) -> bool:
    """Return whether a column of this name, such as "t" or "Time [s]", holds times."""
    return _TIME_NAME.fullmatch(name.strip()) is not None


def is_timestamp(cell: str) -> bool:
    """Return whether a text is an ISO 8601 date or time."""
    try:
        datetime.fromisoformat(_complete(cell))
    except ValueError:
        return False
    return True


def _complete(cell: str) -> str:
    """Add the first day to a month, which Python does not read alone."""
    return f"{cell}-01" if _MONTH.fullmatch(cell) else cell


def read_compact_dates(numbers: np.ndarray) -> Times | None:
    """Read numbers such as 20240131 as seconds since 1970; None if one of them is no date from 1800 to 2100."""
    whole = np.asarray(numbers, np.float64)
    if whole.size == 0 or not ((whole >= 18000101) & (whole <= 21001231) & (whole == np.floor(whole))).all():
        return None
    days = whole.astype(np.int64)
    year, month, day = days // 10_000, days // 100 % 100, days % 100
    if not ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
        return None
    first = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    date = first.astype("datetime64[D]") + (day - 1)
    return date.astype("datetime64[s]").astype(np.float64) if (date.astype("datetime64[M]") == first).all() else None


COMPACT = Dates(days=True, pattern=_COMPACT)
"""Dates written as 20240131."""


def shown(cell: str) -> str:
    """Format a cell for a message: quoted, cut, control characters escaped."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
