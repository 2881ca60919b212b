"""`kaffee adapt`: a foundation model and a recording become a calibrated filter."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from kaffee.cli.context import SYSTEM_CONTEXT, context_series

CHECKED_ROWS = 1_000
"""Rows after the context of a simulated system, for the check."""


def adapt(
    data: Annotated[str, typer.Argument(help="A file with the context, or the name of a system to simulate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the adapted model.")],
    method: Annotated[str, typer.Option(help="kaffee, frozen_core (shell only) or one of the controls.")] = "kaffee",
    model: Annotated[str | None, typer.Option(help="A model, a weight file or a folder; see kaffee models.")] = None,
    tangent: Annotated[str, typer.Option(help="mixture (the paper's Jacobian) or full.")] = "mixture",
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's ten updates, nothing held out; its bands are too narrow.")
    ] = False,
    updates: Annotated[int | None, typer.Option(min=0, help="Updates; 50, or 10 with --paper.")] = None,
    lyapunov: Annotated[
        float | None, typer.Option(help="Leading exponent per unit of time: windows of one Lyapunov time.")
    ] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="Observation noise of a simulated system.")] = 0.1,
    context: Annotated[
        int | None,
        typer.Option(min=3, help="Rows to adapt on; the rest is held out. 80 % of a file, 2000 of a system."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns of the file to use, separated by commas.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of windows and gate noise.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Adapt the pretrained DynaMix to a recording: zero-shot, then a few updates, then a check on held-out rows.

    The result is a model like those of `kaffee fit`: `kaffee.load(FOLDER)` gives it back.
    """
    from dataclasses import replace

    from kaffee.checks import check
    from kaffee.data.series import Series
    from kaffee.dynamix.hub import DEFAULT, from_pretrained
    from kaffee.errors import ConfigError
    from kaffee.incontext import CALIBRATED, HELD_OUT, IN_CONTEXT, adapt_foundation_model

    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty. Choose another folder with -o.")
    wanted = (context or SYSTEM_CONTEXT) + CHECKED_ROWS
    series = context_series(data, columns, wanted, noise=noise, seed=seed)
    if series.num_recordings != 1:
        raise ConfigError(f"A context is one recording; {series.label} has {series.num_recordings}. Split the file.")
    values = series.recordings[0]
    simulated = len(values) == wanted and series.name == data
    rows = context or (SYSTEM_CONTEXT if simulated else max(int(0.8 * len(values)), 1))
    if rows > len(values):
        raise ConfigError(f"--context {rows}: the recording has {len(values)} rows only.")
    core = from_pretrained(model or DEFAULT).with_tangent(tangent)  # type: ignore[arg-type]
    settings = IN_CONTEXT if paper else CALIBRATED
    updates = settings.schedule.num_updates if updates is None else updates
    surrogate = adapt_foundation_model(
        core,
        values[:rows],
        method=method,
        dt=series.time_step or 1.0,
        lyapunov_exponent=lyapunov,
        columns=series.columns,
        seed=seed,
        settings=replace(settings, schedule=replace(settings.schedule, num_updates=updates)),
        held_out=0.0 if paper else HELD_OUT,
    )
    surrogate.save(output)
    held_out = values[rows:]
    checked = check(surrogate, Series.from_arrays(held_out)) if len(held_out) > 1 else None
    if json:
        facts = {"output": str(output), "context": rows, "method": method, "tangent": tangent, "updates": updates}
        typer.echo(json_module.dumps({**facts, "check": None if checked is None else checked.to_dict()}, indent=2))
        return
    typer.echo(f"{output}: {method} on a context of {rows} rows, {updates} updates")
    if checked is not None:
        typer.echo(
            f"held out ({len(held_out)} rows): NLL {checked.nll:.3f} (one step, standardised), "
            f"90 % bands cover {100 * checked.coverage_90:.1f} %, D_stsp {checked.d_stsp_core:.2f}"
        )
