"""`kaffee dpc RUN`: does adaptation buy its score with damaged dynamics?"""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaffee.cli.options import OwnCore

if TYPE_CHECKING:
    from kaffee.certification.fidelity import Reference
    from kaffee.theory.dpc import Certifier


def dpc(
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

    from kaffee.cli.finished import finished_stage
    from kaffee.filtering.likelihood import get_method
    from kaffee.fitting.config import override, update
    from kaffee.progress import TrainingProgress
    from kaffee.records import write_atomically, write_json
    from kaffee.report.page import png
    from kaffee.report.theory_figures import describe_gaps as describe
    from kaffee.report.theory_figures import log_table, tradeoff_figure
    from kaffee.theory.dpc import GapLog, find_gaps, fixed_score
    from kaffee.training.adaptation import adapt

    prior = finished_stage(run, "prior", core)
    settings, source, scaler = override(prior.settings, set_ or []), prior.source, prior.reconstruction.scaler
    if method is not None:
        settings = update(settings, {"method": method})
    chosen = get_method(settings.method)
    model, standard = prior.reconstruction.model, prior.standard
    schedule = {"adaptation": {"schedule": {"report_every": every}}}
    adaptation = update(settings, schedule).adaptation
    console = Console(stderr=True)
    with TrainingProgress(console, quiet=quiet) as progress:
        log = GapLog(
            fixed_score(model, standard, chosen, adaptation),
            _certifier(source, settings, standard, scaler, chosen.filter),
            every=every,
            last=adaptation.schedule.num_updates,
            inner=progress.watcher(f"Adaptation ({settings.method})", adaptation.schedule.num_updates),
        )
        adapt(model, standard, chosen, adaptation, seed=settings.seed, watcher=log)
    record = {
        "method": settings.method,
        "entries": [entry.to_dict() for entry in log.entries],
        "gaps": [vars(gap) for gap in find_gaps(log.entries, significance=significance)],
        "significance": significance,
    }
    write_json(run / f"dpc-{settings.method}.json", record)
    write_atomically(run / f"dpc-{settings.method}.png", png(tradeoff_figure(log.entries, significance=significance)))
    if json:
        typer.echo(json_module.dumps(record, indent=2))
        return
    Console().print(log_table(log.entries))
    for line in describe(log.entries, significance=significance):
        typer.echo(line)
    typer.echo(f"Figure: {run / f'dpc-{settings.method}.png'}")


def _certifier(source: Any, settings: Any, standard: Any, scaler: Any, recursion: Any) -> "Certifier":
    """Against the truth where the data are simulated, else against the recording."""
    from kaffee.theory.dpc import Certifier

    if source.system is None:
        return Certifier.from_series(standard)
    return Certifier.from_reference(_reference(source, settings, scaler), recursion)


def _reference(source: Any, settings: Any, scaler: Any) -> "Reference":
    from dataclasses import replace

    from kaffee.certification.fidelity import Protocol, simulate_reference
    from kaffee.systems.catalogue import get_system

    simulation = settings.simulation
    reference = simulate_reference(
        get_system(source.system, **source.parameters),
        num_train_steps=round((1.0 - settings.test_fraction) * simulation.num_steps),
        process_noise=simulation.process_noise,
        observation_noise=simulation.observation_noise,
        seed=settings.seed,
        protocol=Protocol(rollout_steps=20_000, forecast_span=5_000, grounding_steps=1_000),
    )
    return replace(reference, scaler=scaler)
