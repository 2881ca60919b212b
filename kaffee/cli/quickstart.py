"""Fit noisy Lorenz-63 in one command: `kaffee quickstart`."""

from pathlib import Path
from typing import Annotated, Any

import typer

SETTINGS = ("simulation.num_steps=25000",)


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")] = Path("quickstart"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Learn noisy Lorenz-63, make it probabilistic by KAFFEE, compare it with its prior, write a report.

    The same as `kaffee fit lorenz63` with more data. About three minutes on two cores.
    """
    from kaffee.cli.fit import execute
    from kaffee.fitting.config import merge, parse_override, update
    from kaffee.fitting.defaults import settings_for
    from kaffee.fitting.run import Run, Source
    from kaffee.fitting.settings import FitSettings

    given: dict[str, Any] = {"seed": seed}
    for text in SETTINGS:
        given = merge(given, parse_override(text))
    source = Source(system="lorenz63")
    loaded = source.load(update(FitSettings(), given))
    run = Run.start(output, settings_for(loaded.series, given), source, loaded)
    run.title = "kaffee quickstart: noisy Lorenz-63"
    execute(run, quiet=quiet, json=json)
