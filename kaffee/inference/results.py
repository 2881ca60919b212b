"""Results of inference in data units: named arrays over the rows of a recording, as table, series or frame."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import betaincinv, ndtri

from kaffee.data.scaler import GAUSSIAN, Scaler
from kaffee.data.series import Series
from kaffee.data.timeaxis import NUMBERED, Origin
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.gated import Row
from kaffee.filtering.recursion import QUANTITIES

BAND: tuple[float, ...] = (0.05, 0.95)  # quantile levels
FORECAST_LEVELS: tuple[float, ...] = (0.05, 0.5, 0.95)
_PREDICTED = ("predicted_mean", "predicted_std")
_PER_ROW = ("log_likelihood", "nis")
_PER_COORDINATE = ("values", "mean", "std", "reading_std", *_PREDICTED, "accepted", "rejected", "members", "point")


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Check quantile levels and return each once, in order."""
    bad = [level for level in levels if not 0.0 < level < 1.0]
    if bad:
        raise ConfigError(f"A quantile level lies between 0 and 1, as in 0.05; not {bad[0]:g}.")
    return tuple(sorted(set(levels)))


def quantile_name(level: float) -> str:
    """Name the columns of a quantile.

    >>> quantile_name(0.05), quantile_name(0.5), quantile_name(0.025)
    ('q05', 'q50', 'q025')
    """
    return "q" + f"{level:.10f}"[2:].rstrip("0").ljust(2, "0")


