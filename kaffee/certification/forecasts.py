"""How far ahead forecasts are scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kaffee.certification.innovations import FilterPass, Starts
from kaffee.data.series import Series
from kaffee.data.timescales import decorrelation_time
from kaffee.filtering.gated import signal_variance
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Recursion, predict
from kaffee.filtering.rollout import DIVERGENCE_BOUND, forecast_ensemble, mask_diverged
from kaffee.model.statespace import StateSpaceModel

NUM_HORIZONS = 6
SHORTEST_REACH = 64
"""Steps that the longest horizon has at least: spikes decorrelate within a beat and may be foreseen for many."""
MAX_SHARE = 0.25
"""Of the longest held-out recording that the longest horizon may take: at least three starts do not overlap."""


def default_horizons(train: Series, test: Series) -> tuple[int, ...]:
    """From 1 step, evenly in their logarithm, to two decorrelation times of the training data or `SHORTEST_REACH`.

    Bounded by the held-out recordings.
    """
    reach = max(2.0 * decorrelation_time(train), SHORTEST_REACH)
    longest = max(1.0, min(reach, MAX_SHARE * max(test.lengths)))
    return tuple(sorted({round(h) for h in np.geomspace(1.0, longest, NUM_HORIZONS)}))


# What anyone could forecast without a model of dynamics: the climate, and the last reading.


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


# Beliefs carried ahead without observations: by the model's own covariance recursion, and by ensembles.


# Numbers of an ensemble that are in memory at once: 160 MB.
MAX_NUMBERS = 40_000_000


class Ahead(NamedTuple):
    """Moments of the signal B z after 0..H steps without observations, in standardised units."""

    mean: Float[np.ndarray, "S H N"]
    variance: Float[np.ndarray, "S H N"]


@eqx.filter_jit
def _ahead(model: StateSpaceModel, recursion: Recursion, beliefs: Belief, num_steps: int) -> tuple[Array, Array]:
    Gamma, observation = model.shell.process_variance(), model.observation

    def moments(belief: Belief) -> tuple[Array, Array]:
        return observation.observe(belief.mean), signal_variance(observation, belief.covariance)

    def body(belief: Belief, _: None) -> tuple[Belief, tuple[Array, Array]]:
        belief = predict(model.core, Gamma, belief, transport=recursion.transport)
        return belief, moments(belief)

    _, later = jax.lax.scan(body, beliefs, None, length=num_steps)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), moments(beliefs), later)


def carry_ahead(model: StateSpaceModel, recursion: Recursion, beliefs: Belief, num_steps: int) -> Ahead:
    """z' = F(z), P' = J P J' + Gamma, `num_steps` times; index 0 is the filtered belief itself."""
    found = _ahead(model, recursion, beliefs, num_steps)
    return Ahead(*(np.asarray(a, np.float64).swapaxes(0, 1) for a in found))


def gaussian_forecast(
    model: StateSpaceModel, recursion: Recursion, beliefs: Belief, horizons: Sequence[int]
) -> Forecast:
    """Readings at `horizons` by the covariance recursion; exact for a linear core, and for any at one step."""
    ahead, chosen = carry_ahead(model, recursion, beliefs, max(horizons)), list(horizons)
    noise = np.asarray(model.shell.observation_variance(), np.float64)
    return Forecast(ahead.mean[:, chosen], np.sqrt(ahead.variance[:, chosen] + noise))


