"""Write a series so that reading it back gives the very same numbers."""

import csv
import io
import os
import uuid
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

from kaffee.data.readers.parquet import require_pyarrow
from kaffee.data.readers.text import parse_number
from kaffee.data.reading import SUFFIXES
from kaffee.data.series import Series
from kaffee.data.timeaxis import Dates, is_timestamp
from kaffee.errors import ConfigError, DataError


def write_series(
    series: Any,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    times: ArrayLike | Sequence[ArrayLike] | None = None,
) -> Path:
    """Write a series, or an array, in the format of the suffix; a file is replaced at once or not at all.

    `read_series` gives back the same values, times and column names, except that `.npy` holds values only, of
    one recording or several of equal length. In tables, times and the labels of several recordings are columns
    with the names and in the form that they had in the file they came from (dates as dates, `.npz` apart), else
    numbers in columns named t and recording. A coordinate that is itself named like a time is read back with
    `time_column=False`.

    Args:
        series: a `Series`, or whatever `Series.from_arrays` takes.
        path: ends in .npy, .npz, .csv, .tsv, .txt, .dat or .parquet.
        columns: names, for an array.
        times: times, for an array.

    Returns:
        The path.
    """
    path = Path(path)
    if not isinstance(series, Series):
        series = Series.from_arrays(series, columns=columns, times=times)
    elif columns is not None or times is not None:
        raise ConfigError("columns= and times= belong to arrays; a Series has its own.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: cannot write '{path.suffix}'. Supported: {', '.join(SUFFIXES)}.")
    match suffix:
        case ".npy":
            array = _single_array(series, path)
            _replace(path, lambda file: np.save(file, array, allow_pickle=False))
        case ".npz":
            _replace(path, lambda file: np.savez(file, **_archive(series)))  # type: ignore[arg-type]
        case ".parquet":
            arrow = require_pyarrow(str(path))
            table = arrow.table(_table(series, path, partial(_arrow_dates, arrow)))
            _replace(path, lambda file: arrow.parquet.write_table(table, file))
        case _:
            delimiter = "," if suffix == ".csv" else "\t"
            text = _text(_table(series, path, Dates.texts), delimiter)
            _replace(path, lambda file: file.write(text.encode()))
    return path


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write beside the target, then move: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "xb") as file:
            write(file)
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}). Is the folder there and writable?"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _single_array(series: Series, path: Path) -> np.ndarray:
    if series.times is not None or len(set(series.lengths)) > 1:
        reason = "times" if series.times is not None else "recordings of unequal length"
        raise DataError(f"{path}: a .npy file cannot hold {reason}. Write .npz, .csv or .parquet.")
    return series.recordings[0] if series.num_recordings == 1 else np.stack(series.recordings)


def _archive(series: Series) -> dict[str, np.ndarray]:
    arrays = {f"recording_{r}": values for r, values in enumerate(series.recordings)}
    arrays |= {f"times_{r}": times for r, times in enumerate(series.times or ())}
    return {**arrays, "columns": np.array(series.columns, dtype=np.str_)}


def _table(series: Series, path: Path, dated: Callable[[Dates, np.ndarray], Any]) -> dict[str, Any]:
    """Columns of a table, in order.

    Args:
        dated: Writes times as dates.
    """
    table: dict[str, Any] = {}
    origin = series.origin
    if series.num_recordings > 1:
        labels = _writable(origin.labels) if len(origin.labels) == series.num_recordings else None
        steps = zip(labels or range(series.num_recordings), series.lengths, strict=True)
        table[origin.recording] = [label for label, length in steps for _ in range(length)]
    if series.times is not None:
        times = np.concatenate(series.times)
        table[origin.time] = times if origin.dates is None else dated(origin.dates, times)
    taken = [name for name in series.columns if name in table]
    if taken:
        raise DataError(f"{path}: the name '{taken[0]}' is needed for a column of its own. Rename the coordinate.")
    rows = series.concatenated()
    return {**table, **{name: rows[:, j] for j, name in enumerate(series.columns)}}


def _writable(labels: Sequence[Hashable]) -> list[int] | list[str] | None:
    """Labels of one kind that fit on a line each."""
    if all(isinstance(label, int) for label in labels):
        return [int(str(label)) for label in labels]
    texts = [str(label) for label in labels]
    plain = all(text.strip() == text and len(text.splitlines()) == 1 for text in texts)
    return texts if plain and len(set(texts)) == len(texts) else None


def _arrow_dates(arrow: ModuleType, dates: Dates, times: np.ndarray) -> Any:
    micro = dates.microseconds(times)
    zone = "UTC" if dates.zone == "Z" else dates.zone or None
    return times if micro is None else arrow.array(micro, arrow.timestamp("us", tz=zone))


def _text(table: dict[str, Any], delimiter: str) -> str:
    out = io.StringIO()
    # names that look like data are quoted, and so recognised as names by the reader
    if any(name[0] == "#" or parse_number(name) is not None or is_timestamp(name) for name in table):
        csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(table)
    else:
        csv.writer(out, delimiter=delimiter, lineterminator="\n").writerow(table)
    for row in zip(*(_cells(column, delimiter) for column in table.values()), strict=True):
        out.write(delimiter.join(row) + "\n")
    return out.getvalue()


def _cells(column: Any, delimiter: str) -> Iterable[str]:
    """The cells of a column; repr is the shortest text that reads back to the same float."""
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return (_quoted(value, delimiter) if isinstance(value, str) else repr(value) for value in values)


def _quoted(text: str, delimiter: str) -> str:
    special = delimiter in text or '"' in text or text.startswith("#")
    return '"' + text.replace('"', '""') + '"' if special else text
