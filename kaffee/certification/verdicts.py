"""What a verdict is, and how a number becomes one.

The rules of `local_verdicts` and `run_verdicts` are written out beside their results. Thresholds are effect sizes: with
thousands of readings any model of real data is significantly wrong, and the question is by how much. Where there are
few readings, what chance alone would give passes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from kaffee.certification.forecasts import Scores
from kaffee.certification.free_runs import Agreement, RunSummary
from kaffee.certification.innovations import JUDGED, Residuals
from kaffee.certification.spread import Spread, SpreadGrowth
from kaffee.certification.tangents import TangentProxy
from kaffee.metrics.calibration import coverage_limits, ks_limit, normal_limit, variance_limits

Status = Literal["pass", "warn", "fail", "unknown"]
SEVERITY: dict[Status, int] = {"unknown": 0, "pass": 1, "warn": 2, "fail": 3}


@dataclass(frozen=True)
class Verdict:
    """One check.

    Attributes:
        axis: 1 local probabilistic, 2 stochastic free run, 3 deterministic core.
        name: Of the check.
        value: The number that decided; None if there is none.
        rule: When it passes, in words and numbers.
        sentence: What was found.
        quantity: What the number is.
    """

    axis: int
    name: str
    status: Status
    value: float | None
    rule: str
    sentence: str
    quantity: str = ""


class Finding(NamedTuple):
    """One of the numbers that a check looks at.

    Attributes:
        quantity: What it is.
        share: How much of its limit it takes; more than 1 does not pass.
    """

    quantity: str
    value: float
    status: Status
    share: float


class Graded(Protocol):
    """What has a status, and a share of its limit that it takes."""

    @property
    def status(self) -> Status: ...

    @property
    def share(self) -> float: ...


G = TypeVar("G", bound=Graded)


def decisive(found: Iterable[G]) -> G:
    """The one with the worst status, and among these the one that is farthest beyond its limit."""
    return max(found, key=lambda one: (SEVERITY[one.status], one.share))


def worst(statuses: Sequence[Status]) -> Status:
    """The most severe; "unknown" only if nothing else is known.

    >>> worst(["pass", "unknown", "warn"])
    'warn'
    """
    return max(statuses, key=SEVERITY.__getitem__, default="unknown")


def graded(value: float, limits: tuple[float, float], chance: float = 0.0) -> Status:
    """Small is good: "pass" up to the first limit or what chance gives, "warn" up to the second, else "fail".

    >>> graded(0.2, (0.1, 0.3)), graded(float("nan"), (0.1, 0.3))
    ('warn', 'fail')
    """
    if not np.isfinite(value):
        return "fail"
    return "pass" if value <= max(limits[0], chance) else "warn" if value <= max(limits[1], chance) else "fail"


# Axis 1, local probabilistic behaviour: verdicts on innovations, calibrated and white in every coordinate.


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
ALL = "all readings"


class Judged(NamedTuple):
    """One number against the limit that it has to keep.

    Attributes:
        of: A coordinate, or all of them.
        value: As it is shown.
        away: How far from ideal, 0 or more.
        limit: Up to which `away` passes.
        shown_limit: The same as a bound of `value`.
        by_chance: Whether the limit is what chance gives, since there are few readings.
        least: What `away` is at best.
    """

    of: str
    value: float
    status: Status
    away: float
    limit: float
    shown_limit: float
    by_chance: bool
    least: float = 0.0

    @property
    def share(self) -> float:
        """How much of what is allowed is used up."""
        return (self.away - self.least) / (self.limit - self.least)

    def as_finding(self, measure: str) -> Finding:
        return Finding(f"{measure}, {self.of}", self.value, self.status, self.share)

    def limit_words(self, sign: str = "") -> str:
        """The limit, and where it comes from."""
        return f"limit {sign}{self.shown_limit:.3g}{', by chance' if self.by_chance else ''}"


def _judged(
    of: str, value: float, away: float, limits: tuple[float, float], chance: float, ideal: float = 0.0
) -> Judged:
    limit = max(limits[0], chance)
    side = -1.0 if ideal and value < ideal else 1.0
    return Judged(of, value, graded(away, limits, chance), away, limit, ideal + side * limit, chance > limits[0])


def _variance(of: str, value: float, count: float, num: int) -> Judged:
    low, high = variance_limits(count, num)
    factor, chance = (value, high) if value >= 1 else (1.0 / value if value > 0 else float("inf"), 1.0 / low)
    found = _judged(of, value, factor, NIS, chance)._replace(least=1.0)
    return found if value >= 1 else found._replace(shown_limit=1.0 / found.limit)


def _cover(of: str, value: float, count: float, num: int) -> Judged:
    low, high = coverage_limits(JUDGED, count, num)
    return _judged(of, value, abs(value - JUDGED), COVERAGE, high - JUDGED if value > JUDGED else JUDGED - low, JUDGED)


def _width(found: Judged, wide: bool) -> str:
    return "" if found.status == "pass" else ", bands too wide" if wide else ", bands too narrow"


def calibration_verdict(found: Residuals) -> Verdict:
    """NIS, coverage, bias and PIT of one-step predictions, over all readings and in each coordinate; the worst counts.

    Coordinates without scored readings are not judged.
    """
    seen = np.flatnonzero(found.counts)
    names, counts = [found.columns[j] for j in seen], found.counts[seen].tolist()
    # One coordinate is all readings.
    num = len(seen) + 1 if len(seen) > 1 else 1
    whole, independent = found.num_entries, found.num_independent
    each = list(zip(names, counts, seen, strict=True)) if len(seen) > 1 else []
    nis = decisive(
        [_variance(ALL, found.nis, whole, num), *(_variance(name, found.nis_each[j], n, num) for name, n, j in each)]
    )
    cover = decisive(
        [
            _cover(ALL, found.coverage[f"{JUDGED:g}"], independent, num),
            *(_cover(name, found.coverage_each[j], n, num) for name, n, j in each),
        ]
    )
    bias = decisive(
        _judged(name, found.bias[j], abs(found.bias[j]), BIAS, normal_limit(len(seen)) * found.bias_errors[j])
        for name, j in zip(names, seen, strict=True)
    )
    pit = decisive(
        [
            _judged(ALL, found.ks, found.ks, KS, ks_limit(independent, num)),
            *(_judged(name, found.ks_each[j], found.ks_each[j], KS, ks_limit(n, num)) for name, n, j in each),
        ]
    )
    parts = {
        f"NIS {nis.value:.2f} of {nis.of} ({nis.limit_words()}{_width(nis, nis.value < 1)})": nis.status,
        f"coverage of {100 * JUDGED:g} % bands {cover.value:.3f} of {cover.of} ({cover.limit_words()}"
        f"{_width(cover, cover.value > JUDGED)})": cover.status,
        f"bias {bias.value:+.2f} standard deviations of {bias.of} ({bias.limit_words('±')})": bias.status,
        f"PIT of {pit.of} within {pit.value:.3f} of uniform ({pit.limit_words()})": pit.status,
    }
    decided = decisive(
        [
            nis.as_finding("NIS"),
            cover.as_finding(f"coverage of {100 * JUDGED:g} % bands"),
            bias.as_finding("bias in standard deviations"),
            pit.as_finding("PIT, distance from uniform"),
        ]
    )
    if decided.status == "pass":
        sentence = f"One-step bands mean what they say over {whole} readings; at worst {', '.join(parts)}."
    else:
        off = [part for part, s in parts.items() if s != "pass"]
        sentence = f"One-step predictions are not calibrated: {', '.join(off)}."
    unread = [name for name, n in zip(found.columns, found.counts, strict=True) if not n]
    if unread:
        sentence += f" Without readings to score, and not judged: {', '.join(unread)}."
    rule = (
        f"passes if NIS lies within a factor {NIS[0]:g} of 1, coverage within {COVERAGE[0]:g} of {JUDGED:g}, the bias "
        f"below {BIAS[0]:g} and the PIT within {KS[0]:g} of uniform, or within what chance gives for as many readings, "
        f"over all and in each coordinate; warns up to {NIS[1]:g}, {COVERAGE[1]:g}, {BIAS[1]:g} and {KS[1]:g}"
    )
    return Verdict(1, "calibration", decided.status, decided.value, rule, sentence, decided.quantity)


def whiteness_verdict(found: Residuals) -> Verdict:
    """Every autocorrelation of whitened innovations against what chance gives for its own number of pairs of rows."""
    rule = (
        f"passes if no autocorrelation of whitened innovations exceeds {AUTOCORRELATION[0]:g} or what chance gives for "
        f"as many readings of this coordinate, warns up to {AUTOCORRELATION[1]:g}"
    )
    white = found.whiteness
    if white is None:
        return Verdict(1, "whiteness", "unknown", None, rule, "Held-out recordings are too short for autocorrelations.")
    worst_one = decisive(
        _judged(f"{found.columns[j]}, lag {white.lags[k]}", r, abs(r), AUTOCORRELATION, float(white.chance[k, j]))
        for (k, j), r in np.ndenumerate(white.autocorrelations)
        if np.isfinite(r)
    )
    sentence = (
        f"The autocorrelation that stands out most is {worst_one.value:.3f} ({worst_one.of}; "
        f"{worst_one.limit_words('±')}); {100 * white.outside:.0f} % lie outside the 95 % band of white noise, 5 % are "
        "expected."
    )
    what = f"size of autocorrelation, {worst_one.of}"
    return Verdict(1, "whiteness", worst_one.status, worst_one.away, rule, sentence, what)


# Axis 1, local probabilistic behaviour: verdicts on skill, spread and tangents.


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


# Axes 2 and 3, free runs with the shell on and off: verdicts on divergence, state space and spectrum.


# (pass, warn): a check passes up to the first limit and warns up to the second.
# Excess of D_stsp over that of data against data, in units of the excess of the linear model's run.
OCCUPATION = (0.5, 1.0)
# Where that excess is smaller the recording is as good as Gaussian, and this, in nats, is the unit.
LEAST_EXCESS = 0.1
# Excess of D_H over that of data against data; a run at rest has 1.
SPECTRUM = (0.1, 0.25)
# Share of long free runs that may diverge or stay in a part of the attractor before "warn" turns into "fail".
LOST = 0.1


def _unit(found: Agreement) -> float:
    """What the linear model's runs exceed data against data by, in nats."""
    excess = float("nan") if found.linear is None else found.linear.typical.d_stsp - found.floor.d_stsp
    return max(LEAST_EXCESS, excess) if np.isfinite(excess) else LEAST_EXCESS


