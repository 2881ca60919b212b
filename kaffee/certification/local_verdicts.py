"""Axis 1, local probabilistic behaviour: verdicts on calibration, whiteness, skill, spread and tangents."""

import numpy as np

from kaffee.certification.residuals import Residuals
from kaffee.certification.scores import Scores
from kaffee.certification.spread import Spread, SpreadGrowth
from kaffee.certification.tangents import TangentProxy
from kaffee.certification.verdicts import Status, Verdict, graded, worst

# (pass, warn): a check passes up to the first limit and warns up to the second.
# NIS is a ratio of variances: bands that are 12 % too wide or narrow, and 41 %.
NIS = (1.25, 2.0)
# A 90 % band that covers 87 % to 93 % does its work; one that covers 80 % or 100 % is another band.
COVERAGE = (0.03, 0.1)
# In predicted standard deviations: a bias adds its square to the NIS, 1 % and 9 %.
BIAS = (0.1, 0.3)
# The largest difference between promised and realised probability, of any one-sided bound.
KS = (0.05, 0.12)
# r^2 is the share of an innovation's variance that an earlier one predicts: 1 % and 9 %.
AUTOCORRELATION = (0.1, 0.3)
# Standard errors that a difference to a baseline must exceed to count.
SIGNIFICANT = 2.0
# Achieved over attainable rank correlation of spread and |error|.
SPREAD = (0.5, 0.25)
# Mean over coordinates of the rank correlation of growths. On Lorenz-96 (the recipe `proxies`) 0.35 where that with the
# true tangents is 0.46, 0.20 where it is 0.30, 0 for a filter without transport.
TANGENT = (0.2, 0.1)
# Below these the tangents of the data say nothing: no dependence on the state, or chance.
LEAST_NONLINEAR, LEAST_RELIABLE = 0.05, 0.5


def calibration_verdict(found: Residuals) -> Verdict:
    """NIS, coverage, bias and PIT of one-step predictions; the worst of them counts."""
    n = found.num_entries
    low, high = found.nis_band
    nis_chance = max(high, 1.0 / low)
    nis = max(found.nis, 1.0 / found.nis) if found.nis > 0 else float("inf")
    cover = found.coverage["0.9"]
    bias = float(np.nanmax(np.abs(found.bias)))
    # The largest of N coordinates, at three standard errors each.
    bias_chance = 3.0 * float(np.max(found.bias_errors))
    parts = {
        f"NIS {found.nis:.2f}": graded(nis, NIS, nis_chance),
        f"coverage of the 90 % band {cover:.3f}": graded(abs(cover - 0.9), COVERAGE, 3.0 * (0.09 / n) ** 0.5),
        f"largest bias {bias:.2f} standard deviations": graded(bias, BIAS, bias_chance),
        f"PIT within {found.ks:.3f} of uniform": graded(found.ks, KS, 1.63 / n**0.5),
    }
    status = worst(list(parts.values()))
    off = [part for part, s in parts.items() if s == status and s != "pass"]
    width = "too narrow" if found.nis > 1 else "too wide"
    if status == "pass":
        sentence = f"One-step bands mean what they say over {n} readings: {', '.join(parts)}."
    else:
        sentence = f"One-step predictions are not calibrated: {', '.join(off)}" + (
            f"; bands are {width}." if any("NIS" in part or "cover" in part for part in off) else "."
        )
    rule = (
        f"passes if NIS lies within a factor {NIS[0]:g} of 1, coverage within {COVERAGE[0]:g} of 0.9, the bias below "
        f"{BIAS[0]:g} and the PIT within {KS[0]:g} of uniform, or within what chance gives; warns up to {NIS[1]:g}, "
        f"{COVERAGE[1]:g}, {BIAS[1]:g} and {KS[1]:g}"
    )
    return Verdict(1, "calibration", status, found.nis, rule, sentence)


def whiteness_verdict(found: Residuals) -> Verdict:
    """The largest autocorrelation of whitened innovations."""
    rule = (
        f"passes if no autocorrelation of whitened innovations exceeds {AUTOCORRELATION[0]:g} or what chance gives, "
        f"warns up to {AUTOCORRELATION[1]:g}"
    )
    white = found.whiteness
    if white is None:
        return Verdict(1, "whiteness", "unknown", None, rule, "Held-out recordings are too short for autocorrelations.")
    status = graded(white.largest, AUTOCORRELATION, white.expected_largest)
    sentence = (
        f"The largest autocorrelation is {white.largest:.2f} ({found.columns[white.largest_coordinate]}, lag "
        f"{white.largest_lag}); {100 * white.outside:.0f} % lie outside the band of white noise, 5 % are expected."
    )
    return Verdict(1, "whiteness", status, white.largest, rule, sentence)


def skill_verdict(found: Scores) -> Verdict:
    """NLL against the best baseline at every horizon."""
    rule = (
        f"passes if the NLL beats the best baseline by more than {SIGNIFICANT:g} standard errors at some horizon and "
        "is worse at none, fails if it is worse at one and better at none"
    )
    gains = np.array([skill.gain for skill in found.skill if skill.num_blocks])
    errors = np.array([skill.error for skill in found.skill if skill.num_blocks])
    words = [
        f"{skill.gain:+.2f} ± {skill.error:.2f} nats against {skill.baseline} at {h} step{'s' * (h > 1)}"
        for h, skill in zip(found.horizons, found.skill, strict=True)
        if skill.num_blocks
    ]
    if not np.isfinite(gains).all():
        return Verdict(1, "skill", "fail", None, rule, "Forecasts of the surrogate are not finite at some horizon.")
    if not np.isfinite(errors).any():
        return Verdict(1, "skill", "unknown", None, rule, "Too few forecasts for a standard error of the difference.")
    better, worse = (gains > SIGNIFICANT * errors).any(), (gains < -SIGNIFICANT * errors).any()
    status: Status = "pass" if better and not worse else "fail" if worse and not better else "warn"
    return Verdict(1, "skill", status, float(gains[0]), rule, f"Forecasts: {', '.join(words)}.")


def spread_verdict(found: SpreadGrowth, horizon: float) -> Verdict:
    """Rank correlation of spread and |error| within coordinates, at the horizon closest to the given one."""
    rule = (
        f"passes if spread and |error| correlate, within coordinates, at {SPREAD[0]:g} or more of what a calibrated "
        f"model with these spreads would reach, warns down to {SPREAD[1]:g}"
    )
    at: Spread = min(found.horizons, key=lambda s: (abs(s.horizon - horizon), s.horizon))
    ratio, ranks = at.spread.within_ratio, at.spread
    if not np.isfinite(ratio):
        sentence = f"At {at.horizon} steps the predicted spread hardly varies in time, so that it cannot be compared."
        return Verdict(1, "spread", "unknown", None, rule, sentence)
    status: Status = "pass" if ratio >= SPREAD[0] else "warn" if ratio >= SPREAD[1] else "fail"
    sentence = (
        f"At {at.horizon} steps without observations spread and |error| correlate by {ranks.within:.2f} within "
        f"coordinates, of {ranks.within_ceiling:.2f} attainable; predicted variance is {at.ratio:.2f} times the "
        "squared error."
    )
    return Verdict(1, "spread", status, ratio, rule, sentence)


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
        return Verdict(1, "tangents", "unknown", found.within, rule, sentence)
    status: Status = "pass" if found.within >= TANGENT[0] else "warn" if found.within >= TANGENT[1] else "fail"
    sentence = f"Variance grows with the data's tangents by a rank correlation of {found.within:.2f} ({trust})."
    return Verdict(1, "tangents", status, found.within, rule, sentence)
