"""Delay coordinates for the in-context core: which past readings its map reads.

Of several sets of lags the one is taken whose regression, iterated, forecasts the end of the context best: one step
ahead hardly tells them apart, and a set that reads too little fails only later.
"""

import numpy as np
from jaxtyping import Bool, Float

from kaffee.foundation.denoising import make_pairs
from kaffee.training.kernel_regression import KernelRegression, regress

MOST_LATENT = 120
"""Coordinates of a register at most."""
ENOUGH = 3
"""Coordinates from which a reading alone is taken for a state: it forecasts flows farther than two do."""
HELD_OUT, MAX_STARTS, MOST_STEPS = 0.25, 30, 120
FEWEST_ROWS = 60
MOST_NEIGHBOURS, ROWS_EACH = 2, 12
"""Readings before the newest that are tried, and rows that every coordinate of a state asks for."""
KERNELS, LENGTHS = ("matern52", "gaussian"), (1.0, 2.0, 4.0, 8.0)


def choose_lags(readings: list[Float[np.ndarray, "T N"]], *, block: int) -> tuple[int, ...]:
    """Choose lags for standardised readings without gaps; the first proposal if there are too few rows to tell."""
    N, rows = readings[0].shape[1], max(map(len, readings))
    candidates = propose_lags(readings)
    longest = max(readings, key=len)
    if len(candidates) == 1 or rows < FEWEST_ROWS:
        return candidates[0]
    cut = int((1.0 - HELD_OUT) * len(longest))
    scores = {}
    for lags in candidates:
        before = [longest[:cut], *[x for x in readings if x is not longest]]
        pairs = make_pairs(before, lags, [np.ones(len(x), bool) for x in before])
        if len(pairs.features) < max(20, 2 * N * len(lags)):
            continue
        found = regress(pairs.features, pairs.targets, kernels=KERNELS, lengths=LENGTHS, block=block, measured=False)
        scores[lags] = _iterate(found, longest, lags, cut)
    return min(scores, key=lambda lags: scores[lags]) if scores else candidates[0]


def propose_lags(readings: list[Float[np.ndarray, "T N"]]) -> list[tuple[int, ...]]:
    """List sets of lags: the reading alone, neighbours, and multiples of the time in which readings forget."""
    N, longest = readings[0].shape[1], max(readings, key=len)
    if N >= ENOUGH:
        return [(0,)]
    memory = max(1, min(forget_time(longest), len(longest) // 12, (MOST_LATENT // N - 1) // 3))
    half = max(1, memory // 2)
    sets = [tuple(range(4)), tuple(range(8)), (0, 3, 6, 9, 12), tuple(half * k for k in range(4))]
    sets += [tuple(memory * k for k in range(4)), tuple(sorted({0, 1, 2, memory, 2 * memory, 3 * memory}))]
    sets += [tuple(half * k for k in range(7))]
    fitting = [lags for lags in dict.fromkeys(sets) if N * (lags[-1] + 1) <= MOST_LATENT]
    return fitting or [(0,)]


def extend_lags(
    readings: list[Float[np.ndarray, "T N"]], usable: list[Bool[np.ndarray, " T"]]
) -> list[tuple[int, ...]]:
    """List sets of lags for readings that may be states, from the reading alone to `MOST_NEIGHBOURS` before it."""
    N = readings[0].shape[1]
    sets = [tuple(range(count)) for count in range(1, MOST_NEIGHBOURS + 2)]
    # Wide or short recordings have too few rows for more coordinates, and gaps leave fewer of them complete.
    pairs = [len(make_pairs(readings, lags, usable).features) for lags in sets]
    return [lags for lags, count in zip(sets, pairs, strict=True) if lags == (0,) or count >= ROWS_EACH * N * len(lags)]


def forget_time(x: Float[np.ndarray, "T N"]) -> int:
    """Find the lag at which the autocorrelation, averaged over coordinates, falls below 1/e."""
    centred = x - x.mean(axis=0)
    spectrum = np.abs(np.fft.rfft(centred, 2 * len(x), axis=0)) ** 2
    products = np.fft.irfft(spectrum, axis=0)[: len(x)].sum(axis=1)
    below = np.flatnonzero(products < np.exp(-1.0) * products[0])
    return max(1, int(below[0])) if below.size else len(x)


def _iterate(found: KernelRegression, x: Float[np.ndarray, "T N"], lags: tuple[int, ...], cut: int) -> float:
    """Score iterated forecasts of the rows after `cut`: the mean of errors, of which none counts more than 1."""
    T = len(x)
    steps = min(MOST_STEPS, (T - cut) // 2)
    first = np.unique(np.linspace(max(cut - 1, lags[-1]), T - 1 - steps, MAX_STARTS).round().astype(int))
    low, high = x.min(axis=0) - 0.5, x.max(axis=0) + 0.5
    history = np.stack([x[first - lag] for lag in range(lags[-1] + 1)], axis=1)
    errors = []
    for step in range(1, steps + 1):
        ahead = np.clip(found(history[:, list(lags)].reshape(len(first), -1)), low, high)
        history = np.concatenate([ahead[:, None], history[:, :-1]], axis=1)
        errors.append(np.sqrt(np.mean((ahead - x[first + step]) ** 2, axis=1)))
    return float(np.mean(np.minimum(errors, 1.0)))
