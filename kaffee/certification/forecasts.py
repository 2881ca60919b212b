"""Forecasts on held-out data: those of the surrogate and of baselines, and their scores on the same readings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import nan
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kaffee.certification.analogues import forecast_analogues
from kaffee.certification.innovations import FilterPass, Starts
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Recursion, predict
from kaffee.filtering.rollout import DIVERGENCE_BOUND, forecast_ensemble, mask_diverged
from kaffee.metrics.calibration import coverage, histogram_density, relative_ranks
from kaffee.metrics.scores import STD_FLOOR, gaussian_crps, gaussian_nll
from kaffee.model.discrete import reading_noise
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.autoregression import hold_readings

NUM_HORIZONS = 6
SHORTEST_REACH = 64
"""Steps that the longest horizon has at least: spikes decorrelate within a beat and may be foreseen for many."""
MAX_SHARE = 0.25
"""Of the longest held-out recording that the longest horizon may take: at least three starts do not overlap."""
MAX_NUMBERS = 40_000_000
"""Of an ensemble that are in memory at once: 160 MB."""
NUM_BLOCKS, MIN_BLOCKS = 20, 4
"""Blocks of time behind a standard error."""
SURROGATE = "surrogate"
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
FAN_HISTORY, FAN_COLUMNS = 50, 3

Recordings = Sequence[Float[np.ndarray, "T N"]]
Moments = Float[np.ndarray, "S H N"]
Entries = Float[np.ndarray, "S N"]
Mask = Bool[np.ndarray, "S N"]


def default_horizons(train: Series, test: Series) -> tuple[int, ...]:
    """Choose horizons up to two decorrelation times or `SHORTEST_REACH`, as far as held-out recordings allow."""
    reach = max(2.0 * train.decorrelation_time, SHORTEST_REACH)
    longest = max(1.0, min(reach, MAX_SHARE * max(test.lengths)))
    return tuple(sorted({round(h) for h in np.geomspace(1.0, longest, NUM_HORIZONS)}))


class _Forecast(NamedTuple):
    """Gaussian forecasts of readings, noise included, in standardised units: starts x horizons x coordinates."""

    mean: Moments
    std: Moments


def _climatology(train: Recordings, starts: Starts, horizons: Sequence[int]) -> _Forecast:
    """Forecast N(mean, variance) of the training data, whatever was read last."""
    everything = np.concatenate(train)
    shape = (len(starts.rows), len(horizons), everything.shape[1])
    mean, std = np.nanmean(everything, axis=0), np.nanstd(everything, axis=0)
    return _Forecast(np.broadcast_to(mean, shape), np.broadcast_to(std, shape))


def _structure_function(train: Recordings, lag: int) -> Float[np.ndarray, " N"]:
    """Return the mean over t of (x_{t+lag} - x_t)^2 for every coordinate; NaN without a pair."""
    differences = [(x[lag:] - x[: len(x) - lag]) ** 2 for x in train if len(x) > lag]
    stacked = np.concatenate(differences) if differences else np.zeros((0, train[0].shape[1]))
    count = (~np.isnan(stacked)).sum(axis=0)
    return np.where(count > 0, np.nansum(stacked, axis=0) / np.maximum(count, 1), np.nan)


def _reading_ages(values: Float[np.ndarray, "T N"]) -> Int[np.ndarray, "T N"]:
    """Count the rows since each coordinate was last read, 0 if in this row; -1 before its first reading."""
    row = np.arange(len(values))[:, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, row), axis=0)
    return np.where(last >= 0, row - last, -1)


def _persistence(train: Recordings, test: Recordings, starts: Starts, horizons: Sequence[int]) -> _Forecast:
    """Forecast N(last reading, D(h + age)), D the training data's mean squared difference over that many steps.

    Climatology where nothing was read yet, or where the training data have no pair of readings so far apart.
    """
    mean, std = (values.copy() for values in _climatology(train, starts, horizons))
    age = starts.ahead(tuple(_reading_ages(values) for values in test), 0)
    last = starts.ahead(tuple(hold_readings(values) for values in test), 0)
    structure = cache(partial(_structure_function, train))
    for i, h in enumerate(horizons):
        for old in np.unique(age[age >= 0]).astype(int).tolist():
            variance = structure(old + h)
            known = (age == old) & (variance > 0)
            mean[:, i][known] = last[known]
            std[:, i][known] = np.sqrt(np.broadcast_to(variance, known.shape)[known])
    return _Forecast(mean, std)


@eqx.filter_jit
def _carry_ahead(
    model: StateSpaceModel,
    recursion: Recursion,
    beliefs: Belief,
    num_steps: int,
    inputs: Float[Array, "S H K"] | None = None,
) -> tuple[Array, Array]:
    def moments(belief: Belief) -> tuple[Array, Array]:
        return model.observation.observe(belief.mean), belief.signal_variance(model.observation)

    def body(belief: Belief, u: Array | None) -> tuple[Belief, tuple[Array, Array]]:
        Gamma, core = model.shell.process_variance(), model.core.given(inputs=u)
        belief = predict(core, Gamma, belief, transport=recursion.transport, by=recursion.filter)
        return belief, moments(belief)

    driven_by = None if inputs is None else jnp.swapaxes(inputs, 0, 1)
    _, later = jax.lax.scan(body, beliefs, driven_by, length=num_steps)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), moments(beliefs), later)


def carry_ahead(run: FilterPass, num_steps: int, recursion: Recursion | None = None) -> tuple[Moments, Moments]:
    """Apply z' = F(z), P' = J P J' + Gamma `num_steps` times to the beliefs at the starts of a filter pass.

    Returns mean and variance of the signal B z, standardised; index 0 is the filtered belief itself. `recursion` is
    another one than the filter's own.
    """
    whole = run.reconstruction
    inputs = run.inputs_ahead(num_steps)
    mean, variance = _carry_ahead(whole.model, recursion or whole.filter, run.beliefs, num_steps, inputs)
    return np.asarray(mean, np.float64).swapaxes(0, 1), np.asarray(variance, np.float64).swapaxes(0, 1)


def _gaussian_forecast(run: FilterPass, horizons: Sequence[int]) -> _Forecast:
    """Forecast readings at `horizons` by the covariance recursion; exact for a linear core, and for any at one step."""
    (mean, variance), chosen = carry_ahead(run, max(horizons)), list(horizons)
    model = run.reconstruction.model
    noise = reading_noise(model.discrete, model.shell.observation_variance(), jnp.asarray(mean[:, chosen]))
    return _Forecast(mean[:, chosen], np.sqrt(variance[:, chosen] + np.asarray(noise, np.float64)))


def _ensemble_forecast(
    run: FilterPass, horizons: Sequence[int], members: int, *, seed: int
) -> tuple[_Forecast, int, Moments]:
    """Forecast readings at `horizons` by the moments of ensembles; also count the members that left the attractor.

    Those are left out from where they left, as in `kaffee.inference.forecast`; with fewer than two others NaN. Also
    returns the relative rank of each reading among the members, NaN where one of them left.
    """
    model, beliefs, longest, S = run.reconstruction.model, run.beliefs, max(horizons), len(run.starts.rows)
    chunk = max(1, min(S, MAX_NUMBERS // (members * longest * model.num_observed)))
    # The last chunk is filled up with repetitions, so that one program serves all.
    order = np.concatenate([np.arange(S), np.zeros(-S % chunk, int)]).reshape(-1, chunk)
    keys = jax.random.split(jax.random.key(seed), len(order))
    steps, diverged, moments = np.array(horizons) - 1, 0, []
    inputs = run.inputs_ahead(longest)
    readings = np.stack([run.starts.ahead(run.standard, h) for h in horizons], axis=1)
    rng, ranks = np.random.default_rng(seed), []
    for i, (key, index) in enumerate(zip(keys, order, strict=True)):
        some = jax.tree.map(lambda a, index=index: a[index], beliefs)
        u = None if inputs is None else inputs[index]
        values = np.asarray(forecast_ensemble(model, some, longest, members, key=key, inputs=u), np.float64)
        away = mask_diverged(values)
        diverged += int(away[:, : S - i * chunk, -1].sum())
        gone = away[:, :, steps, None]
        kept, count = np.where(gone, 0.0, values[:, :, steps]), (~gone).sum(axis=0)
        mean = kept.sum(axis=0) / np.maximum(count, 1)
        squares = np.where(gone, 0.0, (kept - mean) ** 2).sum(axis=0)
        ranks.append(relative_ranks(np.where(gone, np.nan, values[:, :, steps]), readings[index], rng))
        moments.append([np.where(count > 1, m, np.nan) for m in (mean, np.sqrt(squares / np.maximum(count - 1, 1)))])
    made = _Forecast(*(np.concatenate(parts)[:S] for parts in zip(*moments, strict=True)))
    return made, diverged, np.concatenate(ranks)[:S]


def _forecast_by_ensemble(
    run: FilterPass, horizons: Sequence[int], members: int, *, seed: int
) -> tuple[_Forecast, int, Float[np.ndarray, "S H N"]]:
    """Forecast by the filter at one step and by an ensemble beyond; also count the members that left, and rank."""
    own, diverged, ranks = _ensemble_forecast(run, horizons, members, seed=seed)
    if horizons[0] == 1 and run.reconstruction.model.discrete is None:
        first = _gaussian_forecast(run, (1,))
        own.mean[:, 0], own.std[:, 0] = first.mean[:, 0], first.std[:, 0]
    return own, diverged, ranks


def forecast_at(run: FilterPass, horizons: Sequence[int], members: int, seed: int, *, exact: bool) -> _Forecast:
    """Forecast readings at rising horizons, as certificates do; `exact` by the covariance recursion at all of them."""
    return _gaussian_forecast(run, horizons) if exact else _forecast_by_ensemble(run, horizons, members, seed=seed)[0]


class _Score(NamedTuple):
    """Scores of one method at one horizon, means over the same readings for all methods.

    In data units, and `_standard` in units of the training data's spread, which suits coordinates in different units.
    `num_entries` is the number of readings, `coverage_90` the share of them inside the central 90 % band.
    """

    nll: float
    crps: float
    rmse: float
    nll_standard: float
    crps_standard: float
    rmse_standard: float
    coverage_90: float
    num_entries: int


class _Skill(NamedTuple):
    """How much better than the best baseline: mean of NLL(baseline) - NLL(surrogate), in nats per entry.

    `error` is its standard error from `num_blocks` blocks of time: errors of neighbouring starts are not independent.
    NaN if there are too few blocks.
    """

    baseline: str
    gain: float
    error: float
    num_blocks: int


@dataclass(frozen=True)
class Scores:
    """Forecast scores by method and horizon.

    Attributes:
        horizons, times: In steps, and in units of time.
        methods: Scores at every horizon; "surrogate" and the baselines (older certificates have no "analogue").
        diverged_members: How many left the attractor before the longest horizon, of members x starts.
        over_climatology: As `skill`, against climatology alone: where forecasts know nothing any more.
        spread: Root mean variance of the surrogate's forecasts at every horizon, standardised; beside its RMSE.
        rank_histogram: Density of the rank of readings among ensemble members at every horizon: 1 in every bin if
            they are drawn alike, horns if the ensemble is too narrow, a hump if it is too wide.
    """

    horizons: tuple[int, ...]
    times: tuple[float, ...]
    methods: dict[str, list[_Score]]
    skill: list[_Skill]
    num_starts: int
    members: int
    diverged_members: int
    over_climatology: list[_Skill] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    rank_histogram: list[list[float]] = field(default_factory=list)


def _score_gaussian(y: Entries, mean: Entries, std: Entries, mask: Mask, scale: Float[np.ndarray, " N"]) -> _Score:
    """Score Gaussian forecasts of y, all in standardised units; NaN if one of them is not finite."""
    if not mask.any():
        return _Score(nan, nan, nan, nan, nan, nan, nan, 0)
    units = np.broadcast_to(scale, y.shape)[mask]
    y, mean, std = y[mask], mean[mask], np.maximum(std[mask], STD_FLOOR)
    nll, crps, squares = gaussian_nll(y, mean, std), gaussian_crps(y, mean, std), (y - mean) ** 2
    return _Score(
        nll=float(np.mean(nll + np.log(units))),
        crps=float(np.mean(crps * units)),
        rmse=float(np.sqrt(np.mean(squares * units**2))),
        nll_standard=float(np.mean(nll)),
        crps_standard=float(np.mean(crps)),
        rmse_standard=float(np.sqrt(np.mean(squares))),
        coverage_90=coverage(y - mean, std, 0.9) if np.isfinite(squares + std).all() else nan,
        num_entries=int(mask.sum()),
    )


def count_blocks(run: FilterPass, horizon: int) -> int:
    """Count blocks of held-out rows that are longer than errors remember: a horizon and a decorrelation time."""
    return int(min(NUM_BLOCKS, sum(run.series.lengths) / (horizon + run.series.decorrelation_time)))


def block_mean(values: Entries, mask: Mask, num_blocks: int = NUM_BLOCKS) -> tuple[float, float, int]:
    """Return the mean over entries, its standard error from blocks of neighbouring starts, and the number of blocks."""
    filled = np.where(mask, values, 0.0)
    rows = np.flatnonzero(mask.any(axis=1))
    if not len(rows):
        return nan, nan, 0
    blocks = np.array_split(rows, max(1, min(num_blocks, len(rows))))
    means = np.array([filled[block].sum() / mask[block].sum() for block in blocks])
    # A diverged forecast has an infinite score, and no error of it.
    with np.errstate(invalid="ignore"):
        error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) >= MIN_BLOCKS else nan
    return float(filled.sum() / mask.sum()), error, len(means)


def score_forecasts(
    run: FilterPass, linear: FilterPass | None, train: Recordings, horizons: Sequence[int], *, members: int, seed: int
) -> Scores:
    """Score surrogate, persistence, climatology, analogues and the linear model, from the same rows and readings.

    Every forecast enters as a normal distribution. The surrogate's is its filter's at one step, and beyond has the
    moments of an ensemble drawn from the filtered belief (a sample of K members costs about 1/K nats, 0.005 for 200).
    `run` and `linear` are filter passes of the surrogate and of the linear baseline with the same starts; `train` is
    standardised.
    """
    horizons, starts = tuple(sorted(set(horizons))), run.starts
    own, diverged, ranks = _forecast_by_ensemble(run, horizons, members, seed=seed)
    forecasts = {
        SURROGATE: own,
        "persistence": _persistence(train, run.standard, starts, horizons),
        "climatology": _climatology(train, starts, horizons),
        "analogue": _Forecast(*forecast_analogues(train, run.standard, starts, horizons)),
    }
    if linear is not None:
        forecasts["linear"] = _gaussian_forecast(linear, horizons)
    methods: dict[str, list[_Score]] = {name: [] for name in forecasts}
    skill: list[_Skill] = []
    over_climatology: list[_Skill] = []
    for i, h in enumerate(horizons):
        y = starts.ahead(run.standard, h)
        mask = ~np.isnan(y)
        if h == 1 and not mask.any():
            raise DataError(f"{run.series.label}: no start is followed by a reading, so nothing can be scored.")
        nlls = {}
        for name, (mean, std) in forecasts.items():
            methods[name].append(
                _score_gaussian(y, mean[:, i], std[:, i], mask, np.exp(run.reconstruction.scaler.log_scale))
            )
            nlls[name] = gaussian_nll(np.where(mask, y, 0.0), mean[:, i], np.maximum(std[:, i], STD_FLOOR))
        surrogate = nlls.pop(SURROGATE)
        totals = {name: float(np.sum(nll[mask])) for name, nll in nlls.items()}
        best, blocks = min(totals, key=totals.__getitem__), count_blocks(run, h)
        for found, name in ((skill, best), (over_climatology, "climatology")):
            found.append(_Skill(name, *block_mean(nlls[name] - surrogate, mask, blocks)))
    times = tuple(h * run.reconstruction.dt for h in horizons)
    known = [own.std[:, i][~np.isnan(own.std[:, i])] for i in range(len(horizons))]
    spread = [float(np.sqrt(np.mean(std**2))) if std.size else nan for std in known]  # none if all members left
    histogram = [histogram_density(ranks[:, i]).tolist() for i in range(len(horizons))]
    return Scores(
        horizons, times, methods, skill, len(starts.rows), members, diverged, over_climatology, spread, histogram
    )


@dataclass(frozen=True)
class Fan:
    """One forecast from a filtered belief, in data units; row numbers count from where it starts.

    Attributes:
        history, truth: Readings up to and including the row of the recording where it starts, and after it.
        levels, quantiles: Of future readings, noise included.
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
    """Forecast from the middle one of the starts with `num_steps` rows after them; None if there is none."""
    starts, series, reconstruction = run.starts, run.series, run.reconstruction
    candidates = np.flatnonzero(starts.rows + num_steps < np.array(series.lengths)[starts.recordings])
    if not len(candidates):
        return None
    # The middle one, so that it is not chosen for its looks.
    s = int(candidates[len(candidates) // 2])
    r, t = int(starts.recordings[s]), int(starts.rows[s])
    belief = jax.tree.map(lambda a: a[s : s + 1], run.beliefs)
    inputs, key = run.inputs_ahead(num_steps), jax.random.key(seed)
    inputs = None if inputs is None else inputs[s : s + 1]
    ensemble = forecast_ensemble(reconstruction.model, belief, num_steps, members, key=key, inputs=inputs)
    values = np.asarray(ensemble, np.float64)[:, 0]
    values = np.where(np.abs(values) < DIVERGENCE_BOUND, values, np.nan)
    if np.isnan(values).all(axis=0).any():
        return None
    shown = slice(0, FAN_COLUMNS)
    return Fan(
        columns=series.columns[shown],
        recording=r,
        row=t,
        history=series.recordings[r][max(t - FAN_HISTORY, 0) : t + 1, shown],
        truth=series.recordings[r][t + 1 : t + 1 + num_steps, shown],
        levels=FAN_LEVELS,
        quantiles=reconstruction.scaler.inverse(np.nanquantile(values, FAN_LEVELS, axis=0))[:, :, shown],
        dt=reconstruction.dt,
    )
