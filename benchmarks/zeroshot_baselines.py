"""Methods that continue a context without training, beside ours (`benchmarks.zeroshot`); all but DynaMix are NumPy.

    context repeat            what followed the row that is nearest to the last one, again and again
    nearest neighbour slope   x' = y_n + a (z - x_n): the nearest row, its successor, one slope a for the whole context
    local linear              x' = y_w + J (z - x_w): regression over the nearest rows, shrunk towards the identity
    persistence, climatology  the last row; the distribution of the context
    DynaMix                   the published weights, without noise in its gate

A state is a row, or for one coordinate a vector of delays. Contexts are standardised by their own moments.
"""

from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree

from kaffee.errors import CheckpointError
from kaffee.foundation.continuation import zero_shot
from kaffee.foundation.hub import from_pretrained
from kaffee.metrics.spectra import decorrelation_time
from kaffee.model.dynamix import DynaMix

MODELS = Path(__file__).parent.parent.parent / "shared" / "models"
THEILER = 10
"""Rows closer in time than this are no neighbours of each other."""
COPIES = 6
"""Delays of a scalar series."""
BEYOND = 0.5
"""Standard deviations beyond the extremes of the context at which a state is held back."""
LEVELS = (0.05, 0.95)


class Continuation(NamedTuple):
    """A forecast: the point, and a band of 90 % where the method has one."""

    point: Float[np.ndarray, "H N"]
    band: tuple[Float[np.ndarray, "H N"], Float[np.ndarray, "H N"]] | None = None


Method = Callable[[Float[np.ndarray, "T N"], int], Continuation]


class Pairs:
    """A standardised context as pairs of a state and the row after it."""

    def __init__(self, context: Float[np.ndarray, "T N"], lags: tuple[int, ...] | None = None) -> None:
        self.mean, self.scale = context.mean(axis=0), np.maximum(context.std(axis=0), 1e-12)
        self.rows = (context - self.mean) / self.scale
        self.lags = lags or choose_lags(self.rows)
        deepest = self.lags[-1]
        columns = [self.rows[deepest - lag : len(self.rows) - lag] for lag in self.lags]
        states = np.concatenate(columns, axis=1)
        self.last, self.states, self.targets = states[-1], states[:-1], self.rows[deepest + 1 :]

    @cached_property
    def tree(self) -> cKDTree:
        """Find neighbours of states."""
        return cKDTree(self.states)

    def run(self, step: Callable[[np.ndarray], np.ndarray], num_steps: int, starts: int = 1) -> np.ndarray:
        """Iterate a map from states to rows, (starts, H, N) in standardised units; all start from the last rows."""
        deepest, (low, high) = self.lags[-1], (self.rows.min(axis=0) - BEYOND, self.rows.max(axis=0) + BEYOND)
        path = np.empty((starts, deepest + 1 + num_steps, self.rows.shape[1]))
        path[:, : deepest + 1] = self.rows[-deepest - 1 :]
        for t in range(deepest + 1, path.shape[1]):
            state = np.concatenate([path[:, t - 1 - lag] for lag in self.lags], axis=1)
            path[:, t] = np.clip(step(state), low, high)
        return path[:, deepest + 1 :]

    def restore(self, rows: np.ndarray) -> np.ndarray:
        """Return to data units."""
        return rows * self.scale + self.mean


