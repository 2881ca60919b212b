"""The analogue forecast, a baseline of every certificate: what followed on similar states of the training data.

    y_{t+h} = b + A x_t,    b and A by ridge regression over the k training states nearest to x_t    (Lorenz 1969)

x are readings, with earlier ones where coordinates are few (`kaffee.metrics.delays`). Delays, k and ridge are those
with the least errors on training rows that are left out with all around them. The same errors shrink the forecast to
the climatology where it knows no better, and are its band: nothing is assumed, and no held-out row is used.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from kaffee.certification.innovations import Starts
from kaffee.data.gaps import evenly
from kaffee.metrics.delays import FEW, WANTED, Delays, choose_delays
from kaffee.training.autoregression import hold_readings, interpolate

NEIGHBOURS, RIDGES = (12, 30, 100), (1e-3, 1e-1)
"""Numbers of neighbours that are tried, and ridges relative to the mean square of a direction among them."""
MOST_FEATURES = 30
"""Numbers in a state up to which more than the present reading is tried."""
FOLDS, LEFT_OUT = 5, 100
"""Parts of the training rows that are left out in turn, and rows of each that are forecast."""
MOST_ROWS, MOST_NUMBERS = 20_000, 400_000
"""Training states in the library: rows, and numbers in them."""
CHUNK = 4_000_000
"""Numbers of neighbours in memory at once."""
FEWEST = 10
"""Left-out readings without which there is no error to speak of."""

Recordings = Sequence[Float[np.ndarray, "T N"]]
_Means = Float[np.ndarray, "S H N"]


class _Rows(NamedTuple):
    """The rows of all recordings one after another, and where the recording of each begins and ends."""

    values: Float[np.ndarray, "P N"]
    first: Int[np.ndarray, " P"]
    last: Int[np.ndarray, " P"]

    @classmethod
    def of(cls, recordings: Recordings) -> "_Rows":
        lengths = np.array([len(x) for x in recordings])
        ends = np.cumsum(lengths)
        return cls(np.concatenate(recordings), np.repeat(ends - lengths, lengths), np.repeat(ends - 1, lengths))

    def embed(self, rows: Int[np.ndarray, " S"], delays: Delays) -> Float[np.ndarray, "S D"]:
        """Put each row beside earlier ones; before the first of a recording is the first."""
        earlier = [np.maximum(rows - delays.lag * j, self.first[rows]) for j in range(delays.copies)]
        return np.hstack([self.values[each] for each in earlier])

    def usable(self, delays: Delays, ahead: int) -> Int[np.ndarray, " L"]:
        """List rows that have their past and `ahead` rows after them, so many as a library may have."""
        rows = np.arange(len(self.values))
        rows = rows[(rows - _past(delays) >= self.first) & (rows + ahead <= self.last)]
        most = min(MOST_ROWS, MOST_NUMBERS // (delays.copies * self.values.shape[1]) + 1)
        return rows[np.unique(evenly(len(rows), min(most, len(rows))))] if len(rows) else rows


def _past(delays: Delays) -> int:
    return delays.lag * (delays.copies - 1)


def _choose_embeddings(train: Recordings) -> list[Delays]:
    """List the delays that are tried: readings alone, if they are many, and with a near and a farther past."""
    N = train[0].shape[1]
    found = [] if N <= FEW else [Delays(1, 1)]
    copies = -(-WANTED // N) if N <= FEW else 3
    if N * copies <= MOST_FEATURES:
        found += [Delays(1, copies), Delays(1, 2 * copies)] if N <= FEW else [Delays(1, copies)]
        spaced = choose_delays(train)
        found += [spaced] if spaced is not None and spaced.lag > 1 else []
    return found or [Delays(1, 1)]


def _weigh(
    states: Float[np.ndarray, "S D"], near: Float[np.ndarray, "S K D"], ridge: float
) -> Float[np.ndarray, "S K"]:
    """Compute the weights by which a ridge regression over neighbours adds up what followed on them.

    With X the neighbours without their mean: w = 1/K + (X (X'X + r)^-1 (x - mean)), in the smaller of both forms.
    """
    K, D = near.shape[1:]
    mean = near.mean(axis=1, keepdims=True)
    X, x = near - mean, (states - mean[:, 0])[:, :, None]
    small = X.swapaxes(1, 2) @ X if D <= K else X @ X.swapaxes(1, 2)
    size = small.shape[1]
    level = ridge * np.trace(small, axis1=1, axis2=2) / size + 1e-12
    small[:, np.arange(size), np.arange(size)] += level[:, None]
    slope = X @ np.linalg.solve(small, x) if D <= K else np.linalg.solve(small, X @ x)
    slope = slope[:, :, 0]
    return 1.0 / K + slope - slope.mean(axis=1, keepdims=True)


def _predict(
    known: _Rows,
    library: Int[np.ndarray, " L"],
    states: Float[np.ndarray, "S D"],
    delays: Delays,
    ahead: Sequence[int],
    settings: Sequence[tuple[int, float]] = tuple(product(NEIGHBOURS, RIDGES)),
) -> dict[tuple[int, float], _Means]:
    """Forecast means from states at all horizons, for every number of neighbours and ridge."""
    features = known.embed(library, delays)
    most = min(max(count for count, _ in settings), len(library))
    order = cKDTree(features).query(states, np.arange(1, most + 1))[1]
    low, high = known.values.min(axis=0), known.values.max(axis=0)
    made = {}
    for count, ridge in settings:
        parts = []
        for some in np.array_split(np.arange(len(states)), -(-order.size * features.shape[1] // CHUNK)):
            chosen = order[some, :count]
            weights = _weigh(states[some], features[chosen], ridge)
            later = [np.einsum("sk,skn->sn", weights, known.values[library[chosen] + h]) for h in ahead]
            parts.append(np.stack(later, axis=1))
        # A line that is continued far beyond its points must not leave what was ever seen.
        made[count, ridge] = np.clip(np.concatenate(parts), low, high)
    return made


def _fold(
    known: _Rows, delays: Delays, ahead: Sequence[int]
) -> Iterator[tuple[Int[np.ndarray, " S"], Int[np.ndarray, " L"]]]:
    """Give rows to forecast from, and the library without all that overlaps with them or what follows on them."""
    rows = known.usable(delays, max(ahead))
    margin = _past(delays) + max(ahead)
    for part in np.array_split(rows, FOLDS):
        if not len(part):
            continue
        library = rows[(rows < part[0] - margin) | (rows > part[-1] + margin)]
        if len(library) > 2:
            yield part[np.unique(evenly(len(part), min(LEFT_OUT, len(part))))], library


class _Candidate(NamedTuple):
    """A setting at one horizon: mean = climate + share (forecast - climate), with this standard deviation."""

    score: float
    setting: tuple[Delays, int, float]
    share: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]


def _validate(
    known: _Rows, readings: Float[np.ndarray, "P N"], delays: Delays, ahead: Sequence[int]
) -> list[list[_Candidate]]:
    """Score all settings of one embedding on left-out training rows, at every horizon."""
    made: dict[tuple[int, float], list[_Means]] = {}
    rows = []
    for part, library in _fold(known, delays, ahead):
        rows.append(part)
        for (count, ridge), means in _predict(known, library, known.embed(part, delays), delays, ahead).items():
            made.setdefault((count, ridge), []).append(means)
    climate, spread = np.nanmean(readings, axis=0), np.nanstd(readings, axis=0)
    found: list[list[_Candidate]] = [[] for _ in ahead]
    for (count, ridge), parts in made.items():
        means = np.concatenate(parts)
        for i, h in enumerate(ahead):
            wanted, given = readings[np.concatenate(rows) + h] - climate, means[:, i] - climate
            seen = np.isfinite(wanted) & np.isfinite(given)
            wanted, given, number = np.where(seen, wanted, 0.0), np.where(seen, given, 0.0), seen.sum(axis=0)
            squares = np.maximum((given**2).sum(axis=0), 1e-300)
            share = np.clip((wanted * given).sum(axis=0) / squares, 0.0, 1.0)
            std = np.sqrt(((wanted - share * given) ** 2).sum(axis=0) / np.maximum(number - 1, 1))
            few = number < FEWEST
            share, std = np.where(few, 0.0, share), np.where(few, spread, std)
            score = float(np.mean(np.log(np.maximum(std, 1e-6))))
            found[i].append(_Candidate(score, (delays, count, ridge), share, std))
    return found


def forecast_analogues(
    train: Recordings, test: Recordings, starts: Starts, horizons: Sequence[int]
) -> tuple[_Means, Float[np.ndarray, "S H N"]]:
    """Forecast readings after starts in `test`, all standardised, from what followed on similar rows of `train`.

    Gaps of the training data are interpolated, and a reading of the test data is held until the next. Where the
    training data have too few rows the forecast is the climatology.
    """
    readings, filled = np.concatenate(train), [interpolate(x) for x in train]
    known = _Rows.of(filled)
    held = _Rows.of([hold_readings(x) for x in test])
    beginnings = np.concatenate([[0], np.cumsum([len(x) for x in test])[:-1]])
    rows = beginnings[starts.recordings] + starts.rows
    N, climate = readings.shape[1], np.nanmean(readings, axis=0)
    mean = np.broadcast_to(climate, (len(rows), len(horizons), N)).copy()
    std = np.broadcast_to(np.nanstd(readings, axis=0), mean.shape).copy()
    candidates: list[list[_Candidate]] = [[] for _ in horizons]
    for delays in _choose_embeddings(filled):
        for group in _group(known, delays, horizons):
            for i, some in zip(group, _validate(known, readings, delays, [horizons[i] for i in group]), strict=True):
                candidates[i] += some
    for i, (h, some) in enumerate(zip(horizons, candidates, strict=True)):
        if not some:
            continue
        best = min(some, key=lambda each: each.score)
        delays, count, ridge = best.setting
        library = known.usable(delays, h)
        [own] = _predict(known, library, held.embed(rows, delays), delays, [h], [(count, ridge)]).values()
        mean[:, i], std[:, i] = climate + best.share * (own[:, 0] - climate), best.std
    return mean, std


def _group(known: _Rows, delays: Delays, horizons: Sequence[int]) -> list[list[int]]:
    """Let horizons share a library if rows that have the longest after them are most of all."""
    most, least = (len(known.usable(delays, h)) for h in (min(horizons), max(horizons)))
    return [list(range(len(horizons)))] if 5 * least >= 4 * most else [[i] for i in range(len(horizons))]
