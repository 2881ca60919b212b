"""Tables of pandas in, tables of pandas out."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.data.adapters.clock import Clock, pandas, read_index
from kaffee.data.adapters.frame import Data, Request, listed, only
from kaffee.data.series import Series
from kaffee.data.validation import check_columns
from kaffee.errors import DataError


@dataclass(frozen=True)
class TableFrame:
    """A DataFrame or a Series of pandas.

    Attributes:
        columns: As they came, also where they are not text.
        vector: Whether it was a Series.
    """

    clock: Clock
    columns: Any
    vector: bool = False

    def rows(self, bands: Any, levels: Sequence[float]) -> Any:
        """Columns `x_mean`, `x_std`, `x_q05`, ..."""
        return self._table(bands.table(levels), self.clock.labels(bands.times))

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        """Likewise, under the dates or numbers that come next."""
        assert forecast.times is not None
        return self._table(forecast.table(levels), self.clock.future(forecast.times, num_rows))

    def values(self, values: np.ndarray, times: np.ndarray | None) -> Any:
        """The columns of the table."""
        return self._filled(values, self.clock.labels(times))

    def free(self, values: np.ndarray, times: np.ndarray) -> Any:
        """Likewise, by the time that passed."""
        return self._filled(values, self.clock.elapsed(times))

    def _table(self, columns: dict[str, np.ndarray], index: Any) -> Any:
        return pandas().DataFrame(columns, index=index)

    def _filled(self, values: np.ndarray, index: Any) -> Any:
        if self.vector:
            return pandas().Series(values[:, 0], index=index, name=self.columns[0])
        return pandas().DataFrame(values, index=index, columns=self.columns)


def is_table(X: Any) -> bool:
    """Whether this is a DataFrame or a Series of pandas; without pandas nothing is."""
    pd = sys.modules.get("pandas")
    return pd is not None and isinstance(X, pd.DataFrame | pd.Series)


def read_tables(tables: Sequence[Any], several: bool, request: Request, where: str) -> Data:
    """Tables with a recording each; the index holds the times, see `read_index`."""
    labels = [f"{where}, recording {r}" if several else where for r in range(len(tables))]
    parts = [_read(table, request, label) for table, label in zip(tables, labels, strict=True)]
    return assembled([(values, names, frame, frame.clock) for values, names, frame in parts], several, labels, where)


def assembled(
    parts: Sequence[tuple[np.ndarray, tuple[str, ...], Any, Clock]], several: bool, labels: Sequence[str], where: str
) -> Data:
    """One series of all recordings, which must have the same columns, and times or none."""
    names, clocks = parts[0][1], [clock for *_, clock in parts]
    for part, label in zip(parts, labels, strict=True):
        if part[1] != names:
            raise DataError(f"{label}: columns {', '.join(part[1])}, but {', '.join(names)} in recording 0.")
    timed = [clock.times is not None for clock in clocks]
    if any(timed) != all(timed) or len({clock.frequency for clock in clocks}) > 1:
        raise DataError(
            f"{where}: the indices of the recordings are of different kinds. Give all of them times, or dates of the "
            "same frequency, or none."
        )
    times: Any = [clock.times for clock in clocks] if all(timed) else None
    values = [clock.place(values) for values, _, _, clock in parts]
    series = Series.from_arrays(values, columns=names, times=times, name=where)
    frames = tuple(frame for _, _, frame, _ in parts)
    return Data(series, frames, listed if several else only, clocks[0].frequency)


def _read(table: Any, request: Request, where: str) -> tuple[np.ndarray, tuple[str, ...], TableFrame]:
    vector = isinstance(table, pandas().Series)
    if vector:
        table = table.to_frame("x1" if table.name is None else table.name)
    names = check_columns(list(table.columns), table.shape[1], where) if table.shape[1] else ()
    if request.wanted is not None and set(request.wanted) <= set(names):
        table = table.iloc[:, [names.index(name) for name in request.wanted]]
        names = request.wanted
    if 0 in table.shape:
        raise DataError(f"{where}: a table of shape {table.shape} is empty. Give at least one row and one column.")
    clock = read_index(table.index, where, frequency=request.frequency, infer=request.fitting)
    for name, dtype in zip(names, table.dtypes, strict=True):
        check_numeric(name, dtype, where)
    values = table.to_numpy(dtype=np.float64, na_value=np.nan)
    return values, names, TableFrame(clock, table.columns, vector)


def check_numeric(name: str, dtype: Any, where: str) -> None:
    """Refuse columns that are not numbers, by name."""
    if getattr(dtype, "kind", "O") not in "iuf":
        raise DataError(
            f"{where}, column '{name}': values of type {dtype} are not numbers. Convert the column, as in "
            f"X['{name}'].astype(float) or pd.to_numeric, or leave it out: X.drop(columns='{name}')."
        )
