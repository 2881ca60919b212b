"""`kaffee doctor` and `kaffee cite`."""

import json as json_module

import typer

commands = typer.Typer()


@commands.command("cite")
def _cite() -> None:
    """Print BibTeX entries for the paper, the software and DynaMix, for those who use its weights."""
    from importlib.resources import files

    from kaffee import __version__

    entries = files("kaffee.cli").joinpath("citations.bib").read_text(encoding="utf-8")
    typer.echo(entries.replace("VERSION", __version__), nl=False)


@commands.command("doctor")
def _doctor(json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Check the installation: versions, devices, and that the gradient is right and how fast it is."""
    from kaffee.filtering.likelihood import examine_installation

    facts, problems = examine_installation()
    if json:
        typer.echo(json_module.dumps({**facts, "problems": problems}, indent=2))
    else:
        from rich.console import Console

        from kaffee.tables import Table

        Console().print(Table("kaffee doctor", ("check", "result"), [list(fact) for fact in facts.items()]))
        typer.echo("Everything works." if not problems else "Problems: " + "; ".join(problems))
    if problems:
        raise typer.Exit(1)
