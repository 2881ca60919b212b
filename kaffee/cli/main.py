"""The entry point: collects the commands and prints errors for people."""

import re
import sys
import warnings
from importlib.metadata import entry_points
from typing import Any

import typer

from kaffee.cli import about, diagnose, fit, infer, pretrained, quickstart
from kaffee.cli import certify as report
from kaffee.cli import simulate as systems
from kaffee.errors import KaffeeError

_OPTIONS = {"time_column": "--time-column", "recording_column": "--recording-column", "columns": "--columns"}
_OPTIONS |= {"time_tolerance": "--time-tolerance", "any_step": "--any-step"}
_KEYWORD = re.compile(rf"\b({'|'.join(_OPTIONS)})=(False\b|'[^']*'|[\d.]*\d)?")


def as_options(message: str) -> str:
    """Keywords of readers as options.

    >>> as_options("Raise time_tolerance=, or pass time_column=False or time_column='Zeit'.")
    "Raise --time-tolerance, or pass --time-column none or --time-column 'Zeit'."
    """

    def option(found: re.Match[str]) -> str:
        value = found[2] or ""
        return f"{_OPTIONS[found[1]]} {'none' if value == 'False' else value}".strip()

    return _KEYWORD.sub(option, message)


INTERRUPTED = 130

app = typer.Typer(
    name="kaffee",
    help="Probabilistic surrogates of chaotic systems that keep the attractor and know their uncertainty.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from kaffee import __version__

        typer.echo(__version__)
        raise typer.Exit


app.command("quickstart")(quickstart.quickstart)
app.command("systems")(systems.systems)
app.command("simulate")(systems.simulate)
app.command("fit")(fit.fit)
app.command("resume")(fit.resume)
app.command("report")(report.report)
app.command("compare")(report.compare)
app.command("filter")(infer.filter_)
app.command("smooth")(infer.smooth)
app.command("impute")(infer.impute)
app.command("forecast")(infer.forecast)
app.command("run-free")(infer.run_free)
app.command("dpc")(diagnose.dpc)
app.command("diagnose")(diagnose.diagnose)
app.command("adapt")(pretrained.adapt)
app.command("zeroshot")(pretrained.zeroshot)
app.command("doctor")(about.doctor)
app.command("cite")(about.cite)
app.add_typer(pretrained.models, name="models")
# Groups of commands from above this layer (`kaffee bench`, from `kaffee.paper`) or from other packages.
for _group in entry_points(group="kaffee.commands"):
    app.add_typer(_group.load(), name=_group.name)


_show_with_code = warnings.showwarning


def _show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """A warning for people, without the line of code that it came from; others are for developers."""
    if issubclass(category, UserWarning):
        typer.echo(f"warning: {as_options(str(message))}", err=True)
    else:
        _show_with_code(message, category, *place, **more)


def run() -> None:
    """Run the command line; errors that kaffee raises on purpose end in one sentence and exit code 1."""
    warnings.showwarning = _show
    try:
        app()
    except KaffeeError as error:
        typer.secho(f"error: {as_options(str(error))}", fg=typer.colors.RED, err=True)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # what Typer makes of Ctrl-C
            typer.echo("\ninterrupted; run the same command again to continue", err=True)
        raise
