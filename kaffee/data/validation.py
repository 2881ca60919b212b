"""Checks on arrays before they become a series: every message names the place, the problem and the remedy."""

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from kaffee.errors import ConfigError, DataError, unknown

Values = Float[np.ndarray, "T N"]
Times = Float[np.ndarray, " T"]

# Larger times overflow in the arithmetic of steps; the age of the universe is 4e17 seconds.
_MAX_TIME = 1e100
_ADVICE = {
    "b": "Convert it with .astype(float) if true and false are meant as 1 and 0.",
    "c": "Stack real and imaginary parts as two coordinates.",
    "O": "Convert every entry to a number, with nan for missing ones.",
    **dict.fromkeys("US", "Convert the text to numbers, with nan for missing ones."),
    "M": "Pass timestamps as times=, not as a coordinate.",
}


def as_float64(data: Any, where: str) -> np.ndarray:
    """Copy to a contiguous float64 array; masked entries become NaN. Messages call the data `where`."""
    try:
        array = np.asarray(data)
    except ValueError as error:  # rows of unequal length
        raise DataError(
            f"{where}: the rows have unequal lengths ({error}). Give every row the same number of values; "
            "recordings of unequal length go in a list of 2-D arrays."
        ) from error
    if array.dtype.kind not in "iuf":
        advice = _ADVICE.get(array.dtype.kind, "Convert it to an array of floats.")
        raise DataError(f"{where}: values of type {array.dtype} are not real numbers. {advice}")
    # A long double beyond float64 becomes infinite and is reported as such; a damaged file may hold signalling NaNs.
    with np.errstate(over="ignore", invalid="ignore"):
        floats = np.array(array, dtype=np.float64, order="C")
    floats[np.isnan(floats)] = np.nan
    if isinstance(data, np.ma.MaskedArray):
        floats[np.ma.getmaskarray(data)] = np.nan
    return floats


def as_recordings(data: Any, where: str) -> list[Values]:
    """Split an array, or a list of arrays, into recordings (T, N) of the same coordinates."""
    # Nested lists of numbers are one array; arrays in a list are recordings.
    several = data if isinstance(data, list | tuple) else ()
    dims = {np.ndim(item) for item in several if not isinstance(item, list | tuple)}
    listed = bool(dims) and min(dims) >= 1
    items = data if listed else as_float64(data, where)
    if not listed and (items.ndim != 3 or not len(items)):
        return [_check_recording(items[:, None] if items.ndim == 1 else items, where)]
    recordings = [_check_recording(item, f"{where}, recording {r}", listed=listed) for r, item in enumerate(items)]
    width = recordings[0].shape[1]
    for r, values in enumerate(recordings):
        if values.shape[1] != width:
            raise DataError(
                f"{where}, recording {r}: {values.shape[1]} coordinates, but recording 0 has {width}. "
                "All recordings observe the same coordinates; mark absent ones with nan."
            )
    return recordings


def _check_recording(data: Any, where: str, listed: bool = False) -> Values:
    array = as_float64(data, where)
    if array.ndim == 1 and listed:
        raise DataError(
            f"{where}: a list of 1-D arrays could mean rows or recordings. For one recording pass "
            "np.stack(rows); for several recordings of one coordinate pass [a[:, None] for a in arrays]."
        )
    if array.size == 0:
        raise DataError(f"{where}: shape {array.shape} holds no values. Give at least one row and one column.")
    if array.ndim != 2:
        raise DataError(
            f"{where}: shape {array.shape} has {array.ndim} dimensions. Use (T, N) for one recording, "
            "a list of those or (R, T, N) for several, or (T,) for a single coordinate."
        )
    return array


def check_columns(columns: Sequence[str] | None, width: int, where: str) -> tuple[str, ...]:
    """Return column names: stripped, unique, one for each coordinate; x1..xN by default."""
    if columns is None:
        return tuple(f"x{j + 1}" for j in range(width))
    names = tuple(str(name).strip() for name in ([columns] if isinstance(columns, str) else columns))
    if len(names) != width:
        raise DataError(
            f"{where}: {len(names)} column names for {width} coordinates. Give one name for each coordinate."
        )
    if "" in names:
        raise DataError(f"{where}: column {names.index('')} has an empty name. Give it a name.")
    check_unique(names, where)
    return names


def check_unique(names: Sequence[str], where: str, first: int = 0) -> None:
    """Refuse a name that occurs twice; messages count columns from `first`."""
    seen: dict[str, int] = {}
    for j, name in enumerate(names, start=first):
        if seen.setdefault(name, j) != j:
            raise DataError(f"{where}: columns {seen[name]} and {j} are both named '{name}'. Rename one of them.")


