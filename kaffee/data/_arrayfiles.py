"""NumPy and Parquet files as tables whose columns are converted when their role is known. Nothing is unpickled."""

import lzma
import math
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from kaffee.data.timeaxis import Dates
from kaffee.data.validation import as_float64, check_columns, check_unique, quoted
from kaffee.errors import DataError

# What NumPy and zipfile raise for damaged headers, impossible shapes and cut-off content.
_DAMAGED = (
    *(ValueError, TypeError, KeyError, IndexError, EOFError, OSError, SyntaxError, MemoryError, OverflowError),
    *(tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(NotImplementedError, RuntimeError),
)
_TIMES = re.compile(r"(t|times?|timestamps?|dates?|datetimes?)(_\d+)?", re.IGNORECASE)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# An archive may unpack to this many bytes, or to so many times its size: measurements do not compress better.
_UNPACKED, _RATIO = 2**30, 100


class Roles(NamedTuple):
    """Positions of the columns in a table."""

    time: int | None
    recording: int | None
    coordinates: list[int]


class Table(NamedTuple):
    """Columns of a file; a column of text without a role is no error.

    Attributes:
        read: Reads the columns that have a role, by position: coordinates as float64; times as numbers, datetimes or
            text; labels as they are, None or NaN for missing ones.
        place: Names file and row in a message.
        times: Of the rows, if they are not a column.
        dates: How datetimes are written, by column.
    """

    source: str
    names: tuple[str, ...]
    read: Callable[[Roles], Any]
    place: Callable[[int], str]
    times: np.ndarray | None = None
    dates: Mapping[int, Dates] = {}


def open_numpy(path: Path) -> list[Table]:
    """Open a NumPy file with a table for each recording.

    A `.npy` file holds an array (T,), (T, N), or (R, T, N) for R recordings of equal length. In an `.npz` file every
    array is a recording, or several, in the natural order of the keys; `times` and `columns` are optional.
    """
    size, archive = path.stat().st_size, path.suffix.lower() == ".npz"
    with path.open("rb") as file:
        start = file.read(len(npy.MAGIC_PREFIX))
        if archive and start == npy.MAGIC_PREFIX:
            raise DataError(f"{path}: this is a single .npy array. Rename it to .npy.")
        if not archive and start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            raise DataError(f"{path}: this is an .npz archive. Rename it to .npz.")
        file.seek(0)
        try:
            arrays = _unpack(file, path, size) if archive else {"": _load(file, size)}
        except DataError:
            raise
        except _DAMAGED as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "pickle" in reason:
                reason = "it is no NumPy file, or holds Python objects, which are not loaded for safety"
            raise DataError(
                f"{path}: cannot be read as a NumPy file ({reason[:150]}). The file is damaged, cut off or of another "
                "kind; write it again with np.save or np.savez from an array of floats."
            ) from error
    names = arrays.pop("columns", None)
    columns = None if names is None else [str(name) for name in names.ravel()]
    keys = sorted(arrays, key=_sort_naturally)
    time_keys = [key for key in keys if _TIMES.fullmatch(key)]
    data_keys = [key for key in keys if key not in time_keys]
    if not data_keys:
        raise DataError(f"{path}: no recording in it, only {quoted(sorted(arrays))}. Save at least one array (T, N).")
    if time_keys and len(time_keys) not in (1, len(data_keys)):
        raise DataError(
            f"{path}: {len(time_keys)} arrays of times for {len(data_keys)} recordings. Save one for each "
            "(times_0, times_1, ...), or a single 'times' for all."
        )
    tables = []
    for k, key in enumerate(data_keys):
        times = arrays[time_keys[k if len(time_keys) > 1 else 0]] if time_keys else None
        where = str(path) if len(data_keys) == 1 else f"{path}, array '{key}'"
        tables += _split_recordings(where, arrays[key], columns, times)
    return tables


def _unpack(file: IO[bytes], path: Path, size: int) -> dict[str, np.ndarray]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > max(_UNPACKED, _RATIO * size):
            raise DataError(
                f"{path}: {size} bytes would unpack to {unpacked / 2**30:.3g} GB. If that is right, save the arrays "
                "with np.savez, which does not compress."
            )
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            with archive.open(info) as member:
                if member.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
                    raise DataError(f"{path}: {key!r:.80} is not an array. Write the file with np.savez.")
                member.seek(0)
                arrays[key] = _load(member, info.file_size)
    return arrays


def _load(file: IO[bytes], size: int) -> np.ndarray:
    """Load an array, if its header does not promise more than there are bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on headers of Python 2, and of whatever else a damaged one looks like
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the format is not for arrays of numbers")
        shape, _, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError("pickle")
        left = size - file.tell()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > left:
            raise ValueError(f"the header promises shape {shape}, but {left} bytes are there")
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def _sort_naturally(key: str) -> list[tuple[int, int, str]]:
    """Make a sort key that puts run10 after run2."""
    parts = [part for part in re.split(r"(\d+)", key) if part]
    # By length, then digit by digit: Python does not make numbers of thousands of digits.
    return [(0, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (1, 0, part) for part in parts]


def _split_recordings(source: str, array: np.ndarray, columns: list[str] | None, times: Any) -> list[Table]:
    """Make a table of each recording of an array."""
    if array.ndim == 3 and array.size:
        axes = times if np.ndim(times) == 2 else [times] * len(array)
        if len(axes) != len(array):
            raise DataError(
                f"{source}: {len(axes)} rows of times for {len(array)} recordings. Give one for each, or for all."
            )
        parts = enumerate(zip(array, axes, strict=True))
        return [_as_table(f"{source}, recording {r}", part, columns, own) for r, (part, own) in parts]
    return [_as_table(source, array, columns, times)]


def _as_table(source: str, array: np.ndarray, columns: list[str] | None, times: Any) -> Table:
    values = as_float64(array, source)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.size == 0:
        raise DataError(
            f"{source}: an array of shape {np.shape(array)} is not a recording. Save arrays of shape (T, N) with at "
            "least one row and one column."
        )
    names = check_columns(columns, values.shape[1], source)
    return Table(source, names, lambda roles: values.T, lambda row: f"{source}, row {row}", times)


def require_pyarrow(source: str) -> ModuleType:
    """Import pyarrow, or say how to install it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        advice = "Install it with: pip install 'kaffee[parquet]'"
        raise DataError(f"{source}: parquet files need pyarrow. {advice}") from error
    return pyarrow


def open_parquet(path: Path) -> Table:
    """Open a Parquet file."""
    arrow = require_pyarrow(str(path))
    types, content = arrow.types, path.read_bytes()
    try:
        file = arrow.parquet.ParquetFile(arrow.BufferReader(content), page_checksum_verification=True)
        table = file.read()
        table.validate(full=True)
        _check_statistics(arrow, file.metadata, table)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0][:150]
        advice = "The file is damaged, cut off or of another kind; write it again."
        raise DataError(f"{path}: cannot be read as parquet ({reason}). {advice}") from error
    names = tuple(str(name).strip() for name in table.column_names)
    check_unique(names, str(path))
    if not names or not table.num_rows:
        raise DataError(f"{path}: the table has {table.num_rows} rows and {len(names)} columns. Check the export.")
    kinds = list(enumerate(table.schema.types))
    dates = {j: Dates(zone=kind.tz or "") for j, kind in kinds if types.is_timestamp(kind)}
    dates |= {j: Dates(days=True) for j, kind in kinds if types.is_date(kind)}

    def read(roles: Roles) -> dict[int, np.ndarray]:
        cells = {j: _read_numbers(arrow, table.column(j), f"{path}, column '{names[j]}'") for j in roles.coordinates}
        for j in (roles.time, roles.recording):
            if j is None or j in cells:
                continue
            column, where = table.column(j), f"{path}, column '{names[j]}'"
            if j == roles.time and j in dates:
                cells[j] = column.to_numpy()
            elif j == roles.recording or types.is_string(column.type) or types.is_large_string(column.type):
                cells[j] = _read_objects(arrow, column, where)
            else:
                cells[j] = _read_numbers(arrow, column, where)
        return cells

    return Table(str(path), names, read, lambda row: f"{path}, row {row}", None, dates)


