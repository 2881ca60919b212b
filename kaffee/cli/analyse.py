"""`kaffee analyse`: fixed points, cycles, exponents and basins of a fitted model, and their spread over refits."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from kaffee.cli._options import Group, OwnCore

commands = typer.Typer()


@commands.command("analyse")
def _analyse(
    runs: Annotated[
        list[Path], typer.Argument(help="Folder of a run or model; more of them, or a folder of runs, are compared.")
    ],
    refits: Annotated[
        int | None, typer.Option(min=2, help="Fit with so many seeds, and show how far what is found lies apart.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Fits at the same time, with --refits.")] = 1,
    cycles: Annotated[int, typer.Option(min=1, help="Look for cycles of up to so many states.")] = 4,
    steps: Annotated[int, typer.Option(min=100, help="Steps of the run that exponents are averaged over.")] = 10_000,
    starts: Annotated[int, typer.Option(min=1, help="Training states that searches and runs start from.")] = 200,
    plane: Annotated[
        str | None, typer.Option("--slice", help="Two columns for the basins; the first two by default.")
    ] = None,
    grid: Annotated[int, typer.Option(min=0, help="Starts along each of them; 0: no basins.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    group: Group = None,
    core: OwnCore = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Analyse what a model has learned: fixed points, cycles, Lyapunov exponents, basins.

    Those of an AL-RNN are exact, by its linear regions; those of other cores are found by Newton's method. Writes
    analysis.json and analysis.html into the (first) run's folder. With --refits 5 the run is fitted with other seeds,
    in its folder analysis, and stays as it is; refits of `kaffee fit --seeds` are compared without being asked for.
    """
    from rich.console import Console

    from kaffee.records import versions, write_atomically, write_json
    from kaffee.report import portrait
    from kaffee.theory.analysis import analyse, compare_analyses

    first, others = _collect(runs, refits, jobs, core, quiet)
    first, others = first.group(group), [each.group(group) for each in others]
    analysis = analyse(
        first,
        max_order=cycles,
        num_steps=steps,
        num_starts=starts,
        plane=None if plane is None else [name.strip() for name in plane.split(",")],
        grid=grid or None,
        refits=others,
        seed=seed,
    )
    folder = runs[0] if runs[0].is_dir() else runs[0].parent
    record = analysis.to_record()
    write_json(folder / "analysis.json", record)
    about = {"run": folder.name, "seed": seed, **versions()}
    page = portrait.build_portrait_page(analysis, f"kaffee analyse: {folder.name}", about)
    write_atomically(folder / "analysis.html", page.to_html().encode())
    if json:
        typer.echo(json_module.dumps(record, indent=2))
        return
    tables = [portrait.tabulate_cycles(analysis), portrait.tabulate_exponents(analysis)]
    tables.append(portrait.tabulate_ends(analysis))
    if others:
        tables += portrait.tabulate_spread(compare_analyses([analysis, *analysis.refits]), analysis.columns)
    console = Console()
    for table in tables:
        console.print(table)
    for line in (*portrait.describe_analysis(analysis), f"Page: {folder / 'analysis.html'}"):
        typer.echo(line)


def _collect(paths: list[Path], refits: int | None, jobs: int, core: str | None, quiet: bool) -> tuple[Any, list[Any]]:
    """Return the model to analyse, and those to compare it with."""
    from rich.console import Console

    from kaffee.errors import ConfigError
    from kaffee.fitting.refits import count_refits, fit_beside, load_refits
    from kaffee.fitting.run import Run
    from kaffee.progress import TrainingProgress

    folders = [folder for path in paths for folder in _expand(path)]
    first = Run.open(folders[0], core=core)
    model, others = first.model, [Run.open(folder, core=core).model for folder in folders[1:]]
    candidates = []
    if refits is not None:
        if len(folders) > 1:
            raise ConfigError(f"--refits is for one run; {len(folders)} were named, which are compared as they are.")
        with TrainingProgress(Console(stderr=True), quiet=quiet) as progress:
            candidates = fit_beside(first, refits, jobs=jobs, watcher=progress.watcher)
    elif len(folders) == 1 and count_refits(first.path):
        candidates = load_refits(first)
    # One of the refits is the run itself.
    own = model.provenance.get("seed")
    return model, [*others, *(each.reconstruction for each in candidates if each.seed != own)]


def _expand(path: Path) -> list[Path]:
    """Return the runs in a folder that is not itself one, such as RUN/refits; otherwise the path."""
    if not path.is_dir() or any((path / name).exists() for name in ("run.json", "model.json")):
        return [path]
    inside = sorted(each.parent for name in ("run.json", "model.json") for each in path.glob(f"*/{name}"))
    return list(dict.fromkeys(inside)) or [path]
