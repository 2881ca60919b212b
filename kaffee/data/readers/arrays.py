"""NumPy files: `.npy` with one array, `.npz` with several. Pickled content is never loaded."""

import lzma
import math
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from kaffee.data.readers._table import ArrayTable
from kaffee.data.validation import quoted
from kaffee.errors import DataError

# what NumPy and zipfile raise for damaged headers, impossible shapes and cut-off content
_DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OSError,
    SyntaxError,
    MemoryError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    NotImplementedError,
    RuntimeError,
)
_TIMES = re.compile(r"(t|time|times)(_\d+)?", re.IGNORECASE)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# An archive may unpack to this many bytes, or to so many times its size: nobody's data compress better.
_UNPACKED, _RATIO = 2**30, 100


def read_npy(path: Path, source: str) -> list[ArrayTable]:
    """One array: (T,), (T, N), or (R, T, N) for R recordings of equal length."""
    with path.open("rb") as file:
        if file.read(4) in _ZIP:
            raise DataError(f"{source}: this is an .npz archive. Rename it to .npz.")
        file.seek(0)
        try:
            array = _load(file, path.stat().st_size)
        except _DAMAGED as error:
            raise _damaged(source, error) from error
    return _tables(source, array, None, None)


def read_npz(path: Path, source: str) -> list[ArrayTable]:
    """Every array is a recording, in the natural order of their keys; `times` and `columns` are optional."""
    with path.open("rb") as file:
        if file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise DataError(f"{source}: this is a single .npy array. Rename it to .npy.")
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                arrays = _members(archive, source, path.stat().st_size)
        except DataError:
            raise
        except _DAMAGED as error:
            raise _damaged(source, error) from error
    names = arrays.pop("columns", None)
    columns = None if names is None else [str(name) for name in np.atleast_1d(names).ravel()]
    keys = sorted(arrays, key=natural)
    time_keys = [key for key in keys if _TIMES.fullmatch(key)]
    data_keys = [key for key in keys if key not in time_keys]
    if not data_keys:
        raise DataError(f"{source}: no recording in it, only {quoted(sorted(arrays))}. Save at least one array (T, N).")
    if time_keys and len(time_keys) not in (1, len(data_keys)):
        raise DataError(
            f"{source}: {len(time_keys)} arrays of times for {len(data_keys)} recordings. Save one for each "
            "(times_0, times_1, ...), or a single 'times' for all."
        )
    tables = []
    for k, key in enumerate(data_keys):
        times = arrays[time_keys[k if len(time_keys) > 1 else 0]] if time_keys else None
        label = source if len(data_keys) == 1 else f"{source}, array '{key}'"
        tables += _tables(label, arrays[key], columns, times)
    return tables


def _members(archive: zipfile.ZipFile, source: str, size: int) -> dict[str, np.ndarray]:
    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > max(_UNPACKED, _RATIO * size):
        raise DataError(
            f"{source}: {size} bytes would unpack to {unpacked / 2**30:.3g} GB. If that is right, save the arrays with "
            "np.savez, which does not compress."
        )
    arrays = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        with archive.open(info) as member:
            if member.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
                raise DataError(f"{source}: {key!r:.80} is not an array. Write the file with np.savez.")
            member.seek(0)
            arrays[key] = _load(member, info.file_size)
    return arrays


def _load(file: IO[bytes], size: int) -> np.ndarray:
    """An array, whose header is believed only as far as there are bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on headers of Python 2, and of whatever else a damaged one looks like
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the format is not for arrays of numbers")
        shape, _, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise ValueError("pickle")
        promised = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or promised > size - file.tell():
            raise ValueError(f"the header promises shape {shape}, but {size - file.tell()} bytes are there")
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def _tables(source: str, array: np.ndarray, columns: list[str] | None, times: Any) -> list[ArrayTable]:
    if array.ndim != 3 or not array.size:
        return [ArrayTable.from_array(source, array, columns, times)]
    separate = times is not None and np.ndim(times) == 2
    if separate and len(times) != len(array):
        raise DataError(
            f"{source}: {len(times)} rows of times for {len(array)} recordings. Give one for each, or for all."
        )
    rows = [times[r] if separate else times for r in range(len(array))]
    return [ArrayTable.from_array(f"{source}, recording {r}", part, columns, rows[r]) for r, part in enumerate(array)]


def _damaged(source: str, error: BaseException) -> DataError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "pickle" in reason:
        reason = "it is no NumPy file, or holds Python objects, which are not loaded for safety"
    return DataError(
        f"{source}: cannot be read as a NumPy file ({reason[:150]}). The file is damaged, cut off or of "
        "another kind; write it again with np.save or np.savez from an array of floats."
    )


def natural(key: str) -> list[tuple[int, int, str]]:
    """A sort key that puts run10 after run2.

    >>> sorted(["run10", "run2", "a"], key=natural)
    ['a', 'run2', 'run10']
    """
    parts = [part for part in re.split(r"(\d+)", key) if part]
    # by length, then digit by digit: Python does not make numbers of thousands of digits
    return [(0, len(part.lstrip("0")), part.lstrip("0")) if part.isdecimal() else (1, 0, part) for part in parts]
