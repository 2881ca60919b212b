"""Which map of the data gives the tangents: the one that forecasts the last part of the training data best."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.certification.maps import MAX_FEATURES, Points, TangentMap, linear_map, local_map, quadratic_map
from kaffee.certification.smoothing import smoothed

WIDTHS = (0, 1, 2, 3)
SHARES = (0.05, 0.15)
VALIDATION = 0.2
MAX_POINTS = 400
"""Forecasts that a map is chosen by."""
# A derivative needs a wider neighbourhood than a value: of local maps that forecast equally well, to 2 %, the widest.
SLACK = 1.02
MIN_PAIRS = 20
"""Training pairs per coefficient of a linear map, below which no tangent is estimated."""

Recordings = Sequence[Float[np.ndarray, "T N"]]
Fit = Callable[[Points, Points], TangentMap]


class Candidate(NamedTuple):
    """A kind of map and a smoothing, with the mean squared error of its forecasts of raw validation rows."""

    name: str
    width: int
    error: float


def kinds(num_coordinates: int, allowed: Sequence[str]) -> dict[str, Fit]:
    """The maps that may be tried on so many coordinates; `allowed` names linear, quadratic and local."""
    found: dict[str, Fit] = {"linear": linear_map} if "linear" in allowed else {}
    if "quadratic" in allowed and (num_coordinates + 1) * (num_coordinates + 2) // 2 <= MAX_FEATURES:
        found["quadratic"] = quadratic_map
    if "local" in allowed:
        found |= {f"local {share:g}": partial(local_map, share=share) for share in SHARES}
    return found


def pairs(recordings: Recordings, width: int) -> tuple[Points, Points]:
    """Smoothed rows and those after them, both complete."""
    now, after = [], []
    for values in recordings:
        s = smoothed(values, width)
        complete = ~np.isnan(s).any(axis=1)
        both = np.flatnonzero(complete[:-1] & complete[1:])
        now.append(s[both])
        after.append(s[both + 1])
    return np.concatenate(now), np.concatenate(after)


def forecast_error(fitted: TangentMap, recordings: Recordings, width: int) -> float:
    """Mean squared error of forecasts of raw rows x_{t+1} from rows up to t, by any smoothing on equal terms.

    The smoothed row t - width has seen rows up to t; from there the map takes width + 1 steps. So no smoothing sees
    what it forecasts, and the error on smoothed rows, which more smoothing always lowers, decides nothing.
    """
    origins, targets = [], []
    for values in recordings:
        s = smoothed(values, width)
        last = len(values) - 1 - width
        usable = ~np.isnan(s[: max(last, 0)]).any(axis=1) & ~np.isnan(values[width + 1 :][: max(last, 0)]).any(axis=1)
        rows = np.flatnonzero(usable)
        origins.append(s[rows])
        targets.append(values[rows + width + 1])
    x, y = np.concatenate(origins), np.concatenate(targets)
    if not len(x):
        return float("inf")
    chosen = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int))
    x, y = x[chosen], y[chosen]
    with np.errstate(all="ignore"):
        for _ in range(width + 1):
            x = fitted(x)[0]
        error = float(np.mean((x - y) ** 2))
    return error if np.isfinite(error) else float("inf")


def try_candidates(train: Recordings, allowed: Sequence[str]) -> list[Candidate]:
    """All maps and smoothings, best first; a map's smoothing grows until its forecasts get worse."""
    cut = [int((1.0 - VALIDATION) * len(values)) for values in train]
    fit_on = [values[:c] for values, c in zip(train, cut, strict=True)]
    validate_on = [values[c:] for values, c in zip(train, cut, strict=True)]
    found: list[Candidate] = []
    for name, fit in kinds(train[0].shape[1], allowed).items():
        best = float("inf")
        for width in WIDTHS:
            now, after = pairs(fit_on, width)
            if len(now) < MIN_PAIRS * (now.shape[1] + 1):
                break
            error = forecast_error(fit(now, after), validate_on, width)
            found.append(Candidate(name, width, error))
            if error > best:
                break
            best = error
    return sorted((c for c in found if np.isfinite(c.error)), key=lambda c: c.error)


def choose(candidates: list[Candidate]) -> Candidate:
    """The candidate with the smallest error; of local maps the widest that is as good."""
    best = candidates[0]
    if not best.name.startswith("local"):
        return best
    as_good = [c for c in candidates if c.name.startswith("local") and c.error <= SLACK * best.error]
    return max(as_good, key=lambda c: (float(c.name.split()[1]), -c.error))
