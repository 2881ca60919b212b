"""The small trained model behind the in-context core: how far to trust a regression, from statistics of its context.

    factor of the process noise = sum_i p_i f_i (in logarithms),    p = softmax(W_2 tanh(W_1 s + b_1) + b_2)

s are standardised statistics of a context as it was read. Trained on recordings of discovered systems by scores of
forecasts (`benchmarks.incontext_training`); its weights ship with the package.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors.numpy import load

from kaffee.foundation.embedding import forget_time

FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors of the standard deviation of the process noise between which the network interpolates."""
STATISTICS = (
    "log rows",
    "log coordinates",
    "log features",
    "log observation noise",
    "log process noise",
    "log left-out error",
    "log kurtosis of left-out errors",
    "log left-out errors at the end over all",
    "log ridge",
    "log length",
    "log forgetting time",
    "passes",
)
WEIGHTS = "incontext.safetensors"


@dataclass(frozen=True, eq=False)
class Hypernetwork:
    """Weights of the network, and the moments that standardise its input."""

    mean: Float[np.ndarray, " S"]
    scale: Float[np.ndarray, " S"]
    hidden_weight: Float[np.ndarray, "H S"]
    hidden_bias: Float[np.ndarray, " H"]
    output_weight: Float[np.ndarray, "F H"]
    output_bias: Float[np.ndarray, " F"]

    def __call__(self, statistics: Float[np.ndarray, " S"]) -> float:
        """Compute the factor of the process noise; statistics beyond those of the corpus count as its limits."""
        inputs = np.clip((statistics - self.mean) / self.scale, -3.0, 3.0)
        scores = self.output_weight @ np.tanh(self.hidden_weight @ inputs + self.hidden_bias) + self.output_bias
        p = np.exp(scores - scores.max())
        return float(np.exp(p @ np.log(FACTORS) / p.sum()))


@cache
def load_network() -> Hypernetwork | None:
    """Load the weights of the package; None if it has none."""
    path = files("kaffee.foundation").joinpath(WEIGHTS)
    return Hypernetwork(**load(path.read_bytes())) if path.is_file() else None


def describe_context(reading: Any) -> Float[np.ndarray, " S"]:
    """Compute the statistics of a context (`ContextReading`) in the order of `STATISTICS`."""
    left_out, regression, smoothed = reading.regression.left_out, reading.regression, reading.smoothed
    squares = np.maximum(np.mean(left_out**2, axis=1), 1e-16)
    rows, N = len(left_out), left_out.shape[1]
    positive = [
        rows,
        N,
        reading.pairs.features.shape[1],
        np.mean(smoothed.observation_std),
        np.mean(smoothed.process_std),
        np.sqrt(squares.mean()),
        np.mean(squares**2) / np.mean(squares) ** 2,
        squares[-max(rows // 4, 1) :].mean() / squares.mean(),
        regression.ridge,
        regression.length,
        forget_time(max(reading.states, key=len)),
    ]
    return np.append(np.log(np.maximum(positive, 1e-12)), reading.passes)