def _in_units(quantity: str, unit: float) -> str:
    return f"{quantity}, {'linear model' if unit > LEAST_EXCESS else f'{LEAST_EXCESS:g} nats'} = 1"


def _fate(found: Agreement, run: RunSummary) -> tuple[Finding, str]:
    """What became of the runs, as a number and in words."""
    lost = run.diverged + run.trapped
    share = lost / found.runs
    status: Status = "pass" if share == 0 else "warn" if share <= LOST else "fail"
    # No lost run is no number to show where another one is there.
    used = share / LOST if lost else -np.inf
    finding = Finding(f"free runs of {found.runs} that diverge or are trapped", lost, status, used)
    runs = f"of {found.runs} free runs of {found.steps} steps"
    words = f"{run.diverged} {runs} left the attractor, the first at step {run.first}"
    if not run.diverged:
        words = f"none {runs} left the attractor"
    return finding, f"{words}; {run.trapped} stay in a part of it" if run.trapped else words


def _run_verdict(axis: int, name: str, found: Agreement, run: RunSummary) -> Verdict:
    rule = (
        "passes if no long free run diverges or stays in a part of the attractor, the median D_stsp exceeds that of "
        f"data against data by at most {OCCUPATION[0]:g} of what the linear model's runs exceed it by, and D_H by at "
        f"most {SPECTRUM[0]:g}, or by what pieces of the data do; warns up to {OCCUPATION[1]:g}, {SPECTRUM[1]:g} and "
        f"{100 * LOST:g} % of the runs"
    )
    fate, words = _fate(found, run)
    if np.isnan(run.typical.d_stsp):
        return Verdict(axis, name, "fail", fate.value, rule, f"{words[0].upper()}{words[1:]}.", fate.quantity)
    if found.linear is None or not found.num_pieces or not np.isfinite(found.linear.typical.d_stsp):
        why = "there is no linear model" if found.num_pieces else "no training piece is as long as the held-out data"
        sentence = f"{words[0].upper()}{words[1:]}; {why} to compare with."
        if fate.status == "pass":
            return Verdict(axis, name, "unknown", None, rule, sentence)
        return Verdict(axis, name, fate.status, fate.value, rule, sentence, fate.quantity)
    unit, floor = _unit(found), found.floor
    excess = (run.typical.d_stsp - floor.d_stsp) / unit
    # Pieces of a recording that drifts differ by anything; that excuses no more than the linear model.
    chance = min((found.floor_highest.d_stsp - floor.d_stsp) / unit, OCCUPATION[1])
    allowed = max(OCCUPATION[0], chance)
    limit = floor.d_stsp + unit * allowed
    what = _in_units("excess of D_stsp", unit)
    parts = [fate, Finding(what, excess, graded(excess, OCCUPATION, chance), excess / allowed)]
    rhythm = "no spectrum, since the data have too many gaps for one"
    if found.spectra:
        spectral_chance = min(found.floor_highest.d_h - floor.d_h, SPECTRUM[1])
        other, allowed = run.typical.d_h - floor.d_h, max(SPECTRUM[0], spectral_chance)
        status = graded(other, SPECTRUM, spectral_chance)
        parts.append(Finding("excess of D_H over data against data", other, status, other / allowed))
        most = floor.d_h + allowed
        rhythm = f"D_H {run.typical.d_h:.2f} (data against data {floor.d_h:.2f}, limit {most:.2f})"
    sentence = (
        f"D_stsp {run.typical.d_stsp:.2f}, over runs {run.lowest:.2f} to {run.highest:.2f} (data against data "
        f"{floor.d_stsp:.2f}, linear model {found.linear.typical.d_stsp:.2f}, limit {limit:.2f}), {rhythm}; {words}."
    )
    decided = decisive(parts)
    return Verdict(axis, name, decided.status, decided.value, rule, sentence, decided.quantity)


