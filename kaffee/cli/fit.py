"""`kaffee fit` and `kaffee resume`."""

import json as json_module
import shlex
from functools import reduce
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaffee.cli._options import Decimal, FilterName, RecordingColumn, TimeColumn, TimeTolerance, reading_options

if TYPE_CHECKING:
    from kaffee.fitting.defaults import Suggested
    from kaffee.fitting.run import Run
    from kaffee.fitting.settings import FitSettings

commands = typer.Typer()

Data = Annotated[list[str] | None, typer.Argument(help="Files (each a recording), or the name of a system.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, such as core.latent_dim=30; may be repeated."),
]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, help="Fit with so many seeds, keep the best by held-back rows.", show_default="1"),
]
Jobs = Annotated[int, typer.Option(min=1, help="Fits at the same time, with --seeds.")]
Certify = Annotated[bool, typer.Option("--certify/--no-certify", help="Check on held-out data and write the report.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def numbers(pairs: list[str]) -> dict[str, Any]:
    """Read `name=value` options as numbers."""
    from kaffee.errors import ConfigError
    from kaffee.fitting.config import parse_override

    parameters: dict[str, Any] = {}
    for pair in pairs:
        for name, value in parse_override(pair).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"--param {pair}: '{name}' needs a number.")
            parameters[name] = value
    return parameters


@commands.command("fit")
def _fit(
    data: Data = None,
    output: Output = Path("run"),
    method: Annotated[
        str | None, typer.Option(help="kaffee, blind, core_collapse, noise_masking or frozen_core.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.")] = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    rung: Annotated[
        str | None,
        typer.Option(help="linear, incontext, alrnn, auto (held-back rows choose) or scratch (the paper's)."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="quick: a tenth of the training, for a first look; paper: as --paper.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML; see --print-config.")] = None,
    set_: Set = None,
    core: Annotated[
        str | None,
        typer.Option(
            help="Start from this surrogate: a model's folder, FILE.py:FUNCTION, a foundation model, or incontext."
        ),
    ] = None,
    by: FilterName = None,
    likelihood: Annotated[
        str | None, typer.Option(help="poisson for counts, bernoulli for zeros and ones.", show_default="gaussian")
    ] = None,
    observation: Annotated[
        str | None, typer.Option(help="fixed, learned or learned:3: a map of 3 components to all channels.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Column that names groups, or file: they share a core and have maps and noise of their own."),
    ] = None,
    transfer: Annotated[
        bool, typer.Option("--transfer", help="Keep the core of --core RUN and fit map and noise alone.")
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's settings for Lorenz-96, not those that the data suggest.")
    ] = False,
    param: Annotated[list[str] | None, typer.Option(help="A parameter of the system, such as F=10.")] = None,
    time_column: TimeColumn = None,
    columns: Annotated[str | None, typer.Option(help="Columns to use, separated by commas.")] = None,
    inputs: Annotated[
        str | None, typer.Option(help="Columns that drive the system and are not predicted, separated by commas.")
    ] = None,
    recording_column: RecordingColumn = None,
    time_tolerance: TimeTolerance = None,
    decimal: Decimal = None,
    certify: Certify = True,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings as TOML and exit.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Fit a probabilistic surrogate to a recording or a simulated system.

    Takes windows, latent size and schedule from the data, pretrains a core by teacher forcing, makes it probabilistic,
    certifies it on held-out data and writes a report. Running the same command again continues where it stopped.

    With --seeds 5 it does so with five seeds, keeps the one that forecasts held-back rows best, and reports how far
    they lie apart; `kaffee forecast --refits` averages over them.
    """
    from kaffee.errors import ConfigError
    from kaffee.fitting.config import merge, parse_override, read_toml, to_toml, update
    from kaffee.fitting.defaults import apply_suggestions, check_preset, suggest
    from kaffee.fitting.initial_core import absolute
    from kaffee.fitting.run import Run, parse_source
    from kaffee.fitting.settings import FitSettings, ObservationSettings

    given: dict[str, Any] = reduce(merge, map(parse_override, set_ or []), {} if config is None else read_toml(config))
    preset = check_preset("paper" if paper else preset)
    shortcuts = {
        "method": method,
        "seed": seed,
        "rung": rung,
        "core": None if core is None else {"start": absolute(core)},
        "adaptation": None if by is None else {"filter": by},
        "readings": None if likelihood in (None, "gaussian") else {"likelihood": likelihood},
        "observation": ObservationSettings.parse(observation),
    }
    if transfer:
        if core is None:
            raise ConfigError("--transfer needs --core RUN, the run or model whose core is kept.")
        shortcuts |= {"method": "frozen_core", "observation": {"type": "learned"}}
    given = merge(given, {key: value for key, value in shortcuts.items() if value is not None})
    settings = update(FitSettings(), given)
    if not data:
        if not print_config:
            raise ConfigError("Name the data: files or a system, such as: kaffee fit lorenz63 -o run")
        typer.echo(to_toml(settings), nl=False)
        return
    options = reading_options(time_column, recording_column, time_tolerance, decimal)
    if columns is not None:
        options["columns"] = [name.strip() for name in columns.split(",")]
    if inputs is not None:
        options["inputs"] = [name.strip() for name in inputs.split(",")]
    if group is not None:
        options["group"] = group
    source = parse_source(data, numbers(param or []), options)
    loaded = source.load(settings)
    suggested = suggest(loaded.series, settings, preset)
    settings = apply_suggestions(suggested, given)
    if print_config:
        typer.echo(to_toml(settings), nl=False)
        return
    if not quiet and suggested:
        _show(suggested, settings)
    run = Run.start(output, settings, source, loaded)
    execute(run, quiet=quiet, json=json, certify=certify, seeds=seeds, jobs=jobs)


def _show(suggested: "list[Suggested]", settings: "FitSettings") -> None:
    """Print what the data suggest, and what was given instead."""
    typer.echo("Settings from the data (--set KEY=VALUE changes one, --paper takes the paper's):", err=True)
    for each in suggested:
        value = attrgetter(each.key)(settings)
        reason = each.reason if value == each.value else f"given, instead of {each.value}"
        typer.echo(f"  {each.key} = {value}  ({reason})", err=True)


@commands.command("resume")
def _resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    jobs: Jobs = 1,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue an interrupted fit from its folder alone."""
    from kaffee.fitting.run import Run

    execute(Run.open(run), quiet=quiet, json=json, jobs=jobs)


def execute(
    run: "Run", *, quiet: bool, json: bool, certify: bool = True, seeds: int | None = None, jobs: int = 1
) -> None:
    """Fit, check, report: the common end of `fit`, `resume` and `quickstart`.

    Args:
        seeds: Refits; by default those that the run was started with, if any.
    """
    from rich.console import Console

    from kaffee.certification.certificate import describe_shortage
    from kaffee.certification.drift import measure_drift
    from kaffee.cli._conclusion import conclude, conclude_groups, load_conclusion, show, show_groups
    from kaffee.fitting.cost import describe_traits, estimate_cost, find_risks
    from kaffee.fitting.initial_core import is_own
    from kaffee.fitting.ladder import describe_rungs
    from kaffee.fitting.refits import count_refits, fit_refits
    from kaffee.fitting.run import short_recordings, summarise
    from kaffee.fitting.settings import UNTRAINED_RUNGS
    from kaffee.progress import TrainingProgress

    console, settings, loaded = Console(stderr=True), run.settings, run.loaded
    warn: dict[str, Any] = {"style": "yellow", "markup": False, "soft_wrap": True}
    if not quiet:
        console.print(f"{run.title}: {summarise(loaded.series)} -> {run.path}", markup=False, soft_wrap=True)
    for note in short_recordings(loaded.series, settings):
        console.print(f"warning: {note}", **warn)
    if is_own(settings.core.start):
        run.core = settings.core.start  # whoever fits or resumes names the code; other commands must be told
    asked, candidates = count_refits(run.path), None
    seeds = seeds or asked or 1
    known = load_conclusion(run) if seeds == (asked or 1) else None
    if known is None:
        train, held_out = loaded.series.split(1.0 - settings.test_fraction)
        drift = measure_drift(train, held_out)
        if drift is not None and drift.drifts:
            console.print(f"warning: {drift.sentence}", **warn)
        if certify and (few := describe_shortage(held_out, climate=bool(settings.adaptation.climate))):
            console.print(f"warning: {few}", **warn)
        for risk in find_risks(loaded.series, settings):
            console.print(f"warning: {risk}", **warn)
        if not quiet:
            for trait in describe_traits(loaded.series, settings) if settings.rung != "scratch" else ():
                console.print(trait, markup=False, soft_wrap=True)
            if settings.rung not in UNTRAINED_RUNGS:  # whose cost is not that of an AL-RNN's updates
                cost = estimate_cost(settings, loaded.series.num_coordinates).describe()
                console.print(f"The fit takes {cost}.", markup=False, soft_wrap=True)
        with TrainingProgress(console, quiet=quiet) as progress:
            if seeds > 1 or asked:
                candidates = fit_refits(run, seeds, jobs=jobs, watcher=progress.watcher)
                result = run.fit
            else:
                result = run.train(progress.watcher)
        stages: tuple[Any, ...] = (result.prior, result.fitted)
    else:
        stages = known.stages
    for stage in stages:
        if stage.skipped:
            word, colour = ("warning", "yellow") if stage.completed else ("error", "red")
            console.print(f"{word}: {stage.report}", style=colour, markup=False, soft_wrap=True)
    core = ["--core", str(settings.core.start)] if is_own(settings.core.start) else []
    report = shlex.join(["kaffee", "report", str(run.path), *core])
    if known is not None:
        if not quiet:
            typer.echo(f"Done before, nothing is repeated. To draw the report again: {report}", err=True)
        show(known, json=json)
    elif certify and result.fitted.reconstruction.groups:
        show_groups(conclude_groups(run, result, quiet=quiet), json=json)
    elif certify:
        show(conclude(run.output, result, loaded, title=run.title, quiet=quiet, refits=candidates), json=json)
    else:
        model, rungs = str(run.path / settings.method), result.fitted.reconstruction.provenance.get("rungs")
        if rungs and not quiet:
            console.print(describe_rungs(rungs), markup=False, soft_wrap=True)
        typer.echo(json_module.dumps({"model": model}) if json else f"Model: {model}. To certify it: {report}")
    if not stages[-1].completed:
        raise typer.Exit(3)
