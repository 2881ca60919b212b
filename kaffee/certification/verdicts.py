"""Verdicts on the parts of a certificate: the table of rules, and how a number becomes a status.

Limits are effect sizes: with thousands of readings any model of real data is significantly wrong; the question is how
much. Where there are few readings, what a correctly specified model may show by chance passes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import binom
from scipy.stats import mannwhitneyu

from kaffee.certification.forecasts import Scores
from kaffee.certification.free_runs import Agreement, RunSummary
from kaffee.certification.innovations import JUDGED, Residuals
from kaffee.certification.spread import Spread, SpreadGrowth
from kaffee.certification.tangents import TangentProxy
from kaffee.metrics.calibration import coverage_limits, ks_limit, normal_limit, student_limit, variance_limits

Status = Literal["pass", "warn", "fail", "unknown"]
Limits = tuple[float, float]
SEVERITY: dict[Status, int] = {"unknown": 0, "pass": 1, "warn": 2, "fail": 3}

# (pass, warn): a check passes up to the first limit and warns up to the second.
NIS = (1.25, 2.0)  # a ratio of variances: bands that are 12 % too wide or narrow, and 41 %
COVERAGE = (0.03, 0.1)  # a 90 % band that covers 87 % to 93 % does its work; one that covers 80 % or 100 % does not
BIAS = (0.1, 0.3)  # in predicted standard deviations: a bias adds its square to the NIS, 1 % and 9 %
KS = (0.05, 0.12)  # the largest difference between promised and realised probability, of any one-sided bound
AUTOCORRELATION = (0.1, 0.3)  # r^2 is the share of an innovation's variance that an earlier one predicts: 1 % and 9 %
SIGNIFICANT = 2.0  # standard errors that a gain over a baseline must exceed to count
# Nats: a smaller loss is no fault (200 members cost 0.005), a smaller gain hardly a merit.
LEAST_LOSS, LEAST_GAIN = 0.02, 0.05
SPREAD = (0.5, 0.25)  # achieved over attainable rank correlation of spread and |error|
# A perfect spread that correlates with |error| by less than this hardly varies, and its share is mostly chance.
LEAST_ATTAINABLE = 0.05
# Rank correlation with |error| that such a spread leaves to others: standard deviations vary by 5 % and 10 %.
PREDICTED = (0.05, 0.1)
CERTAIN = 3.0  # in standard errors of that correlation
# Mean over coordinates of the rank correlation of growths. On Lorenz-96 (the recipe `proxies`) 0.35 where that with the
# true tangents is 0.46, 0.20 where it is 0.30, 0 for a filter without transport.
TANGENT = (0.2, 0.1)
# Below these the tangents of the data say nothing: no dependence on the state, or chance.
LEAST_NONLINEAR, LEAST_RELIABLE = 0.05, 0.5
# Excess of D_stsp over that of data against data, in units of the excess of the linear model's run. Where that is
# smaller than the least, the recording is as good as Gaussian, and the least, in nats, is the unit.
OCCUPATION, LEAST_EXCESS = (0.5, 1.0), 0.1
SPECTRUM = (0.1, 0.25)  # excess of D_H over that of data against data; a run at rest has 1
LOST = 0.1  # share of free runs that may be lost before "warn" turns into "fail"
# Probability by which runs that are no farther from the held-out data than training pieces are seem to be farther. It
# excuses no distance beyond so many nats and twice that of the pieces, as far as a run that is trapped.
BY_CHANCE, MOST_EXCUSED = 0.001, 2.0

_FREE_RUNS = (
    "passes if no long free run diverges, stays in a part of the attractor, lives at the wall or, without noise, "
    "repeats itself where the data do not, the median D_stsp exceeds that of data against data by at most "
    f"{OCCUPATION[0]:g} of what the linear model's runs exceed it by, and D_H by at most {SPECTRUM[0]:g}, or by what "
    f"chance gives; warns up to {OCCUPATION[1]:g}, {SPECTRUM[1]:g} and {100 * LOST:g} % of the runs"
)
# When each check passes.
RULES = {
    "calibration": f"passes if NIS lies within a factor {NIS[0]:g} of 1, coverage within {COVERAGE[0]:g} of "
    f"{JUDGED:g}, the bias below {BIAS[0]:g} and the PIT within {KS[0]:g} of uniform, or within what chance gives for "
    f"as many readings, over all and in each coordinate; warns up to {NIS[1]:g}, {COVERAGE[1]:g}, {BIAS[1]:g} and "
    f"{KS[1]:g}",
    "whiteness": f"passes if no autocorrelation of whitened innovations exceeds {AUTOCORRELATION[0]:g} or what chance "
    f"gives for as many readings of this coordinate, warns up to {AUTOCORRELATION[1]:g}",
    "skill": f"passes if the NLL beats the best baseline by more than {SIGNIFICANT:g} standard errors at some horizon "
    f"and is worse at none by more than {LEAST_LOSS:g} nats and chance, fails if it is worse at one and better at none",
    "spread": f"passes if spread and |error| correlate, within coordinates, at {SPREAD[0]:g} or more of what a "
    f"calibrated model with these spreads would reach, or may by chance, warns down to {SPREAD[1]:g}; a spread that "
    f"hardly varies warns if something else tells |error| by more than {PREDICTED[0]:g} and chance, and fails beyond "
    f"{PREDICTED[1]:g}",
    "tangents": "passes if growth of variance correlates with that by the data's tangents at "
    f"{TANGENT[0]:g} or more within coordinates, warns down to {TANGENT[1]:g}; unknown if that may be chance, and "
    "unless the tangents depend on "
    f"the state (error at least {100 * LEAST_NONLINEAR:g} % below a linear map's) and repeat (reliability "
    f"{LEAST_RELIABLE:g})",
    "stochastic run": _FREE_RUNS,
    "core": _FREE_RUNS,
}


@dataclass(frozen=True)
class Verdict:
    """The verdict of one check.

    Attributes:
        axis: 1 local probabilistic, 2 stochastic free run, 3 deterministic core.
        value, quantity: The number that decided and what it is; None if there is none.
        rule: When the check passes, in words and numbers.
        sentence: What was measured.
    """

    axis: int
    name: str
    status: Status
    value: float | None
    rule: str
    sentence: str
    quantity: str = ""


class _Finding(NamedTuple):
    """One of the numbers that a check looks at; `share` is how much of its limit, given in words, it uses up."""

    quantity: str
    value: float
    status: Status
    share: float
    place: str = ""
    limit: str = ""


def judge(parts: Mapping[str, Any], missing: Mapping[str, str], horizon: float) -> tuple[Verdict, ...]:
    """Judge the parts of a certificate by all rules; a part that is None is "unknown" for the reason in `missing`.

    The spread is judged at `horizon` steps ahead.
    """
    judges: dict[str, tuple[str, Callable[[Any], Verdict]]] = {
        "calibration": ("residuals", _judge_calibration),
        "whiteness": ("residuals", _judge_whiteness),
        "skill": ("scores", _judge_skill),
        "spread": ("spread", lambda part: _judge_spread(part, horizon)),
        "tangents": ("tangents", _judge_tangents),
        "stochastic run": ("agreement", lambda part: _judge_run("stochastic run", part, part.stochastic)),
        "core": ("agreement", _judge_core),
    }
    return tuple(
        replace(_verdict(name, "unknown", missing.get(part) or "Not computed."), rule="")
        if parts[part] is None
        else judge_part(parts[part])
        for name, (part, judge_part) in judges.items()
    )


def worst(statuses: Sequence[Status]) -> Status:
    """Return the most severe status; "unknown" only if nothing else is known.

    >>> worst(["pass", "unknown", "warn"])
    'warn'
    """
    return max(statuses, key=SEVERITY.__getitem__, default="unknown")


def _find_decisive(findings: Iterable[_Finding]) -> _Finding:
    """Return the finding with the worst status, and among these the one that is farthest beyond its limit."""
    return max(findings, key=lambda one: (SEVERITY[one.status], one.share))


def _grade(value: float, limits: Limits, chance: float = 0.0) -> Status:
    """Grade a number of which small is good; up to `chance`, what a correct model may show, it passes.

    >>> _grade(0.2, (0.1, 0.3)), _grade(float("nan"), (0.1, 0.3))
    ('warn', 'fail')
    """
    if not np.isfinite(value):
        return "fail"
    return "pass" if value <= max(limits[0], chance) else "warn" if value <= max(limits[1], chance) else "fail"


def _grade_large(value: float, limits: Limits, chance: float = float("inf")) -> Status:
    """Grade a number of which large is good; down to `chance`, what a correct model may show, it passes."""
    first, second = (min(limit, chance) for limit in limits)
    return "pass" if value >= first else "warn" if value >= second else "fail"


def _verdict(name: str, status: Status, sentence: str, value: float | None = None, quantity: str = "") -> Verdict:
    axis = {"stochastic run": 2, "core": 3}.get(name, 1)
    return Verdict(axis, name, status, value, RULES[name], sentence, quantity)


def _compare(
    quantity: str, place: str, value: float, limits: Limits, chance: float, ideal: float = 0.0, sign: str = ""
) -> _Finding:
    """Compare the distance of a value from `ideal` with its limits, or with what chance gives if that is more."""
    away, limit = abs(value - ideal), max(limits[0], chance)
    bound = ideal - limit if value < ideal and not sign else ideal + limit
    words = f"limit {sign}{bound:.3g}{', by chance' if chance > limits[0] else ''}"
    return _Finding(f"{quantity}, {place}", value, _grade(away, limits, chance), away / limit, place, words)


def _compare_nis(place: str, value: float, count: float, num: int) -> _Finding:
    """Compare a ratio of variances with 1, as a factor."""
    (low, high), narrow = variance_limits(count, num), value >= 1
    factor = value if narrow else 1.0 / value if value > 0 else float("inf")
    chance = high if narrow else 1.0 / low
    limit = max(NIS[0], chance)
    words = f"limit {limit if narrow else 1.0 / limit:.3g}{', by chance' if chance > NIS[0] else ''}"
    return _Finding(f"NIS, {place}", value, _grade(factor, NIS, chance), (factor - 1.0) / (limit - 1.0), place, words)


def _compare_coverage(place: str, value: float, count: float, num: int) -> _Finding:
    low, high = coverage_limits(JUDGED, count, num)
    chance = high - JUDGED if value > JUDGED else JUDGED - low
    return _compare(f"coverage of {100 * JUDGED:g} % bands", place, value, COVERAGE, chance, JUDGED)


def _judge_calibration(residuals: Residuals) -> Verdict:
    """Judge NIS, coverage, bias and PIT of one-step predictions, over all readings and in each coordinate with any."""
    seen = np.flatnonzero(residuals.counts)
    several, r = len(seen) > 1, residuals
    # One coordinate is all readings.
    num = len(seen) + 1 if several else 1
    # Readings of one row may err together: coverage and PIT over all count as independent ones only.
    table = [("all readings", r.num_entries, r.num_independent, r.nis, r.coverage[f"{JUDGED:g}"], r.ks)]
    for j in seen if several else ():
        table.append((r.columns[j], r.counts[j], r.counts[j], r.nis_each[j], r.coverage_each[j], r.ks_each[j]))
    nis = _find_decisive(_compare_nis(place, value, n, num) for place, n, _, value, _, _ in table)
    cover = _find_decisive(_compare_coverage(place, value, n, num) for place, _, n, _, value, _ in table)
    pit = _find_decisive(
        _compare("PIT, distance from uniform", place, value, KS, ks_limit(n, num)) for place, _, n, _, _, value in table
    )
    bias_limits = normal_limit(len(seen)) * r.bias_errors
    bias = _find_decisive(
        _compare("bias in standard deviations", r.columns[j], r.bias[j], BIAS, bias_limits[j], sign="±") for j in seen
    )

    wrong = [", bands too wide" if wide else ", bands too narrow" for wide in (nis.value < 1, cover.value > JUDGED)]
    nis_width, cover_width = ("" if f.status == "pass" else w for f, w in zip((nis, cover), wrong, strict=True))
    parts = {
        f"NIS {nis.value:.2f} of {nis.place} ({nis.limit}{nis_width})": nis,
        f"coverage of {100 * JUDGED:g} % bands {cover.value:.3f} of {cover.place} ({cover.limit}{cover_width})": cover,
        f"bias {bias.value:+.2f} standard deviations of {bias.place} ({bias.limit})": bias,
        f"PIT of {pit.place} within {pit.value:.3f} of uniform ({pit.limit})": pit,
    }
    decided = _find_decisive(parts.values())
    if decided.status == "pass":
        sentence = f"One-step bands mean what they say over {r.num_entries} readings; at worst {', '.join(parts)}."
    else:
        off = [part for part, finding in parts.items() if finding.status != "pass"]
        sentence = f"One-step predictions are not calibrated: {', '.join(off)}."
    unread = [name for name, n in zip(r.columns, r.counts, strict=True) if not n]
    if unread:
        sentence += f" Without readings to score, and not judged: {', '.join(unread)}."
    return _verdict("calibration", decided.status, sentence, float(decided.value), decided.quantity)


def _judge_whiteness(residuals: Residuals) -> Verdict:
    """Judge every autocorrelation of whitened innovations by the limit for its own number of pairs of rows."""
    white = residuals.whiteness
    if white is None:
        return _verdict("whiteness", "unknown", "Held-out recordings are too short for autocorrelations.")

    def compare(k: int, j: int, r: float) -> _Finding:
        place, chance = f"{residuals.columns[j]}, lag {white.lags[k]}", float(white.chance[k, j])
        return _compare("size of autocorrelation", place, r, AUTOCORRELATION, chance, sign="±")

    every = np.ndenumerate(white.autocorrelations)
    worst_one = _find_decisive(compare(k, j, r) for (k, j), r in every if np.isfinite(r))
    sentence = (
        f"The autocorrelation that stands out most is {worst_one.value:.3f} ({worst_one.place}; {worst_one.limit}); "
        f"{100 * white.outside:.0f} % lie outside the 95 % band of white noise, 5 % are expected."
    )
    return _verdict("whiteness", worst_one.status, sentence, abs(worst_one.value), worst_one.quantity)


def _judge_skill(scores: Scores) -> Verdict:
    """Judge the NLL against the best baseline at every horizon."""
    known = [(h, skill) for h, skill in zip(scores.horizons, scores.skill, strict=True) if skill.num_blocks]
    gains, errors = np.array([skill.gain for _, skill in known]), np.array([skill.error for _, skill in known])
    if not np.isfinite(gains).all():
        return _verdict("skill", "fail", "Forecasts of the surrogate are not finite at some horizon.")
    if not np.isfinite(errors).any():
        return _verdict("skill", "unknown", "Too few forecasts for a standard error of the difference.")
    # One test for "better", where a horizon was asked for; all must hold for "not worse".
    limits = np.array([student_limit(skill.num_blocks, len(known)) for _, skill in known])
    places = [f"{skill.baseline} at {h} step{'s' * (h > 1)}" for h, skill in known]
    spreads = ["" if np.isnan(error) else f" ± {error:.2f}" for error in errors]
    words = [f"{g:+.2f}{spread} nats against {place}" for g, spread, place in zip(gains, spreads, places, strict=True)]
    better, worse = (gains > SIGNIFICANT * errors).any(), (-gains > np.maximum(limits * errors, LEAST_LOSS)).any()
    if not better and not worse and not (SIGNIFICANT * errors < LEAST_GAIN).any():
        sentence = f"Too few forecasts to tell whether they are better than a baseline: {', '.join(words)}."
        return _verdict("skill", "unknown", sentence)
    status: Status = "pass" if better and not worse else "fail" if worse and not better else "warn"
    with np.errstate(all="ignore"):
        certain = gains / errors
    decides = int(np.nanargmin(certain) if worse else np.nanargmax(certain))
    quantity = f"gain over {places[decides]}, nats"
    return _verdict("skill", status, f"Forecasts: {', '.join(words)}.", float(gains[decides]), quantity)


def _judge_spread(growth: SpreadGrowth, horizon: float) -> Verdict:
    """Judge the rank correlation of spread and |error| within coordinates, at the horizon closest to the given one.

    A spread that hardly varies says that errors are of one size everywhere. That is refuted if their size can be
    predicted, and neither refuted nor confirmed if it cannot.
    """
    at: Spread = min(growth.horizons, key=lambda s: (abs(s.horizon - horizon), s.horizon))
    ranks, other = at.spread, at.foretold
    if np.isfinite(ranks.within_ratio) and ranks.within_ceiling >= LEAST_ATTAINABLE:
        sentence = (
            f"At {at.horizon} steps without observations spread and |error| correlate by {ranks.within:.2f} within "
            f"coordinates, of {ranks.within_ceiling:.2f} attainable; predicted variance is {at.ratio:.2f} times the "
            "squared error."
        )
        chance = np.nan_to_num(ranks.within_chance) / ranks.within_ceiling
        if chance >= 1.0 and ranks.within_ratio < SPREAD[0]:
            return _verdict("spread", "unknown", f"{sentence} With so few forecasts that may be chance.")
        status, quantity = _grade_large(ranks.within_ratio, SPREAD, 1.0 - chance), "share of the attainable correlation"
        return _verdict("spread", status, sentence, ranks.within_ratio, quantity)
    start = f"At {at.horizon} steps the predicted spread hardly varies in time"
    if not np.isfinite(other.error):
        sentence = f"{start}, and there are too few forecasts to tell whether the size of errors does."
        return _verdict("spread", "unknown", sentence)
    chance = CERTAIN * other.error if np.isnan(other.chance) else other.chance
    status = _grade(other.rank, PREDICTED, chance)
    numbers = f"rank correlation {other.rank:.2f} ± {other.error:.2f}, limit {max(PREDICTED[0], chance):.2g}"
    if status == "pass":
        sentence = f"{start}, and nothing shows that the size of errors does ({numbers}): there is nothing to compare."
        return _verdict("spread", "unknown", sentence)
    sentence = f"{start}, but the size of errors does: {other.by} would tell it ({numbers})."
    return _verdict("spread", status, sentence, other.rank, f"rank correlation of |error| and {other.by}")


def _judge_tangents(proxy: TangentProxy) -> Verdict:
    """Judge the proxy of G_tan, if the data's tangents can be trusted."""
    nonlinear, reliability = proxy.r2_over_linear, proxy.reliability
    trust = f"{proxy.method}: error {100 * nonlinear:.0f} % below linear, reliability {reliability:.2f}"
    unclear = f"The data do not show how tangents depend on the state ({trust})."
    if not nonlinear >= LEAST_NONLINEAR:
        return _verdict("tangents", "unknown", unclear, nonlinear, "error below that of a linear map")
    if not reliability >= LEAST_RELIABLE:
        return _verdict("tangents", "unknown", unclear, reliability, "reliability of the data's tangents")
    sentence = f"Variance grows with the data's tangents by a rank correlation of {proxy.within:.2f} ({trust})."
    if proxy.within < TANGENT[0] <= proxy.within + proxy.chance:
        sentence += f" With so few forecasts it may be {proxy.chance:.2f} larger."
        return _verdict("tangents", "unknown", sentence, proxy.within, "rank correlation of growths")
    status = _grade_large(proxy.within, TANGENT)
    return _verdict("tangents", status, sentence, proxy.within, "rank correlation of growths")


