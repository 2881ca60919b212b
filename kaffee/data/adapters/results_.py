"""What inference says of one recording, as NumPy arrays; tables and labelled arrays are made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from kaffee.data.columns import check_levels, joined, quantile_name


@dataclass(frozen=True, eq=False, repr=False)
class Bands:
    """A mean and a spread at every row of a recording, in data units.

    Attributes:
        columns: Names of the coordinates.
        times: Of the rows; None if they are only counted.
        mean, std: (T, N); (T,) for a recording that came as a vector.
    """

    columns: tuple[str, ...]
    times: np.ndarray | None
    mean: Float[np.ndarray, "T N"]
    std: Float[np.ndarray, "T N"]

    # Fields beside mean and std: of every coordinate, and of every row.
    per_coordinate: ClassVar[tuple[str, ...]] = ()
    per_row: ClassVar[tuple[str, ...]] = ()

    def quantile(self, level: float) -> Float[np.ndarray, "T N"]:
        """Of a normal distribution with this mean and spread."""
        check_levels([level])
        return self.mean + ndtri(level) * self.std

    def variables(self, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """Everything that has a value for every coordinate, by name: mean, std, q05, ..."""
        bands = {quantile_name(level): self.quantile(level) for level in check_levels(levels)}
        return {
            "mean": self.mean,
            "std": self.std,
            **bands,
            **{name: getattr(self, name) for name in self.per_coordinate},
        }

    def row_variables(self) -> dict[str, np.ndarray]:
        """Everything that has one value for every row."""
        return {name: getattr(self, name) for name in self.per_row}

    def table(self, levels: Sequence[float]) -> dict[str, Float[np.ndarray, " T"]]:
        """The columns of a table, as `kaffee filter` and its like write them: `x_mean`, `x_std`, `x_q05`, ..."""
        found = self.variables(levels)
        later = {name: found.pop(name) for name in self.per_coordinate}
        return joined(*(_side_by_side(self.columns, part) for part in (found, later)), self.row_variables())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.mean)} steps of {', '.join(self.columns)})"

    def as_vector(self) -> Self:
        """Without the axis of the coordinates, of which there is one."""
        arrays: dict[str, Any] = {
            field.name: value[..., 0]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray) and field.name not in ("times", *self.per_row)
        }
        return replace(self, **arrays)


@dataclass(frozen=True, eq=False, repr=False)
class FilteredBands(Bands):
    """What a filter knew at every row: `mean` and `std` of the signal given all readings up to it.

    Attributes:
        predicted_mean, predicted_std: Of the reading given those before it, noise included; NaN at the first row.
        log_likelihood: Of the row, in data units.
        nis: v' Omega^-1 v, chi-square with as many degrees of freedom as entries were read, if all is well.
    """

    predicted_mean: Float[np.ndarray, "T N"]
    predicted_std: Float[np.ndarray, "T N"]
    log_likelihood: Float[np.ndarray, " T"]
    nis: Float[np.ndarray, " T"]

    per_coordinate: ClassVar[tuple[str, ...]] = ("predicted_mean", "predicted_std")
    per_row: ClassVar[tuple[str, ...]] = ("log_likelihood", "nis")


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Bands):
    """An ensemble of futures; mean, spread and quantiles are those of its members.

    Attributes:
        members: (K, H, N), NaN from where one left the attractor; (K, H) for a recording that came as a vector.
    """

    members: Float[np.ndarray, "K H N"]

    @classmethod
    def of(cls, columns: tuple[str, ...], times: np.ndarray, members: Float[np.ndarray, "K H N"]) -> "Forecast":
        """The forecast of one recording from its members."""
        mean, std = np.nanmean(members, axis=0), np.nanstd(members, axis=0, ddof=1)
        return cls(columns, times, mean, std, members)

    @property
    def num_diverged(self) -> int:
        """Members that left the attractor."""
        return int(np.isnan(self.members).reshape(len(self.members), -1).any(axis=1).sum())

    def quantile(self, level: float) -> Float[np.ndarray, "H N"]:
        """Of the members."""
        check_levels([level])
        return np.nanquantile(self.members, level, axis=0)


def _side_by_side(columns: Sequence[str], variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {f"{name}_{kind}": values[:, n] for n, name in enumerate(columns) for kind, values in variables.items()}
