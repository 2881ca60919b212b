"""Forecasts of simple methods for the development suite (`benchmarks.suite`), all Gaussian, in standardised units.

Every method is fitted to the training part and then sees all readings up to the start of a forecast, gaps filled by
the last reading before. Settings are chosen by the last fifth of the training part, with which the spread of methods
that have none of their own is measured; then all training rows are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from benchmarks.cases import Unavailable
from kaffee.certification.forecasts import hold_readings
from kaffee.certification.innovations import Starts
from kaffee.data.gaps import evenly
from kaffee.metrics.scores import STD_FLOOR, gaussian_nll
from kaffee.metrics.spectra import autocorrelation

NUM_STARTS, MANY_STARTS = 200, 1000
"""Of forecasts that are scored, and that choose settings: many recordings have few rows for long horizons each."""
VALIDATION = 0.2
ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
RIDGES = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0)
MOST_COEFFICIENTS = 800
"""Of one equation of a VAR."""
UNITS, WASHOUT = 300, 50
RESERVOIRS = tuple(product((0.4, 0.9, 1.2), (0.3, 1.0), (0.1, 0.5)))
"""Spectral radius, leak, and scale of the input of an echo state network."""
LAGS, NEIGHBOURS, LOCAL_RIDGES = (1, 2, 4, 8, 16), (20, 60, 200), (1e-3, 1e-1)
FEWEST = 8
"""Validation errors below which their spread says less than the climate."""
SEASONAL = 0.3
"""Autocorrelation at a period that counts as a season."""

Recordings = Sequence[np.ndarray]


class Forecast(NamedTuple):
    """Mean and standard deviation of readings: starts x horizons x coordinates."""

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True, eq=False)
class Task:
    """What is known and what is asked.

    Attributes:
        values: Standardised recordings, NaN where missing.
        cuts: Rows of each that are for training.
        starts: Rows of the rest (or the last of training) from which to forecast.
    """

    values: tuple[np.ndarray, ...]
    cuts: tuple[int, ...]
    starts: Starts
    horizons: tuple[int, ...]

    @property
    def filled(self) -> tuple[np.ndarray, ...]:
        """Recordings without gaps, causally."""
        return tuple(hold_readings(x) for x in self.values)

    @property
    def train(self) -> list[np.ndarray]:
        """Training rows without gaps."""
        return [x[:cut] for x, cut in zip(self.filled, self.cuts, strict=True)]

    def ahead(self, steps: int) -> np.ndarray:
        """The readings so many steps after the starts; NaN if there is none."""
        return self.starts.ahead(self.values, steps)

    def validation(self) -> "Task":
        """The same task within the training rows."""
        values = tuple(x[:cut] for x, cut in zip(self.values, self.cuts, strict=True))
        cuts = tuple(max(int((1.0 - VALIDATION) * len(x)), 1) for x in values)
        return Task(values, cuts, spread_starts([len(x) for x in values], cuts, MANY_STARTS), self.horizons)


def spread_starts(lengths: Sequence[int], cuts: Sequence[int], count: int = NUM_STARTS) -> Starts:
    """Choose up to `count` evenly spaced rows, from the last before a cut to the last but one."""
    pairs = [(r, t) for r, (T, cut) in enumerate(zip(lengths, cuts, strict=True)) for t in range(cut - 1, T - 1)]
    table = np.array(pairs)[np.unique(evenly(len(pairs), min(count, len(pairs))))]
    return Starts(table[:, 0], table[:, 1])


def climatology(task: Task) -> Forecast:
    """Mean and spread of the training readings."""
    rows = np.concatenate([x[:cut] for x, cut in zip(task.values, task.cuts, strict=True)])
    shape = (len(task.starts.rows), len(task.horizons), rows.shape[1])
    return Forecast(*(np.broadcast_to(f(rows, axis=0), shape) for f in (np.nanmean, np.nanstd)))


def persistence(task: Task) -> Forecast:
    """The last reading, with the spread of differences over the horizon in the training part."""
    last, train = task.starts.ahead(task.filled, 0), task.train
    mean, std = np.repeat(last[:, None], len(task.horizons), axis=1), climatology(task).std.copy()
    for i, h in enumerate(task.horizons):
        pairs = np.concatenate([x[h:] - x[:-h] for x in train if len(x) > h] or [np.zeros((0, last.shape[1]))])
        if len(pairs) >= FEWEST:
            std[:, i] = np.sqrt(np.mean(pairs**2, axis=0))
    return Forecast(mean, std)


def find_period(train: Recordings) -> int | None:
    """Find the lag of the first high peak of the autocorrelation, mean over coordinates; None if there is no season."""
    longest = max(map(len, train))
    r = np.nanmean(autocorrelation(list(train), min(longest // 3, 2000)), axis=1)
    peaks = [k for k in range(2, len(r) - 1) if r[k] >= max(r[k - 1], r[k + 1]) and r[k] > SEASONAL]
    return next((k for k in peaks if r[k] >= 0.85 * max(r[p] for p in peaks)), None)


def seasonal_climatology(task: Task) -> Forecast:
    """Mean of every phase of the season and spread around it; the climate if there is none, or many recordings."""
    climate = climatology(task)
    period = find_period(task.train) if len(task.values) == 1 else None
    if period is None or task.cuts[0] < 2 * period:
        return climate
    train = task.values[0][: task.cuts[0]]
    profile = np.stack([np.nanmean(train[phase::period], axis=0) for phase in range(period)])
    residuals = train - profile[np.arange(len(train)) % period]
    # A mean over k rows is off by 1/sqrt(k) of their spread, and the residuals are as much too small.
    repeats = len(train) / period
    std = np.nanstd(residuals, axis=0) * np.sqrt((1.0 + 1.0 / repeats) / (1.0 - 1.0 / repeats))
    later = task.starts.rows[:, None] + np.array(task.horizons)
    mean = np.where(np.isnan(profile), climate.mean[0, 0], profile)[later % period]
    return Forecast(mean, np.broadcast_to(std, mean.shape))


class _Autoregression(NamedTuple):
    A: np.ndarray
    c: np.ndarray
    Q: np.ndarray


def _lagged(x: np.ndarray, lags: int) -> np.ndarray:
    """(x_t, x_{t-1}, ...) of every row from the last row of the first window on."""
    return np.hstack([x[lags - 1 - k : len(x) - k] for k in range(lags)])


def _regress(train: Recordings, order: int) -> Callable[[float], _Autoregression]:
    """Prepare ridge regressions of one order, with the penalty in units of the data's variance."""
    N = train[0].shape[1]
    long = [x for x in train if len(x) > order]
    F = np.concatenate([np.hstack([_lagged(x, order)[:-1], np.ones((len(x) - order, 1))]) for x in long])
    Y = np.concatenate([x[order:] for x in long])
    FF, FY = F.T @ F, F.T @ Y

    def solve(ridge: float) -> _Autoregression:
        penalty = len(F) * np.diag([ridge] * (F.shape[1] - 1) + [1e-12])
        inverse = np.linalg.solve(FF + penalty, np.hstack([FY, FF]))
        W, freedom = inverse[:, :N], float(np.trace(inverse[:, N:]))
        residuals = Y - F @ W
        Q = residuals.T @ residuals / max(len(F) - freedom, 0.1 * len(F))
        return _Autoregression(W[:-1].T, W[-1], Q)

    return solve


