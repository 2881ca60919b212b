"""Amplitude and period of a limit cycle, measured on one coordinate of a free run."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

REST = 1e-3
"""Half the range, in data units, below which a run is at rest; rounding in float32 leaves about 1e-6."""


class Cycle(NamedTuple):
    """An oscillation.

    Attributes:
        amplitude: Half the distance between the largest and the smallest value; NaN for a run that is not finite.
        period: Mean time between two upward crossings of the level half way between them; NaN without two of them.
    """

    amplitude: float
    period: float

    @property
    def at_rest(self) -> bool:
        """Whether the run has come to a fixed point."""
        return self.amplitude < REST

    def returns_to(self, reference: "Cycle", tolerance: float = 0.05) -> bool:
        """Whether amplitude and period are those of `reference` within a relative tolerance."""
        pairs = zip(self, reference, strict=True)
        return all(abs(mine - theirs) <= tolerance * theirs for mine, theirs in pairs)


def measure_cycle(x: Float[np.ndarray, " T"], dt: float) -> Cycle:
    """The cycle of a coordinate after its transient; crossings are interpolated linearly.

    >>> t = 0.05 * np.arange(2000)
    >>> cycle = measure_cycle(1.0 + 2.0 * np.sin(t), 0.05)
    >>> round(cycle.amplitude, 3), round(cycle.period, 3)
    (2.0, 6.283)
    """
    x = np.asarray(x, np.float64)
    if not np.isfinite(x).all():
        return Cycle(float("nan"), float("nan"))
    amplitude = float(x.max() - x.min()) / 2
    if amplitude < REST:
        return Cycle(amplitude, float("nan"))
    above = x - (x.max() + x.min()) / 2
    (before,) = np.nonzero((above[:-1] < 0) & (above[1:] >= 0))
    if len(before) < 2:
        return Cycle(amplitude, float("nan"))
    crossings = before - above[before] / (above[before + 1] - above[before])
    return Cycle(amplitude, float(np.diff(crossings).mean()) * dt)
