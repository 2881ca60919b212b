"""Labelled arrays of xarray in, labelled arrays of xarray out."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.data.adapters.clock import Clock, pandas, read_index
from kaffee.data.adapters.frame import Data, Request
from kaffee.data.adapters.tables_ import assembled, check_numeric
from kaffee.data.validation import check_columns
from kaffee.errors import DataError

TIME_NAMES = ("time", "t")


@dataclass(frozen=True)
class LabelledFrame:
    """A DataArray or a Dataset.

    Attributes:
        time, variable: Names of the dimensions.
        columns: The coordinate of the variables, as it came.
        form: "array" (T, N), "vector" (T,) or "dataset".
        transposed: Whether the variables were the first dimension.
        name: Of the DataArray.
    """

    clock: Clock
    time: str
    variable: str
    columns: np.ndarray
    form: str
    transposed: bool = False
    name: Any = None

    def rows(self, bands: Any, levels: Sequence[float]) -> Any:
        """A Dataset of `mean`, `std`, `q05`, ... over time and variable."""
        return self._dataset(bands, levels, self.clock.labels(bands.times))

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        """Likewise, at the times that come next."""
        assert forecast.times is not None
        return self._dataset(forecast, levels, self.clock.future(forecast.times, num_rows))

    def values(self, values: np.ndarray, times: np.ndarray | None) -> Any:
        """In the form of what came."""
        return self._filled(values, self.clock.labels(times))

    def free(self, values: np.ndarray, times: np.ndarray) -> Any:
        """Likewise, by the time that passed."""
        return self._filled(values, self.clock.elapsed(times))

    def _dataset(self, bands: Any, levels: Sequence[float], index: Any) -> Any:
        flat = bands.as_vector() if self.form == "vector" else bands
        dims = (self.time,) if self.form == "vector" else (self.time, self.variable)
        variables: dict[str, Any] = {name: (dims, values) for name, values in flat.variables(levels).items()}
        variables |= {name: ((self.time,), values) for name, values in bands.row_variables().items()}
        return _xarray().Dataset(variables, coords=self._coords(index, dims))

    def _filled(self, values: np.ndarray, index: Any) -> Any:
        xarray, dims = _xarray(), (self.time, self.variable)
        if self.form == "vector":
            return xarray.DataArray(values[:, 0], self._coords(index, dims[:1]), dims[:1], self.name)
        if self.form == "dataset":
            columns = {name: (self.time, values[:, n]) for n, name in enumerate(self.columns.tolist())}
            return xarray.Dataset(columns, coords=self._coords(index, dims[:1]))
        array = xarray.DataArray(values, self._coords(index, dims), dims, self.name)
        return array.transpose() if self.transposed else array

    def _coords(self, index: Any, dims: Sequence[str]) -> Mapping[str, Any]:
        coords = {self.time: index, self.variable: self.columns}
        return {name: (name, coords[name]) for name in dims}


def _xarray() -> Any:
    return sys.modules["xarray"]


def is_labelled(X: Any) -> bool:
    """Whether this is a DataArray or a Dataset of xarray; without xarray nothing is."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(X, xarray.DataArray | xarray.Dataset)


def read_labelled(arrays: Sequence[Any], several: bool, request: Request, where: str) -> Data:
    """Labelled arrays with a recording each: time and variable, or a Dataset of variables over time."""
    labels = [f"{where}, recording {r}" if several else where for r in range(len(arrays))]
    parts = [
        _read_dataset(array, request, label)
        if isinstance(array, _xarray().Dataset)
        else _read_array(array, request, label)
        for array, label in zip(arrays, labels, strict=True)
    ]
    return assembled([(values, names, frame, frame.clock) for values, names, frame in parts], several, labels, where)


def _read_array(array: Any, request: Request, where: str) -> tuple[np.ndarray, tuple[str, ...], LabelledFrame]:
    if array.ndim not in (1, 2):
        raise DataError(
            f"{where}: dimensions {array.dims}; give time and variable. Several recordings go in a list: "
            "[X.isel(recording=r) for r in range(...)]."
        )
    time = next((name for name in TIME_NAMES if name in array.dims), array.dims[0])
    if array.ndim == 1:
        columns = np.array(["x1" if array.name is None else array.name], dtype=object)
        table, variable, transposed = array.to_numpy()[:, None], "variable", False
    else:
        variable = next(name for name in array.dims if name != time)
        transposed = array.dims[0] == variable
        table = array.transpose(time, variable).to_numpy()
        named = array.indexes.get(variable)
        columns = np.array([f"x{n + 1}" for n in range(table.shape[1])]) if named is None else named.to_numpy()
    names = check_columns(columns.tolist(), len(columns), where) if len(columns) else ()
    if request.wanted is not None and set(request.wanted) <= set(names):
        chosen = [names.index(name) for name in request.wanted]
        table, columns, names = table[:, chosen], columns[chosen], request.wanted
    check_numeric(", ".join(names[:3]), table.dtype, where)
    clock = _clock(array, time, request, where)
    form = "vector" if array.ndim == 1 else "array"
    frame = LabelledFrame(clock, time, variable, columns, form, transposed, array.name)
    return np.asarray(table, np.float64), names, frame


def _read_dataset(dataset: Any, request: Request, where: str) -> tuple[np.ndarray, tuple[str, ...], LabelledFrame]:
    given = list(dataset.data_vars)
    names = check_columns(given, len(given), where) if given else ()
    if request.wanted is not None and set(request.wanted) <= set(names):
        given, names = [given[names.index(name)] for name in request.wanted], request.wanted
    if not given:
        raise DataError(f"{where}: a Dataset without variables. Give at least one over time.")
    dims = {dataset[name].dims for name in given}
    if len(dims) > 1 or len(next(iter(dims))) != 1:
        shown = ", ".join(f"{name} {dataset[name].dims}" for name in given[:6])
        raise DataError(
            f"{where}: the variables must all be over time and nothing else, but are: {shown}. Select others, or make "
            "several recordings a list of Datasets."
        )
    (time,) = next(iter(dims))
    for name in given:
        check_numeric(str(name), dataset[name].dtype, where)
    values = np.stack([np.asarray(dataset[name].to_numpy(), np.float64) for name in given], axis=1)
    columns = np.array(given, dtype=object)
    return values, names, LabelledFrame(_clock(dataset, time, request, where), time, "variable", columns, "dataset")


def _clock(array: Any, time: str, request: Request, where: str) -> Clock:
    index = array.indexes.get(time)
    if index is None:
        index = pandas().RangeIndex(array.sizes[time])
    return read_index(index, where, frequency=request.frequency, infer=request.fitting)