def _iterate(model: _Autoregression, task: Task) -> Forecast:
    """Forecast by iterating x' = A (x, lags) + c; covariances add up exactly."""
    N = len(model.c)
    order = model.A.shape[1] // N
    # Before the first row there is the first row.
    padded = tuple(np.concatenate([np.repeat(x[:1], order, axis=0), x]) for x in task.filled)
    state = np.hstack([task.starts.ahead(padded, order - k) for k in range(order)])
    # Effect of a unit shock, and of the sum of all shocks so far.
    effect, total = np.eye(order * N, N), np.zeros((N, N))
    companion = np.vstack([model.A, np.eye(order * N)[: (order - 1) * N]])
    means, stds = [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(max(task.horizons)):
            state = np.hstack([state @ model.A.T + model.c, state[:, : (order - 1) * N]])
            total = total + effect[:N] @ model.Q @ effect[:N].T
            effect = companion @ effect
            means.append(state[:, :N])
            stds.append(np.sqrt(np.diag(total)))
    chosen = np.array(task.horizons) - 1
    mean = np.stack(means, axis=1)[:, chosen]
    return Forecast(mean, np.broadcast_to(np.array(stds)[chosen], mean.shape))


def autoregression(task: Task) -> tuple[Forecast, dict[str, Any]]:
    """A VAR whose order and ridge predict the last fifth of the training part best, one step ahead."""
    inner, N = task.validation(), task.values[0].shape[1]
    one = Task(inner.values, inner.cuts, spread_starts([len(x) for x in inner.values], inner.cuts, 2000), (1,))
    train, y = one.train, one.ahead(1)
    best: tuple[float, int, float] = (np.inf, 1, 1.0)
    for order in ORDERS:
        rows = sum(max(len(x) - order, 0) for x in train)
        if order > 1 and (order * N > MOST_COEFFICIENTS or rows < order * N + 10):
            break
        solve = _regress(train, order)
        for ridge in RIDGES:
            best = min(best, (_mean_nll(_iterate(solve(ridge), one), [y]), order, ridge))
    _, order, ridge = best
    return _iterate(_regress(task.train, order)(ridge), task), {"order": order, "ridge": ridge}


def _mean_nll(forecast: Forecast, readings: Sequence[np.ndarray]) -> float:
    """Mean over readings and then over horizons; infinite if a forecast is not finite."""
    means = []
    for i, y in enumerate(readings):
        seen = ~np.isnan(y)
        if seen.any():
            std = np.maximum(forecast.std[:, i], STD_FLOOR)
            with np.errstate(over="ignore", invalid="ignore"):
                means.append(gaussian_nll(y, forecast.mean[:, i], std)[seen].mean())
    return float(np.nan_to_num(np.mean(means), nan=np.inf)) if means else np.inf


def _validated(
    task: Task, fits: Callable[[Recordings, Any], dict[Any, Callable[[Task], np.ndarray]]], groups: Sequence[Any]
) -> tuple[Forecast, dict[str, Any]]:
    """Choose among methods that forecast means, by NLL over all horizons with the spread of their validation errors.

    `fits(train, group)` returns the methods of a group of settings, fitted, by setting.
    """
    inner = task.validation()
    train, readings, climate = inner.train, [inner.ahead(h) for h in task.horizons], climatology(task).std
    best: tuple[float, Any, Any, np.ndarray] | None = None
    for group in groups:
        for setting, predict in fits(train, group).items():
            with np.errstate(over="ignore", invalid="ignore"):
                mean = predict(inner)
                errors = [(y - mean[:, i]) ** 2 for i, y in enumerate(readings)]
            std = climate[0].copy()
            for i, squares in enumerate(errors):
                enough = (~np.isnan(squares)).sum(axis=0) >= FEWEST
                std[i, enough] = np.sqrt(np.nanmean(squares[:, enough], axis=0))
            std = np.nan_to_num(std, nan=1e6, posinf=1e6)
            nll = _mean_nll(Forecast(mean, np.broadcast_to(std, mean.shape)), readings)
            if best is None or nll < best[0]:
                best = nll, group, setting, std
    assert best is not None
    _, group, setting, std = best
    mean = fits(task.train, group)[setting](task)
    return Forecast(mean, np.broadcast_to(std, mean.shape)), {"setting": [*np.atleast_1d(group).tolist(), setting]}


def _reservoirs(seed: int, train: Recordings, group: tuple[float, float, float]) -> dict[Any, Any]:
    """Fit the readouts of one echo state network, one for each ridge."""
    try:
        from reservoirpy.mat_gen import bernoulli, normal
    except ImportError:
        raise Unavailable("reservoirpy is not installed (the bench extra)") from None
    (radius, leak, scale), N = group, train[0].shape[1]
    dense = {"sparsity_type": "dense"}
    W = normal(UNITS, UNITS, connectivity=0.1, sr=radius, seed=seed, **dense)
    Win = bernoulli(UNITS, N, connectivity=min(1.0, 5.0 / N), input_scaling=scale, seed=seed + 1, **dense)
    bias = np.random.default_rng(seed).uniform(-0.5, 0.5, UNITS)

    def step(state: np.ndarray, x: np.ndarray) -> np.ndarray:
        return (1.0 - leak) * state + leak * np.tanh(state @ W.T + x @ Win.T + bias)

    def features(state: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.hstack([state, x, np.ones((len(x), 1))])

    def drive(recordings: Recordings) -> np.ndarray:
        """States after every row, (recordings, rows, units); all recordings at once."""
        longest = max(map(len, recordings))
        inputs = np.stack([np.pad(x, ((0, longest - len(x)), (0, 0)), mode="edge") for x in recordings], axis=1)
        states, state = np.empty((longest, len(recordings), UNITS)), np.zeros((len(recordings), UNITS))
        for t in range(longest):
            states[t] = state = step(state, inputs[t])
        return states.swapaxes(0, 1)

    driven = drive(train)
    skip = [min(WASHOUT, len(x) // 4) for x in train]
    pairs = [(features(r[s : len(x) - 1], x[s:-1]), x[s + 1 :]) for x, r, s in zip(train, driven, skip, strict=True)]
    F, Y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    FF, FY = F.T @ F, F.T @ Y

    @cache
    def begin(task: Task) -> tuple[np.ndarray, np.ndarray]:
        """State and reading at the starts, which are the same for all readouts."""
        filled = task.filled
        states = [r[: len(x)] for x, r in zip(filled, drive(filled), strict=True)]
        return task.starts.ahead(tuple(states), 0), task.starts.ahead(tuple(filled), 0)

    def predict(readout: np.ndarray, task: Task) -> np.ndarray:
        (state, last), means = begin(task), []
        for _ in range(max(task.horizons)):
            # Beyond ten standard deviations a network feeds on its own divergence.
            last = np.clip(features(state, last) @ readout, -10.0, 10.0)
            state = step(state, last)
            means.append(last)
        return np.stack(means, axis=1)[:, np.array(task.horizons) - 1]

    eye = np.diag([1.0] * (F.shape[1] - 1) + [0.0])
    readouts = {r: np.linalg.solve(FF + len(F) * r * eye + 1e-10 * np.eye(len(FF)), FY) for r in RIDGES[1:]}
    return {ridge: partial(predict, readout) for ridge, readout in readouts.items()}


def echo_state(task: Task, seed: int) -> tuple[Forecast, dict[str, Any]]:
    """An echo state network that is iterated, with weights of reservoirpy."""
    return _validated(task, partial(_reservoirs, seed), RESERVOIRS)


def _neighbours(train: Recordings, lags: int) -> dict[Any, Any]:
    """Fit local linear maps of `lags` rows to the row h steps later, for numbers of neighbours and ridges."""
    long = [x for x in train if len(x) >= lags]
    library = np.concatenate([_lagged(x, lags) for x in long])
    rows = np.concatenate([np.arange(lags - 1, len(x)) for x in long])
    recording = np.concatenate([np.full(len(x) - lags + 1, i) for i, x in enumerate(long)])
    lengths = np.array([len(x) for x in long])
    # Rows of all recordings one after the other, so that a later row is one index.
    everything, offset = np.concatenate(long), np.concatenate([[0], np.cumsum(lengths)[:-1]])

    @cache
    def search(task: Task, h: int) -> tuple[np.ndarray, np.ndarray]:
        """Delay vectors at the starts, and their neighbours with a row h steps later, nearest first."""
        padded = tuple(np.concatenate([np.repeat(x[:1], lags - 1, axis=0), x]) for x in task.filled)
        now = np.hstack([task.starts.ahead(padded, lags - 1 - k) for k in range(lags)])
        usable = np.flatnonzero(rows + h < lengths[recording])
        if not len(usable):
            return now, np.zeros((len(now), 0), int)
        count = min(max(NEIGHBOURS), len(usable))
        return now, usable[cKDTree(library[usable]).query(now, np.arange(1, count + 1))[1]]

    def predict(setting: tuple[int, float], task: Task) -> np.ndarray:
        count, ridge = setting
        means = []
        for h in task.horizons:
            now, near = search(task, h)
            if near.shape[1] < FEWEST:
                means.append(np.zeros((len(now), everything.shape[1])))
                continue
            near = near[:, :count]
            X, Y = library[near], everything[offset[recording[near]] + rows[near] + h]
            x0, y0 = X.mean(axis=1, keepdims=True), Y.mean(axis=1, keepdims=True)
            G, C = (X - x0).swapaxes(1, 2) @ (X - x0), (X - x0).swapaxes(1, 2) @ (Y - y0)
            size = np.trace(G, axis1=1, axis2=2)[:, None, None] / G.shape[1]
            W = np.linalg.solve(G + (ridge * size + 1e-9) * np.eye(G.shape[1]), C)
            means.append(((now[:, None] - x0) @ W + y0)[:, 0])
        return np.stack(means, axis=1)

    return {setting: partial(predict, setting) for setting in product(NEIGHBOURS, LOCAL_RIDGES)}


def local_linear(task: Task) -> tuple[Forecast, dict[str, Any]]:
    """Linear regression over nearest neighbours in delay coordinates, directly to every horizon."""
    # A regression of many coordinates is not local; ten rows for a coefficient would be all of most recordings.
    N, shortest = task.values[0].shape[1], max(map(len, task.validation().train))
    lags = [lags for lags in LAGS if lags == 1 or (lags * N <= 40 and 4 * lags < shortest)]
    return _validated(task, _neighbours, lags)


def forecast_all(task: Task, seed: int) -> dict[str, tuple[Forecast, dict[str, Any]]]:
    """Forecasts of all methods, and what was chosen for each."""
    season = find_period(task.train) if len(task.values) == 1 else None
    return {
        "var": autoregression(task),
        "climatology": (climatology(task), {}),
        "seasonal": (seasonal_climatology(task), {"period": season}),
        "persistence": (persistence(task), {}),
        "local_linear": local_linear(task),
        "esn": echo_state(task, seed),
    }
