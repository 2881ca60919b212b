"""Free runs in three coordinates, side by side, which the reader turns together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.errors import DataError
from kaffee.report.interactive.embed import plain
from kaffee.report.interactive.styles import Styles


@dataclass(frozen=True, eq=False)
class Attractor:
    """Trajectories of a system and its reconstructions, one panel each, on the scale of the first.

    Which three coordinates are shown is the reader's choice. With fewer than three, later values of the same
    coordinates take the place of the others: a delay plot.

    Attributes:
        caption: One sentence on what to see.
        trajectories: Arrays (T, N) by name; the first is the reference. Missing values leave gaps.
        columns: Names of the N coordinates.
        num_points: Rows of each trajectory that go into the page, from its start.
        num_values: Numbers of all trajectories that go into the page; many coordinates: fewer rows.
        delay: Steps between the axes of a delay plot; None: until the reference's autocorrelation falls below 1/e.
    """

    title: str
    caption: str
    trajectories: Mapping[str, Any]
    columns: Sequence[str]
    num_points: int = 6000
    num_values: int = 120_000
    delay: int | None = None

    def to_data(self) -> dict[str, Any]:
        runs = {str(name): self._checked(name, values) for name, values in self.trajectories.items()}
        if not runs:
            raise DataError(f"The attractor '{self.title}' has no trajectory. Give one, or leave the figure out.")
        shown = max(min(self.num_points, self.num_values // (len(runs) * len(self.columns))), 1)
        styles = Styles()
        # Five digits: a thousandth of a pixel.
        drawn = [
            {"name": name, "colour": styles.colour(name), "values": [plain(column, 5) for column in values[:shown].T]}
            for name, values in runs.items()
        ]
        reference = next(iter(runs.values()))
        delay = decorrelation(reference[:, 0]) if self.delay is None else self.delay
        columns = [str(column) for column in self.columns]
        return {"kind": "attractor", "columns": columns, "delay": max(int(delay), 1), "trajectories": drawn}

    def _checked(self, name: str, values: Any) -> np.ndarray:
        array = np.asarray(values, np.float64)
        if array.ndim != 2 or array.shape[1] != len(self.columns) or not len(self.columns):
            raise DataError(
                f"The trajectory '{name}' has shape {array.shape}; give (steps, {len(self.columns)}), "
                "one column for each coordinate."
            )
        return array


def decorrelation(values: np.ndarray) -> int:
    """Steps until the autocorrelation of a signal falls below 1/e; missing values count as the mean.

    >>> decorrelation(np.sin(np.arange(1000) / 20))
    25
    """
    values = values[:20_000]
    finite = np.isfinite(values)
    if finite.sum() < 3:
        return 1
    # Scaled first: a run that diverged must not overflow.
    scale = np.abs(values[finite]).max() or 1.0
    centred = np.where(finite, values, 0.0) / scale
    centred = np.where(finite, centred - centred[finite].mean(), 0.0)
    power = np.abs(np.fft.rfft(centred, 2 * len(centred))) ** 2
    correlation = np.fft.irfft(power)[: len(centred) // 4 + 1]
    below = np.flatnonzero(correlation < correlation[0] / np.e)
    return int(below[0]) if below.size else 1
