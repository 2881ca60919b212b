"""Draw the reports of finished runs, and compare several: `kaffee report` and `kaffee compare`."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kaffee.cli.options import OwnCore

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    on: Annotated[
        list[str] | None,
        typer.Option("--on", help="Certify on this recording instead of the held-out part; may be repeated."),
    ] = None,
    core: OwnCore = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Draw the report.html of finished runs again from their certificates; certify first what has none.

    With --on, recordings that have nothing to do with training are the held-out data; page and certificate then go to
    the folder on-NAME of the run, beside its own, and `kaffee compare RUN/on-NAME ...` finds them there.
    """
    from kaffee.certification.certificate import Certificate
    from kaffee.cli.conclusion import Conclusion, conclude, draw, show, why_stale
    from kaffee.fitting.run import Run

    for path in runs:
        reason = "--on names other data" if on else why_stale(path)
        if reason:
            if not quiet:
                typer.echo(f"{path}: certifying, since {reason}", err=True)
            run = Run.open(path, core=core)
            run = run.on(on) if on else run
            done = conclude(run.output, run.fit, run.loaded, title=run.title, doubt=run.doubt, quiet=quiet)
        else:
            done = Conclusion(Certificate.load(path)[0], path)
            draw(path, done.certificate)
        show(done, json=json)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of two or more runs with a certificate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of the page.")] = Path("compare.html"),
    json: Json = False,
) -> None:
    """Compare the certificates of runs: a table with the better value named, and a page with overlaid figures."""
    from rich.console import Console

    from kaffee.errors import ConfigError
    from kaffee.records import write_atomically
    from kaffee.report.compare import compared_page, comparison_table, read_certificate

    if len(runs) < 2:
        raise ConfigError(f"Name two runs or more to compare, such as: kaffee compare {runs[0]} other")
    own_pages = [(run / "report.html").resolve() for run in runs]
    if output.suffix.lower() not in (".html", ".htm") or output.resolve() in own_pages:
        raise ConfigError(f"-o {output} must end in .html and must not overwrite a run's report, such as compare.html.")
    certificates = {_label(run, runs): read_certificate(run) for run in runs}
    table = comparison_table(certificates)
    write_atomically(output, compared_page(certificates).to_html().encode())
    if json:
        rows: list[dict[str, Any]] = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        typer.echo(json_module.dumps({"page": str(output), "metrics": rows}, indent=2))
    else:
        Console().print(table)
        typer.echo(f"Page: {output}")


def _label(run: Path, runs: list[Path]) -> str:
    """Return the folder's name, or its path where two have the same."""
    same = sum(other.name == run.name for other in runs) > 1
    return str(run) if same or not run.name else run.name