def _choose_unit(agreement: Agreement) -> tuple[float, str]:
    """Return the unit of distances in nats, what the linear model's runs exceed data against data by, and its name."""
    excess = float("nan") if agreement.linear is None else agreement.linear.typical.d_stsp - agreement.floor.d_stsp
    return (excess, "linear model = 1") if excess > LEAST_EXCESS else (LEAST_EXCESS, f"{LEAST_EXCESS:g} nats = 1")


def _count_lost(agreement: Agreement, run: RunSummary) -> tuple[_Finding, str]:
    """Return the number of runs that are lost in some way, and a sentence without its full stop."""
    lost = run.lost
    share = lost / agreement.runs
    # If no run is lost, any other number is worth more to be shown.
    used = share / LOST if lost else -np.inf
    quantity = f"free runs of {agreement.runs} that are lost"
    words = f"{run.diverged or 'none'} of {agreement.runs} free runs of {agreement.steps} steps left the attractor"
    words += f", the first at step {run.first}" if run.diverged else ""
    words += f"; {run.trapped} stay in a part of it" if run.trapped else ""
    words += f"; {run.at_wall} live at the wall of the data's region" if run.at_wall else ""
    words += f"; {run.periodic} repeat themselves after {run.period} steps, where data do not" if run.periodic else ""
    words += f"; at the wall in {100 * run.clipped:.2g} % of all steps" if run.clipped else ""
    return _Finding(quantity, lost, _grade(share, (0.0, LOST)), used), words


