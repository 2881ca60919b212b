"""Collect the commands of `kaffee`, and print its errors for people."""

import atexit
import re
import sys
import warnings
from importlib.metadata import entry_points
from typing import Any

import typer

from kaffee.checkpoint.programs import cache_programs, compile_quickly, prune_cache
from kaffee.cli import about, analyse, certify, diagnose, fit, infer, pretrained, share, simulate, zeroshot
from kaffee.errors import KaffeeError

_INTERRUPTED = 130
_NAMES = "time_column|recording_column|columns|time_tolerance|any_step|decimal"
_KEYWORD = re.compile(rf"\b({_NAMES})=(False\b|'[^']*'|[\d.]*\d)?")


def _name_options(message: str) -> str:
    """Replace keywords of readers by options.

    >>> _name_options("Raise time_tolerance=, or pass time_column=False or time_column='Zeit'.")
    "Raise --time-tolerance, or pass --time-column none or --time-column 'Zeit'."
    """

    def name(keyword: re.Match[str]) -> str:
        value = keyword[2] or ""
        return f"--{keyword[1].replace('_', '-')} {'none' if value == 'False' else value}".strip()

    return _KEYWORD.sub(name, message)


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


# In the order of `kaffee --help`.
for _part in (certify.quick, simulate, fit, certify, infer, zeroshot, analyse, diagnose, share, pretrained, about):
    app.add_typer(_part if isinstance(_part, typer.Typer) else _part.commands)
app.add_typer(pretrained.models, name="models")
# Groups of commands from above this layer (`kaffee bench`, from `kaffee.paper`) or from other packages.
for _group in entry_points(group="kaffee.commands"):
    app.add_typer(_group.load(), name=_group.name)


_show_with_code = warnings.showwarning


def _show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print a warning for people, without the line of code that it came from; others are for developers."""
    if issubclass(category, UserWarning):
        typer.echo(f"warning: {_name_options(str(message))}", err=True)
    else:
        _show_with_code(message, category, *place, **more)


def run() -> None:
    """Run the command line; errors that kaffee raises on purpose end in one sentence and exit code 1."""
    warnings.showwarning = _show
    # Not when the package is imported: who uses it from Python decides about JAX's settings.
    cache_programs()
    if sys.argv[1:2] != ["bench"]:
        compile_quickly()
    atexit.register(prune_cache)
    try:
        app()
    except KaffeeError as error:
        typer.secho(f"error: {_name_options(str(error))}", fg=typer.colors.RED, err=True)
        sys.exit(1)
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # what Typer makes of Ctrl-C
            typer.echo("\ninterrupted; run the same command again to continue", err=True)
        raise
