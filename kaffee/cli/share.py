"""Hand a model to others: `kaffee export` and `kaffee publish`."""

from pathlib import Path
from typing import Annotated

import typer

from kaffee.cli._options import FilterName, Group, OwnCore, Run

commands = typer.Typer()


@commands.command("export")
def _export(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the programs.")],
    filter_name: FilterName = None,
    platforms: Annotated[str, typer.Option(help="Where they should run, separated by commas.")] = "cpu,cuda,tpu",
    group: Group = None,
    core: OwnCore = None,
) -> None:
    """Write step and filter as StableHLO programs, which run with JAX alone, without kaffee."""
    from kaffee.fitting.run import load
    from kaffee.inference.stablehlo import export_programs

    model = load(run, core=core).group(group).with_filter(filter_name)
    export_programs(model, output, platforms=tuple(each.strip() for each in platforms.split(",")))
    typer.echo(f"{output}: step, start and filter of {', '.join(model.columns) or 'the model'}; see programs.json")


@commands.command("publish")
def _publish(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the published model.")],
    name: Annotated[str | None, typer.Option(help="Title of the card.", show_default="that of the folder")] = None,
    licence: Annotated[
        str | None, typer.Option(help="Licence of the model, such as cc-by-4.0.", show_default="other")
    ] = None,
    core: OwnCore = None,
) -> None:
    """Write a folder for a model hub: weights, config.json and a card with the certificate. No network is touched."""
    from kaffee.adapters.publishing import publish

    folder = publish(run, output, name=name, licence=licence, core=core)
    typer.echo(f"{folder}: read README.md, then upload it, as in: hf upload OWNER/NAME {folder}")
