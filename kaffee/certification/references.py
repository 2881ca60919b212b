"""What free runs are compared with: a stretch of the held-out recording, or its complete rows where gaps are many."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.checks import MIN_ROWS
from kaffee.data.series import Series
from kaffee.data.stretches import complete_rows, longest_stretch, pieces, stretches
from kaffee.errors import DataError

MAX_ROWS = 10_000


class Reference(NamedTuple):
    """Held-out rows and training pieces of the same length.

    Attributes:
        rows: Complete ones.
        pieces: Of the training data: what a perfect model would be like.
        in_order: Whether rows follow each other in time, so that they have a spectrum.
        drawn: The same in time, perhaps with gaps.
        known: All training rows without gaps, in the stretches that they come in.
    """

    rows: Float[np.ndarray, "T N"]
    pieces: list[Float[np.ndarray, "T N"]]
    in_order: bool
    drawn: Float[np.ndarray, "R N"]
    known: Sequence[Float[np.ndarray, "T N"]] = ()


def reference_of(train: Series, test: Series) -> Reference:
    """The longest complete stretch; if it is too short, all complete rows, which still say where a system lives."""
    # No longer than what there is of training rows, so that there is a piece of the same length to compare with.
    stretch = longest_stretch(test)[: min(MAX_ROWS, len(longest_stretch(train)))]
    if len(stretch) >= MIN_ROWS:
        every = [part for values in train.recordings for part in stretches(values)]
        return Reference(stretch, pieces(train, len(stretch)), True, stretch, every)
    known = complete_rows(train)
    rows = complete_rows(test)[: min(MAX_ROWS, len(known))]
    if len(rows) < MIN_ROWS:
        raise DataError(
            f"{test.label}: here and in the training data there are {len(rows)} rows without gaps; free runs are "
            f"compared with at least {MIN_ROWS}. Hold out more, or leave out columns with many gaps."
        )
    together = Series.from_arrays(known)
    return Reference(rows, pieces(together, len(rows)), False, max(test.recordings, key=len)[:MAX_ROWS], [known])
