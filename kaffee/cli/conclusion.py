"""How every run ends: certified on held-out data, with a report in its folder."""

import json as json_module
import shlex
import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kaffee.fitting import Fit
    from kaffee.runs import RunFolder
    from kaffee.sources import Loaded


def conclude(folder: "RunFolder", result: "Fit", loaded: "Loaded", *, title: str, quiet: bool, json: bool) -> None:
    """Certify, write checks, certificate, pictures and page, and say what was found."""
    from rich.console import Console

    from kaffee.report.certified import stored_certificate, verdict_table
    from kaffee.report.fit import report_fit
    from kaffee.report.html import png
    from kaffee.store import write_atomically, write_json

    console = Console(stderr=True)

    def watch(stage: str) -> None:
        if not quiet:
            console.print(f"Certifying: {stage} ...", markup=False)

    command = shlex.join(["kaffee", *sys.argv[1:]])
    report = report_fit(result, title=title, command=command, truth=loaded.truth, watch=watch)
    checks = {name: check.to_dict() for name, check in report.checks.items()}
    write_json(folder.path / "checks.json", checks)
    write_json(folder.path / "certificate.json", stored_certificate(report.certificate))
    for name, figure in report.pictures.items():
        write_atomically(folder.path / f"{name}.png", png(figure))
    page = folder.path / "report.html"
    write_atomically(page, report.page.to_html().encode())
    if json:
        axes = report.certificate.to_dict()["axes"]
        typer.echo(json_module.dumps({**checks, "axes": axes}, indent=2))
        return
    Console().print(report.table)
    Console().print(verdict_table(report.certificate))
    typer.echo(f"Report: {page}")
