"""Data against data: are held-out rows where training rows are? Known before any training, from the recording alone."""

from dataclasses import dataclass
from math import nan

import numpy as np
from jaxtyping import Float

from kaffee.data.gaps import complete_rows, constant_columns, evenly, longest_stretch, pieces
from kaffee.data.series import Series
from kaffee.metrics.geometry import d_stsp_mixture

LEAST_ROWS, MAX_ROWS = 50, 1_000
"""Rows of a density: fewer say nothing, more cost time."""
NUM_BLOCKS = 5
STILL = 1e-3
"""Share of the spread of all rows that those of a part are taken to have at least."""
DRIFTS, MOVED = (2.0, 2.0), 1.75
"""A recording drifts if its end is farther from the rest than so many nats and so many times what its blocks are, or if
a mean has moved by so many standard deviations."""


@dataclass(frozen=True)
class Drift:
    """How far training rows are from held-out rows: D_stsp in nats, by kernel densities of up to 1000 rows.

    Attributes:
        whole: Of all training rows: large if held-out rows lie where training rows do not.
        usual: Of all other training rows from a block of them that is as long as the held-out data, the median: what
            `whole` is in a recording that does not drift. A short or slow one, or one of many coordinates, has more.
        pieces: Of training pieces as long as the held-out data, the median, as in a certificate; NaN without any.
        columns: Coordinates whose mean has moved most, by how many standard deviations of the training data.
    """

    whole: float
    usual: float
    pieces: float
    columns: dict[str, float]

    @property
    def drifts(self) -> bool:
        """Whether the recording drifts so far that what was learnt need not hold for the held-out part."""
        moved = max((abs(shift) for shift in self.columns.values()), default=0.0)
        return moved > MOVED or self.whole > DRIFTS[0] + DRIFTS[1] * self.usual

    @property
    def sentence(self) -> str:
        """What was found, in plain words."""
        numbers = f"data against data: D_stsp {self.whole:.2g}, among training rows {self.usual:.2g}"
        if not self.drifts:
            return f"Held-out rows lie where training rows lie ({numbers})."
        moved = ", ".join(f"{name} by {shift:+.1f}" for name, shift in self.columns.items())
        return (
            f"The recording drifts: its last part is where the rest seldom was ({numbers}; means moved, in standard "
            f"deviations: {moved}). What was learnt of the rest need not hold there. Linear models of differences "
            "can follow a level, other models know where training rows were: for these take out trend and season, or "
            "fit a stretch that is stationary."
        )


def measure_drift(train: Series, test: Series) -> Drift | None:
    """Measure how far training data are from held-out data, or from validation data; None if either is too short.

    No model is needed: a recording that drifts can be told before it is trained on.
    """
    rows, known = complete_rows(test), complete_rows(train)
    length = min(len(rows), len(known) // 2)
    varying = ~constant_columns(np.concatenate([rows, known]))
    if length < LEAST_ROWS or not varying.any():
        return None
    rows, known = rows[:, varying], known[:, varying]
    stretch = len(longest_stretch(test))
    parts = [part[:, varying] for part in pieces(train, stretch)] if stretch >= LEAST_ROWS else []
    whole, *each = (_measure(rows, part) for part in (known, *parts))
    usual = []
    for start in evenly(len(known) - length + 1, NUM_BLOCKS):
        block, rest = np.s_[start : start + length], np.delete(known, np.s_[start : start + length], axis=0)
        usual.append(_measure(known[block], rest))
    shift = (rows.mean(axis=0) - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-12)
    names = np.array(test.columns)[varying]
    moved = {str(names[j]): float(shift[j]) for j in np.argsort(-np.abs(shift))[:3]}
    return Drift(whole, float(np.median(usual)), float(np.median(each)) if each else nan, moved)


def _measure(reference: Float[np.ndarray, "T N"], rows: Float[np.ndarray, "L N"]) -> float:
    """Measure D_stsp as a certificate does, by fewer rows, and from a reference that may hardly vary."""
    reference, rows = (values[:: -(-len(values) // MAX_ROWS)] for values in (reference, rows))
    unit = np.maximum(reference.std(axis=0), STILL * np.concatenate([reference, rows]).std(axis=0))
    T, N = reference.shape
    return d_stsp_mixture(reference / unit, rows / unit, variance=T ** (-2.0 / (N + 4)))