def _seem_farther(runs: Float[np.ndarray, " S"], pieces: Float[np.ndarray, " P"]) -> bool:
    """Tell whether runs are farther from the held-out data than training pieces are, beyond chance (Mann and Whitney).

    With one piece there is no more certainty than that all runs are farther.
    """
    far, near = (np.nan_to_num(values, nan=np.inf, posinf=np.inf) for values in (runs, pieces))
    if not len(far) or not len(near):
        return True
    probability = mannwhitneyu(far, near, alternative="greater", method="exact").pvalue
    return bool(probability <= max(BY_CHANCE, 1.000001 / binom(len(far) + len(near), len(near))))


def _judge_run(name: str, agreement: Agreement, run: RunSummary) -> Verdict:
    """Judge free runs of one model beside the data and the runs of the linear model."""
    lost, words = _count_lost(agreement, run)
    linear, floor, highest = agreement.linear, agreement.floor, agreement.floor_highest
    beginning = f"{words[0].upper()}{words[1:]}"
    if np.isnan(run.typical.d_stsp):
        return _verdict(name, "fail", f"{beginning}.", lost.value, lost.quantity)
    if linear is None or not agreement.num_pieces or not np.isfinite(linear.typical.d_stsp):
        no_pieces = "no training piece is as long as the held-out data"
        sentence = f"{beginning}; {'there is no linear model' if agreement.num_pieces else no_pieces} to compare with."
        if lost.status == "pass":
            return _verdict(name, "unknown", sentence)
        return _verdict(name, lost.status, sentence, lost.value, lost.quantity)
    unit, unit_name = _choose_unit(agreement)
    excess = (run.typical.d_stsp - floor.d_stsp) / unit
    # Pieces of a recording that drifts differ by anything; that excuses no more than the linear model.
    chance = min((highest.d_stsp - floor.d_stsp) / unit, OCCUPATION[1])
    if not _seem_farther(run.occupations, agreement.occupations):
        chance = max(chance, min(excess, (MOST_EXCUSED + floor.d_stsp) / unit))
    allowed = max(OCCUPATION[0], chance)
    limit = floor.d_stsp + unit * allowed
    status = _grade(excess, OCCUPATION, chance)
    findings = [lost, _Finding(f"excess of D_stsp, {unit_name}", excess, status, excess / allowed)]
    rhythm = "no spectrum, since the data have too many gaps for one"
    if agreement.spectra:
        excess, chance = run.typical.d_h - floor.d_h, min(highest.d_h - floor.d_h, SPECTRUM[1])
        if not _seem_farther(run.rhythms, agreement.rhythms):
            chance = max(chance, min(excess, SPECTRUM[1]))
        allowed = max(SPECTRUM[0], chance)
        status = _grade(excess, SPECTRUM, chance)
        findings.append(_Finding("excess of D_H over data against data", excess, status, excess / allowed))
        rhythm = f"D_H {run.typical.d_h:.2f} (data against data {floor.d_h:.2f}, limit {floor.d_h + allowed:.2f})"
    sentence = (
        f"D_stsp {run.typical.d_stsp:.2f}, over runs {run.lowest:.2f} to {run.highest:.2f} (data against data "
        f"{floor.d_stsp:.2f}, linear model {linear.typical.d_stsp:.2f}, limit {limit:.2f}"
        f"{'' if agreement.delays is None else ', in delay coordinates'}), {rhythm}; {words}."
    )
    decided = _find_decisive(findings)
    return _verdict(name, decided.status, sentence, decided.value, decided.quantity)


