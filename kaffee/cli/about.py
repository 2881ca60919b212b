"""`kaffee doctor`, `kaffee cache` and `kaffee cite`."""

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


@commands.command("cache")
def _cache(
    clear: bool = typer.Option(False, "--clear", help="Remove all of them."),
    json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Say where compiled programs are kept, how many there are, and remove them.

    Programs of earlier commands save half a minute of compiling. KAFFEE_CACHE=off in the environment keeps none.
    """
    from kaffee.checkpoint.programs import MOST_BYTES, inspect_cache, prune_cache

    removed = prune_cache(0) if clear else 0
    path, files, size = inspect_cache()
    if json:
        facts = {"path": str(path), "programs": files, "bytes": size, "most_bytes": MOST_BYTES, "removed": removed}
        typer.echo(json_module.dumps(facts, indent=2))
        return
    if clear:
        typer.echo(f"{removed} program{'s' * (removed != 1)} removed.")
    typer.echo(f"{path}: {files} program{'s' * (files != 1)}, {size / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f} MB")