def check_finite(values: Values, columns: Sequence[str], place: Callable[[int], str]) -> None:
    """Refuse infinite values; `place(row)` names a row in the message."""
    bad = np.isinf(values)
    if not bad.any():
        return
    row, column = (int(i) for i in np.argwhere(bad)[0])
    more = f" ({int(bad.sum())} infinite values in all)" if bad.sum() > 1 else ""
    raise DataError(
        f"{place(row)}, column '{columns[column]}': infinite value{more}. "
        "Replace it by nan to mark it as missing, or remove the column."
    )


def check_observed(recordings: Sequence[Values], columns: Sequence[str], where: str) -> None:
    """Refuse coordinates without a single observed value: nothing can be learnt about them."""
    unseen = np.all([np.isnan(values).all(axis=0) for values in recordings], axis=0)
    if unseen.any():
        names = [columns[int(j)] for j in np.flatnonzero(unseen)]
        raise DataError(
            f"{where}: column{'s' if len(names) > 1 else ''} {quoted(names)} "
            "without any observed value. Select the other columns, or fill it in."
        )


def check_times(times: ArrayLike, length: int, where: str, place: Callable[[int], str] | None = None) -> Times:
    """Return the times of one recording: finite, strictly increasing, one for each row; datetimes become seconds."""
    raw = np.asarray(times)
    if raw.dtype.kind == "M":
        raw = count_seconds(raw, where)
    place = place or (lambda row: f"{where}, row {row}")
    array = as_float64(raw, f"{where}, times")
    if array.shape != (length,):
        raise DataError(f"{where}: times of shape {array.shape} for {length} rows. Give one time for each row.")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise DataError(
            f"{place(int(bad[0]))}: the time is missing or infinite. Fill in the time, or remove the row: a row that "
            "is left out is treated as missing."
        )
    large = np.flatnonzero(np.abs(array) > _MAX_TIME)
    if large.size:
        raise DataError(
            f"{place(int(large[0]))}: the time {float(array[large[0]])!r} is too large. Fix it; for a file, "
            "time_column=False says that this is not a time."
        )
    falls = np.flatnonzero(np.diff(array) <= 0)
    if falls.size:
        row = int(falls[0]) + 1
        kind = "repeats" if array[row] == array[row - 1] else "goes back"
        raise DataError(
            f"{place(row)}: time {kind} ({float(array[row - 1])!r}, then {float(array[row])!r}). Sort the "
            "rows and remove duplicates; if the data hold several recordings, separate them "
            "(for a file: recording_column=; time_column=False, --time-column none, says that this is not a time)."
        )
    return array


def count_seconds(stamps: np.ndarray, where: str) -> np.ndarray:
    """Convert datetimes to seconds since 1970, NaN where they are missing."""
    micro = stamps.astype("datetime64[us]")
    # NumPy wraps around without a warning where years or seconds are more microseconds than 64 bits hold.
    coarse = np.datetime_data(stamps.dtype)[0] in ("Y", "M", "W", "D", "h", "m", "s", "ms")
    if coarse and ((micro.astype(stamps.dtype) != stamps) & ~np.isnat(stamps)).any():
        raise DataError(f"{where}: a time is too far from 1970 to count in microseconds. Correct the times.")
    return np.where(np.isnat(stamps), np.nan, micro.astype(np.int64) / 1e6)


def find_column(given: str | int, names: Sequence[str], where: str) -> int:
    """Find the position of a column given by name or 0-based index; digits in text count as an index."""
    if isinstance(given, str) and given in names:
        return names.index(given)
    if isinstance(given, str) and not (given.strip().isdecimal() and len(given) < 20):
        # A file with a thousand columns should not print a thousand names.
        hint = unknown("column", given, names)
        raise DataError(f"{where}: {hint if len(hint) < 400 else unknown('column', given, names[:12])}")
    position = int(given)
    if not -len(names) <= position < len(names):
        raise DataError(f"{where}: no column {position}, there are {len(names)}: {quoted(names)}. Indices start at 0.")
    return position % len(names)


def quoted(names: Sequence[str]) -> str:
    """Format names in quotes, the first twelve of many."""
    text = ", ".join(f"'{name}'" for name in names[:12])
    return text if len(names) <= 12 else f"{text}, ... ({len(names)} in all)"


def check_count(name: str, value: Any, least: int) -> int:
    """Return a number of steps, members or runs as an integer, before a compiler sees it."""
    try:
        whole = index(value)
    except TypeError:
        raise ConfigError(f"{name} = {value!r:.80} is no whole number; use {least} or more, as in {name}=10.") from None
    if isinstance(value, bool):
        raise ConfigError(f"{name} = {value} is no number; use {least} or more, as in {name}=10.")
    if whole < least:
        raise ConfigError(f"{name} = {whole} is too few; use {least} or more.")
    return whole
