"""`kaffee bench run|status|retry|table`."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kaffee.bench.store import ResultStore

app = typer.Typer(help="Reproduce the paper's tables, cell by cell.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A recipe, such as table1.")]
Preset = Annotated[str | None, typer.Option(help="A preset of the recipe, such as smoke.")]
Results = Annotated[Path, typer.Option(help="Where results are kept.")]
DEFAULT_RESULTS = Path("results")


def _store(name: str, preset: str | None, results: Path) -> "ResultStore":
    from kaffee.bench.recipe import load_recipe
    from kaffee.bench.store import ResultStore

    return ResultStore(results, load_recipe(name, preset))


@app.command()
def run(
    name: Name,
    preset: Preset = None,
    results: Results = DEFAULT_RESULTS,
    rows: Annotated[str | None, typer.Option(help="Only these rows (and the priors they need), by commas.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes; one per core by default.")] = None,
    dask: Annotated[bool, typer.Option(help="Use a local Dask cluster.")] = False,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, tcp://...")] = None,
) -> None:
    """Run all cells of a recipe that are not done yet; the same command continues a killed run."""
    from kaffee.bench.engine import DaskEngine, LocalEngine, run_recipe

    store = _store(name, preset, results)
    only = None if rows is None else [store.recipe.row(row.strip()).name for row in rows.split(",")]
    engine: Any = DaskEngine(scheduler, workers) if dask or scheduler else LocalEngine(workers)
    root = str(results.resolve())
    count = run_recipe(
        store,
        engine,
        lambda cell: (root, name, preset, cell.row, cell.seed),
        only=only,
        progress=lambda done, total, cell: typer.echo(f"[{done}/{total}] {cell}", err=True),
    )
    failed = store.failed()
    typer.echo(f"{count} cells run, {len(failed)} failed. See: kaffee bench table {name}")
    if failed:
        raise typer.Exit(1)


@app.command()
def status(name: Name, preset: Preset = None, results: Results = DEFAULT_RESULTS) -> None:
    """How many cells are done, and which failed, with their errors."""
    store = _store(name, preset, results)
    cells = store.cells()
    done = sum(store.is_done(cell) for cell in cells)
    typer.echo(f"{store.recipe.name}: {done} of {len(cells)} cells done")
    for cell in store.failed():
        record = store.read(cell) or {}
        typer.echo(f"  failed {cell.name}: {record['error']}")


@app.command()
def retry(name: Name, preset: Preset = None, results: Results = DEFAULT_RESULTS) -> None:
    """Forget failed cells, so that the next run does them again."""
    store = _store(name, preset, results)
    failed = store.failed()
    for cell in failed:
        store.forget(cell)
    typer.echo(f"{len(failed)} failed cells forgotten. Now: kaffee bench run {name}")


@app.command()
def table(
    name: Name,
    preset: Preset = None,
    results: Results = DEFAULT_RESULTS,
    against: Annotated[str | None, typer.Option(help="'paper' puts the published numbers and verdicts beside.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The table from the results at hand."""
    from kaffee.bench.summary import agreement, summarise, to_json, to_table
    from kaffee.errors import ConfigError

    if against not in (None, "paper"):
        raise ConfigError(f"--against knows 'paper', not '{against}'.")
    store = _store(name, preset, results)
    summaries = summarise(store)
    if json:
        typer.echo(json_module.dumps(to_json(summaries), indent=2))
        return
    made = to_table(store, summaries, against_paper=against == "paper")
    if markdown:
        typer.echo(made.to_markdown())
    else:
        from rich.console import Console

        Console().print(made.to_rich())
    if against:
        counts = agreement(summaries)
        typer.echo(", ".join(f"{count} {word}" for word, count in counts.items()))