def choose_lags(rows: Float[np.ndarray, "T N"]) -> tuple[int, ...]:
    """Return (0,), or delays that span one and a half decorrelation times if there is one coordinate only."""
    if rows.shape[1] > 1:
        return (0,)
    spacing = max(1, round(1.5 * decorrelation_time([rows]) / (COPIES - 1)))
    spacing = min(spacing, max(1, len(rows) // (4 * COPIES)))
    return tuple(spacing * k for k in range(COPIES))


def repeat_context(context: Float[np.ndarray, "T N"], num_steps: int) -> Continuation:
    """Repeat what followed the state that is nearest to the last one."""
    pairs = Pairs(context)
    known = max(len(pairs.states) - THEILER, 1)
    match = int(np.argmin(np.sum((pairs.states[:known] - pairs.last) ** 2, axis=1)))
    followed = pairs.targets[match:]
    return Continuation(pairs.restore(followed[np.arange(num_steps) % len(followed)]))


def neighbour_slope(context: Float[np.ndarray, "T N"], num_steps: int) -> Continuation:
    """Follow the nearest state, with one slope for the distance from it, fitted over the context."""
    pairs = Pairs(context)
    N, states, targets = context.shape[1], pairs.states, pairs.targets
    _, near = pairs.tree.query(states, k=min(2 * THEILER + 2, len(states)))
    apart = np.abs(near - np.arange(len(states))[:, None]) > THEILER
    own = np.flatnonzero(apart.any(axis=1))
    other = near[own, apart[own].argmax(axis=1)]
    x, y = (states[own] - states[other])[:, :N], targets[own] - targets[other]
    slope = float(np.sum(x * y) / max(np.sum(x * x), 1e-12)) if len(own) else 0.0

    def step(z: np.ndarray) -> np.ndarray:
        _, nearest = pairs.tree.query(z)
        return targets[nearest] + slope * (z - states[nearest])[:, :N]

    return Continuation(pairs.restore(pairs.run(step, num_steps)[0]))


class LocalLinear:
    """The local affine map of a context, for many states at once."""

    def __init__(self, pairs: Pairs, neighbours: int, ridge: float) -> None:
        self.pairs, self.neighbours, self.ridge = pairs, min(neighbours, len(pairs.states)), ridge

    @classmethod
    def for_noise(cls, pairs: Pairs, noise: float) -> "LocalLinear":
        """Take the settings that do well without noise and with it; the method is told which."""
        return cls(pairs, 30, 1e-2) if noise else cls(pairs, 12, 1e-3)

    def linearise(self, z: Float[np.ndarray, "W D"]) -> tuple[Float[np.ndarray, "W N"], Float[np.ndarray, "W N D"]]:
        """Compute the next rows and their derivatives."""
        states, targets = self.pairs.states, self.pairs.targets
        distance, near = self.pairs.tree.query(z, k=[*range(1, self.neighbours + 1)])
        weight = np.exp(-((distance / (distance[:, -1:] + 1e-12)) ** 2))
        weight /= weight.sum(axis=1, keepdims=True)
        x, y = states[near], targets[near]
        x_mean, y_mean = (np.einsum("wk,wki->wi", weight, values) for values in (x, y))
        x, y = x - x_mean[:, None], y - y_mean[:, None]
        # Instead of a ridge towards the identity, one towards 0 for the change of the row.
        y = y - x[:, :, : y.shape[2]]
        heavy = weight[:, :, None] * x
        S, D = heavy.transpose(0, 2, 1) @ x, z.shape[1]
        ridge = self.ridge * np.trace(S, axis1=1, axis2=2) / D + 1e-14
        slopes = np.linalg.solve(S + ridge[:, None, None] * np.eye(D), heavy.transpose(0, 2, 1) @ y)
        J = slopes.transpose(0, 2, 1) + np.eye(y.shape[2], D)
        return y_mean + np.einsum("wnd,wd->wn", J, z - x_mean), J

    def __call__(self, z: Float[np.ndarray, "W D"]) -> Float[np.ndarray, "W N"]:
        return self.linearise(z)[0]


def local_linear(context: Float[np.ndarray, "T N"], num_steps: int, *, noise: float) -> Continuation:
    """Iterate the local affine map from the last reading."""
    pairs = Pairs(context)
    return Continuation(pairs.restore(pairs.run(LocalLinear.for_noise(pairs, noise), num_steps)[0]))


def persistence(context: Float[np.ndarray, "T N"], num_steps: int) -> Continuation:
    """Stay at the last row."""
    return Continuation(np.repeat(context[-1:], num_steps, axis=0))


def climatology(context: Float[np.ndarray, "T N"], num_steps: int) -> Continuation:
    """Forecast the distribution of the context at every step."""
    low, point, high = (np.tile(np.quantile(context, q, axis=0), (num_steps, 1)) for q in (LEVELS[0], 0.5, LEVELS[1]))
    return Continuation(point, (low, high))


@cache
def pretrained() -> DynaMix | None:
    """Load the published DynaMix from where kaffee looks, or from beside the repository; None if it is not there."""
    for place in ("dynamix-3d-alrnn-v1.0", MODELS):
        try:
            return from_pretrained(place)
        except CheckpointError:
            continue
    return None


def dynamix(context: Float[np.ndarray, "T N"], num_steps: int) -> Continuation:
    """Continue by the pretrained model, a scalar series in its delay coordinates."""
    model = pretrained()
    assert model is not None, "the weights are there, or the method is left out"
    return Continuation(zero_shot(model, context, num_steps).values)


def baselines(coordinates: int, noise: float) -> dict[str, Method]:
    """All methods for contexts of so many coordinates and so much noise (a share of the spread)."""
    methods: dict[str, Method] = {
        "context repeat": repeat_context,
        "nearest neighbour slope": neighbour_slope,
        "local linear": lambda context, num_steps: local_linear(context, num_steps, noise=noise),
        "persistence": persistence,
        "climatology": climatology,
    }
    # More than its three coordinates it would read one by one.
    if coordinates <= 3 and pretrained() is not None:
        methods["DynaMix"] = dynamix
    return methods