def stochastic_verdict(found: Agreement) -> Verdict:
    """Free runs with the shell on."""
    return _run_verdict(2, "stochastic run", found, found.stochastic)


def core_verdict(found: Agreement) -> Verdict:
    """Free runs with the shell off, beside the prior's."""
    prior = found.prior_core
    verdict = _run_verdict(3, "core", found, found.core)
    words = [verdict.sentence]
    if found.exponents is not None:
        lambda_1, error = float(found.exponents.values[0]), float(found.exponents.errors[0])
        words.append(f"Its largest Lyapunov exponent is {lambda_1:.3g} ± {error:.2g} per unit of time.")
    if prior is not None and np.isfinite(prior.typical.d_stsp):
        rhythm = f", D_H {prior.typical.d_h:.2f}" if found.spectra else ""
        words.append(f"The prior's core: D_stsp {prior.typical.d_stsp:.2f}{rhythm}.")
        above = (found.core.typical.d_stsp - prior.typical.d_stsp) / _unit(found)
        if above > OCCUPATION[0]:
            # A better likelihood bought with worse dynamics, the gap that the paper is about.
            words.append("Probabilistic training has made it worse.")
            if SEVERITY[verdict.status] < SEVERITY["warn"]:
                what = _in_units("D_stsp above the prior's", _unit(found))
                verdict = replace(verdict, status="warn", value=above, quantity=what)
    return replace(verdict, sentence=" ".join(words))
