"""Lay out the page of a certificate: verdicts as cards, then a section for each part; draws what is stored."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kaffee.certification.certificate import AXES, Certificate
from kaffee.certification.check import Check
from kaffee.certification.covariates import InputGain
from kaffee.certification.forecasts import SURROGATE, Fan, Scores
from kaffee.certification.free_runs import Agreement
from kaffee.certification.innovations import Residuals
from kaffee.certification.remedies import suggest_remedies
from kaffee.certification.spread import SpreadGrowth
from kaffee.certification.stability import Stability
from kaffee.certification.tangents import TangentProxy
from kaffee.metrics.scores import NLL_UNIT
from kaffee.report import figures
from kaffee.report.page import Picture, Report, Section, describe_decision
from kaffee.tables import Table

_NAMES = {
    "data": "data",
    "truth": "truth",
    "prior": "prior core",
    "core": "kaffee core",
    "stochastic": "kaffee with noise",
}


def tabulate_verdicts(certificate: Certificate) -> Table:
    """List the verdicts for a terminal."""
    rows = [[f"{v.axis} {AXES[v.axis]}", v.name, v.status, describe_decision(vars(v))] for v in certificate.verdicts]
    return Table("Verdicts", ("axis", "check", "verdict", "decided by"), rows)


def tabulate_results(certificate: Certificate) -> Table:
    """Show the prior, the model and, where it is known, the truth beside each other."""

    def row(name: str, c: Check) -> list[Any]:
        diverged = f"{c.num_diverged} of {c.protocol.get('num_runs')}" if c.num_diverged else "never"
        return [name, c.nll, c.coverage_90, c.d_stsp_core, c.d_h_core, c.lambda_1, diverged]

    checks, free, notes = certificate.checks, certificate.agreement, ""
    rows = [row(name, check) for name, check in checks.items()]
    if free is not None and free.truth is not None:
        rows.append(["truth", None, None, *free.truth[:2], certificate.page.get("true_lambda_1"), "never"])
        notes = " truth: noise-free pieces of the true system, compared in the same way."
    if any(math.isnan(check.d_stsp_core) for check in checks.values()):
        notes += " –: there are too few complete rows that vary to compare with, or all runs diverged."
    protocol = next((check.protocol for check in checks.values()), {"num_runs": 0, "reference": "no rows"})
    return Table(
        "Held-out data and free runs",
        ("model", "nll", "coverage 90 %", "d_stsp", "d_h", "lambda_1", "diverged"),
        rows,
        note=f"nll ({NLL_UNIT}) and coverage of 90 % bands: one-step predictions. d_stsp (kernel densities), d_h and "
        f"lambda_1: medians over {protocol['num_runs']} free runs of the core against {protocol['reference']}.{notes}",
    )


def tabulate_rungs(rungs: Mapping[str, Any]) -> Table:
    """Show the rungs of a ladder of models beside each other, and which is kept."""
    titles = {"linear": "linear model", "alrnn": "AL-RNN", "incontext": "in context", "adapted": "adapted"}
    names = {name: title for name, title in titles.items() if name in rungs}
    rows = [["latent size", *(rungs[name]["latent_dim"] for name in names)]]
    for key, title in (("nll", "NLL"), ("coverage_90", "coverage of 90 % bands")):
        for i, h in enumerate(rungs["horizons"]):
            values = [rungs[name].get(key) for name in names]
            rows.append([f"{title}, {h} step{'s' * (h > 1)}", *(None if each is None else each[i] for each in values)])
    for key, title in (("d_stsp", "d_stsp of the core"), ("d_stsp_noisy", "d_stsp with noise"), ("lost", "lost runs")):
        rows.append([title, *(rungs[name].get(key) for name in names)])
    return Table(
        "Rungs",
        ("on held-back rows", *(f"{title}{' (kept)' * (rungs['chosen'] == name)}" for name, title in names.items())),
        rows,
        note="NLL and coverage: forecasts of training rows that were held back, every coordinate alone, in nats per "
        "reading and standardised units. d_stsp: free runs against all training rows.",
    )


def tabulate_refits(stability: Stability) -> Table:
    """Show fits with several seeds beside each other, and how far they lie apart."""
    titles = {"validation": "validation", "nll": "nll", "coverage_90": "coverage 90 %", "d_stsp_core": "core d_stsp"}
    titles |= {"d_h_core": "core d_h", "lost_core": "core lost", "lambda_1": "lambda_1"}
    titles |= {"d_stsp_noisy": "noisy d_stsp", "d_h_noisy": "noisy d_h", "lost_noisy": "noisy lost"}
    rows = [
        [f"{refit.seed}{' (kept)' * (refit.seed == stability.chosen)}", refit.rung]
        + [getattr(refit, name) for name in titles]
        for refit in stability.refits
    ]
    for title, values in zip(("mean", "standard deviation"), stability.summarise(), strict=True):
        rows.append([title, "", *(values[name] for name in titles)])
    runs = max(refit.runs for refit in stability.refits)
    return Table(
        "Refits",
        ("seed", "rung", *titles.values()),
        rows,
        note="The same recording fitted with several seeds. The kept one has the best validation score: NLL of rows "
        "held back from training (from scratch: loss of the last updates). The rest is on held-out data, as in the "
        f"tables of the kept one; lost: of {runs} free runs.",
    )


def lay_out_certificate(certificate: Certificate) -> Report:
    """Lay out the page of a run from its stored certificate."""
    about, page = certificate.about, certificate.page
    warning = about.get("warning", "")
    subtitle = (
        f"{about['method']}: {about['train']['steps']} rows of {len(about['columns'])} coordinates for training, "
        f"{about['test']['steps']} held out"
    )
    sections = [
        Section("Result", _describe_result(certificate), tables=[tabulate_results(certificate)]),
        *_show_choices(certificate),
        *([Section("What to do", " ".join(remedies))] if (remedies := suggest_remedies(certificate)) else []),
        *_list_sections(certificate),
    ]
    if losses := [each for each in certificate.training if len(each.values)]:
        picture = Picture("Loss", "Of each stage over its updates.", figures.plot_losses(losses))
        sections.append(Section("Training", pictures=[picture]))
    if "settings" in page:
        sections.append(Section("Settings", code=page["settings"]))
    return Report(
        page.get("title", "kaffee"),
        sections,
        subtitle=f"{subtitle}. Warning: {warning}" if warning else subtitle,
        purpose="" if certificate.purpose is None else certificate.purpose.sentence,
        verdicts=certificate.verdicts,
        provenance={**page.get("provenance", {}), **({"warning": warning} if warning else {})},
    )


def _show_choices(certificate: Certificate) -> list[Section]:
    """Show what was chosen from: rungs of the ladder, seeds."""
    rungs, refits = certificate.page.get("rungs"), certificate.refits
    ladder = [] if not rungs else [Section("Rungs", rungs["sentence"], tables=[tabulate_rungs(rungs)])]
    return ladder + ([] if refits is None else [Section("Refits", tables=[tabulate_refits(refits)])])


def _describe_result(certificate: Certificate) -> str:
    """Join the summary of the fit with what data alone say about the recording."""
    drift = certificate.drift
    return " ".join(filter(None, (certificate.page.get("summary", ""), "" if drift is None else drift.sentence)))


def _list_sections(certificate: Certificate) -> list[Section]:
    """Show everything that the certificate holds, for people who want to look."""
    free, withheld = certificate.agreement, certificate.withheld
    sections: list[Section | None] = [
        None if free is None else _show_attractor(free),
        None if certificate.fan is None else Section("Forecast", pictures=[_draw_fan(certificate.fan)]),
        None if certificate.scores is None else _show_skill(certificate.scores),
        None if certificate.inputs is None else _show_inputs(certificate.inputs),
        None if certificate.residuals is None else _show_calibration(certificate.residuals),
        _show_spread(certificate.spread, certificate.tangents),
        None if free is None else _show_spectra(free),
        None if free is None else _show_exponents(free, certificate.page.get("true_lambda_1")),
    ]
    if withheld is not None:
        caption = "The belief about a noise-free held-out value: the band grows as fast as the core's Jacobians say."
        picture = Picture("While readings are withheld", caption, figures.plot_withheld(withheld))
        sections.append(Section("Filtering", pictures=[picture]))
    if certificate.missing:
        table = Table("Missing", ("part", "why"), list(certificate.missing.items()))
        sections.append(Section("What could not be computed", tables=[table]))
    return [section for section in sections if section is not None]


def _show_attractor(free: Agreement) -> Section:
    runs = {title: free.drawn[name] for name, title in _NAMES.items() if name in free.drawn}
    caption = "Each run starts from a held-out row and gets no further reading; drag one to turn all of them."
    picture = Picture("Free runs beside the data", caption, figures.plot_attractor(runs, free.shown))
    models = {
        "kaffee core": free.core,
        "kaffee with noise": free.stochastic,
        "prior core": free.prior_core,
        "prior with noise": free.prior_stochastic,
        "linear model with noise": free.linear,
    }
    rows: list[list[Any]] = [
        [
            name,
            *(run.typical.d_stsp, run.lowest, run.highest, run.typical.d_h),
            *(run.diverged, run.trapped + run.periodic, run.at_wall, run.clipped),
        ]
        for name, run in models.items()
        if run is not None
    ]
    nothing = [None] * 4
    if free.truth is not None:
        rows.append(["truth without process noise", free.truth.d_stsp, None, None, free.truth.d_h, *nothing])
    pieces, worst, rest = free.floor, free.floor_highest, free.at_rest
    rows.append(["training data", pieces.d_stsp, None, worst.d_stsp, pieces.d_h, *nothing])
    rows.append(["constant at mean", rest.d_stsp, None, None, rest.d_h, *nothing])
    delayed = ""
    if free.delays is not None:
        delayed = f" in {free.delays.copies} copies of each coordinate, {free.delays.lag} steps apart"
    note = (
        f"Medians over {free.runs} free runs of {free.steps} steps, whose ends are compared with {free.num_rows} "
        f"held-out rows: d_stsp by kernel densities{delayed}, d_h by power spectra. Runs of a core are compared "
        "with the noise that readings have. Diverged: left the attractor. Trapped: stay in a part of it, or repeat "
        "themselves where data do not. At the wall: are held back at the edge of the data's region in over a tenth "
        "of their steps; clipped: share of all steps. Training data: what a perfect model gets."
    )
    columns = ("run", "d_stsp", "lowest", "highest", "d_h", "diverged", "trapped", "at the wall", "clipped")
    table = Table("Distance from the held-out recording", columns, rows, note=note)
    return Section("Attractor", tables=[table], pictures=[picture])


def _draw_fan(fan: Fan) -> Picture:
    start = fan.dt * fan.row
    figure = figures.plot_forecast(
        start + fan.dt * np.arange(1, len(fan.truth) + 1),
        dict(zip(fan.levels, fan.quantiles, strict=True)),
        fan.columns,
        history_times=start + fan.dt * np.arange(1 - len(fan.history), 1),
        history=fan.history,
        truth=fan.truth,
        x="time since the held-out data begin",
    )
    caption = f"From the middle of the held-out data (row {fan.row}): readings, bands of future readings, what came."
    return Picture("A forecast", caption, figure)


def _show_skill(scores: Scores) -> Section:
    fields = {"nll_standard": "marginal NLL", "crps_standard": "CRPS", "rmse_standard": "RMSE"}
    panels = {
        label: {
            "kaffee" if name == SURROGATE else name: (scores.horizons, [getattr(score, field) for score in own])
            for name, own in scores.methods.items()
        }
        for field, label in fields.items()
    }
    figure = figures.plot_curves(panels, x="horizon (steps)", y="score", log_x=len(scores.horizons) > 2)
    caption = "Standardised units, lower is better; all start from the same rows and are scored on the same readings."
    rows = [
        [h, name, s.nll_standard, s.crps_standard, s.rmse_standard, s.coverage_90, s.num_entries]
        for h, *each in zip(scores.horizons, *scores.methods.values(), strict=True)
        for name, s in zip(scores.methods, each, strict=True)
    ]
    skill = "; ".join(
        f"{h} step{'s' * (h > 1)}: {each.gain:+.3f} ± {each.error:.3f} nats over {each.baseline}"
        for h, each in zip(scores.horizons, scores.skill, strict=True)
    )
    note = (
        f"Marginal nll: {NLL_UNIT}, every coordinate scored alone; the nll of the model scores those of a row "
        f"together, on all held-out rows. Gains: {skill}."
    )
    columns = ("steps", "method", "marginal nll", "crps", "rmse", "coverage 90 %", "readings")
    table = Table(f"Scores of forecasts from {scores.num_starts} held-out rows", columns, rows, note=note)
    pictures = [Picture("Forecasts against baselines", caption, figure), *_draw_ensembles(scores)]
    return Section("Skill", tables=[table], pictures=pictures)


def _draw_ensembles(scores: Scores) -> list[Picture]:
    """Draw spread beside error, and where readings rank among members; older certificates have neither."""
    if not scores.rank_histogram:
        return []
    error = [score.rmse_standard for score in scores.methods[SURROGATE]]
    curves = {"": {"RMSE of the mean": (scores.horizons, error), "spread": (scores.horizons, scores.spread)}}
    beside = figures.plot_curves(curves, x="horizon (steps)", y="standardised", log_x=len(scores.horizons) > 2)
    last = scores.horizons[-1]
    count = scores.methods[SURROGATE][-1].num_entries
    return [
        Picture("Spread and skill", "Of an honest ensemble, spread is the error of its mean.", beside),
        Picture(
            f"Rank histogram at {last} step{'s' * (last > 1)}",
            f"Rank of {count} readings among {scores.members} members; flat if they are drawn alike.",
            figures.plot_pit(scores.rank_histogram[-1], count),
        ),
    ]


def _show_inputs(gain: InputGain) -> Section:
    rows = [
        [each.horizon, name, each.nll_with, each.nll_without, each.gain, each.error, each.rmse_with, each.rmse_without]
        for name, compared in (("kaffee", gain.model), ("linear", gain.linear))
        for each in compared
    ]
    note = (
        f"Marginal nll ({NLL_UNIT}) and RMSE, standardised. kaffee without: the same model with every input at its "
        "mean in the training data. linear without: a linear model that was fitted without inputs. Free runs use the "
        "recorded inputs, which begin again when they end."
    )
    columns = ("steps", "model", "nll with", "nll without", "gain", "± se", "rmse with", "rmse without")
    table = Table("Forecasts with and without inputs", columns, rows, note=note)
    return Section("Inputs", gain.describe(), tables=[table])


def _show_calibration(residuals: Residuals) -> Section:
    inside = (
        "Share of held-out readings inside central bands of every level; on the diagonal if bands hold what they say."
    )
    flat = "Flat if predictive distributions are right; a hump means bands too wide, horns mean too narrow."
    coverage = figures.plot_coverage(residuals.curve_levels, {"kaffee": residuals.curve})
    histogram = figures.plot_pit(residuals.pit, residuals.num_entries)
    pictures = [
        Picture("Coverage of one-step bands", inside, coverage),
        Picture("Probability integral transform", flat, histogram),
    ]
    low, high = residuals.nis_band
    rows: list[list[Any]] = [
        [f"NLL, {NLL_UNIT}", residuals.nll_standard, ""],
        ["NIS per reading", residuals.nis, f"1; {low:.3f} to {high:.3f} if calibrated"],
        ["KS distance of PIT", residuals.ks, "0"],
        *([f"coverage of {float(level):.0%} bands", share, level] for level, share in residuals.coverage.items()),
        ["interval score of 90% bands, standardised units", residuals.interval_score_standard, "smaller is better"],
    ]
    white = residuals.whiteness
    if white is not None:
        caption = "What the filter leaves behind should not be predictable from before: points within the band."
        figure = figures.plot_autocorrelation(white.lags, white.autocorrelations, white.bands, residuals.columns)
        pictures.append(Picture("Autocorrelation of innovations", caption, figure))
        limit = white.chance[white.largest_lag - 1, white.largest_coordinate]
        rows.append(["largest |autocorrelation|", white.largest, f"below {limit:.3f} if white"])
    numbers = residuals.counts, residuals.nis_each, residuals.coverage_each, residuals.bias, residuals.ks_each
    by_coordinate = Table(
        "By coordinate",
        ("coordinate", "readings", "nis", "coverage 90 %", "bias", "ks of pit"),
        [[name, *(each[j].item() for each in numbers)] for j, name in enumerate(residuals.columns)],
        note="Ideal are 1, 0.9, 0 and 0. Bias in predicted standard deviations.",
    )
    tables = [Table("One-step predictions", ("quantity", "value", "expected"), rows), by_coordinate]
    text = f"{residuals.num_entries} held-out readings, each predicted from those before it."
    return Section("Calibration", text, tables=tables, pictures=pictures)


def _show_spread(spread: SpreadGrowth | None, tangents: TangentProxy | None) -> Section | None:
    """Show predicted variance against squared error while readings are withheld, and the tangent proxy."""
    pictures, tables = [], []
    if spread is not None:
        curves = {
            f"{s.horizon} step{'s' * (s.horizon > 1)}": (s.curve.variance, s.curve.squared_error)
            for s in spread.horizons
        }
        caption = "Readings withheld: mean squared error in bins of predicted variance, on the line if spread is error."
        pictures.append(Picture("Spread against error", caption, figures.plot_spread(curves)))
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
    return Section("Spread", pictures=pictures, tables=tables) if tables else None


def arrange_spectra(
    frequencies: Sequence[float], spectra: Mapping[str, Any], columns: Sequence[str]
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Arrange power spectra as curves by coordinate and run; without the mean, which a logarithmic axis lacks."""
    power = {title: np.asarray(spectra[name])[1:] for name, title in _NAMES.items() if name in spectra}
    positive = np.asarray(frequencies)[1:]
    return {column: {title: (positive, p[:, j]) for title, p in power.items()} for j, column in enumerate(columns)}


