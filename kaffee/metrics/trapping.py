"""Free runs that stay in a part of the attractor: core collapse, seen without the true system."""

import numpy as np
from jaxtyping import Bool, Float


def trapped(distances: Float[np.ndarray, " S"], pieces: Float[np.ndarray, " P"]) -> Bool[np.ndarray, " S"]:
    """Which runs do not cover what the data cover, by their own D_stsp and that of pieces of data of the same length.

        D_i > 2 + 2 max_p D_p

    A run at rest, on a small cycle or on one wing of two is many nats away, a mediocre model one. Pieces of a slow
    system are far from each other as well, and then more is forgiven.

    >>> trapped(np.array([0.1, 0.9, 4.0]), np.array([0.05, 0.1])).tolist()
    [False, False, True]
    """
    return distances > 2.0 + 2.0 * max(pieces, default=0.0)
