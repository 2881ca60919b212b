"""`kaffee bench run|check|status|retry|table|choose|figures`."""

import json as json_module
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kaffee.paper.cells import Cell, ResultStore
    from kaffee.paper.summary import Summaries
    from kaffee.tables import Table

app = typer.Typer(help="Reproduce the paper's tables, cell by cell.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A recipe, such as table1.")]
Preset = Annotated[str | None, typer.Option(help="A preset of the recipe, such as smoke.")]
Results = Annotated[Path, typer.Option(help="Where results are kept.")]
Rows = Annotated[str | None, typer.Option(help="Only these rows (and the priors they need), by commas.")]
Seeds = Annotated[str | None, typer.Option(help="Only these seeds, by commas.")]
Systems = Annotated[str | None, typer.Option(help="Only these systems, by commas.")]
Workers = Annotated[int | None, typer.Option(help="Worker processes on this machine; one per core by default.", min=1)]
_DEFAULT_RESULTS = Path("results")


def _store(name: str, preset: str | None, results: Path) -> "ResultStore":
    from kaffee.paper.cells import ResultStore
    from kaffee.paper.recipe import load_recipe

    return ResultStore(results, load_recipe(name, preset))


def _command(word: str, name: str, preset: str | None, results: Path) -> str:
    """Write the command to type next, about the same results."""
    options = [] if preset is None else ["--preset", preset]
    options += [] if results == _DEFAULT_RESULTS else ["--results", str(results)]
    return shlex.join(["kaffee", "bench", word, name, *options])


def _split(words: str | None) -> tuple[str, ...] | None:
    """Split an option by commas."""
    return None if words is None else tuple(word.strip() for word in words.split(","))


def _choose_rows(store: "ResultStore", rows: str | None) -> list[str] | None:
    return None if rows is None else [store.recipe.row(row).name for row in _split(rows) or ()]


def _select(store: "ResultStore", rows: str | None, seeds: str | None, systems: str | None) -> list["Cell"]:
    from kaffee.errors import ConfigError

    try:
        numbers = None if seeds is None else [int(seed) for seed in _split(seeds) or ()]
    except ValueError:
        raise ConfigError(f"--seeds takes whole numbers by commas, such as 3,13; not '{seeds}'.") from None
    return store.select(_split(rows), numbers, _split(systems))


def _show_progress(done: int, total: int, cell: str) -> None:
    typer.echo(f"[{done}/{total}] {cell}", err=True)


@app.command("run")
def _run(
    name: Name,
    preset: Preset = None,
    results: Results = _DEFAULT_RESULTS,
    rows: Rows = None,
    seeds: Seeds = None,
    systems: Systems = None,
    workers: Workers = None,
    dask: Annotated[bool, typer.Option("--dask", help="Make them the workers of a local Dask cluster.")] = False,
    scheduler: Annotated[str | None, typer.Option(help="Use the workers of this Dask scheduler, tcp://....")] = None,
) -> None:
    """Run all cells of a recipe that are not done yet; the same command continues a killed run."""
    from kaffee.paper.engine import DaskEngine, LocalEngine, run_recipe

    store = _store(name, preset, results)
    engine, root = DaskEngine(scheduler, workers) if dask or scheduler else LocalEngine(workers), str(results.resolve())
    count = run_recipe(
        store,
        engine,
        lambda cell: (root, name, preset, cell.row, cell.seed, cell.system),
        chosen=_select(store, rows, seeds, systems),
        progress=_show_progress,
    )
    failed = store.failed()
    see = _command("status" if failed else "table", name, preset, results)
    typer.echo(f"{count} cells run, {len(failed)} failed. See: {see}")
    if failed:
        raise typer.Exit(1)


@app.command("check")
def _check(
    name: Name,
    preset: Preset = None,
    results: Results = _DEFAULT_RESULTS,
    rows: Rows = None,
    seeds: Seeds = None,
    systems: Systems = None,
    workers: Workers = None,
) -> None:
    """Run cells again, elsewhere and from their priors on, and compare them with the stored ones bit for bit."""
    from kaffee.paper.cells import ResultStore, compare_records
    from kaffee.paper.engine import LocalEngine, run_recipe

    store, differ = _store(name, preset, results), False
    cells = _select(store, rows, seeds, systems)
    with tempfile.TemporaryDirectory() as folder:
        fresh = ResultStore(Path(folder), store.recipe)
        for prior in {store.find_prior(cell) for cell in cells} if store.recipe.priors else ():
            if prior is not None and store.prior_store.is_done(prior):
                shutil.copytree(store.prior_store.cell_folder(prior), fresh.prior_store.cell_folder(prior))
        run_recipe(
            fresh,
            LocalEngine(workers),
            lambda cell: (folder, name, preset, cell.row, cell.seed, cell.system),
            chosen=cells,
            progress=_show_progress,
        )
        for cell in cells:
            stored = store.read(cell)
            found = ["not stored"] if stored is None else compare_records(stored, fresh.read(cell))
            commit = (stored or {}).get("versions", {}).get("commit", "an unknown commit")
            typer.echo(f"{cell.name}: {'; '.join(found) or 'identical'} (stored by {commit})")
            differ |= bool(found)
    if differ:
        raise typer.Exit(1)