def _judge_core(agreement: Agreement) -> Verdict:
    """Judge free runs with the shell off, beside the prior's."""
    prior = agreement.prior_core
    verdict = _judge_run("core", agreement, agreement.core)
    words = [verdict.sentence]
    if agreement.exponents is not None:
        lambda_1, error = float(agreement.exponents.values[0]), float(agreement.exponents.errors[0])
        words.append(f"Its largest Lyapunov exponent is {lambda_1:.3g} ± {error:.2g} per unit of time.")
    own = agreement.core
    if own.wandering > LOST * agreement.runs:
        words.append(
            f"{own.wandering} runs without noise repeat themselves after {own.period} steps, where data do not: either "
            "noise alone makes the rhythm wander, or it stands for chaos that the core has lost."
        )
        if SEVERITY[verdict.status] < SEVERITY["warn"]:
            quantity = f"free runs of {agreement.runs} that repeat themselves"
            verdict = replace(verdict, status="warn", value=float(own.wandering), quantity=quantity)
    if prior is not None and np.isfinite(prior.typical.d_stsp):
        rhythm = f", D_H {prior.typical.d_h:.2f}" if agreement.spectra else ""
        words.append(f"The prior's core: D_stsp {prior.typical.d_stsp:.2f}{rhythm}.")
        unit, unit_name = _choose_unit(agreement)
        above = (own.typical.d_stsp - prior.typical.d_stsp) / unit
        if above > OCCUPATION[0] and _seem_farther(own.occupations, prior.occupations):
            # A better likelihood bought with worse dynamics, the gap that the paper is about.
            words.append("Probabilistic training has made it worse.")
            if SEVERITY[verdict.status] < SEVERITY["warn"]:
                verdict = replace(
                    verdict, status="warn", value=above, quantity=f"D_stsp above the prior's, {unit_name}"
                )
    return replace(verdict, sentence=" ".join(words))
