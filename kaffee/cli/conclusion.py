"""How every run ends: certified on held-out data, with a report in its folder."""

import hashlib
import json as json_module
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from kaffee.fitting.pipeline import Fit, Stage
    from kaffee.fitting.run import Loaded, Run
    from kaffee.fitting.settings import FitSettings
    from kaffee.report.page import Report
    from kaffee.tables import Table


class Conclusion(NamedTuple):
    """What is known of a run at its end: JSON values, tables for a terminal, and where the page is."""

    stages: "tuple[Stage, Stage]"
    checks: dict[str, Any]
    certificate: Mapping[str, Any]
    tables: "Sequence[Table]"
    page: Path


def conclude(
    output: Path,
    result: "Fit",
    loaded: "Loaded",
    *,
    title: str,
    quiet: bool,
    doubt: str = "",
) -> Conclusion:
    """Certify, and write checks, certificate, pictures and page to a folder.

    Args:
        doubt: Why the held-out data are not held out, if so.
    """
    from rich.console import Console

    from kaffee.records import write_atomically, write_json
    from kaffee.report.fit_report import report_fit
    from kaffee.report.page import png
    from kaffee.report.sections import stored_certificate, verdict_table

    console = Console(stderr=True)

    def watch(stage: str) -> None:
        if not quiet:
            console.print(f"Certifying: {stage} ...", markup=False)

    if doubt:
        console.print(f"warning: {doubt}", style="yellow", markup=False, soft_wrap=True)
    command = shlex.join(["kaffee", *sys.argv[1:]])
    report = report_fit(result, title=title, command=command, truth=loaded.truth, watch=watch)
    stages = (result.prior, result.fitted)
    tables = [report.table, verdict_table(report.certificate)]
    checks = {name: check.to_dict() for name, check in report.checks.items()}
    certificate = stored_certificate(report.certificate)
    certificate["about"] |= {"warning": doubt} if doubt else {}
    certificate["conclusion"] = {
        "made_of": made_of(stages, result.settings, loaded),
        "tables": [table.to_record() for table in tables],
    }
    write_json(output / "checks.json", checks)
    for name, figure in report.pictures.items():
        write_atomically(output / f"{name}.png", png(figure))
    page = output / "report.html"
    write_atomically(page, _doubted(report.page, doubt).to_html().encode())
    # Last, since who finds it takes all else for done.
    write_json(output / "certificate.json", certificate)
    return Conclusion(stages, checks, certificate, tables, page)


def stored_conclusion(folder: "Run", settings: "FitSettings", loaded: "Loaded") -> Conclusion | None:
    """What a finished run concluded, if it was this version that did so, from the models and data that are there."""
    from kaffee.errors import CheckpointError
    from kaffee.records import read_json
    from kaffee.report.compare import read_certificate
    from kaffee.tables import Table

    page = folder.path / "report.html"
    prior, fitted = (folder.finished(name) for name in ("prior", settings.method))
    if prior is None or fitted is None or not page.exists():
        return None
    try:
        certificate = read_certificate(folder.path)
        checks = read_json(folder.path / "checks.json", "check")
        made, tables = (certificate["conclusion"][key] for key in ("made_of", "tables"))
        tables = [Table(**table) for table in tables]
        same = made == made_of((prior, fitted), settings, loaded)
    except (CheckpointError, KeyError, TypeError):
        return None
    return Conclusion((prior, fitted), checks, certificate, tables, page) if same else None


def made_of(stages: "tuple[Stage, Stage]", settings: "FitSettings", loaded: "Loaded") -> dict[str, Any]:
    """What decides a conclusion: models, data, the user's code if there is any, and the version that looked at them."""
    from kaffee import __version__
    from kaffee.fitting.initial_core import is_own
    from kaffee.inference.online import fingerprint

    start = settings.core.start
    own = Path(start.rpartition(":")[0]).read_bytes() if start is not None and is_own(start) else b""
    return {
        "kaffee": __version__,
        "models": [fingerprint(stage.reconstruction) for stage in stages],
        "data": loaded.series.fingerprint,
        "core": hashlib.sha256(own).hexdigest(),
    }


def show(found: Conclusion, *, json: bool) -> None:
    """Tables, why checks did not pass and the name of the page, or JSON."""
    from rich.console import Console

    from kaffee.report.deciding import reasons

    if json:
        typer.echo(json_module.dumps({**found.checks, "axes": found.certificate["axes"]}, indent=2))
        return
    for table in found.tables:
        Console().print(table)
    for line in reasons(found.certificate["verdicts"]):
        typer.echo(line)
    typer.echo(f"Report: {found.page}")


def _doubted(page: "Report", doubt: str) -> "Report":
    """The page with a warning on its first screen and in its provenance."""
    if not doubt:
        return page
    return replace(
        page, subtitle=f"{page.subtitle}. Warning: {doubt}", provenance={**page.provenance, "warning": doubt}
    )
