"""Does a run repeat itself where data do not?

A core on a periodic orbit may look like chaos to every density and every smooth spectrum.
"""

import numpy as np
from jaxtyping import Float

from kaffee.metrics.delays import Recordings

MAX_LAG = 2_500
"""Steps up to which periods are looked for."""
CLOSED = 0.3
"""A period in whole steps is off by half a step at most, which changes a state by less than this share of a step."""
REPEATS = 0.01
"""Share of the variance that a run may change by after a period and still repeat itself; chaos changes by 0.03 and
more, weakly chaotic systems included."""


def half_structure(recordings: Recordings, max_lag: int = MAX_LAG) -> Float[np.ndarray, " L"]:
    """Return the mean over rows and coordinates of (x_{t+k} - x_t)^2 / (2 var x) for k = 0, 1, ...

    Up to half of the longest recording: 0 where all repeats itself after k steps, 1 where nothing is left of it; white
    noise adds its share of the variance.

    >>> half_structure([np.array([[1.0], [-1.0]] * 8)])[:3].round(6).tolist()
    [0.0, 2.0, 0.0]
    """
    rows = np.concatenate(recordings)
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    varies = std > 0
    length = min(max_lag, max(map(len, recordings)) // 2)
    sums, pairs = np.zeros(length + 1), np.zeros(length + 1)
    for values in recordings:
        T, lags = len(values), np.arange(min(length + 1, len(values)))
        x = (values[:, varies] - mean[varies]) / std[varies]
        products = np.fft.irfft(np.sum(np.abs(np.fft.rfft(x, 2 * T, axis=0)) ** 2, axis=1), 2 * T)[lags]
        energy = np.concatenate([[0.0], np.cumsum(np.sum(x**2, axis=1))])
        sums[lags] += 0.5 * (energy[T - lags] + energy[T] - energy[lags]) - products
        pairs[lags] += (T - lags) * max(int(varies.sum()), 1)
    return sums / np.maximum(pairs, 1)


def find_period(run: Float[np.ndarray, "T N"]) -> int:
    """Find the number of steps after which a noise-free run repeats itself; 0 if it does not within half its length."""
    change = half_structure([run])
    away = np.flatnonzero(change > 0.5)
    if not len(away):
        return 0
    closed = np.flatnonzero(change[away[0] :] <= min(CLOSED * change[1], REPEATS))
    return int(away[0] + closed[0]) if len(closed) else 0
