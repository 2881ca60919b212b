"""Free runs that stay in a part of the attractor: core collapse, seen without the true system."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float

STILL = 0.01
"""Share of the variance of the quietest piece of data below which a run is at rest: a tenth of its deviations."""
FAINT, ROUGH = 0.25, 0.5
"""Data are at rest where their variance is this share of the whole, and that of their steps, halved, this of it."""
ROUNDING = 1e-12
"""Variance that is no movement in float32."""


class Extent(NamedTuple):
    """How far apart pieces of data of one length are, and how much the quietest of them varies.

    Attributes:
        farthest: D_stsp of the piece that is farthest from the reference.
        unit: Variance of all data, by coordinate.
        quietest: Variance of the quietest piece in this unit, the mean over coordinates; 0 where data are at rest.
    """

    farthest: float
    unit: Float[np.ndarray, " N"]
    quietest: float

    @classmethod
    def of(
        cls, distances: Float[np.ndarray, " P"], recordings: Sequence[Float[np.ndarray, "T N"]], length: int
    ) -> Self:
        """Of pieces whose D_stsp is known, and of all overlapping ones for their variance.

        Args:
            recordings: Complete rows of coordinates that vary.
            length: Of a piece; where no recording is as long, all rows are one piece.
        """
        rows = np.concatenate(recordings)
        unit = rows.var(axis=0)
        found = [part for values in recordings for part in _overlapping(values, length)] or [rows]
        return cls(max(distances, default=0.0), unit, min(_activity(part, unit) for part in found))

    def trapped(
        self, distances: Float[np.ndarray, " S"], runs: Sequence[Float[np.ndarray, "L N"]] | Float[np.ndarray, "S L N"]
    ) -> Bool[np.ndarray, " S"]:
        """Which runs do not cover what the data cover: too far from them, or at rest where the data never are.

            D_i > 2 + 2 max_p D_p    or    V_i < 0.01 min_p V_p

        A run at rest, on a small cycle or on one wing of two is many nats away, a mediocre model one. Pieces of a slow
        or short recording are far from each other as well, and then more is forgiven, but not that nothing moves.
        """
        varies = np.array([np.mean(np.var(run, axis=0) / self.unit) for run in runs])
        return (distances > 2.0 + 2.0 * self.farthest) | (varies < STILL * self.quietest)


def _overlapping(values: Float[np.ndarray, "T N"], length: int) -> list[Float[np.ndarray, "L N"]]:
    """Pieces that begin half a length after each other, and the last one."""
    last = len(values) - length
    starts = {*range(0, last + 1, max(1, length // 2)), last} if last >= 0 else set()
    return [values[i : i + length] for i in starts]


def _activity(piece: Float[np.ndarray, "T N"], unit: Float[np.ndarray, " N"]) -> float:
    """The variance of a piece; 0 if all there is of it is noise: faint, and no row like the one before it."""
    variance = float(np.mean(piece.var(axis=0) / unit))
    steps = float(np.mean(np.diff(piece, axis=0) ** 2 / unit)) if len(piece) > 1 else 0.0
    only_noise = variance < FAINT and 0.5 * steps > ROUGH * variance
    return 0.0 if only_noise or variance < ROUNDING else variance
