"""How far ahead forecasts are scored."""

import numpy as np

from kaffee.data.series import Series
from kaffee.data.timescales import decorrelation_time

NUM_HORIZONS = 6
SHORTEST_REACH = 64
"""Steps that the longest horizon has at least: spikes decorrelate within a beat and may be foreseen for many."""
MAX_SHARE = 0.25
"""Of the longest held-out recording that the longest horizon may take: at least three starts do not overlap."""


def default_horizons(train: Series, test: Series) -> tuple[int, ...]:
    """From 1 step, evenly in their logarithm, to two decorrelation times of the training data or `SHORTEST_REACH`.

    Bounded by the held-out recordings.
    """
    reach = max(2.0 * decorrelation_time(train), SHORTEST_REACH)
    longest = max(1.0, min(reach, MAX_SHARE * max(test.lengths)))
    return tuple(sorted({round(h) for h in np.geomspace(1.0, longest, NUM_HORIZONS)}))
