"""A proxy for G_tan: does predicted variance grow where tangents estimated from the training data say so?

G_tan needs the true Jacobians (Eq. gtan). Here they come from regressing the next row on this one, by whichever map
forecasts the last part of the training data best. The recipes `proxies` and `proxies_systems` of `kaffee bench` measure
how well that works where the truth is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from kaffee.certification.ahead import observed_growth
from kaffee.certification.passes import FilterPass
from kaffee.certification.smoothing import smoothed
from kaffee.certification.tangent_choice import MIN_PAIRS, Candidate, Recordings, choose, kinds, pairs, try_candidates
from kaffee.errors import DataError
from kaffee.metrics.grounding import grounding, oracle_log_growth, spearman

ALLOWED = ("linear", "quadratic", "local")
MIN_GROWTHS = 100
# Variances of a filter without transport settle at constants, of which float32 leaves this much.
TOLERANCE = 1e-5


class Growths(NamedTuple):
    """Log-growths of variance at some of the starts of a filter pass.

    Attributes:
        chosen: Which of the starts: complete rows, with the neighbours that smoothing needs.
        covariance: B P_{t|t} B' there.
        model: log [B P_{t+1|t} B']_jj - log [B P_{t|t} B']_jj.
        proxy: log [J B P_{t|t} B' J']_jj - log [B P_{t|t} B']_jj with J from data.
        reliability: See `TangentProxy`.
    """

    chosen: Bool[np.ndarray, " S"]
    covariance: Float[np.ndarray, "C N N"]
    model: Float[np.ndarray, "C N"]
    proxy: Float[np.ndarray, "C N"]
    reliability: float


@dataclass(frozen=True)
class TangentProxy:
    """Rank correlations of the model's variance growth with that by data-driven tangents.

    Attributes:
        pooled, within: As in `kaffee.metrics.grounding.Grounding`.
        method: The chosen map and the half-width of its smoothing in rows, as in "quadratic, 2".
        r2: Share of the variance of validation rows that its forecasts explain.
        r2_over_linear: Share of the squared error of the best linear map that it takes away. Near 0 the data show no
            dependence of tangents on the state, and the proxy says nothing.
        reliability: Rank correlation of growths by tangents from two halves of the training data, corrected to the
            full length (Spearman and Brown): how much is not chance. What all of the data get wrong, it does not see.
        num_growths: Variances that grew or shrank: rows x coordinates.
        candidates: All that were tried, best first.
    """

    pooled: float
    within: float
    method: str
    r2: float
    r2_over_linear: float
    reliability: float
    num_growths: int
    candidates: list[Candidate]


def growths(run: FilterPass, train: Recordings, best: Candidate) -> Growths:
    """The growth of variance that the model predicts at the starts of `run`, and that by the chosen tangents.

    The tangents are taken at the smoothed held-out row, the same for every model.
    """
    fit = kinds(train[0].shape[1], ALLOWED)[best.name]
    points = run.starts.ahead(tuple(smoothed(values, best.width) for values in run.standard), 0)
    model, covariance = observed_growth(run)
    chosen = ~np.isnan(points).any(axis=1) & np.isfinite(model).all(axis=1)
    if chosen.sum() * points.shape[1] < MIN_GROWTHS:
        raise DataError(
            f"{run.series.label}: {chosen.sum()} of the held-out rows that forecasts start from are complete, with "
            f"their neighbours; growth of variance is compared over at least {MIN_GROWTHS} entries. Hold out more."
        )
    now, after = pairs(train, best.width)
    half = len(now) // 2

    def proxy(rows: slice) -> Float[np.ndarray, "C N"]:
        return oracle_log_growth(covariance[chosen], fit(now[rows], after[rows])(points[chosen])[1])

    r = spearman(proxy(slice(0, half)), proxy(slice(half, None)))
    reliability = 2.0 * r / (1.0 + r) if r > 0 else r
    return Growths(chosen, covariance[chosen], model[chosen], proxy(slice(None)), reliability)


def tangent_proxy(run: FilterPass, train: Recordings, *, allowed: Sequence[str] = ALLOWED) -> TangentProxy:
    """The rank correlation of a model's growth of variance with that by tangents from data (compare Eq. gtan).

    Args:
        train: Standardised training recordings.
        allowed: Kinds of maps that may be chosen.
    """
    return proxy_of(run, train, try_candidates(train, allowed))[0]


def proxy_of(run: FilterPass, train: Recordings, candidates: list[Candidate]) -> tuple[TangentProxy, Growths]:
    """The proxy by the best of `candidates`, and the growths behind it."""
    if not candidates:
        raise DataError(
            f"The training data have too few complete consecutive rows to estimate tangents of "
            f"{train[0].shape[1]} coordinates from ({MIN_PAIRS} pairs per coefficient are needed)."
        )
    best = choose(candidates)
    found = growths(run, train, best)
    ranks = grounding(found.model, found.proxy, tolerance=TOLERANCE)
    linear = min((c.error for c in candidates if c.name == "linear"), default=float("nan"))
    proxy = TangentProxy(
        pooled=ranks.pooled,
        within=ranks.within,
        method=f"{best.name}, {best.width}",
        r2=1.0 - best.error / float(np.nanvar(np.concatenate(train))),
        r2_over_linear=1.0 - best.error / linear,
        reliability=found.reliability,
        num_growths=found.model.size,
        candidates=candidates,
    )
    return proxy, found
