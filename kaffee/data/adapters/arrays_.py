"""Arrays in, arrays out; and kaffee's own series."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kaffee.data.adapters.frame import Data, Request, listed, only
from kaffee.data.series import Series
from kaffee.errors import ConfigError


@dataclass(frozen=True)
class ArrayFrame:
    """An array (T, N), or a vector (T,)."""

    vector: bool = False
    dated: bool = False

    def rows(self, bands: Any, levels: Sequence[float]) -> Any:
        """The bands themselves; any quantile can be asked for later."""
        bands = replace(bands, times=self._times(bands.times))
        return bands.as_vector() if self.vector else bands

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        """The forecast itself, members and all."""
        return self.rows(forecast, levels)

    def values(self, values: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        """An array of the same shape, or longer by the rows that its times leave out."""
        return values[:, 0] if self.vector else values

    def free(self, values: np.ndarray, times: np.ndarray) -> np.ndarray:
        """An array."""
        return self.values(values, times)

    def _times(self, times: np.ndarray | None) -> np.ndarray | None:
        if times is None or not self.dated:
            return times
        return np.round(1e6 * times).astype(np.int64).astype("datetime64[us]")


def read_arrays(X: Any, request: Request, where: str) -> Data:
    """(T,), (T, N), (R, T, N), or a list of (T_i, N)."""
    series = Series.from_arrays(X, times=request.times, name=where)
    vector = not _is_list_of_arrays(X) and np.ndim(X) == 1
    dated = request.times is not None and _first_kind(request.times) == "M"
    several = _is_list_of_arrays(X) or np.ndim(X) == 3
    frames = (ArrayFrame(vector, dated),) * series.num_recordings
    return Data(series, frames, listed if several else only)


def _is_list_of_arrays(X: Any) -> bool:
    return isinstance(X, list | tuple) and any(isinstance(item, np.ndarray) for item in X)


def _first_kind(times: Any) -> str:
    first = times[0] if isinstance(times, list | tuple) and len(times) else times
    return np.asarray(first).dtype.kind


@dataclass(frozen=True)
class SeriesFrame:
    """A recording of a `kaffee.Series`; results are series whose columns say what they are."""

    columns: tuple[str, ...]

    def rows(self, bands: Any, levels: Sequence[float]) -> Series:
        """Columns `x_mean`, `x_std`, `x_q05`, ..."""
        table = bands.table(levels)
        times = None if bands.times is None else (bands.times,)
        return Series((np.stack(list(table.values()), axis=1),), tuple(table), times)

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Series:
        """Likewise."""
        return self.rows(forecast, levels)

    def values(self, values: np.ndarray, times: np.ndarray | None) -> Series:
        """The columns of the series."""
        return Series((values,), self.columns, None if times is None else (times,))

    def free(self, values: np.ndarray, times: np.ndarray) -> Series:
        """Likewise."""
        return self.values(values, times)


def read_own(X: Series, request: Request, where: str) -> Data:
    """A series as it is."""
    if request.times is not None:
        raise ConfigError("times= is for arrays; a Series has its own. Leave it out.")
    wanted = request.wanted or X.columns
    frame = SeriesFrame(wanted if set(wanted) <= set(X.columns) else X.columns)
    return Data(X, (frame,) * X.num_recordings, _together)


def _together(results: list[Series]) -> Series:
    first = results[0]
    times = None if first.times is None else tuple(t for part in results for t in part.times or ())
    return replace(first, recordings=tuple(values for part in results for values in part.recordings), times=times)
