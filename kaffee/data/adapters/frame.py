"""What kinds of data have in common: they become a series, and results take their form again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

from kaffee.data.series import Series


class Frame(Protocol):
    """The form in which one recording came."""

    def rows(self, bands: Any, levels: Sequence[float]) -> Any:
        """Bands at the rows of the recording."""

    def ahead(self, forecast: Any, levels: Sequence[float], num_rows: int) -> Any:
        """A forecast of the steps after its last row; `num_rows` are the rows that it has, missing ones included."""

    def values(self, values: Float[np.ndarray, "T N"], times: np.ndarray | None) -> Any:
        """Numbers at the rows of the recording, in its own form."""

    def free(self, values: Float[np.ndarray, "T N"], times: np.ndarray) -> Any:
        """Numbers of a run that belongs to no date."""


def only(results: list[Any]) -> Any:
    """The one result of one recording."""
    return results[0]


def listed(results: list[Any]) -> Any:
    """A result for each recording."""
    return results


@dataclass(frozen=True)
class Data:
    """Recordings as a series, and the form in which they came.

    Attributes:
        series: What kaffee works on.
        frames: The form of each recording.
        join: Makes one result of those of all recordings: a list, unless there was one recording.
        frequency: Of their calendar, if they are on one; see `kaffee.data.adapters.clock`.
    """

    series: Series
    frames: tuple[Frame, ...]
    join: Callable[[list[Any]], Any]
    frequency: str | None = None


@dataclass(frozen=True)
class Request:
    """What is asked of the data.

    Attributes:
        times: Of arrays, which have none of their own.
        wanted: The columns of a model; others are left out if all of these are there.
        frequency: The calendar of the data that the model was fitted to.
        fitting: Whether a model is to be fitted, so that there is neither yet.
    """

    times: Any = None
    wanted: tuple[str, ...] | None = None
    frequency: str | None = None
    fitting: bool = False
