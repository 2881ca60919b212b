"""Same kind in, same kind out: arrays, tables of pandas and labelled arrays of xarray as series, and back.

Neither pandas nor xarray is needed or imported: they are there if someone passes their objects.
"""

import os
from typing import Any

from kaffee.data.adapters.arrays_ import read_arrays, read_own
from kaffee.data.adapters.frame import Data, Request
from kaffee.data.adapters.labelled import is_labelled, read_labelled
from kaffee.data.adapters.tables_ import is_table, read_tables
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError

NAME = "X"
"""What messages call the data."""


def read_data(X: Any, request: Request | None = None) -> Data:
    """Data of any kind as a series, with the way back.

    >>> read_data([[1.0, 2.0], [3.0, 4.0]]).series
    Series('X': 1 recording, 2 steps, 2 coordinates: x1, x2; 0 % missing)
    """
    request = request or Request()
    if isinstance(X, Series):
        return read_own(X, request, NAME)
    if isinstance(X, str | os.PathLike):
        raise DataError(f"{NAME} is a path. Read the file first: kaffee.read_series({str(X)!r}).")
    several = isinstance(X, list | tuple)
    items = list(X) if several else [X]
    for fits, read in ((is_table, read_tables), (is_labelled, read_labelled)):
        if not any(map(fits, items)):
            continue
        if not all(map(fits, items)):
            kinds = ", ".join(dict.fromkeys(type(item).__name__ for item in items))
            raise DataError(f"{NAME}: a list of different kinds ({kinds}). Pass recordings of one kind.")
        if request.times is not None:
            raise ConfigError("times= is for arrays. Make the times the index of the table, or its time coordinate.")
        return read(items, several, request, NAME)
    return read_arrays(X, request, NAME)
