"""Data frames of users: arrays, pandas and xarray objects become series, and results take their form again."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kaffee.data.series import Series
from kaffee.data.timeaxis import NUMBERED, Origin
from kaffee.data.validation import Times, Values, check_columns
from kaffee.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

    from kaffee.data._timeindex import Clock

_NAME = "X"
"""What messages call the data."""


@dataclass(frozen=True)
class ArrayFrame:
    """The form of one recording, in which results are returned: here an array (T, N), or a vector (T,).

    Results are `kaffee.inference.results.Estimate`s. For arrays they stay estimates, which give any quantile later,
    with dates as times if they were dates; other forms hold the quantiles `levels`.
    """

    vector: bool = False
    dated: bool = False

    def rows(self, estimate: Any, levels: Sequence[float]) -> Any:
        """Return an estimate at the rows of the recording."""
        if estimate.times is not None and self.dated:
            micro = np.round(1e6 * estimate.times).astype(np.int64)
            estimate = replace(estimate, times=micro.astype("datetime64[us]"))
        return estimate.as_vector() if self.vector else estimate

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        """Return a forecast of the steps after the last of `num_rows` rows, missing ones included."""
        return self.rows(forecast, levels)

    def values(self, values: Values, times: Times | None) -> Any:
        """Return numbers at the rows of the recording, including those that its times leave out."""
        return values[:, 0] if self.vector else values

    def free(self, values: Values, times: Times) -> Any:
        """Return numbers of a run that belongs to no date."""
        return self.values(values, times)


@dataclass(frozen=True)
class _SeriesFrame(ArrayFrame):
    """A recording of a `kaffee.Series`; results are series with columns `x_mean`, `x_std`, `x_q05`, ..."""

    columns: tuple[str, ...] = ()
    origin: Origin = NUMBERED

    def rows(self, estimate: Any, levels: Sequence[float]) -> Series:
        table = estimate.table(levels)
        times = None if estimate.times is None else (estimate.times,)
        return Series((np.stack(list(table.values()), axis=1),), tuple(table), times, origin=self.origin)

    def values(self, values: Values, times: Times | None) -> Series:
        return Series((values,), self.columns, None if times is None else (times,), origin=self.origin)

    def free(self, values: Values, times: Times) -> Series:
        return replace(self, origin=NUMBERED).values(values, times)


@dataclass(frozen=True)
class Data:
    """Recordings as a series, and the form in which each of them came.

    Attributes:
        join: Makes one result of those of all recordings: a list, unless there was one recording.
        frequency: Of their calendar, if they are on one, see `kaffee.data._calendars`.
    """

    series: Series
    frames: tuple[ArrayFrame, ...]
    join: Callable[[list[Any]], Any]
    frequency: str | None = None

    def with_future(self, inputs: Any, wanted: tuple[str, ...]) -> "tuple[Data, Series | None]":
        """Return the data with their inputs, and those of the rows after them, as a forecast needs both.

        Data that come without inputs have theirs in the first rows of what is given.
        """
        given, series = read_inputs(inputs), self.series
        if given is None or series.inputs is not None or set(wanted) <= set(series.columns):
            return self, given
        cuts = list(zip(range(given.num_recordings), series.lengths, strict=False))
        if len(cuts) < series.num_recordings or any(given.lengths[r] < T for r, T in cuts):
            raise DataError(
                f"{series.label}: X has no inputs of its own, so that `inputs` needs the rows of X and then those of "
                f"the forecast, for each of {series.num_recordings} recordings; there are "
                f"{', '.join(map(str, given.lengths))} for {', '.join(map(str, series.lengths))} rows."
            )
        past = replace(given.take([(r, slice(0, T)) for r, T in cuts]), times=None)
        later = [(r, slice(T, None)) for r, T in cuts if given.lengths[r] > T]
        driven = replace(self, series=series.driven_by(past))
        return driven, given.take(later) if later else None


def read_data(
    X: Any,
    times: Any = None,
    wanted: tuple[str, ...] | None = None,
    frequency: str | None = None,
    *,
    fitting: bool = False,
    inputs: Any = None,
) -> Data:
    """Convert data of any kind to a series, and keep its form for results.

    Args:
        times: Of arrays, which have none of their own.
        wanted: The columns of a model; others are left out if all of these are there.
        frequency: The calendar of the data that the model was fitted to.
        fitting: Whether a model is to be fitted, so that a calendar may be inferred.
        inputs: Known inputs: names of columns of X, or data of any kind with a row for each row of X.
    """
    names = _input_names(inputs)
    data = _read_form(X, times, wanted and (*wanted, *names), frequency, fitting)
    if names and (fitting or set(names) <= set(data.series.columns)):
        return _take_inputs(data, names)
    if inputs is None or names:
        return data
    given = read_inputs(inputs, times, frequency, fitting=fitting)
    return replace(data, series=data.series.driven_by(given))


def read_inputs(
    inputs: Any, times: Any = None, frequency: str | None = None, *, fitting: bool = False
) -> Series | None:
    """Read inputs of any kind; those without names are called u1, u2, ...; None stays None."""
    if inputs is None:
        return None
    bare = hasattr(inputs, "index") or isinstance(inputs, Series)  # has times of its own
    given = _read_form(inputs, None if bare else times, None, frequency, fitting).series
    if given.columns == check_columns(None, given.num_coordinates, "inputs"):
        given = replace(given, columns=tuple(f"u{k + 1}" for k in range(given.num_coordinates)))
    return given


def _input_names(inputs: Any) -> tuple[str, ...]:
    """Return the names of columns, if that is what was given for inputs."""
    listed = [inputs] if isinstance(inputs, str) else inputs
    named = isinstance(listed, list | tuple) and bool(listed) and all(isinstance(each, str) for each in listed)
    return tuple(listed) if named else ()


def _take_inputs(data: Data, names: tuple[str, ...]) -> Data:
    """Take columns of the data for inputs; results have the form of the others."""
    series = data.series.with_inputs(names)
    kept = [j for j, name in enumerate(data.series.columns) if name not in names]

    def without(frame: Any) -> Any:
        columns = getattr(frame, "columns", None)
        if columns is None or len(columns) != data.series.num_coordinates:
            return frame
        return replace(frame, columns=tuple(columns[j] for j in kept) if isinstance(columns, tuple) else columns[kept])

    return replace(data, series=series, frames=tuple(map(without, data.frames)))


def _read_form(X: Any, times: Any, wanted: tuple[str, ...] | None, frequency: str | None, fitting: bool) -> Data:
    """Read data as `read_data` does, without inputs."""
    if isinstance(X, str | os.PathLike):
        raise DataError(f"{_NAME} is a path. Read the file first: kaffee.read_series({str(X)!r}).")
    if isinstance(X, Series):
        if times is not None:
            raise ConfigError("times= is for arrays; a Series has its own. Leave it out.")
        own = _SeriesFrame(columns=wanted if wanted and set(wanted) <= set(X.columns) else X.columns, origin=X.origin)
        return Data(X, (own,) * X.num_recordings, _concatenate, X.frequency)
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
        if times is not None:
            raise ConfigError("times= is for arrays. Make the times the index of the table, or its time coordinate.")
        labels = [f"{_NAME}, recording {r}" if several else _NAME for r in range(len(items))]
        read = _read_table if library == "pandas" else _read_labelled
        parts = [read(item, label, wanted, frequency, fitting) for item, label in zip(items, labels, strict=True)]
        return _assemble(parts, labels, several)
    series = Series.from_arrays(X, times=times, name=_NAME)
    dimensions = 3 if several and any(isinstance(item, np.ndarray) for item in items) else np.ndim(X)
    first = times[0] if isinstance(times, list | tuple) and times else times
    frame = ArrayFrame(dimensions == 1, times is not None and np.asarray(first).dtype.kind == "M")
    return Data(series, (frame,) * series.num_recordings, list if dimensions == 3 else itemgetter(0))


def _concatenate(results: list[Series]) -> Series:
    first = results[0]
    times = None if first.times is None else tuple(t for part in results for t in part.times or ())
    return replace(first, recordings=tuple(values for part in results for values in part.recordings), times=times)


@dataclass(frozen=True)
class _TableFrame(ArrayFrame):
    """A DataFrame of pandas, or a Series; results are tables with columns `x_mean`, `x_std`, `x_q05`, ..."""

    clock: "Clock" = field(kw_only=True)
    columns: "pd.Index" = field(kw_only=True)

    def rows(self, estimate: Any, levels: Sequence[float]) -> Any:
        return self._show(estimate, levels, self.clock.labels(estimate.times))

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        return self._show(forecast, levels, self.clock.future(forecast.times, num_rows))

    def values(self, values: Values, times: Times | None) -> Any:
        return self._fill(values, self.clock.labels(times))

    def free(self, values: Values, times: Times) -> Any:
        return self._fill(values, self.clock.elapsed(times))

    def _show(self, estimate: Any, levels: Sequence[float], index: "pd.Index") -> Any:
        import pandas as pd

        return pd.DataFrame(estimate.table(levels), index=index)

    def _fill(self, values: Values, index: "pd.Index") -> Any:
        import pandas as pd

        table = pd.DataFrame(values, index=index, columns=self.columns)
        return table.iloc[:, 0] if self.vector else table


@dataclass(frozen=True)
class _LabelledFrame(_TableFrame):
    """A DataArray or a Dataset of xarray; results are Datasets of `mean`, `std`, `q05`, ... over time and variable.

    `dims` are the dimensions of time and variable, `transposed` if the variables came first; `name` is a DataArray's.
    """

    dims: tuple[str, str] = ("time", "variable")
    dataset: bool = False
    transposed: bool = False
    name: Any = None

    def _show(self, estimate: Any, levels: Sequence[float], index: "pd.Index") -> Any:
        import xarray

        flat, dims = (estimate.as_vector(), self.dims[:1]) if self.vector else (estimate, self.dims)
        variables: dict[str, Any] = {name: (dims, values) for name, values in flat.variables(levels).items()}
        variables |= {name: (self.dims[:1], values) for name, values in estimate.row_variables().items()}
        return xarray.Dataset(variables, coords=dict(zip(dims, (index, self.columns), strict=False)))

    def _fill(self, values: Values, index: "pd.Index") -> Any:
        import xarray

        table = super()._fill(values, index.rename(self.dims[0]))
        if self.dataset:
            return table.to_xarray()
        array = xarray.DataArray(table, dims=self.dims[: table.ndim], name=self.name)
        return array.transpose() if self.transposed else array


_Part = tuple[Values, tuple[str, ...], _TableFrame]


def _read_table(table: Any, where: str, wanted: tuple[str, ...] | None, frequency: str | None, fitting: bool) -> _Part:
    """Read a DataFrame or a Series of pandas; its index holds the times."""
    from kaffee.data._timeindex import read_index

    vector = table.ndim == 1
    if vector:
        table = table.to_frame("x1" if table.name is None else table.name)
    names = check_columns(list(table.columns), table.shape[1], where) if table.shape[1] else ()
    if wanted is not None and set(wanted) <= set(names):
        table, names = table.iloc[:, [names.index(name) for name in wanted]], wanted
    if 0 in table.shape:
        raise DataError(
            f"{where}: a table of shape {table.shape} is empty and holds no values. Give at least one row and column."
        )
    clock = read_index(table.index, where, frequency=frequency, infer=fitting)
    for name, dtype in zip(names, table.dtypes, strict=True):
        _check_numeric(name, dtype, where)
    values = table.to_numpy(dtype=np.float64, na_value=np.nan)
    return values, names, _TableFrame(vector, clock=clock, columns=table.columns)


def _check_numeric(name: str, dtype: Any, where: str) -> None:
    if getattr(dtype, "kind", "O") not in "iuf":
        raise DataError(
            f"{where}, column '{name}': values of type {dtype} are not numbers. Convert the column, as in "
            f"X['{name}'].astype(float) or pd.to_numeric, or leave it out: X.drop(columns='{name}')."
        )


def _read_labelled(X: Any, where: str, wanted: tuple[str, ...] | None, frequency: str | None, fitting: bool) -> _Part:
    """Read a DataArray over time and variable, or a Dataset of variables over time, by way of pandas."""
    form: dict[str, Any]
    if hasattr(X, "data_vars"):
        table = _read_dataset(X, where, wanted)
        form = {"dims": (table.index.name, "variable"), "dataset": True}
    else:
        if X.ndim not in (1, 2):
            raise DataError(
                f"{where}: dimensions {X.dims}; give time and variable. Several recordings go in a list: "
                "[X.isel(recording=r) for r in range(...)]."
            )
        time = next((name for name in ("time", "t") if name in X.dims), X.dims[0])
        variable = next((name for name in X.dims if name != time), "variable")
        _check_numeric("variable", X.dtype, where)
        table = X.reset_coords(drop=True).transpose(time, ...).to_pandas()
        if X.ndim == 2 and variable not in X.indexes:
            table.columns = [f"x{n + 1}" for n in range(table.shape[1])]
        form = {"dims": (time, variable), "transposed": X.dims[0] != time, "name": X.name}
    values, names, frame = _read_table(table, where, wanted, frequency, fitting)
    return values, names, _LabelledFrame(frame.vector, clock=frame.clock, columns=frame.columns, **form)


def _read_dataset(dataset: Any, where: str, wanted: tuple[str, ...] | None) -> "pd.DataFrame":
    names = [str(name) for name in dataset.data_vars]
    chosen = wanted if wanted and set(wanted) <= set(names) else names
    given = [name for name in dataset.data_vars if str(name) in chosen]
    if not given:
        raise DataError(f"{where}: a Dataset without variables. Give at least one over time.")
    dims = {dataset[name].dims for name in given}
    if len(dims) > 1 or len(next(iter(dims))) != 1:
        listed = ", ".join(f"{name} {dataset[name].dims}" for name in given[:6])
        raise DataError(
            f"{where}: the variables must all be over time and nothing else, but are: {listed}. Select others, or make "
            "several recordings a list of Datasets."
        )
    return dataset[given].reset_coords(drop=True).to_dataframe()


def _assemble(parts: Sequence[_Part], labels: Sequence[str], several: bool) -> Data:
    """Make one series of all recordings, which must have the same columns, and times or none."""
    names, frames = parts[0][1], tuple(frame for _, _, frame in parts)
    for part, label in zip(parts, labels, strict=True):
        if part[1] != names:
            raise DataError(f"{label}: columns {', '.join(part[1])}, but {', '.join(names)} in recording 0.")
    placed = [frame.clock.place(values) for values, _, frame in parts]
    times: Any = [axis for axis, _ in placed if axis is not None]
    frequency = frames[0].clock.frequency
    if len(times) not in (0, len(parts)) or any(frame.clock.frequency != frequency for frame in frames):
        raise DataError(
            f"{_NAME}: the indices of the recordings are of different kinds. Give all of them times, or dates of the "
            "same frequency, or none."
        )
    series = Series.from_arrays([rows for _, rows in placed], columns=names, times=times or None, name=_NAME)
    return Data(series, frames, list if several else itemgetter(0), frequency)
