"""Known truth: the states of a simulated system behind its observations."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Truth:
    """What is known of the true system, if anything is.

    Attributes:
        states: Clean states of a long run, the reference for free runs.
        again: The run's continuation: how far a perfect model is from the reference at this length.
        test_states: The states behind the held-out observations.
    """

    states: Float[np.ndarray, "T N"]
    again: Float[np.ndarray, "T N"]
    test_states: Float[np.ndarray, "T N"]
    lambda_1: float | None = None
