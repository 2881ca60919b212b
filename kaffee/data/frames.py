"""Data frames of users: arrays, pandas and xarray objects become series, and results take their form again."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Float

from kaffee.data.series import Series
from kaffee.data.validation import check_columns
from kaffee.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

    from kaffee.data.timeindex import Clock

_NAME = "X"
"""What messages call the data."""


class Bands(Protocol):
    """Results at the rows of one recording: arrays (T, N), arrays (T,), and both side by side as columns of a table."""

    @property
    def times(self) -> np.ndarray | None: ...
    def variables(self, levels: Sequence[float]) -> dict[str, np.ndarray]: ...
    def row_variables(self) -> dict[str, np.ndarray]: ...
    def table(self, levels: Sequence[float]) -> dict[str, np.ndarray]: ...
    def as_vector(self) -> Any: ...


@dataclass(frozen=True)
class ArrayFrame:
    """The form of one recording, in which results are returned: here an array (T, N), or a vector (T,).

    Results of arrays are bands, which give any quantile later, with dates as times if they were dates.
    """

    vector: bool = False
    dated: bool = False

    def rows(self, bands: Any, levels: Sequence[float]) -> Any:
        """Return `Bands` at the rows of the recording."""
        if bands.times is not None and self.dated:
            micro = np.round(1e6 * bands.times).astype(np.int64)
            bands = replace(bands, times=micro.astype("datetime64[us]"))
        return bands.as_vector() if self.vector else bands

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        """Return a forecast of the steps after the last of `num_rows` rows, missing ones included."""
        return self.rows(forecast, levels)

    def values(self, values: Float[np.ndarray, "T N"], times: np.ndarray | None) -> Any:
        """Return numbers at the rows of the recording, including those that its times leave out."""
        return values[:, 0] if self.vector else values

    def free(self, values: Float[np.ndarray, "T N"], times: np.ndarray) -> Any:
        """Return numbers of a run that belongs to no date."""
        return self.values(values, times)


@dataclass(frozen=True)
class _SeriesFrame(ArrayFrame):
    """A recording of a `kaffee.Series`; results are series with columns `x_mean`, `x_std`, `x_q05`, ..."""

    columns: tuple[str, ...] = ()

    def rows(self, bands: Bands, levels: Sequence[float]) -> Series:
        table = bands.table(levels)
        times = None if bands.times is None else (bands.times,)
        return Series((np.stack(list(table.values()), axis=1),), tuple(table), times)

    def values(self, values: np.ndarray, times: np.ndarray | None) -> Series:
        return Series((values,), self.columns, None if times is None else (times,))


@dataclass(frozen=True)
class Data:
    """Recordings as a series, and the form in which they came.

    Attributes:
        series: The recordings.
        frames: The form of each recording.
        join: Makes one result of those of all recordings: a list, unless there was one recording.
        frequency: Of their calendar, if they are on one, see `kaffee.data.timeindex`.
    """

    series: Series
    frames: tuple[ArrayFrame, ...]
    join: Callable[[list[Any]], Any]
    frequency: str | None = None


@dataclass(frozen=True)
class Request:
    """Options of `read_data`.

    Attributes:
        times: Of arrays, which have none of their own.
        wanted: The columns of a model; others are left out if all of these are there.
        frequency: The calendar of the data that the model was fitted to.
        fitting: Whether a model is to be fitted, so that a calendar may be inferred.
    """

    times: Any = None
    wanted: tuple[str, ...] | None = None
    frequency: str | None = None
    fitting: bool = False


def read_data(X: Any, request: Request | None = None) -> Data:
    """Convert data of any kind to a series, and keep its form for results.

    >>> read_data([[1.0, 2.0], [3.0, 4.0]]).series
    Series('X': 1 recording, 2 steps, 2 coordinates: x1, x2; 0 % missing)
    """
    request = request or Request()
    if isinstance(X, str | os.PathLike):
        raise DataError(f"{_NAME} is a path. Read the file first: kaffee.read_series({str(X)!r}).")
    if isinstance(X, Series):
        if request.times is not None:
            raise ConfigError("times= is for arrays; a Series has its own. Leave it out.")
        wanted = request.wanted or X.columns
        own = _SeriesFrame(columns=wanted if set(wanted) <= set(X.columns) else X.columns)
        return Data(X, (own,) * X.num_recordings, _concatenate)
    several = isinstance(X, list | tuple)
    items = list(X) if several else [X]
    # Objects of a library that is not loaded cannot be passed.
    for library, kinds in (("pandas", ("DataFrame", "Series")), ("xarray", ("DataArray", "Dataset"))):
        classes = tuple(getattr(sys.modules[library], kind) for kind in kinds) if library in sys.modules else ()
        if not any(isinstance(item, classes) for item in items):
            continue
        if not all(isinstance(item, classes) for item in items):
            given = ", ".join(dict.fromkeys(type(item).__name__ for item in items))
            raise DataError(f"{_NAME}: a list of different kinds ({given}). Pass recordings of one kind.")
        if request.times is not None:
            raise ConfigError("times= is for arrays. Make the times the index of the table, or its time coordinate.")
        labels = [f"{_NAME}, recording {r}" if several else _NAME for r in range(len(items))]
        read = _read_table if library == "pandas" else _read_labelled
        return _assemble([read(*pair, request) for pair in zip(items, labels, strict=True)], labels, several)
    series = Series.from_arrays(X, times=request.times, name=_NAME)
    arrays = several and any(isinstance(item, np.ndarray) for item in items)
    dimensions = 3 if arrays else np.ndim(X)
    first = request.times[0] if isinstance(request.times, list | tuple) and request.times else request.times
    frame = ArrayFrame(dimensions == 1, request.times is not None and np.asarray(first).dtype.kind == "M")
    return Data(series, (frame,) * series.num_recordings, list if dimensions == 3 else _unpack)


def _unpack(results: list[Any]) -> Any:
    return results[0]


def _concatenate(results: list[Series]) -> Series:
    first = results[0]
    times = None if first.times is None else tuple(t for part in results for t in part.times or ())
    return replace(first, recordings=tuple(values for part in results for values in part.recordings), times=times)


@dataclass(frozen=True)
class _TableFrame(ArrayFrame):
    """A DataFrame of pandas, or a Series; results are tables with columns `x_mean`, `x_std`, `x_q05`, ..."""

    clock: "Clock" = field(kw_only=True)
    columns: "pd.Index" = field(kw_only=True)

    def rows(self, bands: Bands, levels: Sequence[float]) -> Any:
        return self._show(bands, levels, self.clock.labels(bands.times))

    def ahead(self, forecast: Bands, levels: Sequence[float], num_rows: int) -> Any:
        assert forecast.times is not None
        return self._show(forecast, levels, self.clock.future(forecast.times, num_rows))

    def values(self, values: np.ndarray, times: np.ndarray | None) -> Any:
        return self._fill(values, self.clock.labels(times))

    def free(self, values: np.ndarray, times: np.ndarray) -> Any:
        return self._fill(values, self.clock.elapsed(times))

    def _show(self, bands: Bands, levels: Sequence[float], index: "pd.Index") -> Any:
        import pandas as pd

        return pd.DataFrame(bands.table(levels), index=index)

    def _fill(self, values: np.ndarray, index: "pd.Index") -> Any:
        import pandas as pd

        table = pd.DataFrame(values, index=index, columns=self.columns)
        return table.iloc[:, 0] if self.vector else table


@dataclass(frozen=True)
class _LabelledFrame(_TableFrame):
    """A DataArray or a Dataset of xarray; results are Datasets of `mean`, `std`, `q05`, ... over time and variable.

    Attributes:
        dims: Names of the dimensions of time and variable.
        dataset: Whether it was a Dataset.
        transposed: Whether the variables were the first dimension.
        name: Of the DataArray.
    """

    dims: tuple[str, str] = ("time", "variable")
    dataset: bool = False
    transposed: bool = False
    name: Any = None

    def _show(self, bands: Bands, levels: Sequence[float], index: "pd.Index") -> Any:
        import xarray

        flat, dims = (bands.as_vector(), self.dims[:1]) if self.vector else (bands, self.dims)
        variables: dict[str, Any] = {name: (dims, values) for name, values in flat.variables(levels).items()}
        variables |= {name: (self.dims[:1], values) for name, values in bands.row_variables().items()}
        coords = {dim: (dim, labels) for dim, labels in zip(dims, (index, self.columns), strict=False)}
        return xarray.Dataset(variables, coords=coords)

    def _fill(self, values: np.ndarray, index: "pd.Index") -> Any:
        import xarray

        table = super()._fill(values, index.rename(self.dims[0]))
        if self.dataset:
            return table.to_xarray()
        array = xarray.DataArray(table, dims=self.dims[: table.ndim], name=self.name)
        return array.transpose() if self.transposed else array


_Part = tuple[np.ndarray, tuple[str, ...], _TableFrame]


def _read_table(table: Any, where: str, request: Request) -> _Part:
    """Read a DataFrame or a Series of pandas; its index holds the times."""
    from kaffee.data.timeindex import read_index

    vector = table.ndim == 1
    if vector:
        table = table.to_frame("x1" if table.name is None else table.name)
    names = check_columns(list(table.columns), table.shape[1], where) if table.shape[1] else ()
    if request.wanted is not None and set(request.wanted) <= set(names):
        table, names = table.iloc[:, [names.index(name) for name in request.wanted]], request.wanted
    if 0 in table.shape:
        raise DataError(
            f"{where}: a table of shape {table.shape} is empty and holds no values. Give at least one row and column."
        )
    clock = read_index(table.index, where, frequency=request.frequency, infer=request.fitting)
    for name, dtype in zip(names, table.dtypes, strict=True):
        _check_numeric(name, dtype, where)
    return (
        table.to_numpy(dtype=np.float64, na_value=np.nan),
        names,
        _TableFrame(vector, clock=clock, columns=table.columns),
    )


def _check_numeric(name: str, dtype: Any, where: str) -> None:
    if getattr(dtype, "kind", "O") not in "iuf":
        raise DataError(
            f"{where}, column '{name}': values of type {dtype} are not numbers. Convert the column, as in "
            f"X['{name}'].astype(float) or pd.to_numeric, or leave it out: X.drop(columns='{name}')."
        )


def _read_labelled(array: Any, where: str, request: Request) -> _Part:
    """Read a DataArray over time and variable, or a Dataset of variables over time, by way of pandas."""
    if hasattr(array, "data_vars"):
        return _read_dataset(array, where, request)
    if array.ndim not in (1, 2):
        raise DataError(
            f"{where}: dimensions {array.dims}; give time and variable. Several recordings go in a list: "
            "[X.isel(recording=r) for r in range(...)]."
        )
    time = next((name for name in ("time", "t") if name in array.dims), array.dims[0])
    variable = next((name for name in array.dims if name != time), "variable")
    _check_numeric("variable", array.dtype, where)
    table = array.reset_coords(drop=True).transpose(time, ...).to_pandas()
    if array.ndim == 2 and variable not in array.indexes:
        table.columns = [f"x{n + 1}" for n in range(table.shape[1])]
    values, names, frame = _read_table(table, where, request)
    form = {"vector": frame.vector, "clock": frame.clock, "columns": frame.columns, "name": array.name}
    return values, names, _LabelledFrame(dims=(time, variable), transposed=array.dims[0] != time, **form)


def _read_dataset(dataset: Any, where: str, request: Request) -> _Part:
    wanted = request.wanted if set(request.wanted or ()) <= {str(name) for name in dataset.data_vars} else None
    given = [name for name in dataset.data_vars if wanted is None or str(name) in wanted]
    if not given:
        raise DataError(f"{where}: a Dataset without variables. Give at least one over time.")
    dims = {dataset[name].dims for name in given}
    if len(dims) > 1 or len(next(iter(dims))) != 1:
        listed = ", ".join(f"{name} {dataset[name].dims}" for name in given[:6])
        raise DataError(
            f"{where}: the variables must all be over time and nothing else, but are: {listed}. Select others, or make "
            "several recordings a list of Datasets."
        )
    table = dataset[given].reset_coords(drop=True).to_dataframe()
    values, names, frame = _read_table(table, where, request)
    time, *_ = next(iter(dims))
    form = {"clock": frame.clock, "columns": frame.columns, "dims": (time, "variable")}
    return values, names, _LabelledFrame(dataset=True, **form)


def _assemble(parts: Sequence[_Part], labels: Sequence[str], several: bool) -> Data:
    """Make one series of all recordings, which must have the same columns, and times or none."""
    names, frames = parts[0][1], tuple(frame for _, _, frame in parts)
    for part, label in zip(parts, labels, strict=True):
        if part[1] != names:
            raise DataError(f"{label}: columns {', '.join(part[1])}, but {', '.join(names)} in recording 0.")
    times: Any = [frame.clock.times for frame in frames if frame.clock.times is not None]
    frequency = frames[0].clock.frequency
    if len(times) not in (0, len(parts)) or any(frame.clock.frequency != frequency for frame in frames):
        raise DataError(
            f"{_NAME}: the indices of the recordings are of different kinds. Give all of them times, or dates of the "
            "same frequency, or none."
        )
    rows = [frame.clock.place(values) for values, _, frame in parts]
    series = Series.from_arrays(rows, columns=names, times=times or None, name=_NAME)
    return Data(series, frames, list if several else _unpack, frequency)