def _show_spectra(free: Agreement) -> Section | None:
    if not free.spectra:
        return None
    curves = arrange_spectra(list(free.frequencies), free.spectra, free.shown)
    figure = figures.plot_curves(curves, x="frequency (per unit of time)", y="power", log_x=True, log_y=True)
    caption = "Of z-scored coordinates, smoothed over 20 frequencies; D_H is the distance between them."
    return Section("Spectra", pictures=[Picture("Power spectra", caption, figure)])


def _show_exponents(free: Agreement, truth: float | None) -> Section | None:
    own, prior = free.exponents, free.prior_exponents
    if own is None:
        return None
    exponents = {"kaffee core": (own.values, own.errors)}
    if prior is not None:
        exponents["prior core"] = (prior.values, prior.errors)
    rows: list[list[Any]] = [
        ["largest", own.values[0], own.errors[0]],
        *([] if truth is None else [["largest, true system", truth, None]]),
        ["sum of positive ones (entropy rate)", own.sum_positive, own.sum_positive_error],
        ["Kaplan-Yorke dimension", own.kaplan_yorke, None],
    ]
    note = f"Along {own.num_steps} steps of free runs."
    if own.refits:
        note += f" Errors contain the spread over {own.refits} fits with different seeds."
    table = Table("Exponents", ("quantity", "value", "error"), rows, note=note)
    caption = "Bars are two standard errors; one above zero is chaos, a flow has one at zero."
    picture = Picture("Lyapunov exponents of the core", caption, figures.plot_exponents(exponents, truth))
    return Section("Lyapunov exponents", tables=[table], pictures=[picture])