def _check_statistics(arrow: ModuleType, metadata: Any, table: Any) -> None:
    """Refuse numbers beyond the range that their file states: most files have no checksums that would tell."""
    from pyarrow.compute import min_max

    types, first = arrow.types, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        rows = table.slice(first, group.num_rows)
        first += group.num_rows
        for chunk in map(group.column, range(group.num_columns)):
            name, stated = chunk.path_in_schema, chunk.statistics
            if table.column_names.count(name) != 1 or stated is None or not stated.has_min_max:
                continue
            column = rows.column(name)
            if not (types.is_integer(column.type) or types.is_float32(column.type) or types.is_float64(column.type)):
                continue
            least, most = min_max(column).as_py().values()
            if least is not None and (least < stated.min or most > stated.max):
                raise ValueError(
                    f"column '{name}' has values outside its own range of {stated.min:g} to {stated.max:g}"
                )


def _read_numbers(arrow: ModuleType, column: Any, where: str) -> np.ndarray:
    types = arrow.types
    if types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
        raise DataError(
            f"{where}: {column.type} values are not numbers. Convert the column, or choose other columns with columns=."
        )
    # Rounding of integers beyond 2^53 is the same as when NumPy converts them.
    return np.asarray(column.cast(arrow.float64(), safe=False).to_numpy(), dtype=np.float64)


def _read_objects(arrow: ModuleType, column: Any, where: str) -> np.ndarray:
    cells = np.empty(len(column), dtype=object)
    try:
        cells[:] = column.to_pylist()
    except (arrow.ArrowException, ValueError, OverflowError) as error:  # dates that Python does not have
        raise DataError(f"{where}: the values cannot label recordings ({error}). Use numbers or text.") from error
    return cells
