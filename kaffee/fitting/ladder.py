"""The ladder of models: a linear state space, a map in context, an AL-RNN from the linear model; held-back rows choose.

They choose as well between a model that has read the rows in context and what training has made of it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.fitting.settings import FEW_COORDINATES, FEW_GATES, IN_CONTEXT, FitSettings
from kaffee.foundation.incontext import ContextSettings, read_context
from kaffee.model.kernel import KernelMap
from kaffee.model.statespace import StateSpaceModel
from kaffee.training.guard import FreeRunGuard
from kaffee.training.linear import LinearFit, fit_linear, with_gates
from kaffee.training.selection import WEIGHTS, HeldBack, Judge, Scored

# Nats per entry that forecasts must be better for free runs with noise that are worse than those of a simpler model.
WORTH_IT = 0.1
# Of its own distance, and in nats: a simpler model's free runs are no better if they are only so much closer.
AS_GOOD, NATS = 1.1, 0.05
CONTEXT_COORDINATES, CONTEXT_ROWS = 12, 5_000
"""Coordinates and rows up to which a map in context is a rung: in many dimensions no row is near another, and of many
rows an AL-RNN learns more at less cost for each step."""
CONTEXT_EVALUATIONS = 8
"""Forecasts that calibrate a map in context, each of which takes seconds: its noise is that of a likelihood already."""
CLOSE = 0.5
"""Nats by which a model of all rows may be worse on those that it was not judged by, before it counts as failed."""


class Rung(NamedTuple):
    """A model of the rows that are not held back, calibrated on those that are, and its score there."""

    part: StateSpaceModel
    scored: Scored
    scales: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Climbing:
    """What there is before an AL-RNN is trained.

    Attributes:
        rows: Training rows, standardised.
        judge: By those held back.
        context: The map in context; None: there is none.
        start: Of the AL-RNN; None: there is none.
        forced: The rung that was asked for; "": held-back rows choose.
    """

    rows: Series
    judge: Judge
    linear: LinearFit
    context: Rung | None
    start: StateSpaceModel | None
    forced: str = ""


def prepare(rows: Series, held: HeldBack, settings: FitSettings) -> Climbing:
    """Fit the linear model to standardised rows and build the AL-RNN that begins as a linear model of few lags."""
    judge, seed, forced = Judge(held), settings.seed, "" if settings.rung == "auto" else settings.rung
    linear = fit_linear(rows, held, judge, seed=seed)
    if forced == "linear":
        return Climbing(rows, judge, linear, None, None, forced)
    context = _read_part(held, judge, settings) if forced != "alrnn" else None
    if forced == IN_CONTEXT:
        if context is None:
            raise DataError(f"{rows.label}: rung = incontext needs numbers without inputs, at least 8 complete pairs.")
        return Climbing(rows, judge, linear, context, None, forced)
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
    return Climbing(rows, judge, linear, context, start, forced)


def _read_part(held: HeldBack, judge: Judge, settings: FitSettings) -> Rung | None:
    """Read the rows that are not held back in context; None where that is not a rung."""
    part = held.part
    few = part.num_coordinates <= CONTEXT_COORDINATES and part.num_steps <= CONTEXT_ROWS
    other = (
        part.inputs is not None or settings.observation is not None or settings.adaptation.filter not in (None, "ekf")
    )
    if other or not (few or settings.rung == IN_CONTEXT):
        return None
    try:
        read = read_context(part, scaler=Scaler.identity(part.num_coordinates)).model
    except DataError:  # too few pairs of rows
        return None
    calibrated, scales = judge.calibrate(read, CONTEXT_EVALUATIONS)
    return Rung(calibrated, judge.score(calibrated), scales)


def _read_all(climbing: Climbing, rung: Rung) -> StateSpaceModel:
    """Read all training rows in context, with the delays of the part and the noise that held-back rows asked for."""
    rows, core = climbing.rows, rung.part.core
    assert isinstance(core, KernelMap)
    whole = read_context(rows, ContextSettings(lags=core.lags), scaler=Scaler.identity(rows.num_coordinates)).model
    whole = whole.replace(shell=rung.part.shell)
    # Held-back rows are now among what it has read: only a failure is worse there.
    return whole if climbing.judge.score(whole).mean < rung.scored.mean + CLOSE else rung.part


def choose(climbing: Climbing, trained: StateSpaceModel | None = None) -> tuple[StateSpaceModel, dict[str, Any]]:
    """Calibrate a trained AL-RNN on the held-back rows, and choose between it and the simpler models.

    The simpler wins within one standard error. Free runs with noise that are farther from the data than the simpler
    model's must be paid for by forecasts. Returns the chosen model and the table of rungs.
    """
    judge, linear = climbing.judge, climbing.linear
    rungs = {"linear": Rung(linear.part, linear.scored)}
    if climbing.context is not None:
        rungs[IN_CONTEXT] = climbing.context
    if trained is not None:
        calibrated, scales = judge.calibrate(trained)
        rungs["alrnn"] = Rung(calibrated, judge.score(calibrated), scales)
    looks: dict[str, Any] = dict.fromkeys(rungs)
    if len(rungs) > 1 and FreeRunGuard.possible(climbing.rows):
        guard = FreeRunGuard(climbing.rows, every=1)
        looks = {name: guard.look(rung.part) for name, rung in rungs.items()}
    best, compared = "linear", {}
    for name in list(rungs)[1:]:
        gain, error = rungs[name].scored.gain_over(rungs[best].scored)
        needed, closer = error, False
        if looks[name] is not None:
            noisy, other = looks[name].noisy, looks[best].noisy
            closer = AS_GOOD * noisy + NATS < other
            if not noisy <= AS_GOOD * other + NATS:
                needed = max(WORTH_IT, 2.0 * error)
        if name == "alrnn" and not closer:
            # Training stopped where these rows liked it best, which flatters it by about as much as one of them weighs;
            # free runs that are closer to all rows are a witness of their own.
            needed = max(needed, 1.0 / max(judge.num_independent, 1.0))
        if closer and best == IN_CONTEXT:
            needed = -error  # free runs decide where forecasts do not
        better = gain > needed
        compared = {"rival": best, "gain": gain, "error": error}
        best = name if better else best
    chosen = climbing.forced or best
    model = rungs[chosen].part
    if chosen == "linear":
        model = linear.model
    elif chosen == IN_CONTEXT:
        model = _read_all(climbing, rungs[IN_CONTEXT])
    table: dict[str, Any] = {
        "chosen": chosen,
        **compared,
        "horizons": judge.horizons,
        "structure": linear.structure.describe(),
    }
    table |= {"scales": rungs[chosen if trained is None else "alrnn"].scales}
    table |= {name: _describe(rung, looks[name]) for name, rung in rungs.items()}
    table["linear"]["latent_dim"] = linear.model.latent_dim
    return model, table


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
        "incontext": _describe(Rung(plain, before), None),
        "adapted": _describe(Rung(calibrated, after), None),
    }
    return calibrated if better else None, rungs


def _describe(rung: Rung, look: Any) -> dict[str, Any]:
    free = {} if look is None else {"lost": look.lost, "d_stsp": look.distance, "d_stsp_noisy": look.noisy}
    with np.errstate(all="ignore"):
        nll = np.nanmean(rung.scored.nll, axis=0)
    return {"latent_dim": rung.part.latent_dim, "nll": nll, "coverage_90": rung.scored.coverage, **free}


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
    if "adapted" in rungs:
        kept = rungs["chosen"] == "adapted"
        words = "The adapted model is kept: " if kept else "The model in context is kept as it is: adapted it is "
        if rungs["gain"] is None:
            return f"{words}not both can forecast the held-back rows." if kept else f"{words}no forecast at all."
        sign = f"{abs(rungs['gain']):.3f} ± {rungs['error']:.3f} nats per reading"
        than = " than the one in context" if kept else ""
        by = f"{sign} {'better' if rungs['gain'] > 0 else 'worse'}{than} on held-back rows"
        return f"{words}{'it is ' * kept}{by}."
    chosen, rival = rungs["chosen"], rungs.get("rival", "linear")
    names = {"linear": f"linear model ({rungs['structure']})", "incontext": "map in context", "alrnn": "AL-RNN"}
    if "gain" not in rungs:
        return f"A linear model was asked for ({rungs['structure']})."
    if rungs["gain"] is None:  # one of them cannot be scored
        return f"The {names[chosen].split(' (')[0]} is kept; not both can forecast the held-back rows."
    gain, error = rungs["gain"], rungs["error"]
    last = "alrnn" if "alrnn" in rungs else "incontext"
    by = f"{abs(gain):.3f} ± {error:.3f} nats per reading {'better' if gain > 0 else 'worse'} on held-back rows"
    if chosen == last:
        return f"The {names[chosen]} is kept: it is {by} than the {names[rival]}."
    than = f" than the {names[rival]}" if chosen != rival else ""
    return f"The {names[chosen]} is kept: the {names[last]} is {by}{than}."
