"""`kaffee zeroshot`: continue a series by the pretrained DynaMix, without any training."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from kaffee.cli.context import SYSTEM_CONTEXT, Download, context_series, foundation_model
from kaffee.cli.options import check_output


def zeroshot(
    data: Annotated[str, typer.Argument(help="A file, or the name of a system to simulate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File: .csv, .tsv, .npy, .npz or .parquet.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps to forecast.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the gate noise.")] = 0,
    noise: Annotated[bool, typer.Option(help="Gate noise, which the model was trained with.")] = True,
    model: Annotated[str | None, typer.Option(help="A model, a weight file or a folder; see kaffee models.")] = None,
    context: Annotated[
        int | None, typer.Option(min=3, help="Last rows to use as context; all of a file, 2000 of a system.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns of the file to use, separated by commas.")] = None,
    recording: Annotated[int, typer.Option(min=0, help="Which recording of the file to continue.")] = 0,
    embedding: Annotated[str, typer.Option(help="delay or positional: how fewer coordinates become three.")] = "delay",
    delay: Annotated[int | None, typer.Option(help="Delay in steps; from the autocorrelation by default.")] = None,
    period: Annotated[float | None, typer.Option(help="Period in steps, for positional.")] = None,
    download: Download = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Forecast a series by the pretrained DynaMix: its last rows are the context, nothing is trained.

    The first row of the output is one step after the last of the file (or of 2000 simulated steps of the system).
    """
    import jax
    import numpy as np

    from kaffee.data.series import Series
    from kaffee.data.writing import write_series
    from kaffee.errors import ConfigError, KaffeeError
    from kaffee.filtering.rollout import DIVERGENCE_BOUND
    from kaffee.foundation.forecasting import zero_shot

    check_output(output, [data])
    series = context_series(data, columns, SYSTEM_CONTEXT if context is None else context).series
    if recording >= series.num_recordings:
        raise ConfigError(f"There is no recording {recording}; {series.label} has {series.num_recordings}.")
    values = series.recordings[recording]
    if context is not None and context > len(values):
        raise ConfigError(f"--context {context}: the recording has {len(values)} rows only.")
    core = foundation_model(model, download=download)
    forecast = zero_shot(
        core,
        values if context is None else values[-context:],
        steps,
        key=jax.random.key(seed) if noise else None,
        embedding=embedding,  # type: ignore[arg-type]
        delay=delay,
        period=period,
    )
    written = forecast.values.copy()
    if forecast.diverged_at:
        written[forecast.diverged_at - 1 :] = np.nan
    times = None
    if series.times is not None and series.time_step and output.suffix.lower() != ".npy":
        times = series.times[recording][-1] + series.time_step * np.arange(1, steps + 1)
    if forecast.diverged_at == 1:
        raise KaffeeError(
            f"The forecast diverged in its first step: a state beyond {DIVERGENCE_BOUND:g} standard deviations. "
            "Nothing was written. Are these the weights of a trained model?"
        )
    write_series(
        Series.from_arrays(written, columns=series.columns, times=times, name=f"{series.name} forecast"), output
    )
    facts = {
        "output": str(output),
        "steps": steps,
        "coordinates": len(series.columns),
        "context": min(len(values), context or len(values)),
        "embedding": forecast.embedding,
        "delays": list(forecast.delays),
        "periods": list(forecast.periods),
        "diverged_at": forecast.diverged_at,
        "model": core.origin,
        "seed": seed if noise else None,
    }
    if json:
        typer.echo(json_module.dumps(facts, indent=2))
    else:
        how = {
            "direct": "",
            "delay": f", delays {list(forecast.delays)}",
            "positional": f", periods {facts['periods']}",
        }
        typer.echo(
            f"{output}: {steps} x {facts['coordinates']} from a context of {facts['context']}{how[forecast.embedding]}"
        )
        if forecast.diverged_at:
            typer.echo(
                f"warning: the forecast diverged at step {forecast.diverged_at}; later values are missing.", err=True
            )
    if forecast.diverged_at:
        raise typer.Exit(3)