def _float64(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


_IN_DATA_UNITS: dict[str, Callable[[Row, Scaler], np.ndarray]] = {
    "mean": lambda row, scaler: scaler.signal_moments(_float64(row.signal_mean), _float64(row.signal_std))[0],
    "std": lambda row, scaler: scaler.signal_moments(_float64(row.signal_mean), _float64(row.signal_std))[1],
    "predicted_mean": lambda row, scaler: scaler.reading_moments(_float64(row.reading_mean), _float64(row.reading_std))[
        0
    ],
    "predicted_std": lambda row, scaler: scaler.reading_moments(_float64(row.reading_mean), _float64(row.reading_std))[
        1
    ],
    "state_mean": lambda row, _: _float64(row.state_mean),
    "state_std": lambda row, _: _float64(row.state_std),
    "predicted_state_mean": lambda row, _: _float64(row.predicted_state_mean),
    "predicted_state_std": lambda row, _: _float64(row.predicted_state_std),
    # log p_data(x) = log p_standard((x - mean) / scale) - sum log scale
    "log_likelihood": lambda row, scaler: 0.0 - _float64(row.nll) - np.asarray(row.accepted, bool) @ scaler.log_scale,
    "nis": lambda row, _: _float64(row.nis),
    "accepted": lambda row, _: np.asarray(row.accepted, bool),
    "rejected": lambda row, _: np.asarray(row.rejected, bool),
    "restarted": lambda row, _: np.asarray(row.restarted, bool),
    "faults": lambda row, _: np.asarray(row.fault, np.int32),
}
_WEIGHTED = {"effective_particles": lambda row, _: _float64(row.effective)}


class RowArrays(Mapping[str, np.ndarray]):
    """The arrays of filtered rows, converted when they are first read: an online filter pays for no others."""

    def __init__(self, row: Row, scaler: Scaler) -> None:
        self._row, self._scaler = row, scaler
        self._known = _IN_DATA_UNITS if row.effective is None else _IN_DATA_UNITS | _WEIGHTED
        self._converted: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._converted:
            self._converted[name] = self._known[name](self._row, self._scaler)
        return self._converted[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(frozen=True, eq=False, repr=False)
class Estimate:
    """What is known at every row of a recording, or at one row: arrays (T, N) or (N,), in data units.

    Arrays are attributes, such as `estimate.mean`; which of them there are depends on the operation.

    Attributes:
        times: Of the rows; None if they are only counted.
        mean, std: Of the signal B z given all readings up to the row (filter) or of the recording (smooth), without
            observation noise; of the ensemble (forecast).
        reading_std: Of a reading of the signal, observation noise included (smooth).
        predicted_mean, predicted_std: Of the reading given those before it, noise included (filter).
        values: The readings with their gaps filled (impute); the observations of a free run (simulate).
        point: The most likely trajectory: the model's own from the last belief's mean, without noise (forecast).
        members: (K, T, N), NaN from where one left the attractor (forecast).
        state_mean, state_std, predicted_state_mean, predicted_state_std, states: Of the latent state, standardised.
        log_likelihood: log p of the accepted entries of a row given all earlier ones; NaN at a (re)start of a model
            without a climate, which does not predict it.
        nis: v' Omega^-1 v: chi-square with as many degrees of freedom as entries were accepted, if all is well.
        accepted, rejected: Which entries were used, and which were read but not believed.
        restarted: Whether the belief starts again: at the first row, and after it was lost.
        effective_particles: How many particles count after the row, 1 / sum w^2 (particle filters only).
        faults: What was not finite before a restart, an index in `recursion.QUANTITIES`; 0 if all was.
    """

    columns: tuple[str, ...]
    times: np.ndarray | None
    arrays: Mapping[str, np.ndarray]
    likelihood: str = GAUSSIAN

    def __getattr__(self, name: str) -> np.ndarray:
        arrays = self.__dict__.get("arrays", {})
        try:
            return arrays[name]
        except KeyError:
            raise AttributeError(f"This estimate has no '{name}', only {', '.join(arrays)}.") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.arrays]

    @property
    def fault(self) -> str:
        """The first quantity that was not finite, in words; empty if there is none."""
        faults = self.faults.ravel()
        return QUANTITIES[int(faults[np.argmax(faults > 0)])] if faults.size else ""

    def quantile(self, level: float) -> Float[np.ndarray, "T N"]:
        """Compute a quantile: of the members if there are any, else of a normal distribution.

        Of a rate of counts it is that of the lognormal distribution, of a probability that of the beta distribution
        with this mean and standard deviation.
        """
        check_levels([level])
        if "members" in self.arrays:
            return np.nanquantile(self.members, level, axis=0)
        mean = self.arrays["values" if "values" in self.arrays else "mean"]
        if self.likelihood == GAUSSIAN or "values" in self.arrays:
            return mean + ndtri(level) * self.std
        if self.likelihood == "poisson":
            width = np.sqrt(np.log1p((self.std / mean) ** 2))
            return mean * np.exp(width * ndtri(level) - 0.5 * width**2)
        size = np.maximum(mean * (1.0 - mean) / np.maximum(self.std, 1e-12) ** 2 - 1.0, 1e-9)
        return betaincinv(mean * size, (1.0 - mean) * size, level)

    def variables(self, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """Collect everything that a table has for every coordinate: mean, std, q05, ..."""
        known = {name: self.arrays[name] for name in ("values", "point", "mean", "std") if name in self.arrays}
        if "std" in known:
            known |= {quantile_name(level): self.quantile(level) for level in check_levels(levels)}
        return known | {name: self.arrays[name] for name in _PREDICTED if name in self.arrays}

    def row_variables(self) -> dict[str, np.ndarray]:
        """Collect everything that a table has once for every row."""
        return {name: self.arrays[name] for name in _PER_ROW if name in self.arrays}

    def table(self, levels: Sequence[float] = (), *, latent: bool = False) -> dict[str, Float[np.ndarray, " T"]]:
        """Name the columns of a table: `x` of values, `x_mean`, `x_std`, `x_q05`, ..., `log_likelihood`, `nis`.

        With `latent` also those of the latent states, `z1_mean`, `z1_std`, ...
        """
        variables = self.variables(levels)
        groups = [
            {"": variables.pop("values")} if "values" in variables else {},
            {name: variables[name] for name in variables if name not in _PREDICTED},
            {name: variables[name] for name in _PREDICTED if name in variables},
        ]
        tables = [_name_columns(self.columns, group) for group in groups]
        if latent:
            states = [f"z{m + 1}" for m in range(self.state_mean.shape[1])]
            for names in (("state_mean", "state_std"), ("predicted_state_mean", "predicted_state_std")):
                group = {name.replace("state_", ""): self.arrays[name] for name in names if name in self.arrays}
                tables.append(_name_columns(states, group))
        return _join([*tables, self.row_variables()])

    def to_frame(self, levels: Sequence[float] = BAND) -> Any:
        """Make a pandas DataFrame of the table, with the times as its index."""
        from pandas import DataFrame, Index

        return DataFrame(self.table(levels), index=None if self.times is None else Index(self.times, name="t"))

    def to_xarray(self, times: Any = None) -> Any:
        """Make an xarray Dataset: means, spreads and values over (time, variable), states over (time, state), rows over
        (time), members over (member, time, variable).

        Args:
            times: Labels of the rows instead of numbers, such as dates.
        """
        from xarray import Dataset

        labels = self.times if times is None else times
        variables: dict[str, Any] = {}
        for name, array in self.arrays.items():
            dims = (
                ("time", "variable") if name in _PER_COORDINATE else ("time", "state") if "state" in name else ("time",)
            )
            variables[name] = (("member", *dims) if name == "members" else dims, np.asarray(array))
        coords = {"variable": list(self.columns)} | ({} if labels is None else {"time": labels})
        return Dataset(variables, coords=coords)

    def as_vector(self) -> "Estimate":
        """Drop the axis of the coordinates, of which there is one."""
        arrays = self.arrays
        return replace(self, arrays={n: arrays[n][..., 0] if n in _PER_COORDINATE else arrays[n] for n in arrays})

    def at(self, rows: Int[np.ndarray, " K"]) -> "Estimate":
        """Pick some rows of a filtered recording."""
        times = None if self.times is None else self.times[rows]
        return replace(self, times=times, arrays={name: array[rows] for name, array in self.arrays.items()})

    def __repr__(self) -> str:
        return f"Estimate({', '.join(self.columns)}; shape {next(iter(self.variables(()).values())).shape})"


@dataclass(frozen=True, eq=False)
class Estimates(Sequence[Estimate]):
    """The estimates of all recordings, what was done (`kind`, such as "filtered"), and a summary of it (`facts`)."""

    estimates: tuple[Estimate, ...]
    kind: str
    facts: Mapping[str, Any]
    title: str = ""
    origin: Origin = NUMBERED

    def __getitem__(self, recording: Any) -> Any:
        return self.estimates[recording]

    def __len__(self) -> int:
        return len(self.estimates)

    def describe(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return dict(self.facts)

    def to_series(self, levels: Sequence[float] | None = None, *, latent: bool = False) -> Series:
        """Make the table that the command line writes (`Estimate.table`), by default with a 90 % band."""
        tables = [estimate.table(self._levels(levels), latent=latent) for estimate in self.estimates]
        recordings = [np.stack(list(table.values()), axis=1) for table in tables]
        return self._series(recordings, tuple(tables[0]), f"{self.title} {self.kind}".strip())

    def to_frame(self, levels: Sequence[float] | None = None) -> Any:
        """Make a pandas DataFrame of the table; several recordings are the first level of its index."""
        from pandas import Index, concat

        frames = [estimate.to_frame(self._levels(levels)) for estimate in self.estimates]
        dates = self.origin.dates
        if dates is not None and dates.calendar is not None:
            axes = [Index(dates.stamps(frame.index.to_numpy()), name=self.origin.time) for frame in frames]
            frames = [frame.set_axis(axis) for frame, axis in zip(frames, axes, strict=True)]
        return frames[0] if len(frames) == 1 else concat(dict(enumerate(frames)), names=["recording"])

    def to_xarray(self) -> Any:
        """Make an xarray Dataset (`Estimate.to_xarray`); several recordings are a dimension, NaN beyond their rows."""
        from xarray import concat

        dates = self.origin.dates
        labels = [None if dates is None or each.times is None else dates.stamps(each.times) for each in self.estimates]
        parts = [
            each.to_xarray(label if label is None else label.tz_localize(None))
            for each, label in zip(self.estimates, labels, strict=True)
        ]
        whole = parts[0] if len(parts) == 1 else concat(parts, "recording", join="outer", fill_value=np.nan)
        return whole.assign_attrs(kind=self.kind, title=self.title)

    @property
    def filled(self) -> Series:
        """The values as a series: recordings with their gaps filled, or free runs."""
        return self._series([estimate.values for estimate in self.estimates], self.estimates[0].columns, self.title)

    def _levels(self, levels: Sequence[float] | None) -> Sequence[float]:
        return (FORECAST_LEVELS if self.kind == "forecast" else BAND) if levels is None else levels

    def _series(self, recordings: Sequence[np.ndarray], columns: tuple[str, ...], name: str) -> Series:
        times = [estimate.times for estimate in self.estimates if estimate.times is not None]
        return Series(tuple(recordings), columns, tuple(times) or None, name, origin=self.origin)


def _name_columns(names: Sequence[str], variables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    pairs = ((n, name, kind) for n, name in enumerate(names) for kind in variables)
    return {f"{name}_{kind}" if kind else name: variables[kind][:, n] for n, name, kind in pairs}


def _join(tables: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Put tables side by side; a name that two of them need is an error."""
    columns: dict[str, np.ndarray] = {}
    for table in tables:
        for name in sorted(set(columns) & set(table)):
            raise DataError(f"The column '{name}' of the result would be there twice. Rename the one of the recording.")
        columns |= table
    return columns
