"""Axes 2 and 3 of a report: does the surrogate, with its noise and without, live where the recording lives?"""

from typing import Any

import numpy as np
from jaxtyping import Float

from kaffee.certification.agreement import Agreement
from kaffee.certification.free_runs import Watched
from kaffee.report.html import Section
from kaffee.report.interactive import Attractor, Axis, Curve, Plot, estimates
from kaffee.tables import Table

NAMES = {"data": "data", "core": "kaffee core", "stochastic": "kaffee with noise"}


def attractor_section(agreement: Agreement, truth: Float[np.ndarray, "T N"] | None = None) -> Section:
    """The held-out recording and free runs in state space."""
    runs = {NAMES[name]: run for name, run in agreement.drawn.items()}
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
    models: list[tuple[str, Watched | None]] = [
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
            Curve(NAMES[name], agreement.frequencies[1:], power[1:, j]) for name, power in agreement.spectra.items()
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
