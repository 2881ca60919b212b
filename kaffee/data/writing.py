"""Write a series so that reading it back gives the very same numbers."""

import io
import os
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kaffee.data._arrayfiles import require_pyarrow
from kaffee.data._textfiles import parse_number
from kaffee.data.reading import SUFFIXES
from kaffee.data.series import Series
from kaffee.data.timeaxis import is_timestamp
from kaffee.errors import ConfigError, DataError
from kaffee.records import write_atomically


def write_series(
    series: Any,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    times: ArrayLike | Sequence[ArrayLike] | None = None,
) -> Path:
    """Write a series, or an array, in the format of the suffix, at once or not at all; return the path.

    `read_series` gives back the same values, times and column names, except that `.npy` holds values only, of
    one recording or several of equal length. In tables, times and the labels of several recordings are columns
    with the names and in the form that they had in the file they came from (dates as dates, `.npz` apart), else
    numbers in columns named t and recording. A coordinate that is itself named like a time is read back with
    `time_column=False`. Known inputs are columns after the coordinates, to be read back with `inputs=`.

    Args:
        series: A `Series`, or whatever `Series.from_arrays` takes.
        path: Ends in .npy, .npz, .csv, .tsv, .txt, .dat or .parquet.
        columns, times: For an array, as in `Series.from_arrays`.
    """
    path = Path(path)
    if not isinstance(series, Series):
        series = Series.from_arrays(series, columns=columns, times=times)
    elif columns is not None or times is not None:
        raise ConfigError("columns= and times= belong to arrays; a Series has its own.")
    if series.inputs is not None:
        rows = tuple(series.rows_with_inputs(r) for r in range(series.num_recordings))
        series = replace(series, recordings=rows, columns=(*series.columns, *series.inputs.columns), inputs=None)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: cannot write '{path.suffix}'. Supported: {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written. Is the folder there and writable?")
    buffer = io.BytesIO()
    match suffix:
        case ".npy":
            np.save(buffer, _as_array(series, path), allow_pickle=False)
        case ".npz":
            arrays = {f"recording_{r}": values for r, values in enumerate(series.recordings)}
            arrays |= {f"times_{r}": _as_times(series, times) for r, times in enumerate(series.times or ())}
            np.savez(buffer, **arrays, columns=np.array(series.columns, dtype=np.str_))
        case ".parquet":
            import pandas as pd

            require_pyarrow(str(path))
            table = _as_table(series, path, text=False)
            frame = pd.DataFrame({name: pd.Series(column, dtype=column.dtype) for name, column in table.items()})
            frame.columns = frame.columns.astype(object)
            frame.to_parquet(buffer, engine="pyarrow", index=False, write_page_checksum=True)
        case _:
            buffer.write(_as_text(_as_table(series, path, text=True), "," if suffix == ".csv" else "\t").encode())
    write_atomically(path, buffer.getvalue())
    return path


def _as_array(series: Series, path: Path) -> np.ndarray:
    if series.times is not None or len(set(series.lengths)) > 1:
        reason = "times" if series.times is not None else "recordings of unequal length"
        raise DataError(f"{path}: a .npy file cannot hold {reason}. Write .npz, .csv or .parquet.")
    return series.recordings[0] if series.num_recordings == 1 else np.stack(series.recordings)


def _as_times(series: Series, times: np.ndarray) -> np.ndarray:
    """Write steps of a calendar as the dates that they stand for, so that they are found again."""
    dates = series.origin.dates
    stamps = None if dates is None or dates.calendar is None else dates.stamps(times)
    return times if stamps is None else stamps.tz_localize(None).to_numpy()


def _as_table(series: Series, path: Path, *, text: bool) -> dict[str, Any]:
    """Make columns of labels, times and coordinates; with `text`, dates are written out."""
    table: dict[str, Any] = {}
    origin = series.origin
    if series.num_recordings > 1:
        table[origin.recording] = np.repeat(_make_labels(origin.labels, series.num_recordings), series.lengths)
    if series.times is not None:
        times = np.concatenate(series.times)
        if origin.dates is not None:
            texts = np.array(origin.dates.texts(times), dtype=object) if text else origin.dates.stamps(times)
            times = times if texts is None else texts
        table[origin.time] = times
    taken = [name for name in series.columns if name in table]
    if taken:
        raise DataError(f"{path}: the name '{taken[0]}' is needed for a column of its own. Rename the coordinate.")
    return table | dict(zip(series.columns, series.concatenated().T, strict=True))


def _make_labels(labels: Sequence[Hashable], number: int) -> np.ndarray:
    """Return labels as whole numbers or as texts; the numbers of the recordings if they do not fit on a line each."""
    texts = [str(label) for label in labels]
    plain = all(text.strip() == text and len(text.splitlines()) == 1 for text in texts)
    if not plain or len(set(texts)) != number:
        return np.arange(number)
    whole = all(isinstance(label, int) and abs(label) < 2**63 for label in labels)
    return np.array(labels, dtype=np.int64) if whole else np.array(texts, dtype=object)


def _as_text(table: dict[str, Any], delimiter: str) -> str:
    def quote(cell: Any, always: bool = False) -> str:
        if not isinstance(cell, str):
            return repr(cell)
        # A label must not be taken for a comment.
        special = always or cell[0] == "#" or any(mark in cell for mark in (delimiter, '"', "\n", "\r"))
        return '"' + cell.replace('"', '""') + '"' if special else cell

    # Names that look like data are quoted, and so recognised as names by the reader.
    odd = any(name[0] == "#" or parse_number(name) is not None or is_timestamp(name) for name in table)
    cells = [map(repr if column.dtype.kind == "f" else quote, column.tolist()) for column in table.values()]
    rows = chain([[quote(name, odd) for name in table]], zip(*cells, strict=True))
    return "".join(delimiter.join(row) + "\n" for row in rows)
