"""Write a series so that reading it back gives the very same numbers."""

import csv
import io
import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from kaffee.data.arrayfiles import require_pyarrow
from kaffee.data.reading import SUFFIXES
from kaffee.data.series import Series
from kaffee.data.textfiles import parse_number
from kaffee.data.timeaxis import is_timestamp
from kaffee.errors import ConfigError, DataError
from kaffee.records import write_atomically

if TYPE_CHECKING:
    import pandas as pd


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
        series: A `Series`, or whatever `Series.from_arrays` takes.
        path: Ends in .npy, .npz, .csv, .tsv, .txt, .dat or .parquet.
        columns, times: For an array, as in `Series.from_arrays`.

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
    if not path.parent.is_dir():
        raise DataError(f"{path}: cannot be written. Is the folder there and writable?")
    buffer = io.BytesIO()
    match suffix:
        case ".npy":
            np.save(buffer, _as_array(series, path), allow_pickle=False)
        case ".npz":
            arrays = {f"recording_{r}": values for r, values in enumerate(series.recordings)}
            arrays |= {f"times_{r}": times for r, times in enumerate(series.times or ())}
            np.savez(buffer, **arrays, columns=np.array(series.columns, dtype=np.str_))
        case ".parquet":
            require_pyarrow(str(path))
            _as_frame(series, path, text=False).to_parquet(buffer, engine="pyarrow", index=False)
        case _:
            _write_text(_as_frame(series, path, text=True), buffer, "," if suffix == ".csv" else "\t")
    write_atomically(path, buffer.getvalue())
    return path


def _as_array(series: Series, path: Path) -> np.ndarray:
    if series.times is not None or len(set(series.lengths)) > 1:
        reason = "times" if series.times is not None else "recordings of unequal length"
        raise DataError(f"{path}: a .npy file cannot hold {reason}. Write .npz, .csv or .parquet.")
    return series.recordings[0] if series.num_recordings == 1 else np.stack(series.recordings)


def _as_frame(series: Series, path: Path, *, text: bool) -> "pd.DataFrame":
    """Make a table of labels, times and coordinates; with `text`, dates are written out."""
    import pandas as pd

    extra: dict[str, Any] = {}
    origin = series.origin
    if series.num_recordings > 1:
        labels = _make_labels(origin.labels, series.num_recordings)
        extra[origin.recording] = pd.Series(np.repeat(labels, series.lengths), dtype=labels.dtype)
    if series.times is not None:
        times = np.concatenate(series.times)
        dates = None if origin.dates is None else origin.dates.texts(times) if text else origin.dates.stamps(times)
        extra[origin.time] = times if dates is None else dates
    taken = [name for name in series.columns if name in extra]
    if taken:
        raise DataError(f"{path}: the name '{taken[0]}' is needed for a column of its own. Rename the coordinate.")
    frame = pd.DataFrame(series.concatenated(), columns=pd.Index(series.columns, dtype=object))
    for position, (name, column) in enumerate(extra.items()):
        frame.insert(position, name, column)
    return frame


def _make_labels(labels: Sequence[Hashable], number: int) -> np.ndarray:
    """Return labels as whole numbers or as texts; the numbers of the recordings if they do not fit on a line each."""
    texts = [str(label) for label in labels]
    plain = all(text.strip() == text and len(text.splitlines()) == 1 for text in texts)
    if not plain or len(set(texts)) != number:
        return np.arange(number)
    whole = all(isinstance(label, int) and abs(label) < 2**63 for label in labels)
    return np.array(labels, dtype=np.int64) if whole else np.array(texts, dtype=object)


def _write_text(frame: "pd.DataFrame", buffer: io.BytesIO, delimiter: str) -> None:
    # Names that look like data are quoted, and so recognised as names by the reader; a label must not be a comment.
    odd = any(name[0] == "#" or parse_number(name) is not None or is_timestamp(name) for name in frame.columns)
    comment = frame.dtypes.iloc[0].kind == "O" and any(str(label).startswith("#") for label in frame.iloc[:, 0])
    for rows, quoting in (
        (frame[:0], csv.QUOTE_ALL if odd else csv.QUOTE_MINIMAL),
        (frame, csv.QUOTE_NONNUMERIC if comment else csv.QUOTE_MINIMAL),
    ):
        rows.to_csv(
            buffer,
            sep=delimiter,
            header=rows is not frame,
            index=False,
            na_rep="nan",
            quoting=quoting,
            lineterminator="\n",
        )
