"""Fit and certify in one command, draw reports again, compare them: `kaffee quickstart`, `report` and `compare`."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kaffee.cli._conclusion import (
    Conclusion,
    conclude,
    conclude_groups,
    draw,
    explain_staleness,
    show,
    show_groups,
)
from kaffee.cli._options import OwnCore
from kaffee.cli.fit import Json, Output, Quiet, execute

commands = typer.Typer()
quick = typer.Typer()

_QUICKSTART: dict[str, Any] = {"simulation": {"num_steps": 25_000}}


@quick.command("quickstart")
def _quickstart(
    output: Output = Path("quickstart"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Learn noisy Lorenz-63, make it probabilistic by KAFFEE, compare it with its prior, write a report.

    The same as `kaffee fit lorenz63` with more data. About three minutes on two cores.
    """
    from kaffee.fitting.config import update
    from kaffee.fitting.defaults import settings_for
    from kaffee.fitting.run import Run, Source
    from kaffee.fitting.settings import FitSettings

    given, source = {**_QUICKSTART, "seed": seed}, Source(system="lorenz63")
    loaded = source.load(update(FitSettings(), given))
    run = Run.start(output, settings_for(loaded.series, given), source, loaded)
    run.title = "kaffee quickstart: noisy Lorenz-63"
    execute(run, quiet=quiet, json=json)


@commands.command("report")
def _report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    on: Annotated[
        list[str] | None,
        typer.Option("--on", help="Certify on this recording instead of the held-out part; may be repeated."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Certify again even if the stored certificate is up to date.")
    ] = False,
    core: OwnCore = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Draw the report.html of finished runs again from their certificates; certify first what has none.

    With --on, recordings that have nothing to do with training are the held-out data; page and certificate then go to
    the folder on-NAME of the run, beside its own, and `kaffee compare RUN/on-NAME ...` finds them there.
    """
    from kaffee.certification.certificate import Certificate
    from kaffee.fitting.refits import load_refits
    from kaffee.fitting.run import Run

    for path in runs:
        reason = "--on names other data" if on else "--again asks for it" if again else explain_staleness(path)
        if reason:
            if not quiet:
                typer.echo(f"{path}: certifying, since {reason}", err=True)
            run = Run.open(path, core=core)
            run = run.on(on) if on else run
            if run.fitted.reconstruction.groups:
                show_groups(conclude_groups(run, run.fit, quiet=quiet), json=json)
                continue
            known: dict[str, Any] = {"doubt": run.doubt, "refits": load_refits(run)}
            done = conclude(run.output, run.fit, run.loaded, title=run.title, quiet=quiet, **known)
        else:
            done = Conclusion(Certificate.load(path)[0], path)
            draw(path, done.certificate)
        show(done, json=json)


@commands.command("compare")
def _compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two or more runs with a certificate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the page.")] = Path("compare.html"),
    json: Json = False,
) -> None:
    """Compare the certificates of runs: a table with the better value named, and a page with overlaid figures."""
    from rich.console import Console

    from kaffee.errors import ConfigError
    from kaffee.records import write_atomically
    from kaffee.report.compare import lay_out_comparison, read_certificate, tabulate_comparison

    if len(runs) < 2:
        raise ConfigError(f"Name two runs or more to compare, such as: kaffee compare {runs[0]} other")
    own_pages = [(run / "report.html").resolve() for run in runs]
    if output.suffix.lower() not in (".html", ".htm") or output.resolve() in own_pages:
        raise ConfigError(f"-o {output} must end in .html and must not overwrite a run's report, such as compare.html.")
    names = [run.name for run in runs]
    # A folder's name, or its path where two have the same.
    labels = [run.name if run.name and names.count(run.name) == 1 else str(run) for run in runs]
    certificates = {label: read_certificate(run) for label, run in zip(labels, runs, strict=True)}
    table = tabulate_comparison(certificates)
    write_atomically(output, lay_out_comparison(certificates).to_html().encode())
    if json:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        typer.echo(json_module.dumps({"page": str(output), "metrics": rows}, indent=2))
    else:
        Console().print(table)
        typer.echo(f"Page: {output}")
