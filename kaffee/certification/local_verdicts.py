"""Axis 1, local probabilistic behaviour: verdicts on skill, spread and tangents."""

import numpy as np

from kaffee.certification.scores import Scores
from kaffee.certification.spread import Spread, SpreadGrowth
from kaffee.certification.tangents import TangentProxy
from kaffee.certification.verdicts import Status, Verdict, graded

# (pass, warn): a check passes up to the first limit and warns up to the second.
# Standard errors that a difference to a baseline must exceed to count.
SIGNIFICANT = 2.0
# Achieved over attainable rank correlation of spread and |error|.
SPREAD = (0.5, 0.25)
# A perfect spread that correlates with |error| by less than this hardly varies, and its share is mostly chance.
LEAST_ATTAINABLE = 0.05
# Rank correlation with |error| that such a spread leaves to others: standard deviations vary by 5 % and 10 %.
FORETOLD = (0.05, 0.1)
# In standard errors of that correlation.
CERTAIN = 3.0
# Mean over coordinates of the rank correlation of growths. On Lorenz-96 (the recipe `proxies`) 0.35 where that with the
# true tangents is 0.46, 0.20 where it is 0.30, 0 for a filter without transport.
TANGENT = (0.2, 0.1)
# Below these the tangents of the data say nothing: no dependence on the state, or chance.
LEAST_NONLINEAR, LEAST_RELIABLE = 0.05, 0.5


def skill_verdict(found: Scores) -> Verdict:
    """NLL against the best baseline at every horizon."""
    rule = (
        f"passes if the NLL beats the best baseline by more than {SIGNIFICANT:g} standard errors at some horizon and "
        "is worse at none, fails if it is worse at one and better at none"
    )
    known = [(h, skill) for h, skill in zip(found.horizons, found.skill, strict=True) if skill.num_blocks]
    gains, errors = np.array([skill.gain for _, skill in known]), np.array([skill.error for _, skill in known])
    places = [f"{skill.baseline} at {h} step{'s' * (h > 1)}" for h, skill in known]
    words = [
        f"{skill.gain:+.2f} ± {skill.error:.2f} nats against {place}"
        for (_, skill), place in zip(known, places, strict=True)
    ]
    if not np.isfinite(gains).all():
        return Verdict(1, "skill", "fail", None, rule, "Forecasts of the surrogate are not finite at some horizon.")
    if not np.isfinite(errors).any():
        return Verdict(1, "skill", "unknown", None, rule, "Too few forecasts for a standard error of the difference.")
    better, worse = (gains > SIGNIFICANT * errors).any(), (gains < -SIGNIFICANT * errors).any()
    status: Status = "pass" if better and not worse else "fail" if worse and not better else "warn"
    with np.errstate(all="ignore"):
        certain = gains / errors
    decides = int(np.nanargmin(certain) if worse else np.nanargmax(certain))
    what = f"gain over {places[decides]}, nats"
    return Verdict(1, "skill", status, float(gains[decides]), rule, f"Forecasts: {', '.join(words)}.", what)


def spread_verdict(found: SpreadGrowth, horizon: float) -> Verdict:
    """Rank correlation of spread and |error| within coordinates, at the horizon closest to the given one.

    A spread that hardly varies says that errors are of one size everywhere. That is refuted if their size can be
    foretold, and neither refuted nor confirmed if it cannot (see `error_sizes`).
    """
    rule = (
        f"passes if spread and |error| correlate, within coordinates, at {SPREAD[0]:g} or more of what a calibrated "
        f"model with these spreads would reach, warns down to {SPREAD[1]:g}; a spread that hardly varies warns if "
        f"something else tells |error| by more than {FORETOLD[0]:g} and {CERTAIN:g} standard errors, and fails beyond "
        f"{FORETOLD[1]:g}"
    )
    at: Spread = min(found.horizons, key=lambda s: (abs(s.horizon - horizon), s.horizon))
    ratio, ranks = at.spread.within_ratio, at.spread
    if not np.isfinite(ratio) or ranks.within_ceiling < LEAST_ATTAINABLE:
        return _constant_spread(at, rule)
    status: Status = "pass" if ratio >= SPREAD[0] else "warn" if ratio >= SPREAD[1] else "fail"
    sentence = (
        f"At {at.horizon} steps without observations spread and |error| correlate by {ranks.within:.2f} within "
        f"coordinates, of {ranks.within_ceiling:.2f} attainable; predicted variance is {at.ratio:.2f} times the "
        "squared error."
    )
    return Verdict(1, "spread", status, ratio, rule, sentence, "share of the attainable correlation")


def _constant_spread(at: Spread, rule: str) -> Verdict:
    other = at.foretold
    start = f"At {at.horizon} steps the predicted spread hardly varies in time"
    if not np.isfinite(other.error):
        sentence = f"{start}, and there are too few forecasts to tell whether the size of errors does."
        return Verdict(1, "spread", "unknown", None, rule, sentence)
    chance = CERTAIN * other.error
    status = graded(other.rank, FORETOLD, chance)
    numbers = f"rank correlation {other.rank:.2f} ± {other.error:.2f}, limit {max(FORETOLD[0], chance):.2g}"
    if status == "pass":
        sentence = f"{start}, and nothing shows that the size of errors does ({numbers}): there is nothing to compare."
        return Verdict(1, "spread", "unknown", None, rule, sentence)
    sentence = f"{start}, but the size of errors does: {other.by} would tell it ({numbers})."
    what = f"rank correlation of |error| and {other.by}"
    return Verdict(1, "spread", status, other.rank, rule, sentence, what)


def tangent_verdict(found: TangentProxy) -> Verdict:
    """The proxy of G_tan, if the data's tangents can be trusted."""
    rule = (
        f"passes if growth of variance correlates with that by the data's tangents at {TANGENT[0]:g} or more within "
        f"coordinates, warns down to {TANGENT[1]:g}; unknown unless the tangents depend on the state (error at least "
        f"{100 * LEAST_NONLINEAR:g} % below a linear map's) and repeat (reliability {LEAST_RELIABLE:g})"
    )
    trust = (
        f"{found.method}: error {100 * found.r2_over_linear:.0f} % below linear, reliability {found.reliability:.2f}"
    )
    if not (found.r2_over_linear >= LEAST_NONLINEAR and found.reliability >= LEAST_RELIABLE):
        sentence = f"The data do not show how tangents depend on the state ({trust})."
        linear = not found.r2_over_linear >= LEAST_NONLINEAR
        what = "error below that of a linear map" if linear else "reliability of the data's tangents"
        value = found.r2_over_linear if linear else found.reliability
        return Verdict(1, "tangents", "unknown", value, rule, sentence, what)
    status: Status = "pass" if found.within >= TANGENT[0] else "warn" if found.within >= TANGENT[1] else "fail"
    sentence = f"Variance grows with the data's tangents by a rank correlation of {found.within:.2f} ({trust})."
    return Verdict(1, "tangents", status, found.within, rule, sentence, "rank correlation of growths")
