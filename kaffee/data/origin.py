"""How a recording was written where it came from, so that what is made of it can be written the same way."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

import numpy as np
from jaxtyping import Float, Int

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
