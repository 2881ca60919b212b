"""The pages of a certificate: verdicts as cards, then a section for each part that could be had."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from kaffee.certification import AXES, Certificate
from kaffee.certification.fan import Fan
from kaffee.report.deciding import decided_by, quantity_of, shown
from kaffee.report.dynamics_sections import attractor_section, lyapunov_section, spectra_section
from kaffee.report.html import Section
from kaffee.report.interactive import Axis, Forecast, fan
from kaffee.report.local_sections import calibration_section, skill_section, spread_section
from kaffee.tables import Table


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
