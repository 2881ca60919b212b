"""Axis 1 of a report: are one-step bands right, are forecasts better than baselines, does spread predict error?"""

from typing import Any

import numpy as np

from kaffee.certification.residuals import Residuals
from kaffee.certification.scores import SURROGATE, Scores
from kaffee.certification.spread import SpreadGrowth
from kaffee.certification.tangents import TangentProxy
from kaffee.certification.whiteness import Whiteness
from kaffee.report.html import Section
from kaffee.report.interactive import Axis, Band, Curve, Plot, Points, coverage, pit_histogram
from kaffee.report.interactive.marks import Mark
from kaffee.tables import Table

STYLES = {SURROGATE: ("kaffee", "solid"), "persistence": ("grey", "dashed"), "climatology": ("grey", "dotted")}


def calibration_section(residuals: Residuals) -> Section:
    """Reliability, PIT and autocorrelations of one-step predictions of held-out readings."""
    reliability = coverage(
        "Coverage of one-step bands",
        "Share of held-out readings inside central bands of every level; on the diagonal if bands hold what they say.",
        residuals.curve_levels,
        {"all coordinates": {"kaffee": residuals.curve}},
        choice="coordinates",
    )
    counts = np.asarray(residuals.pit) * residuals.num_entries / len(residuals.pit)
    pit = pit_histogram(
        "Probability integral transform",
        "Flat if predictive distributions are right; a hump means bands too wide, horns mean too narrow.",
        {"all coordinates": counts},
        choice="coordinates",
    )
    low, high = residuals.nis_band
    rows: list[list[Any]] = [
        ["NLL per reading, data units", residuals.nll, ""],
        ["NLL per reading, standardised", residuals.nll_standard, ""],
        ["NIS per reading", residuals.nis, f"1; {low:.3f} to {high:.3f} if all is well"],
        ["KS distance of PIT", residuals.ks, "0"],
        *([f"coverage of {float(level):.0%} bands", share, level] for level, share in residuals.coverage.items()),
    ]
    figures: list[Plot] = [reliability, pit]
    if residuals.whiteness is not None:
        figures.append(_autocorrelations(residuals.whiteness, residuals.columns))
        rows.append(["largest |autocorrelation|", *_largest(residuals.whiteness)])
    table = Table("One-step predictions", ("quantity", "value", "expected"), rows)
    text = f"{residuals.num_entries} held-out readings, each predicted from those before it."
    return Section("Calibration", text, tables=[table, _by_coordinate(residuals)], interactive=figures)


def _largest(white: Whiteness) -> tuple[float, str]:
    at = white.largest_lag - 1, white.largest_coordinate
    return white.largest, f"below {white.chance[at]:.3f} if all is well"


def _by_coordinate(residuals: Residuals) -> Table:
    """What the worst coordinate is judged by."""
    numbers = residuals.counts, residuals.nis_each, residuals.coverage_each, residuals.bias, residuals.ks_each
    columns = ("coordinate", "readings", "nis", "cover 90", "bias", "ks of pit")
    rows = [[name, *(each[j].item() for each in numbers)] for j, name in enumerate(residuals.columns)]
    note = "Ideal are 1, 0.9, 0 and 0. Bias in predicted standard deviations."
    return Table("By coordinate", columns, rows, note=note)


def _autocorrelations(white: Whiteness, columns: tuple[str, ...]) -> Plot:
    r, bands = np.asarray(white.autocorrelations), np.asarray(white.bands)
    panels: dict[str, list[Mark]] = {
        name: [
            Band("white noise, 95 %", white.lags, -bands[:, j], bands[:, j], "grey"),
            Points("innovations", white.lags, r[:, j], colour="kaffee"),
        ]
        for j, name in enumerate(columns)
    }
    return Plot(
        "Autocorrelation of innovations",
        "What the filter leaves behind should not be predictable from what it left before: points within the band.",
        panels,
        Axis("lag", "steps"),
        Axis("autocorrelation"),
        choices=("coordinate",),
        zoom=False,
    )


def skill_section(scores: Scores) -> Section:
    """Scores by horizon beside persistence, climatology and a linear state-space model."""
    panels = {
        label: [
            Curve(
                "kaffee" if name == SURROGATE else name,
                scores.horizons,
                [getattr(score, field) for score in found],
                *STYLES.get(name, ("prior", "dashdot")),
            )
            for name, found in scores.methods.items()
        ]
        for field, label in (("nll_standard", "NLL"), ("crps_standard", "CRPS"), ("rmse_standard", "RMSE"))
    }
    figure = Plot(
        "Forecasts against baselines",
        "Standardised units, lower is better; all start from the same rows and are scored on the same readings.",
        panels,
        Axis("horizon", "steps", log=len(scores.horizons) > 2),
        Axis("score"),
        choices=("score",),
        zoom=False,
    )
    rows = []
    for i, h in enumerate(scores.horizons):
        for name, found in scores.methods.items():
            s = found[i]
            rows.append([h, name, s.nll_standard, s.crps_standard, s.rmse_standard, s.coverage_90, s.num_entries])
    skill = "; ".join(
        f"{h} steps: {each.gain:+.3f} ± {each.error:.3f} nats over {each.baseline}"
        for h, each in zip(scores.horizons, scores.skill, strict=True)
    )
    table = Table(
        "Scores on held-out readings", ("steps", "method", "nll", "crps", "rmse", "cover 90", "n"), rows, note=skill
    )
    return Section("Skill", interactive=[figure], tables=[table])


def spread_section(spread: SpreadGrowth | None, tangents: TangentProxy | None) -> Section | None:
    """Withheld observations: predicted variance against squared error, and the tangent proxy."""
    if spread is None and tangents is None:
        return None
    figures, tables = [], []
    if spread is not None:
        panels: dict[str, list[Mark]] = {
            f"{each.horizon} steps": [
                Curve("ideal", (ends := _ends(each.curve)), ends, "grey", "dashed"),
                Points("bins", each.curve.variance, each.curve.squared_error, colour="kaffee"),
            ]
            for each in spread.horizons
        }
        figures.append(
            Plot(
                "Spread against error",
                "Readings withheld: mean squared error in bins of predicted variance, on the line if spread is error.",
                panels,
                Axis("predicted variance", log=True),
                Axis("mean squared error", log=True),
                choices=("horizon",),
                zoom=False,
            )
        )
        columns = ("steps", "variance / error", "rank within", "of a perfect model", "slope within")
        rows = [
            [s.horizon, s.ratio, s.spread.within, s.spread.within_ceiling, s.curve.slope_within]
            for s in spread.horizons
        ]
        note = "Rank correlation of predicted spread and |error| over time, within coordinates."
        tables.append(Table("Does spread predict error?", columns, rows, note=note))
    if tangents is not None:
        facts = [["pooled", tangents.pooled], ["within coordinates", tangents.within]]
        facts += [["tangents from", tangents.method], ["R² of these tangents' map", tangents.r2]]
        facts += [["reliability of these tangents", tangents.reliability]]
        note = "Growth of predicted variance against tangents estimated from the training data; see docs/certification."
        tables.append(Table("Tangent proxy for G_tan", ("quantity", "value"), facts, note=note))
    return Section("Spread", interactive=figures, tables=tables)


def _ends(curve: Any) -> list[float]:
    both = np.concatenate([curve.variance, curve.squared_error])
    both = both[both > 0]
    return [float(both.min()), float(both.max())] if both.size else [1.0, 1.0]
