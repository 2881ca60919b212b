"""Axis 1, local probabilistic behaviour: verdicts on innovations, calibrated and white in every coordinate."""

from typing import NamedTuple

import numpy as np

from kaffee.certification.chance import coverage_limits, ks_limit, normal, variance_limits
from kaffee.certification.residuals import JUDGED, Residuals
from kaffee.certification.verdicts import Finding, Status, Verdict, decisive, graded

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
        _judged(name, found.bias[j], abs(found.bias[j]), BIAS, normal(len(seen)) * found.bias_errors[j])
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
