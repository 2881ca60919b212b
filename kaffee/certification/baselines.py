"""What anyone could forecast without a model of dynamics: the climate, and the last reading."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from kaffee.certification.passes import Starts


class Forecast(NamedTuple):
    """Gaussian forecasts of readings, noise included, in standardised units: starts x horizons x coordinates."""

    mean: Float[np.ndarray, "S H N"]
    std: Float[np.ndarray, "S H N"]


Recordings = Sequence[Float[np.ndarray, "T N"]]


def climatology(train: Recordings, starts: Starts, horizons: Sequence[int]) -> Forecast:
    """N(mean, variance) of the training data, whatever was read last."""
    everything = np.concatenate(train)
    shape = (len(starts.rows), len(horizons), everything.shape[1])
    mean, std = np.nanmean(everything, axis=0), np.nanstd(everything, axis=0)
    return Forecast(np.broadcast_to(mean, shape), np.broadcast_to(std, shape))


def structure_function(train: Recordings, lag: int) -> Float[np.ndarray, " N"]:
    """mean over t of (x_{t+lag} - x_t)^2 for every coordinate; NaN without a pair.

    >>> structure_function([np.array([[0.0], [1.0], [3.0]])], 1)
    array([2.5])
    """
    differences = [(x[lag:] - x[: len(x) - lag]) ** 2 for x in train if len(x) > lag]
    stacked = np.concatenate(differences) if differences else np.zeros((0, train[0].shape[1]))
    count = (~np.isnan(stacked)).sum(axis=0)
    return np.where(count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), np.nan)


def ages(values: Float[np.ndarray, "T N"]) -> Int[np.ndarray, "T N"]:
    """How many rows ago each coordinate was last read, 0 if in this row; -1 before its first reading.

    >>> ages(np.array([[np.nan], [1.0], [np.nan], [2.0]])).ravel().tolist()
    [-1, 0, 1, 0]
    """
    row = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, row), axis=0)
    return np.where(last >= 0, row - last, -1)


def persistence(train: Recordings, test: Recordings, starts: Starts, horizons: Sequence[int]) -> Forecast:
    """N(last reading, D(h + age)), D the training data's mean squared difference over that many steps.

    `age` is how long ago that reading was. Climatology where nothing was read yet, or where the training data have no
    pair of readings so far apart.
    """
    fallback = climatology(train, starts, horizons)
    mean, std = fallback.mean.copy(), fallback.std.copy()
    lags: dict[int, np.ndarray] = {}
    columns = np.arange(mean.shape[2])
    every_age = [ages(values) for values in test]
    for s, (r, t) in enumerate(zip(starts.recordings, starts.rows, strict=True)):
        age = every_age[r][t]
        last = test[r][t - np.maximum(age, 0), columns]
        for i, h in enumerate(horizons):
            for lag in np.unique(age[age >= 0]) + h:
                if lag not in lags:
                    lags[lag] = structure_function(train, int(lag))
                found = (age + h == lag) & (age >= 0) & (lags[lag] > 0)
                mean[s, i, found], std[s, i, found] = last[found], np.sqrt(lags[lag][found])
    return Forecast(mean, std)
