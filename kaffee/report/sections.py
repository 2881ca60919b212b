"""Axis 1 of a report: are one-step bands right, are forecasts better than baselines, does spread predict error?"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.certification.certificate import AXES, Certificate
from kaffee.certification.forecasts import SURROGATE, Fan, Scores
from kaffee.certification.free_runs import Agreement, RunSummary
from kaffee.certification.innovations import Residuals, Whiteness
from kaffee.certification.spread import SpreadGrowth
from kaffee.certification.tangents import TangentProxy
from kaffee.report.deciding import decided_by, quantity_of, shown
from kaffee.report.interactive.attractor import Attractor
from kaffee.report.interactive.calibration import coverage, estimates, pit_histogram
from kaffee.report.interactive.fan import Forecast, fan
from kaffee.report.interactive.marks import Band, Curve, Mark, Points
from kaffee.report.interactive.plot import Axis, Plot
from kaffee.report.page import Section
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


# Axes 2 and 3 of a report: does the surrogate, with its noise and without, live where the recording lives?


NAMES = {"data": "data", "core": "kaffee core", "stochastic": "kaffee with noise"}


def attractor_section(agreement: Agreement, truth: Float[np.ndarray, "T N"] | None = None) -> Section:
    """The held-out recording and free runs in state space."""
    runs = {NAMES[name]: run for name, run in agreement.drawn.items() if name in NAMES}
    columns = list(agreement.shown)
    if truth is not None and truth.shape[1] == len(columns):
        runs = {"truth": truth[: agreement.num_rows], **runs}
    picture = Attractor(
        "Free runs beside the data",
        "Each starts from a held-out row and gets no further reading; drag or use the arrow keys to turn all of them.",
        runs,
        columns,
    )
    return Section("Attractor", tables=[distances(agreement)], interactive=[picture])


def distances(agreement: Agreement) -> Table:
    """Distances of free runs from the held-out recording, between a perfect model's and a dead one's."""
    models: list[tuple[str, RunSummary | None]] = [
        ("kaffee core", agreement.core),
        ("kaffee with noise", agreement.stochastic),
        ("prior core", agreement.prior_core),
        ("prior with noise", agreement.prior_stochastic),
        ("linear model with noise", agreement.linear),
    ]
    rows: list[list[Any]] = [
        [name, run.typical.d_stsp, run.lowest, run.highest, run.typical.d_h, run.diverged, run.trapped]
        for name, run in models
        if run is not None
    ]
    pieces, worst, rest = agreement.floor, agreement.floor_highest, agreement.at_rest
    rows.append(["training data (floor)", pieces.d_stsp, None, worst.d_stsp, pieces.d_h, None, None])
    rows.append(["at rest (collapse)", rest.d_stsp, None, None, rest.d_h, None, None])
    note = (
        f"Medians over {agreement.runs} free runs of {agreement.steps} steps, whose ends are compared with "
        f"{agreement.num_rows} held-out rows. Diverged: left the attractor. Trapped: stay in a part of it."
    )
    columns = ("run", "d_stsp", "lowest", "highest", "d_h", "diverged", "trapped")
    return Table("Distance from the held-out recording", columns, rows, note=note)


def spectra_section(agreement: Agreement) -> Section | None:
    """Power spectra of the recording and of free runs, as D_H sees them; None where gaps leave no spectrum."""
    if not agreement.spectra:
        return None
    panels = {
        column: [
            Curve(NAMES[name], agreement.frequencies[1:], power[1:, j])
            for name, power in agreement.spectra.items()
            if name in NAMES
        ]
        for j, column in enumerate(agreement.shown)
    }
    figure = Plot(
        "Power spectra",
        "Of z-scored coordinates, smoothed over 20 frequencies; D_H is the distance between them.",
        panels,
        Axis("frequency", "per unit of time", log=True),
        Axis("power", log=True),
        choices=("coordinate",),
    )
    return Section("Spectra", interactive=[figure])


def lyapunov_section(agreement: Agreement, true_maximum: float | None = None) -> Section | None:
    """The leading Lyapunov exponents of the core with standard errors."""
    if agreement.exponents is None:
        return None
    found = agreement.exponents
    ranks = [str(i) for i in range(1, len(found.values) + 1)]
    figure = estimates(
        "Lyapunov exponents of the core",
        "Two standard errors; one above zero is chaos, a flow has one at zero.",
        ranks,
        {"kaffee core": found.values},
        {"kaffee core": 2.0 * np.asarray(found.errors)},
        x="rank",
        y=Axis("exponent", "per unit of time"),
    )
    rows: list[list[Any]] = [
        ["largest", found.values[0], found.errors[0]],
        ["sum of positive ones (entropy rate)", found.sum_positive, found.sum_positive_error],
        ["Kaplan-Yorke dimension", found.kaplan_yorke, None],
    ]
    if true_maximum is not None:
        rows.insert(1, ["largest, true system", true_maximum, None])
    table = Table(
        "Exponents", ("quantity", "value", "error"), rows, note=f"Along {found.num_steps} steps of a free run."
    )
    return Section("Lyapunov exponents", tables=[table], interactive=[figure])


# The pages of a certificate: verdicts as cards, then a section for each part that could be had.


class Card(NamedTuple):
    """A verdict as the first screen shows it."""

    axis: str
    check: str
    name: str
    status: str
    value: str
    rule: str
    sentence: str


def cards(certificate: Certificate) -> list[Card]:
    """One for each check, in the order of the axes."""
    return [
        Card(
            f"{v.axis} {AXES[v.axis]}",
            v.name,
            quantity_of(vars(v)),
            v.status,
            shown(v.value),
            v.rule or "needs data that are not there",
            v.sentence,
        )
        for v in certificate.verdicts
    ]


def verdict_table(certificate: Certificate) -> Table:
    """The verdicts for a terminal."""
    rows = [[f"{v.axis} {AXES[v.axis]}", v.name, v.status, decided_by(vars(v))] for v in certificate.verdicts]
    return Table("Verdicts", ("axis", "check", "verdict", "decided by"), rows)


def stored_certificate(certificate: Certificate) -> dict[str, Any]:
    """What a run keeps of its certificate: everything but the trajectories, which can be run again."""
    found = certificate.to_dict()
    if found["agreement"] is not None:
        found["agreement"].pop("drawn", None)
    return found


def fan_figure(found: Fan, num_history: int = 50) -> Any:
    """One forecast from a filtered belief, chosen by nobody."""
    past = found.history[-num_history:]
    start = found.dt * found.row
    forecast = Forecast(
        f"row {found.row}",
        start + found.dt * np.arange(1, len(found.truth) + 1),
        dict(zip(found.levels, found.quantiles, strict=True)),
        truth=found.truth,
        history_times=start + found.dt * np.arange(1 - len(past), 1),
        history=past,
    )
    return fan(
        "A forecast",
        "From the middle of the held-out data: readings before it, bands of future readings, and what came.",
        [forecast],
        found.columns,
        time=Axis("time since the held-out data begin"),
    )


def sections(
    certificate: Certificate,
    *,
    truth: Float[np.ndarray, "T N"] | None = None,
    true_maximum: float | None = None,
) -> list[Section]:
    """Everything that the certificate holds, for people who want to look.

    Args:
        truth: Clean states of the true system, if it is known.
        true_maximum: Its largest Lyapunov exponent.
    """
    found: list[Section | None] = []
    if certificate.agreement is not None:
        found.append(attractor_section(certificate.agreement, truth))
    if certificate.fan is not None:
        found.append(Section("Forecast", interactive=[fan_figure(certificate.fan)]))
    if certificate.scores is not None:
        found.append(skill_section(certificate.scores))
    if certificate.residuals is not None:
        found.append(calibration_section(certificate.residuals))
    found.append(spread_section(certificate.spread, certificate.tangents))
    if certificate.agreement is not None:
        found.append(spectra_section(certificate.agreement))
        found.append(lyapunov_section(certificate.agreement, true_maximum))
    if certificate.missing:
        rows = [[name, reason] for name, reason in certificate.missing.items()]
        found.append(Section("What could not be computed", tables=[Table("Missing", ("part", "why"), rows)]))
    return [section for section in found if section is not None]
