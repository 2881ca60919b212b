"""`kaffee forecast` and `kaffee run-free`: where a trained model goes from here, and where it goes on its own."""

from typing import Annotated

import typer

from kaffee.cli import options as recordings
from kaffee.cli.options import (
    AnyStep,
    Columns,
    Files,
    Json,
    Output,
    OwnCore,
    Quantiles,
    RecordingColumn,
    Run,
    TimeColumn,
    TimeTolerance,
)

DIVERGED = 3


def forecast(
    run: Run,
    files: Files,
    output: Output,
    steps: Annotated[int, typer.Option(min=1, help="Steps to forecast.")] = 100,
    at: Annotated[
        str | None, typer.Option(help="Start after this time (number, or ISO 8601) instead of the last row.")
    ] = None,
    members: Annotated[int, typer.Option(min=2, help="Size of the ensemble.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the ensemble.")] = 0,
    observation_noise: Annotated[bool, typer.Option(help="Forecast readings, or the signal behind them.")] = True,
    columns: Columns = None,
    time_column: TimeColumn = None,
    recording_column: RecordingColumn = None,
    time_tolerance: TimeTolerance = None,
    any_step: AnyStep = False,
    quantiles: Quantiles = "0.05,0.5,0.95",
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Forecast recordings: an ensemble from the filtered belief at the end of each, or at a given time.

    Columns for each coordinate x: x_mean, x_std and quantiles of the ensemble.
    """
    from kaffee.inference.ensembles import forecast as forecast_recordings

    recordings.check_output(output, files)
    levels = recordings.levels_of(quantiles)
    moment = None if at is None else time_of(at)
    model = recordings.model_at(run, core)
    series = recordings.read_recordings(model, files, columns, time_column, recording_column, time_tolerance)
    found = forecast_recordings(
        model,
        series,
        steps,
        at=moment,
        members=members,
        seed=seed,
        observation_noise=observation_noise,
        any_step=any_step,
    )
    facts = {**found.describe(), "seed": seed, "observation_noise": observation_noise}
    sentence = f"{members} members from {len(found.recordings)} recording{'s' * (len(found.recordings) > 1)}"
    recordings.write_table(found.to_series(levels), output, facts, json=json, sentence=sentence)
    if found.num_diverged:
        total = members * len(found.recordings)
        typer.echo(f"warning: {found.num_diverged} of {total} members left the attractor and are left out", err=True)
        raise typer.Exit(DIVERGED)


def run_free(
    run: Run,
    output: Output,
    steps: Annotated[int, typer.Option(min=1, help="Steps to keep.")] = 10_000,
    shell: Annotated[bool, typer.Option(help="Process and observation noise, or the bare core.")] = True,
    core_noise: Annotated[bool, typer.Option(help="Noise inside the core, where it has any.")] = True,
    runs: Annotated[int, typer.Option(min=1, help="How many runs.")] = 1,
    transient: Annotated[int, typer.Option(min=0, help="Steps before the first that is kept.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of start and noise.")] = 0,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Let a trained model run freely, in the units of its data; `kaffee simulate` does the same for a true system."""
    from kaffee.inference.ensembles import simulate

    recordings.check_output(output)
    model = recordings.model_at(run, core)
    found = simulate(model, steps, shell=shell, core_noise=core_noise, runs=runs, transient=transient, seed=seed)
    facts = {**found.describe(), "seed": seed, "shell": shell}
    recordings.write_table(found.series, output, facts, json=json, sentence=facts["divergence"])
    if found.diverged_at.any():
        raise typer.Exit(DIVERGED)


def time_of(text: str) -> float:
    """A time from what was typed, in the unit of a recording's times."""
    from kaffee.data.timeaxis import seconds
    from kaffee.errors import ConfigError, DataError

    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(seconds([text], lambda row: "--at", "time")[0])
    except DataError:
        raise ConfigError(f"--at {text}: neither a number nor an ISO 8601 time such as 2024-05-31T12:00:00.") from None
