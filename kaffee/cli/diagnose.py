"""`kaffee diagnose RUN`: the theory of appendix A on the fitted model of a run."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from kaffee.cli.options import OwnCore


def diagnose(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    windows: Annotated[int, typer.Option(min=2, help="Training windows to look at.")] = 64,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Steps of a window; those that training scored by default.")
    ] = None,
    core: OwnCore = None,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Diagnose a fitted model on its own training windows: is it pushed to contract, too sure, well forced?

    Volume pressure (proposition 1), noisy-state attenuation (appendix A.2), dispersion (lemma 1) and the damping of
    gradients by the filter (proposition 3). Writes diagnose.json and diagnose.png into the run's folder.
    """
    import numpy as np
    from rich.console import Console

    from kaffee.cli.finished import finished_stage
    from kaffee.data.windows import training_windows
    from kaffee.filtering.likelihood import get_method
    from kaffee.records import write_atomically, write_json
    from kaffee.report.page import png
    from kaffee.report.theory_figures import describe_diagnosis as describe
    from kaffee.report.theory_figures import diagnosis_figure as figure
    from kaffee.report.theory_figures import diagnosis_table as table
    from kaffee.theory.diagnosis import diagnose as diagnose_model

    stage = finished_stage(run, core=core)
    settings, reconstruction, standard = stage.settings, stage.reconstruction, stage.standard
    burn_in = settings.adaptation.burn_in
    steps = settings.adaptation.scored if horizon is None else horizon
    sampler = training_windows(standard, burn_in + steps + 1)
    # Spread over the whole series: neighbouring windows say the same twice.
    batch = sampler.take(np.unique(np.linspace(0, sampler.num_windows - 1, windows).round().astype(int)))
    found = diagnose_model(
        reconstruction.model,
        np.asarray(batch.observations),
        np.asarray(batch.mask),
        standard.concatenated(),
        recursion=get_method(settings.method).filter,
        burn_in=burn_in,
        columns=reconstruction.columns,
    )
    entry = {"method": settings.method, **found.to_dict()}
    write_json(run / "diagnose.json", entry)
    write_atomically(run / "diagnose.png", png(figure(found)))
    if json:
        typer.echo(json_module.dumps(entry, indent=2))
        return
    Console().print(table(found))
    for line in describe(found):
        typer.echo(line)
    typer.echo(f"Figure: {run / 'diagnose.png'}")
