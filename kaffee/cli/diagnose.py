"""`kaffee diagnose` and `kaffee dpc`: the theory and definition 1 of the paper on a run of `kaffee fit`."""

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaffee.cli._options import OwnCore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kaffee.fitting.run import Run
    from kaffee.tables import Table
    from kaffee.theory.dpc import Certifier

commands = typer.Typer()

PrintJson = Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")]


def _conclude(path: Path, record: Any, figure: "Figure", table: "Table", lines: Sequence[str], json: bool) -> None:
    """Write PATH.json and PATH.png; print the record, or table and sentences."""
    from rich.console import Console

    from kaffee.records import write_atomically, write_json
    from kaffee.report.style import encode_png

    write_json(path.with_name(f"{path.name}.json"), record)
    picture = path.with_name(f"{path.name}.png")
    write_atomically(picture, encode_png(figure))
    if json:
        typer.echo(json_module.dumps(record, indent=2))
        return
    Console().print(table)
    for line in (*lines, f"Figure: {picture}"):
        typer.echo(line)


def _refuse_groups(opened: "Run") -> None:
    """Raise for a model of groups: windows would have to be read by the map of their group."""
    from kaffee.errors import ConfigError

    groups = opened.prior.reconstruction.groups
    if groups:
        raise ConfigError(f"{opened.path} is shared by {len(groups)} groups, and such models are not diagnosed yet.")


@commands.command("diagnose")
def _diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    windows: Annotated[int, typer.Option(min=2, help="Training windows to look at.")] = 64,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Steps of a window; those that training scored by default.")
    ] = None,
    core: OwnCore = None,
    json: PrintJson = False,
) -> None:
    """Diagnose a fitted model on its own training windows: is it pushed to contract, too sure, well forced?

    Volume pressure (proposition 1), noisy-state attenuation (appendix A.2), dispersion (lemma 1) and the damping of
    gradients by the filter (proposition 3). Writes diagnose.json and diagnose.png into the run's folder.
    """
    import numpy as np

    from kaffee.data.windows import training_windows
    from kaffee.filtering.likelihood import get_method
    from kaffee.fitting.run import Run
    from kaffee.records import jsonable
    from kaffee.report.consistency import describe_diagnosis, diagnosis_figure, diagnosis_table
    from kaffee.theory.diagnosis import diagnose as diagnose_model

    opened = Run.open(run, core=core)
    _refuse_groups(opened)
    settings, reconstruction, standard = opened.settings, opened.fitted.reconstruction, opened.rows
    burn_in = settings.adaptation.burn_in
    steps = settings.adaptation.scored if horizon is None else horizon
    sampler = training_windows(standard, burn_in + steps + 1)
    # Spread over the whole series: neighbouring windows say the same twice.
    batch = sampler.take(np.unique(np.linspace(0, sampler.num_windows - 1, windows).round().astype(int)))
    diagnosis = diagnose_model(
        reconstruction.model,
        np.asarray(batch.observations),
        np.asarray(batch.mask),
        standard.concatenated(),
        recursion=get_method(settings.method).filter,
        burn_in=burn_in,
        columns=reconstruction.columns,
    )
    record = {"method": settings.method, **jsonable(diagnosis)}
    shown = diagnosis_figure(diagnosis), diagnosis_table(diagnosis), describe_diagnosis(diagnosis)
    _conclude(run / "diagnose", record, *shown, json)


@commands.command("dpc")
def _dpc(
    run: Annotated[Path, typer.Argument(help="Folder of a run with a finished prior.")],
    method: Annotated[str | None, typer.Option(help="Adapt by this method; the run's own by default.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Updates between two looks.")] = 10,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting, such as adaptation.scored=16.")] = None,
    significance: Annotated[float, typer.Option(min=0.0, help="Standard errors by which a loss must rise.")] = 2.0,
    core: OwnCore = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the log as JSON.")] = False,
) -> None:
    """Adapt the prior of a run again, and log the score S_H and certification losses D on the way (definition 1).

    The updates are those of `kaffee fit`. Reports the steps in which S_H improved while a D worsened, and writes
    dpc-METHOD.json and dpc-METHOD.png into the run's folder.
    """
    from rich.console import Console

    from kaffee.filtering.likelihood import get_method
    from kaffee.fitting.config import override, update
    from kaffee.fitting.run import Run
    from kaffee.progress import TrainingProgress
    from kaffee.report.consistency import describe_gaps, log_table, tradeoff_figure
    from kaffee.theory.dpc import GapLog, find_gaps, fixed_score
    from kaffee.training.adaptation import adapt
    from kaffee.training.selection import Judge

    opened = Run.open(run, core=core)
    _refuse_groups(opened)
    # One prior is adapted, by any method: there are no rungs to choose from.
    settings = override(update(opened.settings, {"rung": "scratch"}), set_ or [])
    if method is not None:
        settings = update(settings, {"method": method})
    name, chosen = settings.method, get_method(settings.method)
    model, standard, held = opened.prior.model, opened.rows, opened.held
    judge = None if held is None or name != opened.settings.method else Judge(held)
    score = None if judge is None else lambda model: judge.score(model).mean
    adaptation = update(settings, {"adaptation": {"schedule": {"report_every": every}}}).adaptation
    num_updates = adaptation.schedule.num_updates
    with TrainingProgress(Console(stderr=True), quiet=quiet) as progress:
        log = GapLog(
            fixed_score(model, standard, chosen, adaptation),
            _build_certifier(opened, settings, chosen.filter),
            every=every,
            last=num_updates,
            inner=progress.watcher(f"Adaptation ({name})", num_updates),
        )
        adapt(model, standard, chosen, adaptation, seed=settings.seed, score=score, watcher=log)
    entries, gaps = log.entries, find_gaps(log.entries, significance=significance)
    logged = {"entries": [entry.to_dict() for entry in entries], "gaps": [vars(gap) for gap in gaps]}
    record = {"method": name, **logged, "significance": significance}
    figure = tradeoff_figure(entries, significance=significance)
    lines = describe_gaps(entries, significance=significance)
    _conclude(run / f"dpc-{name}", record, figure, log_table(entries), lines, json)


def _build_certifier(run: "Run", settings: Any, recursion: Any) -> "Certifier":
    """Certify against the truth where the data are simulated, else against the recording."""
    from dataclasses import replace

    from kaffee.certification.fidelity import Protocol, simulate_reference
    from kaffee.systems.catalogue import get_system
    from kaffee.theory.dpc import Certifier

    source, simulation = run.source, settings.simulation
    if source.system is None:
        return Certifier.from_series(run.standard)
    reference = simulate_reference(
        get_system(source.system, **source.parameters),
        num_train_steps=round((1.0 - settings.test_fraction) * simulation.num_steps),
        process_noise=simulation.process_noise,
        observation_noise=simulation.observation_noise,
        seed=settings.seed,
        protocol=Protocol(rollout_steps=20_000, forecast_span=5_000, grounding_steps=1_000),
    )
    return Certifier.from_reference(replace(reference, scaler=run.prior.reconstruction.scaler), recursion)
