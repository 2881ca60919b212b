"""One filter pass over held-out recordings, and the checks of its innovations: bias, width, shape and whiteness."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.special import chdtrc, chdtri, ndtr, ndtri

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import evenly
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.gated import Row, Track, make_gate
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Step
from kaffee.filtering.sweep import batch_recordings, split_recordings, sweep
from kaffee.metrics.calibration import coverage, ks_distance, normal_limit
from kaffee.metrics.scores import gaussian_interval_score
from kaffee.metrics.spectra import autocorrelation, count_pairs
from kaffee.training.selection import inputs_ahead

WARM_UP = 20
"""Rows in which a filter without a climate forgets how its first row anchored it, and which are not scored."""
NUM_LAGS, MIN_PAIRS = 20, 20
"""Lags of autocorrelations; fewer pairs of rows than this say nothing about a lag."""
LEVELS = (0.5, 0.8, 0.9, 0.95)
CURVE = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())
JUDGED = 0.9
NUM_BINS, MIN_ENTRIES = 20, 50
"""Bins of the PIT; fewer scored entries than this make a coverage of 90 % uncertain by more than 4 %."""


class Starts(NamedTuple):
    """Rows of a series from which forecasts start: the recording of each, and the row in it."""

    recordings: Int[np.ndarray, " S"]
    rows: Int[np.ndarray, " S"]

    def ahead(self, recordings: tuple[Float[np.ndarray, "T N"], ...], steps: int) -> Float[np.ndarray, "S N"]:
        """Return the row `steps` after each start; NaN beyond the end of its recording."""
        later = np.full((len(self.rows), recordings[0].shape[1]), np.nan)
        for r, values in enumerate(recordings):
            mine = (self.recordings == r) & (self.rows + steps < len(values))
            later[mine] = values[self.rows[mine] + steps]
        return later


@dataclass(frozen=True)
class FilterPass:
    """A model's filter over a series, in standardised coordinates.

    Attributes:
        series: In data units, with the model's columns.
        standard: Its recordings in standardised units, NaN where missing.
        rows: What the filter gave at every row of each recording.
        whitened: y = L^-1 v of the seen entries, Omega = L L' (`filtering.gaussian`); NaN where nothing is scored.
        beliefs: Filtered, at the `starts`.
        warm_up: Rows of each recording that are not scored.
    """

    reconstruction: Reconstruction
    series: Series
    standard: tuple[Float[np.ndarray, "T N"], ...]
    rows: tuple[Row, ...]
    whitened: tuple[Float[np.ndarray, "T N"], ...]
    starts: Starts
    beliefs: Belief
    warm_up: int

    def inputs_ahead(self, num_steps: int) -> Float[Array, "S H K"] | None:
        """Return the standardised inputs of the rows after every start, 0 beyond the data; None if there are none."""
        model = self.reconstruction.model
        if not model.input_dim:
            return None
        standard = self.series.standardised(self.reconstruction.scaler)
        return jnp.asarray(inputs_ahead(standard, *self.starts, num_steps), model.dtype)


def choose_warm_up(series: Series, *, climate: bool = False) -> int:
    """Return `WARM_UP`, or a quarter of the longest recording if that is less; at least the row that anchors.

    A model with a climate predicts the first row and starts from an honest belief: all its rows count.
    """
    return 0 if climate else max(1, min(WARM_UP, max(series.lengths) // 4))


def choose_starts(series: Series, count: int, *, climate: bool = False) -> Starts:
    """Choose up to `count` evenly spaced rows after the warm-up that have a row after them."""
    warm_up = choose_warm_up(series, climate=climate)
    pairs = [(r, t) for r, length in enumerate(series.lengths) for t in range(warm_up, length - 1)]
    if not pairs:
        raise DataError(
            f"{series.label}: the longest recording has {max(series.lengths)} rows; a forecast needs one row after "
            f"{warm_up} to start from. Hold out more."
        )
    table = np.array(pairs)[np.unique(evenly(len(pairs), min(count, len(pairs))))]
    return Starts(table[:, 0], table[:, 1])


def _keep_whitened(track: Track, row: Row, step: Step) -> tuple[Row, Float[Array, "R N"]]:
    scored = row.accepted & ~jnp.isnan(row.nll)[:, None]
    return row, jnp.where(scored, step.innovation.whitened, jnp.nan)


def _randomised_scores(run: "FilterPass") -> list[Float[np.ndarray, "T N"]]:
    """Turn counts or binary readings into numbers that are standard normal if their predictions are right.

    u = Phi^-1(v), v drawn evenly between P(X < x) and P(X <= x) (Smith 1985; Czado, Gneiting and Held 2009): bands,
    coverage and PIT of u are those of randomised intervals of the counts themselves.
    """
    discrete, rng, scores = run.reconstruction.model.discrete, np.random.default_rng(0), []
    assert discrete is not None
    for x, row in zip(run.standard, run.rows, strict=True):
        mean, std = (jnp.asarray(each) for each in (row.reading_mean, row.reading_std))
        variance = jnp.maximum(std**2 - discrete.noise_variance(mean), 0.0)
        low, high, _ = (np.asarray(a, np.float64) for a in discrete.cumulative(jnp.asarray(x), mean, variance))
        v = low + (high - low) * rng.uniform(size=low.shape)
        scores.append(ndtri(np.clip(v, 1e-9, 1.0 - 1e-9)))
    return scores


def filter_pass(reconstruction: Reconstruction, series: Series, starts: Starts) -> FilterPass:
    """Filter a series whose columns are the model's, and keep the beliefs at `starts`.

    Where only part of a row was read, the part is whitened by the Cholesky factor of its own block of Omega: under the
    model these numbers are independent and standard normal for every pattern of gaps.
    """
    model = reconstruction.model
    standard = series.standardised(reconstruction.scaler)
    x = batch_recordings(standard, model.dtype)
    swept = sweep(model, reconstruction.filter, x, gate=make_gate(), keep=_keep_whitened, starts=starts)
    each = split_recordings(swept.rows, series.lengths)
    return FilterPass(
        reconstruction=reconstruction,
        series=series,
        standard=standard.recordings,
        rows=tuple(row for row, _ in each),
        whitened=tuple(np.asarray(y, np.float64) for _, y in each),
        starts=starts,
        beliefs=swept.beliefs,
        warm_up=choose_warm_up(series, climate=model.climate is not None),
    )


@dataclass(frozen=True)
class _Whiteness:
    """Autocorrelations of the whitened innovations, coordinate by coordinate.

    Attributes:
        autocorrelations: NaN where there are too few pairs of rows.
        bands: Half-widths of the 95 % band of white noise.
        chance: Limits by the number of pairs of rows; if all is white, all are kept with probability 99 %.
        ljung_box: Q of each coordinate, chi-square with as many degrees of freedom as it has lags if all is white.
        p_values: P(Q' > Q). With thousands of rows nearly always 0 on real data: it tests whether there is any
            autocorrelation, not how much.
        largest, largest_lag, largest_coordinate: The largest |autocorrelation|, the effect size, and where it is.
        outside: Share of autocorrelations outside their band; 0.05 if all is white.
    """

    lags: list[int]
    autocorrelations: Float[np.ndarray, "K N"]
    bands: Float[np.ndarray, "K N"]
    chance: Float[np.ndarray, "K N"]
    ljung_box: Float[np.ndarray, " N"]
    p_values: Float[np.ndarray, " N"]
    largest: float
    largest_lag: int
    largest_coordinate: int
    outside: float


def _whiteness(recordings: Sequence[Float[np.ndarray, "T N"]]) -> _Whiteness | None:
    """Measure how white sequences are (NaN where there is no value); None if they are too short to tell.

    Q = sum_k n_k r_k^2, which is Ljung and Box's n (n + 2) r_k^2 / (n - k) up to terms of order 1 / n and holds with
    gaps, where n_k pairs are seen; pairs across a gap count too, since innovations stay independent over it. The mean
    is taken out first: a bias is another fault, and reported as such.
    """
    pairs = count_pairs(recordings, NUM_LAGS)[1:]
    r = np.where(pairs >= MIN_PAIRS, autocorrelation(recordings, NUM_LAGS)[1:], np.nan)
    usable = np.isfinite(r)
    if not usable.any():
        return None
    error = np.where(usable, 1.0 / np.sqrt(np.maximum(pairs, 1)), np.nan)
    bands = ndtri(0.975) * error
    degrees = usable.sum(axis=0)
    Q = np.where(degrees > 0, np.nansum((r / error) ** 2, axis=0), np.nan)
    lag, coordinate = np.unravel_index(np.nanargmax(np.abs(r)), r.shape)
    return _Whiteness(
        lags=list(range(1, NUM_LAGS + 1)),
        autocorrelations=r,
        bands=bands,
        chance=normal_limit(int(usable.sum())) * error,
        ljung_box=Q,
        p_values=chdtrc(np.maximum(degrees, 1), Q),
        largest=float(np.abs(r[lag, coordinate])),
        largest_lag=int(lag) + 1,
        largest_coordinate=int(coordinate),
        outside=float((np.abs(r) > bands)[usable].mean()),
    )


@dataclass(frozen=True)
class Residuals:
    """One-step predictions of held-out readings; `_each` is of every coordinate, NaN without scored entries.

    Attributes:
        num_entries, counts: Scored entries (predicted, read, after the warm-up), and those of each coordinate.
        num_independent: Readings of one row may err together; so many independent ones say at least as much.
        num_restarts: How often the filter lost its belief and started again.
        nll, nll_standard: -log p per entry given the past, in data units and in standardised ones.
        bias, bias_errors: Mean of v_i / sqrt(Omega_ii) of each coordinate, and its standard error if they are white.
        nis, nis_band: Mean of v' Omega^-1 v per entry, and where it lies with probability 95 % if calibrated, around 1.
        nis_each: Mean of v_i^2 / Omega_ii. Of counts and binary readings, this, `nis`, `bias`, `pit` and coverage are
            those of randomised scores, and `nll` is minus a log probability.
        pit, ks: Histogram density of Phi(v_i / sqrt(Omega_ii)) over equal bins, and its distance from uniform.
        coverage, coverage_each: Share of entries inside their central band, by level, and at `JUDGED`.
        curve_levels, curve: The same at many levels: the reliability curve.
        interval_score_standard: Mean interval score of bands at `JUDGED`, in standardised units; NaN of counts and
            binary readings, whose bands are not Gaussian.
    """

    columns: tuple[str, ...]
    num_entries: int
    counts: Int[np.ndarray, " N"]
    num_independent: float
    num_restarts: int
    nll: float
    nll_standard: float
    bias: Float[np.ndarray, " N"]
    bias_errors: Float[np.ndarray, " N"]
    nis: float
    nis_band: tuple[float, float]
    nis_each: Float[np.ndarray, " N"]
    pit: Float[np.ndarray, " B"]
    ks: float
    ks_each: Float[np.ndarray, " N"]
    coverage: dict[str, float]
    coverage_each: Float[np.ndarray, " N"]
    curve_levels: tuple[float, ...]
    curve: list[float]
    whiteness: _Whiteness | None
    interval_score_standard: float = float("nan")


def residual_checks(run: FilterPass, least: int = MIN_ENTRIES) -> Residuals:
    """Check the innovations of a filter pass.

    Marginal innovations v_i / sqrt(Omega_ii) give bias, PIT and coverage, since these are the bands that a user sees;
    jointly whitened ones give NIS and autocorrelations, since these are independent under the model.
    """
    # Entries that were predicted and read, after the warm-up.
    scored = [np.asarray(row.accepted) & ~np.isnan(row.nll)[:, None] for row in run.rows]
    for mask in scored:
        mask[: run.warm_up] = False
    total = sum(int(mask.sum()) for mask in scored)
    if total < least:
        after = f" after {run.warm_up} rows of warm-up" if run.warm_up else ""
        raise DataError(
            f"{run.series.label}: {total} readings can be scored{after}; at least {least} are needed. Hold out more."
        )
    standardised, nis, nll, interval_score = [], 0.0, 0.0, 0.0
    discrete = run.reconstruction.model.discrete is not None
    randomised = _randomised_scores(run) if discrete else [None] * len(scored)
    for x, row, mask, u in zip(run.standard, run.rows, scored, randomised, strict=True):
        mean, std = (np.asarray(each, np.float64) for each in (row.reading_mean, row.reading_std))
        standardised.append(np.where(mask, (x - mean) / std if u is None else u, np.nan))
        interval_score += float(np.sum(gaussian_interval_score(x, mean, std, JUDGED)[mask]))
        rows = mask.any(axis=1)
        nis += float(np.sum(row.nis[rows], dtype=np.float64))
        nll += float(np.sum(row.nll[rows], dtype=np.float64))
    u = np.concatenate(standardised)
    seen = ~np.isnan(u)
    each = [column[~np.isnan(column)] for column in u.T]
    pooled, counts = u[seen], seen.sum(axis=0)

    def of_each(measure: Callable[[np.ndarray], float]) -> Float[np.ndarray, " N"]:
        return np.array([measure(values) if len(values) else np.nan for values in each])

    def cover(values: np.ndarray, level: float) -> float:
        return coverage(values, np.ones_like(values), level)

    return Residuals(
        columns=run.series.columns,
        num_entries=total,
        counts=counts,
        num_independent=float(total**2 / np.sum(seen.sum(axis=1) ** 2)),
        num_restarts=sum(int(np.asarray(row.restarted)[1:].sum()) for row in run.rows),
        nll=nll / total + float(run.reconstruction.scaler.log_scale @ counts) / total,
        nll_standard=nll / total,
        bias=of_each(np.mean),
        bias_errors=of_each(lambda values: len(values) ** -0.5),
        nis=float(np.mean(pooled**2)) if discrete else nis / total,
        nis_band=(float(chdtri(total, 0.975)) / total, float(chdtri(total, 0.025)) / total),
        nis_each=of_each(lambda values: float(np.mean(values**2))),
        pit=np.histogram(ndtr(pooled), bins=NUM_BINS, range=(0.0, 1.0))[0] * NUM_BINS / total,
        ks=ks_distance(ndtr(pooled)),
        ks_each=of_each(lambda values: ks_distance(ndtr(values))),
        coverage={f"{level:g}": cover(pooled, level) for level in LEVELS},
        coverage_each=of_each(lambda values: cover(values, JUDGED)),
        curve_levels=CURVE,
        curve=[cover(pooled, level) for level in CURVE],
        whiteness=_whiteness([np.where(mask, y, np.nan) for y, mask in zip(run.whitened, scored, strict=True)]),
        interval_score_standard=float("nan") if discrete else interval_score / total,
    )
