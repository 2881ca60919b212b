"""NumPy files: `.npy` with one array, `.npz` with several. Pickled content is never loaded."""

import re
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from kaffee.data.readers._table import ArrayTable
from kaffee.errors import DataError

# what NumPy raises for damaged headers, impossible shapes and cut-off content
_DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    OSError,
    SyntaxError,
    MemoryError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
)
_TIMES = re.compile(r"(t|time|times)(_\d+)?", re.IGNORECASE)


def read_npy(path: Path, source: str) -> list[ArrayTable]:
    """One array: (T,), (T, N), or (R, T, N) for R recordings of equal length."""
    with path.open("rb") as file:
        try:
            array = np.load(file, allow_pickle=False)
        except _DAMAGED as error:
            raise _damaged(source, error) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{source}: this is an .npz archive. Rename it to .npz.")
    return _tables(source, array, None, None)


def read_npz(path: Path, source: str) -> list[ArrayTable]:
    """Every array is a recording, in the natural order of their keys; `times` and `columns` are optional."""
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            arrays = None if isinstance(archive, np.ndarray) else {key: archive[key] for key in archive.files}
        except _DAMAGED as error:
            raise _damaged(source, error) from error
    if arrays is None:
        raise DataError(f"{source}: this is a single .npy array. Rename it to .npy.")
    bad = [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]
    if bad:
        raise DataError(f"{source}: '{bad[0]}' is not an array. Write the file with np.savez.")
    names = arrays.pop("columns", None)
    columns = None if names is None else [str(name) for name in np.atleast_1d(names).ravel()]
    keys = sorted(arrays, key=natural)
    time_keys = [key for key in keys if _TIMES.fullmatch(key)]
    data_keys = [key for key in keys if key not in time_keys]
    if not data_keys:
        raise DataError(f"{source}: no recording in it, only {sorted(arrays)}. Save at least one array (T, N).")
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


def _tables(source: str, array: np.ndarray, columns: list[str] | None, times: Any) -> list[ArrayTable]:
    if array.ndim != 3 or not len(array):
        return [ArrayTable.from_array(source, array, columns, times)]
    rows = [times[r] if times is not None and np.ndim(times) == 2 else times for r in range(len(array))]
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
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", key) if part]
