"""Scores of forecasts on held-out data, for the surrogate and for baselines, on the same entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from kaffee.certification.forecasts import Forecast, climatology, ensemble_forecast, gaussian_forecast, persistence
from kaffee.certification.innovations import FilterPass
from kaffee.errors import DataError
from kaffee.metrics.scores import STD_FLOOR, gaussian_crps, gaussian_nll

NUM_BLOCKS = 20
MIN_BLOCKS = 4
SURROGATE = "surrogate"


class Score(NamedTuple):
    """Of one method at one horizon, means over the same observed entries for all methods.

    Attributes:
        nll, crps, rmse: In data units. Coordinates in different units are better compared in the standardised ones.
        nll_standard, crps_standard, rmse_standard: In units of the training data's spread.
        coverage_90: Share of readings inside the central 90 % band.
        num_entries: How many readings these are.
    """

    nll: float
    crps: float
    rmse: float
    nll_standard: float
    crps_standard: float
    rmse_standard: float
    coverage_90: float
    num_entries: int


class Skill(NamedTuple):
    """How much better than a baseline: mean of NLL(baseline) - NLL(surrogate), in nats per entry.

    Attributes:
        baseline: The best one at this horizon.
        gain: Above 0: the surrogate is better.
        error: Standard error from `num_blocks` blocks of time, since errors of neighbouring starts are not independent.
    """

    baseline: str
    gain: float
    error: float
    num_blocks: int


@dataclass(frozen=True)
class Scores:
    """Forecast scores by method and horizon.

    Attributes:
        horizons: In steps; `times`: the same in units of time.
        methods: Scores at every horizon; "surrogate" and the baselines.
        skill: Against the best baseline at every horizon.
        num_starts: Rows that forecasts start from.
        members: Of the surrogate's ensembles, beyond one step.
        diverged_members: How many of them left the attractor before the longest horizon, of members x starts.
    """

    horizons: tuple[int, ...]
    times: tuple[float, ...]
    methods: dict[str, list[Score]]
    skill: list[Skill]
    num_starts: int
    members: int
    diverged_members: int


def score(
    y: Float[np.ndarray, "S N"],
    mean: Float[np.ndarray, "S N"],
    std: Float[np.ndarray, "S N"],
    mask: Bool[np.ndarray, "S N"],
    scale: Float[np.ndarray, " N"],
) -> Score:
    """Scores of Gaussian forecasts of y, all in standardised units; NaN if one of them is not finite."""
    if not mask.any():
        nan = float("nan")
        return Score(nan, nan, nan, nan, nan, nan, nan, 0)
    units = np.broadcast_to(scale, y.shape)[mask]
    y, mean, std = y[mask], mean[mask], np.maximum(std[mask], STD_FLOOR)
    nll, crps = gaussian_nll(y, mean, std), gaussian_crps(y, mean, std)
    squares = (y - mean) ** 2
    inside = np.where(np.isfinite(squares + std), np.abs(y - mean) <= ndtri(0.95) * std, np.nan)
    return Score(
        nll=float(np.mean(nll + np.log(units))),
        crps=float(np.mean(crps * units)),
        rmse=float(np.sqrt(np.mean(squares * units**2))),
        nll_standard=float(np.mean(nll)),
        crps_standard=float(np.mean(crps)),
        rmse_standard=float(np.sqrt(np.mean(squares))),
        coverage_90=float(np.mean(inside)),
        num_entries=int(mask.sum()),
    )


def block_mean(values: Float[np.ndarray, "S N"], mask: Bool[np.ndarray, "S N"]) -> tuple[float, float, int]:
    """The mean over entries, its standard error from blocks of neighbouring starts, and how many blocks there are."""
    filled = np.where(mask, values, 0.0)
    rows = np.flatnonzero(mask.any(axis=1))
    if not len(rows):
        return float("nan"), float("nan"), 0
    blocks = np.array_split(rows, min(NUM_BLOCKS, len(rows)))
    means = np.array([filled[block].sum() / mask[block].sum() for block in blocks])
    # A diverged forecast has an infinite score, and no error of it.
    with np.errstate(invalid="ignore"):
        error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) >= MIN_BLOCKS else float("nan")
    return float(filled.sum() / mask.sum()), error, len(means)


def skill_of(
    y: Float[np.ndarray, "S N"], forecasts: dict[str, tuple[np.ndarray, np.ndarray]], mask: Bool[np.ndarray, "S N"]
) -> Skill:
    """The surrogate against the baseline with the lowest NLL on these entries."""
    clean = np.where(mask, y, 0.0)
    nlls = {m: gaussian_nll(clean, mean, np.maximum(std, STD_FLOOR)) for m, (mean, std) in forecasts.items()}
    own = nlls.pop(SURROGATE)
    best = min(nlls, key=lambda m: float(np.sum(nlls[m][mask])))
    return Skill(best, *block_mean(nlls[best] - own, mask))


def forecast_scores(
    run: FilterPass,
    linear: FilterPass | None,
    train: Sequence[Float[np.ndarray, "T N"]],
    horizons: Sequence[int],
    *,
    members: int,
    seed: int,
) -> Scores:
    """Surrogate, persistence, climatology and the linear model, from the same rows and on the same readings.

    Every forecast enters as a normal distribution. The surrogate's is its filter's at one step, and beyond has the
    moments of an ensemble drawn from the filtered belief (a sample of K members costs about 1/K nats, 0.005 for 200).

    Args:
        run: The surrogate's filter; its starts are everyone's.
        linear: The linear baseline's, at the same starts; None: without it.
        train: Standardised training recordings.
    """
    horizons = tuple(sorted(set(horizons)))
    starts, model = run.starts, run.reconstruction.model
    ensemble, diverged = ensemble_forecast(model, run.beliefs, horizons, members, seed=seed)
    first = gaussian_forecast(model, run.recursion, run.beliefs, (1,))
    mean, std = ensemble.mean.copy(), ensemble.std.copy()
    if 1 in horizons:
        mean[:, 0], std[:, 0] = first.mean[:, 0], first.std[:, 0]
    forecasts = {
        SURROGATE: Forecast(mean, std),
        "persistence": persistence(train, run.standard, starts, horizons),
        "climatology": climatology(train, starts, horizons),
    }
    if linear is not None:
        forecasts["linear"] = gaussian_forecast(linear.reconstruction.model, linear.recursion, linear.beliefs, horizons)
    scale, dt = run.reconstruction.scaler.scale, run.reconstruction.dt
    methods: dict[str, list[Score]] = {name: [] for name in forecasts}
    skill = []
    for i, h in enumerate(horizons):
        y = starts.ahead(run.standard, h)
        mask = ~np.isnan(y)
        if h == 1 and not mask.any():
            raise DataError(f"{run.series.label}: no start is followed by a reading, so nothing can be scored.")
        at_h = {name: (f.mean[:, i], f.std[:, i]) for name, f in forecasts.items()}
        for name, (m, s) in at_h.items():
            methods[name].append(score(y, m, s, mask, scale))
        skill.append(skill_of(y, at_h, mask))
    times = tuple(h * dt for h in horizons)
    return Scores(horizons, times, methods, skill, len(starts.rows), members, diverged)