@app.command("status")
def _status(name: Name, preset: Preset = None, results: Results = _DEFAULT_RESULTS) -> None:
    """Show how many cells are done, and which failed, with their errors."""
    store = _store(name, preset, results)
    cells = store.cells()
    done = sum(store.is_done(cell) for cell in cells)
    typer.echo(f"{store.recipe.name}: {done} of {len(cells)} cells done")
    for cell in store.failed():
        typer.echo(f"  failed {cell.name}: {(store.read(cell) or {})['error']}")


@app.command("retry")
def _retry(name: Name, preset: Preset = None, results: Results = _DEFAULT_RESULTS) -> None:
    """Forget failed cells, so that the next run does them again."""
    store = _store(name, preset, results)
    failed = store.failed()
    for cell in failed:
        store.forget(cell)
    typer.echo(f"{len(failed)} failed cells forgotten. Now: {_command('run', name, preset, results)}")


@app.command("table")
def _table(
    name: Name,
    preset: Preset = None,
    results: Results = _DEFAULT_RESULTS,
    against: Annotated[str | None, typer.Option(help="'paper' puts the published numbers and verdicts beside.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, by commas.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Other columns, by commas: any number of a cell, such as nll_filtered.")
    ] = None,
    by_system: Annotated[
        bool, typer.Option("--by-system", help="One table for each column: systems down, rows across.")
    ] = False,
    systems: Annotated[str | None, typer.Option(help="Only these systems, by commas; with --by-system.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the table from the results at hand."""
    from kaffee.errors import ConfigError, unknown
    from kaffee.paper.summary import describe_verdicts, summarise, system_tables, to_json, to_table

    if against not in (None, "paper"):
        raise ConfigError(f"--against knows 'paper', not '{against}'.")
    store = _store(name, preset, results)
    if by_system and not store.recipe.systems:
        raise ConfigError(f"'{name}' has one system only; leave out --by-system.")
    if systems is not None and not by_system:
        raise ConfigError("--systems chooses rows of the tables that --by-system makes; give both.")
    shown = _split(systems) or store.recipe.systems
    for system in set(shown) - set(store.recipe.systems):
        raise ConfigError(unknown("system", system, store.recipe.systems))
    chosen = _split(columns)
    kept = _choose_rows(store, rows)

    def select(system: str | None = None) -> "Summaries":
        summaries = summarise(store, chosen, system)
        return summaries if kept is None else {row: summaries[row] for row in kept}

    if json:
        made = {"systems": {s: to_json(select(s)) for s in shown}} if by_system else to_json(select())
        typer.echo(json_module.dumps(made, indent=2))
        return
    if by_system:
        for part in system_tables(store, shown, chosen, kept):
            _show(part, markdown)
        return
    summaries = select()
    _show(to_table(store, summaries, against_paper=against == "paper"), markdown)
    if against:
        typer.echo("\n".join(describe_verdicts(store, summaries)))


def _show(table: "Table", markdown: bool = False) -> None:
    from rich.console import Console

    if markdown:
        typer.echo(table.to_markdown())
    else:
        Console().print(table)


@app.command("choose")
def _choose(name: Name, preset: Preset = None, results: Results = _DEFAULT_RESULTS) -> None:
    """Show which settings a grid search selects for every method, such as table1_tuning."""
    from kaffee.paper.summary import choice_table

    _show(choice_table(_store(name, preset, results)))


@app.command("figures")
def _figures(
    name: Name,
    preset: Preset = None,
    results: Results = _DEFAULT_RESULTS,
    output: Annotated[Path | None, typer.Option(help="Folder for the figures; <results>/<recipe>/figures.")] = None,
    format: Annotated[str, typer.Option(help="svg, png or pdf.")] = "svg",
    arm: Annotated[str | None, typer.Option(help="'plus' draws the rows of that arm, and the prior.")] = None,
) -> None:
    """Draw the paper's figures from the results at hand; one panel needs two trained models, trained if missing."""
    from kaffee.paper.figures.drawing import make_figures

    store = _store(name, preset, results)
    folder = store.folder / "figures" if output is None else output
    for path in make_figures(store, folder, format=format, arm=arm, say=lambda text: typer.echo(text, err=True)):
        typer.echo(path)
