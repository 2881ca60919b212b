"""How a recording was written where it came from, so that what is made of it can be written the same way."""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from kaffee.data.validation import Times, Values, as_float64, check_times
from kaffee.errors import DataError

DEFAULT_TIME, DEFAULT_RECORDING = "t", "recording"
_DAY = 86_400_000_000
Unit = Literal["s", "ms", "us"]
# In microseconds; the coarsest that fits is taken.
_RESOLUTIONS: dict[Unit, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
_FIRST, _LAST = (datetime(year, 1, 2, tzinfo=UTC).timestamp() for year in (1, 9999))


@dataclass(frozen=True)
class Dates:
    """How calendar times are written; in memory they are seconds since 1970.

    Attributes:
        separator: Between date and time of day.
        zone: Empty for times without one, "Z", an offset such as "+02:00", or a name such as "Europe/Berlin".
        days: Dates alone, where all times are midnight.
    """

    separator: str = "T"
    zone: str = ""
    days: bool = False

    @classmethod
    def like(cls, cell: str) -> "Dates":
        """As an ISO 8601 text has it.

        >>> Dates.like("2024-05-31 12:00+02:00")
        Dates(separator=' ', zone='+02:00', days=False)
        """
        stamp = datetime.fromisoformat(cell)
        zone = "" if stamp.tzinfo is None else "Z" if cell.endswith("Z") else stamp.isoformat()[-6:]
        return cls(" " if " " in cell else "T", zone, days=len(cell) <= len("2024-05-31"))

    def texts(self, times: Float[np.ndarray, " T"]) -> list[str]:
        """ISO 8601, to the coarsest of seconds, milliseconds and microseconds that tells all times.

        >>> Dates(" ", "+02:00").texts(np.array([0.0, 0.5]))
        ['1970-01-01 02:00:00.000+02:00', '1970-01-01 02:00:00.500+02:00']
        """
        if not _in_calendar(times):
            return [repr(time) for time in times.tolist()]
        unit, micro = self._rounded(times)
        zone = _zone(self.zone)
        if isinstance(zone, ZoneInfo):
            epoch, name = datetime(1970, 1, 1, tzinfo=UTC), {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
            stamps = [(epoch + timedelta(microseconds=value)).astimezone(zone) for value in micro.tolist()]
            return [stamp.isoformat(self.separator, name[unit]) for stamp in stamps]
        offset = zone.utcoffset(None) if zone is not None else None
        local = micro + (0 if offset is None else offset // timedelta(microseconds=1))
        if self.days and not (local % _DAY).any():
            return list(np.datetime_as_string(local.astype("datetime64[us]"), unit="D").tolist())
        suffix = "" if zone is None else "Z" if self.zone == "Z" else datetime(1970, 1, 1, tzinfo=zone).isoformat()[-6:]
        texts = np.datetime_as_string(local.astype("datetime64[us]"), unit=unit).tolist()
        return [text.replace("T", self.separator) + suffix for text in texts]

    def microseconds(self, times: Float[np.ndarray, " T"]) -> Int[np.ndarray, " T"] | None:
        """Since 1970; None where a calendar does not reach."""
        return self._rounded(times)[1] if _in_calendar(times) else None

    def _rounded(self, times: Float[np.ndarray, " T"]) -> tuple[Unit, Int[np.ndarray, " T"]]:
        # Seconds since 1970 as floats are known to a fraction of a microsecond; times that were added are less exact.
        slack = 4e6 * np.spacing(np.abs(times).max(initial=1.0))
        for unit, size in _RESOLUTIONS.items():
            micro = np.round(times * (1e6 / size)).astype(np.int64) * size
            if unit == "us" or np.abs(times * 1e6 - micro).max(initial=0.0) <= slack:
                break
        return unit, micro


@dataclass(frozen=True)
class Origin:
    """Names that a series does not need and its user does.

    Attributes:
        time: Name of the time column.
        dates: How its times were written, if they were dates.
        recording: Name of the column that tells recordings apart.
        labels: One for each recording; none: their numbers.
    """

    time: str = DEFAULT_TIME
    dates: Dates | None = None
    recording: str = DEFAULT_RECORDING
    labels: tuple[Hashable, ...] = ()

    def of(self, recordings: Sequence[int]) -> "Origin":
        """For some of the recordings; where one of them is there twice, their labels tell nothing."""
        if not self.labels:
            return self
        unique = len(set(recordings)) == len(recordings)
        return replace(self, labels=tuple(self.labels[r] for r in recordings) if unique else ())


NUMBERED = Origin()
"""Nothing is known: times are numbers, and so are recordings."""


def _in_calendar(times: Float[np.ndarray, " T"]) -> bool:
    return bool(((times > _FIRST) & (times < _LAST)).all())


def _zone(name: str) -> tzinfo | None:
    if not name:
        return None
    if name in ("Z", "UTC"):
        return UTC
    if name[0] in "+-":
        return datetime.fromisoformat(f"1970-01-01T00:00:00{name}").tzinfo
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not every machine knows every zone
        return UTC


# The time axis: regular steps, gaps filled with missing rows, timestamps as seconds.


_TIME_NAME = re.compile(r"(t|time|timestamp|date|datetime)(\s*[\[(].*[\])])?", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def regularise_time(
    times: ArrayLike,
    values: ArrayLike,
    *,
    tolerance: float = 0.05,
    where: str = "series",
    place: Callable[[int], str] | None = None,
) -> tuple[Times, Values]:
    r"""Put a recording on a regular grid: a gap of k steps becomes k - 1 missing rows.

    A surrogate is one map applied once per step, so samples must be equally spaced. The step is the mean over
    all differences $\Delta_i$ of $\Delta_i / k_i$, weighted by $k_i = \mathrm{round}(\Delta_i / \Delta_0)$,
    where $\Delta_0$ is the typical smallest difference. Observed rows keep their own times to the last bit.

    Args:
        times: increasing times (T,), or datetimes.
        values: rows (T, N); NaN is missing.
        tolerance: largest deviation from a whole number of steps, in steps.
        where: what messages call the data.
        place: names a row in messages, for example by its line in a file.

    Returns:
        Times and values with the missing rows inserted.

    >>> times, values = regularise_time([0.0, 0.1, 0.4], [[1.0], [2.0], [3.0]])
    >>> values.ravel().tolist()
    [1.0, 2.0, nan, nan, 3.0]
    """
    place = place or (lambda row: f"{where}, row {row}")
    rows = as_float64(values, where)
    grid = check_times(times, len(rows), where, place)
    if len(grid) < 3:  # one or two samples are always equally spaced
        return grid, rows
    with np.errstate(over="ignore"):
        difference = np.diff(grid)
    smallest = difference.min()
    base = np.median(difference[difference < 1.5 * smallest])
    with np.errstate(over="ignore"):
        count = np.round(difference / base)
    inserted = count.sum() - len(difference)
    # a clock that jumps by years would otherwise fill the memory with missing rows
    if not inserted <= max(10 * len(grid), 1000):
        worst = int(np.argmax(count))
        raise DataError(
            f"{place(worst + 1)}: a gap of {count[worst]:.4g} steps (from {float(grid[worst])!r} to "
            f"{float(grid[worst + 1])!r}); filling all gaps would add {inserted:.4g} missing rows to "
            f"{len(grid)}. Split the data into recordings at the gaps, or correct the times."
        )
    step = difference.sum() / count.sum()
    # times of large magnitude (seconds since 1970) carry rounding of their own
    slack = 4 * np.spacing(np.abs(grid).max()) / step
    deviation = np.abs(difference / step - count)
    if deviation.max() > tolerance + slack:
        worst = int(np.argmax(deviation))
        raise DataError(
            f"{place(worst + 1)}: irregular sampling. The step is about {step:.6g}, but the difference from "
            f"{float(grid[worst])!r} to {float(grid[worst + 1])!r} is {difference[worst] / step:.4g} steps, "
            f"{deviation.max():.2g} off a whole number (allowed: {tolerance:g}). Resample to equal steps, "
            "raise time_tolerance= if it is jitter; for a file, time_column=False says that this is no time."
        )
    if not inserted:
        return grid, rows
    position = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    filled = np.full((int(position[-1]) + 1, rows.shape[1]), np.nan)
    filled[position] = rows
    new_times = np.interp(np.arange(len(filled), dtype=np.float64), position.astype(np.float64), grid)
    new_times[position] = grid
    return new_times, filled


def mean_step(times: Times) -> float | None:
    """The mean step of one recording; None for a single sample."""
    return float((times[-1] - times[0]) / (len(times) - 1)) if len(times) > 1 else None


def check_same_step(times: Sequence[Times], where: Sequence[str], tolerance: float) -> None:
    """Refuse recordings sampled at different steps: one map cannot stand for two step sizes."""
    steps = [mean_step(t) for t in times]
    known = [(r, s) for r, s in enumerate(steps) if s is not None]
    for r, step in known[1:]:
        first = known[0][1]
        slack = 4 * max(np.spacing(np.abs(times[i]).max()) for i in (r, known[0][0]))
        if abs(step - first) > tolerance * first + slack:
            raise DataError(
                f"{where[r]}: the time step is {step:.6g}, but {first:.6g} in {where[known[0][0]]}. "
                "Resample all recordings to the same step, or read them as separate series."
            )


def seconds(cells: Sequence[str], place: Callable[[int], str], column: str) -> Times:
    """ISO 8601 timestamps as seconds since 1970-01-01 UTC; without an offset they count as UTC.

    >>> seconds(["1970-01-01T00:01:00", "1970-01-01 00:02"], str, "t").tolist()
    [60.0, 120.0]
    """
    result = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            stamp = datetime.fromisoformat(cell)
        except ValueError as error:
            raise DataError(
                f"{place(row)}, column '{column}': {shown(cell)} is neither a number nor an ISO 8601 time "
                "such as '2024-05-31T12:00:00'. Fix the cell, or choose another column with time_column=."
            ) from error
        stamp = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        result[row] = (stamp - _EPOCH).total_seconds()
    return result


def is_time_name(name: str) -> bool:
    """Whether a column of this name holds times.

    >>> [is_time_name(name) for name in ("t", "Time [s]", "timestamp", "tide")]
    [True, True, True, False]
    """
    return _TIME_NAME.fullmatch(name.strip()) is not None


def is_timestamp(cell: str) -> bool:
    """Whether a text is an ISO 8601 date or time."""
    try:
        datetime.fromisoformat(cell)
    except ValueError:
        return False
    return True


def shown(cell: str) -> str:
    """A cell for a message: quoted, cut, control characters escaped."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
