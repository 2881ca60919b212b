"""The ladder of models: a linear state space, then an AL-RNN that starts from it; held-back rows choose.

They choose as well between a model that has read the rows in context and what training has made of it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kaffee.data.series import Series
from kaffee.fitting.settings import FEW_COORDINATES, FEW_GATES, FitSettings
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.guard import FreeRunGuard
from kaffee.training.linear import LinearFit, fit_linear, with_gates
from kaffee.training.selection import WEIGHTS, HeldBack, Judge, Scored

# Nats per entry that forecasts must be better for free runs with noise that are worse than those of the linear model.
WORTH_IT = 0.1
# Of its own distance, and in nats: a linear model's free runs are no better if they are only so much closer.
AS_GOOD, NATS = 1.1, 0.05


@dataclass(frozen=True, eq=False)
class Climbing:
    """Training rows, the judge by those held back, the linear model, and the AL-RNN's start; None: there is none."""

    rows: Series
    judge: Judge
    linear: LinearFit
    start: StateSpaceModel | None
    forced: bool = False


def prepare(rows: Series, held: HeldBack, settings: FitSettings) -> Climbing:
    """Fit the linear model to standardised rows and build the AL-RNN that begins as a linear model of few lags."""
    judge, seed = Judge(held), settings.seed
    linear = fit_linear(rows, held, judge, seed=seed)
    if settings.rung == "linear":
        return Climbing(rows, judge, linear, None)
    N = rows.num_coordinates
    M = settings.core.resolved_dim(N)
    # Of many coordinates most latents are lags, which a start that is no worse than linear needs.
    gates = settings.core.num_gates or max(M // 4 if N <= FEW_COORDINATES else FEW_GATES, 1)
    base, room = linear, max(M - gates, N)
    if linear.part.latent_dim > room or linear.structure.harmonics:
        # A core with gates remembers by itself: it needs fewer lags than a linear filter; and teacher forcing does not
        # find the phase of an oscillator that is not observed.
        base = fit_linear(rows, held, judge, most_latent=room, seasons=False, seed=seed)
    gates = max(M - base.part.latent_dim, 1)
    start = with_gates(base.part, gates, key=settings.keys()["core"])
    return Climbing(rows, judge, linear, start, settings.rung == "alrnn")


def choose(climbing: Climbing, trained: StateSpaceModel) -> tuple[StateSpaceModel, dict[str, Any]]:
    """Calibrate a trained AL-RNN on the held-back rows, and choose between it and the linear model.

    The simpler wins within one standard error. Free runs with noise that are farther from the data than the linear
    model's must be paid for by forecasts. Returns the chosen model and the table of rungs.
    """
    judge, linear = climbing.judge, climbing.linear
    calibrated, scales = judge.calibrate(trained)
    scored = judge.score(calibrated)
    gain, error = scored.gain_over(linear.scored)
    # Training stopped where these rows liked it best, which flatters it by about as much as one of them weighs.
    better = gain > max(error, 1.0 / max(judge.num_independent, 1.0))
    looks = {}
    if FreeRunGuard.possible(climbing.rows):
        guard = FreeRunGuard(climbing.rows, every=1)
        looks = {"linear": guard.look(linear.part), "alrnn": guard.look(calibrated)}
        farther = not looks["alrnn"].noisy <= AS_GOOD * looks["linear"].noisy + NATS
        better = better and (not farther or gain > max(WORTH_IT, 2.0 * error))
    better = better or climbing.forced
    chosen = "alrnn" if better else "linear"
    rungs = {
        "chosen": chosen,
        "gain": gain,
        "error": error,
        "horizons": judge.horizons,
        "structure": linear.structure.describe(),
        "scales": scales,
        "linear": _describe(linear.scored, linear.model, looks.get("linear")),
        "alrnn": _describe(scored, calibrated, looks.get("alrnn")),
    }
    return calibrated if better else linear.model, rungs


@dataclass(frozen=True, eq=False)
class Reading:
    """A model that has read the training rows but for those held back, and the judge by these."""

    judge: Judge
    part: StateSpaceModel


def choose_adapted(reading: Reading, trained: StateSpaceModel) -> tuple[StateSpaceModel | None, dict[str, Any]]:
    """Choose between a model in context and what training has made of it, both calibrated on the held-back rows.

    Returns the calibrated model, None if it is not better by more than one standard error, and the table of rungs.
    """
    judge = reading.judge
    (plain, _), (calibrated, scales) = judge.calibrate(reading.part), judge.calibrate(trained)
    before, after = judge.score(plain), judge.score(calibrated)
    gain, error = after.gain_over(before)
    better = gain > max(error, 1.0 / max(judge.num_independent, 1.0))
    rungs = {
        "chosen": "adapted" if better else "incontext",
        "gain": gain,
        "error": error,
        "horizons": judge.horizons,
        "scales": scales,
        "incontext": _describe(before, plain, None),
        "adapted": _describe(after, calibrated, None),
    }
    return calibrated if better else None, rungs


def _describe(scored: Scored, model: StateSpaceModel, look: Any) -> dict[str, Any]:
    free = {} if look is None else {"lost": look.lost, "d_stsp": look.distance, "d_stsp_noisy": look.noisy}
    with np.errstate(all="ignore"):
        nll = np.nanmean(scored.nll, axis=0)
    return {"latent_dim": model.latent_dim, "nll": nll, "coverage_90": scored.coverage, **free}


def keep_linear(climbing: Climbing) -> dict[str, Any]:
    """Make the table of rungs of a fit that is a linear model by request."""
    judge, linear = climbing.judge, climbing.linear
    shape = {"chosen": "linear", "horizons": judge.horizons, "structure": linear.structure.describe()}
    return {**shape, "linear": _describe(linear.scored, linear.model, None)}


def score_rung(rungs: dict[str, Any]) -> float:
    """Average the NLL of the chosen rung over horizons as `Scored.mean` does, from a stored table; infinite if none.

    >>> score_rung({"chosen": "linear", "linear": {"nll": [0.0, 1.0, None]}})
    0.3333333333333333
    """
    own = np.array(rungs[rungs["chosen"]]["nll"], float)
    # Of forecasts that fail no number is stored; horizons at which nothing was read have none in the linear model too.
    read = ~np.isnan(np.array(rungs["linear" if "linear" in rungs else "incontext"]["nll"], float))
    weights = np.array(WEIGHTS[: len(own)])[read]
    value = float(weights @ own[read] / weights.sum()) if read.any() else 0.0
    return value if np.isfinite(value) else np.inf


def describe_rungs(rungs: dict[str, Any]) -> str:
    """Say which rung won, and by how much."""
    if "incontext" in rungs:
        kept = rungs["chosen"] == "adapted"
        words = "The adapted model is kept: " if kept else "The model in context is kept as it is: adapted it is "
        if rungs["gain"] is None:
            return f"{words}not both can forecast the held-back rows." if kept else f"{words}no forecast at all."
        sign = f"{abs(rungs['gain']):.3f} ± {rungs['error']:.3f} nats per reading"
        than = " than the one in context" if kept else ""
        by = f"{sign} {'better' if rungs['gain'] > 0 else 'worse'}{than} on held-back rows"
        return f"{words}{'it is ' * kept}{by}."
    if "gain" not in rungs:
        return f"A linear model was asked for ({rungs['structure']})."
    if rungs["gain"] is None:  # one of them cannot be scored
        kept = "AL-RNN" if rungs["chosen"] == "alrnn" else "linear model"
        return f"The {kept} is kept; not both can forecast the held-back rows."
    gain, error = rungs["gain"], rungs["error"]
    by = f"{abs(gain):.3f} ± {error:.3f} nats per reading {'better' if gain > 0 else 'worse'} on held-back rows"
    if rungs["chosen"] == "linear":
        return f"The linear model ({rungs['structure']}) is kept: the AL-RNN is {by}."
    return f"The AL-RNN is kept: it is {by} than the linear model ({rungs['structure']})."