def ensemble_forecast(
    model: StateSpaceModel, beliefs: Belief, horizons: Sequence[int], members: int, *, seed: int
) -> tuple[Forecast, int]:
    """Mean and standard deviation of sampled readings at `horizons`, and how many members left the attractor.

    Those are left out from where they left, as in `kaffee.inference.forecast`; with fewer than two others NaN.
    """
    longest, (S, _) = max(horizons), beliefs.mean.shape
    chunk = max(1, min(S, MAX_NUMBERS // (members * longest * model.num_observed)))
    # The last chunk is filled up with repetitions, so that one program serves all.
    order = np.concatenate([np.arange(S), np.zeros(-S % chunk, int)]).reshape(-1, chunk)
    keys = jax.random.split(jax.random.key(seed), len(order))
    steps = np.array(horizons) - 1
    means: list[np.ndarray] = []
    stds: list[np.ndarray] = []
    diverged = 0
    for key, index in zip(keys, order, strict=True):
        some = Belief(beliefs.mean[index], beliefs.covariance[index])
        values = np.asarray(forecast_ensemble(model, some, longest, members, key=key), np.float64)
        away = mask_diverged(values)
        chosen, gone = values[:, :, steps], away[:, :, steps]
        diverged += int(away[:, :, -1][:, : S - len(means) * chunk].sum())
        kept = np.where(gone[..., None], 0.0, chosen)
        count = (~gone).sum(axis=0)[..., None]
        mean = kept.sum(axis=0) / np.maximum(count, 1)
        squares = np.where(gone[..., None], 0.0, (kept - mean) ** 2).sum(axis=0)
        means.append(np.where(count > 1, mean, np.nan))
        stds.append(np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan))
    return Forecast(np.concatenate(means)[:S], np.concatenate(stds)[:S]), diverged


@eqx.filter_jit
def _observed(model: StateSpaceModel, beliefs: Belief) -> Float[Array, "S N N"]:
    return model.observation.columns(model.observation.rows(beliefs.covariance))


def observed_growth(run: FilterPass) -> tuple[Float[np.ndarray, "S N"], Float[np.ndarray, "S N N"]]:
    """log [B P_{t+1|t} B']_jj - log [B P_{t|t} B']_jj at the starts of a pass, and B P_{t|t} B'."""
    model = run.reconstruction.model
    ahead = carry_ahead(model, run.recursion, run.beliefs, 1)
    before = np.asarray(_observed(model, run.beliefs), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(ahead.variance[:, 1]) - np.log(ahead.variance[:, 0]), before


# One forecast as a picture: what was read, what came, and what the surrogate expected.


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
HISTORY = 50
MAX_COLUMNS = 3


@dataclass(frozen=True)
class Fan:
    """A forecast from one filtered belief, in data units; row numbers count from where it starts.

    Attributes:
        columns: Coordinates that are shown.
        recording, row: Of the held-out data, where it starts.
        history: Readings up to and including that row, NaN where missing.
        truth: Readings after it.
        levels: Of the quantiles.
        quantiles: Of future readings, noise included.
        dt: Time of one row.
    """

    columns: tuple[str, ...]
    recording: int
    row: int
    history: Float[np.ndarray, "P C"]
    truth: Float[np.ndarray, "H C"]
    levels: tuple[float, ...]
    quantiles: Float[np.ndarray, "Q H C"]
    dt: float


def forecast_fan(run: FilterPass, num_steps: int, members: int, *, seed: int) -> Fan | None:
    """The forecast from the start in the middle of those with `num_steps` rows after them; None if there is none.

    The middle one, so that nobody chose it for its looks.
    """
    starts = run.starts
    lengths = np.array(run.series.lengths)[starts.recordings]
    candidates = np.flatnonzero(starts.rows + num_steps < lengths)
    if not len(candidates):
        return None
    s = int(candidates[len(candidates) // 2])
    r, t = int(starts.recordings[s]), int(starts.rows[s])
    belief = Belief(run.beliefs.mean[s : s + 1], run.beliefs.covariance[s : s + 1])
    key = jax.random.key(seed)
    values = np.asarray(forecast_ensemble(run.reconstruction.model, belief, num_steps, members, key=key), np.float64)
    values = np.where(np.abs(values) < DIVERGENCE_BOUND, values, np.nan)[:, 0]
    if np.isnan(values).all(axis=0).any():
        return None
    columns = slice(0, MAX_COLUMNS)
    inside = run.reconstruction.scaler.inverse(np.nanquantile(values, LEVELS, axis=0))
    recording = run.series.recordings[r]
    return Fan(
        columns=run.series.columns[columns],
        recording=r,
        row=t,
        history=recording[max(t - HISTORY, 0) : t + 1, columns],
        truth=recording[t + 1 : t + 1 + num_steps, columns],
        levels=LEVELS,
        quantiles=inside[:, :, columns],
        dt=run.reconstruction.dt,
    )
