"""Delay coordinates: a recording of one or two coordinates shows its attractor only together with its past (Takens)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.metrics.spectra import decorrelation_time

FEW = 2
"""Coordinates up to which a marginal distribution says little: a cycle may have that of chaos."""
WANTED = 3
"""Coordinates that delays make of them at least; a kernel density in more would take many more rows."""
MAX_SHARE = 0.05
"""Of the longest recording that one delay may take."""

Recordings = Sequence[Float[np.ndarray, "T N"]]


class Delays(NamedTuple):
    """Coordinates x_t, x_{t-lag}, ..., `copies` of them."""

    lag: int
    copies: int

    def embed(self, values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "L K"]:
        """Put each row beside earlier ones; rows without a past are left out.

        >>> Delays(2, 2).embed(np.arange(4.0)[:, None]).tolist()
        [[2.0, 0.0], [3.0, 1.0]]
        """
        length = max(len(values) - self.lag * (self.copies - 1), 0)
        starts = [self.lag * k for k in reversed(range(self.copies))]
        return np.hstack([values[i : i + length] for i in starts])


def choose_delays(recordings: Recordings) -> Delays | None:
    """Choose delays for complete recordings of one or two coordinates; None for more, which show enough.

    The lag is the decorrelation time: shorter, and copies repeat each other; longer, and chaos has made them strangers.
    """
    N = recordings[0].shape[1] if recordings else FEW + 1
    if not 0 < N <= FEW:
        return None
    longest = max(map(len, recordings))
    return Delays(max(1, min(round(decorrelation_time(recordings)), int(MAX_SHARE * longest))), -(-WANTED // N))
