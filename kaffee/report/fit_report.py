"""The report of a fit: what was learned, beside the prior and the reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kaffee.certification.certificate import Certificate, CertificationSettings, certify
from kaffee.certification.check import (
    MIN_STEPS,
    Check,
    check,
    compare_runs,
    core_trajectory,
    filter_series,
    start_row,
)
from kaffee.certification.free_runs import MIN_ROWS
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.fitting.config import to_toml
from kaffee.fitting.pipeline import Fit
from kaffee.inference.matching import model_columns
from kaffee.report.page import Report, Section
from kaffee.report.sections import cards, sections
from kaffee.report.stills import attractors, loss_curves, withheld_coordinate
from kaffee.systems.simulation import Truth
from kaffee.tables import Table


@dataclass(frozen=True)
class FitReport:
    """The checks of both stages, as a table, the certificate, and the page.

    Attributes:
        pictures: Still figures by name, for papers and slides.
    """

    checks: dict[str, Check]
    table: Table
    certificate: Certificate
    page: Report
    pictures: dict[str, Figure]


def comparison(checks: dict[str, Check], truth: Truth | None) -> Table:
    """Prior and fitted model beside each other."""
    shown = {name: c.to_dict() for name, c in checks.items()}
    columns = ("nll", "coverage_90", "d_stsp_core", "d_h_core", "lambda_1")
    rows: list[list[Any]] = [
        [name, *(c[key] for key in columns), c["diverged_at"] or "never"] for name, c in shown.items()
    ]
    missing = any(c["d_stsp_core"] is None for c in shown.values())
    if truth is not None:
        floor = compare_runs(truth.states, truth.again, least=MIN_ROWS)
        rows.append(["truth again", None, None, *floor, truth.lambda_1, "never"])
    protocol = next(iter(checks.values())).protocol
    why = f" –: the run diverged, or there are not {MIN_ROWS} complete rows that vary to compare it with."
    return Table(
        "Held-out data and free run",
        ("model", "nll", "cover 90", "d_stsp", "d_h", "lambda_1", "diverged"),
        rows,
        note="nll and share inside the 90 % interval: one-step predictions. d_stsp "
        f"({protocol['d_stsp']}), d_h and lambda_1: one free run of the core against {protocol['num_steps']} steps of "
        f"the {protocol['reference']}; the verdicts rest on kernel densities and many runs.{why * missing}",
    )


def withheld_figure(model: Reconstruction, fit: Fit, truth: Truth | None, num_steps: int = 250) -> Any:
    """The first coordinate of the held-out data, filtered, with the middle fifth of the observations withheld.

    None if there are too few observations for that.
    """
    recording = max(fit.test.recordings, key=len)
    shown = min(num_steps, len(recording) - 1)
    gap = slice(2 * shown // 5, 3 * shown // 5)
    seen = recording[: shown + 1].copy()
    seen[1:][gap] = np.nan
    if shown < 5 or np.isnan(seen).all(axis=0).any() or np.isnan(recording[1 : shown + 1, 0]).all():
        return None
    filtered, _, mask = filter_series(model, Series.from_arrays(seen, columns=fit.test.columns))
    observe = model.model.observation.observe
    mean = model.scaler.inverse(np.asarray(observe(filtered.mean[0]), np.float64))
    std = model.scaler.inverse_std(np.asarray(filtered.signal_std[0], np.float64))
    times = model.dt * np.arange(1, shown + 1)
    return withheld_coordinate(
        times,
        recording[1 : shown + 1, 0],
        np.asarray(mask[0, 1:, 0]),
        mean[:, 0],
        std[:, 0],
        column=model.columns[0],
        withheld=(times[gap.start], times[gap.stop - 1]),
        truth=None if truth is None else truth.test_states[1 : shown + 1, 0],
    )


def report_fit(
    fit: Fit,
    *,
    title: str,
    command: str,
    truth: Truth | None = None,
    num_steps: int = 20_000,
    certification: CertificationSettings | None = None,
    watch: Callable[[str], object] | None = None,
) -> FitReport:
    """Check prior and fitted model, certify the fitted one on the held-out data, and lay out the page.

    Args:
        watch: Told the name of each stage of the certification.
    """
    reference = None if truth is None else truth.states
    name, fitted = fit.settings.method, fit.fitted.reconstruction
    stages = {"prior": fit.prior.reconstruction, name: fitted}
    checks = {key: check(model, fit.test, reference=reference, num_steps=num_steps) for key, model in stages.items()}
    table = comparison(checks, truth)
    certificate = certify(
        fitted, fit.train, fit.test, prior=fit.prior.reconstruction, settings=certification, watch=watch
    )
    pictures = _pictures(fit, truth, num_steps)
    columns = model_columns(fitted)
    found = sections(certificate, truth=reference, true_maximum=None if truth is None else truth.lambda_1)
    belief = (
        "A held-out coordinate with the filter's belief about its noise-free value. While observations are withheld, "
        "the band grows as fast as the core's Jacobians say."
    )
    withheld = [Section("Filtering", figures=[(pictures["filtering"], belief)])] if "filtering" in pictures else []
    text = f"Pretraining: {fit.prior.report}. Adaptation: {fit.fitted.report}."
    provenance = fitted.provenance
    page = Report(
        title,
        [
            Section("Result", text, tables=[table]),
            *found,
            *withheld,
            Section("Training", figures=[(pictures["training"], "Loss over updates.")]),
            Section("Settings", code=to_toml(fit.settings)),
        ],
        subtitle=f"{name}: {fit.train.num_steps} rows of {len(columns)} coordinates for training, "
        f"{fit.test.num_steps} held out",
        verdicts=cards(certificate),
        provenance={
            "command": command,
            "seed": provenance["seed"],
            "data": provenance["fingerprint"],
            "held-out data": certificate.about["test"]["fingerprint"],
            **provenance["versions"],
        },
    )
    return FitReport(checks, table, certificate, page, pictures)


def _pictures(fit: Fit, truth: Truth | None, num_steps: int) -> dict[str, Figure]:
    name, fitted = fit.settings.method, fit.fitted.reconstruction
    shown = (max(fit.test.recordings, key=len) if truth is None else truth.states)[:num_steps]
    runs = {"truth" if truth is not None else "data": shown}
    for key, model in (("prior", fit.prior.reconstruction), (name, fitted)):
        runs[key] = core_trajectory(model, start_row(model, shown), max(len(shown), MIN_STEPS))[0]
    labels = {"Pretraining": "squared error", f"Adaptation ({name})": "NLL per entry"}
    losses = dict(zip(labels, (fit.prior.losses, fit.fitted.losses), strict=True))
    found = {"attractor": attractors(runs, fitted.columns)}
    withheld = withheld_figure(fitted, fit, truth)
    if withheld is not None:
        found["filtering"] = withheld
    return {**found, "training": loss_curves({k: v for k, v in losses.items() if len(v)} or losses, labels)}
