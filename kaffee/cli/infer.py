"""`kaffee filter`, `kaffee smooth` and `kaffee impute`: recordings seen through a trained model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kaffee.cli import forecast
from kaffee.cli import options as recordings
from kaffee.cli.options import (
    AnyStep,
    Columns,
    Files,
    Json,
    Latent,
    Output,
    OwnCore,
    Quantiles,
    RecordingColumn,
    Run,
    TimeColumn,
    TimeTolerance,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands that use a trained model."""
    app.command("filter")(filter_)
    app.command("smooth")(smooth)
    app.command("impute")(impute)
    app.command("forecast")(forecast.forecast)
    app.command("run-free")(forecast.run_free)


def filter_(
    run: Run,
    files: Annotated[list[str] | None, typer.Argument(help="Files, each with one or more recordings.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File: .csv, .tsv, .npy, .npz or .parquet.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Filter lines from standard input as they come.")] = False,
    gate: Annotated[
        float | None, typer.Option(help="Reject readings beyond this chi-square quantile, such as 0.9999.")
    ] = None,
    patience: Annotated[int, typer.Option(min=1, help="Rejections in a row after which a column is believed.")] = 10,
    columns: Columns = None,
    time_column: TimeColumn = None,
    recording_column: RecordingColumn = None,
    time_tolerance: TimeTolerance = None,
    any_step: AnyStep = False,
    quantiles: Annotated[
        str | None,
        typer.Option(help="Quantile levels, separated by commas.", show_default="0.05,0.95; none with --follow"),
    ] = None,
    latent: Latent = False,
    state: Annotated[
        Path | None, typer.Option(help="With --follow: go on from the state in this folder, if any, and save it there.")
    ] = None,
    skip_broken: Annotated[
        bool,
        typer.Option("--skip-broken", help="With --follow: a broken line is no step, even where no line has a time."),
    ] = False,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Filter recordings: what the model knows at every row, and what it expected to read there.

    Columns for each coordinate x: x_mean, x_std and quantiles of the signal given all readings so far, x_predicted_mean
    and x_predicted_std of the reading given those before; then log_likelihood and nis.

    With --follow, lines of numbers or JSON come in on standard input and one JSON line for each goes out. Steps that
    their times leave out are filled in ("skipped"); among lines with times, one that is broken or blank is no step.
    Broken lines are reported; the exit code is 3 if there were any.
    """
    from kaffee.errors import ConfigError

    if follow:
        if files or output is not None:
            raise ConfigError("--follow reads standard input and writes standard output; leave out files and -o.")
        from kaffee.cli.follow import follow_input

        if columns is not None or recording_column is not None or latent:
            raise ConfigError("--columns, --recording-column and --latent are for files; leave them out with --follow.")
        how: dict[str, Any] = {"skip_broken": skip_broken, "any_step": any_step, "time_column": time_column}
        if time_column == "none":
            how |= {"any_step": True, "time_column": None}
        how["levels"] = () if quantiles is None else recordings.levels_of(quantiles)
        follow_input(run, core, gate=gate, patience=patience, state=state, json=json, **how)
        return
    if not files or output is None:
        raise ConfigError(f"Name a recording and an output, as in: kaffee filter {run} recording.csv -o filtered.csv")
    if state is not None or skip_broken:
        raise ConfigError("--state and --skip-broken belong to --follow.")
    from kaffee.data.columns import BAND
    from kaffee.inference.recordings import filter_recordings

    recordings.check_output(output, files)
    levels = BAND if quantiles is None else recordings.levels_of(quantiles)
    model = recordings.model_at(run, core)
    series = recordings.read_recordings(model, files, columns, time_column, recording_column, time_tolerance)
    found = filter_recordings(model, series, gate=gate, patience=patience, any_step=any_step)
    facts = found.describe()
    per_entry = facts["log_likelihood_per_entry"]
    sentence = "no reading to score" if per_entry is None else f"log-likelihood {per_entry:.4f} per reading"
    recordings.write_table(found.to_series(levels, latent=latent), output, facts, json=json, sentence=sentence)
    if facts["rejected"]:
        typer.echo(f"{facts['rejected']} readings were rejected", err=True)
    if facts["restarts"]:
        typer.echo(
            f"warning: the belief was lost {facts['restarts']} times, in gaps longer than the model can bridge, and "
            "started anew",
            err=True,
        )


def smooth(
    run: Run,
    files: Files,
    output: Output,
    columns: Columns = None,
    time_column: TimeColumn = None,
    recording_column: RecordingColumn = None,
    time_tolerance: TimeTolerance = None,
    any_step: AnyStep = False,
    quantiles: Quantiles = "0.05,0.95",
    latent: Latent = False,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Smooth recordings: what the model knows at every row given all readings before and after it.

    Columns for each coordinate x: x_mean, x_std and quantiles of the signal, without observation noise.
    """
    from kaffee.inference.recordings import smooth as smooth_recordings

    recordings.check_output(output, files)
    levels = recordings.levels_of(quantiles)
    model = recordings.model_at(run, core)
    series = recordings.read_recordings(model, files, columns, time_column, recording_column, time_tolerance)
    found = smooth_recordings(model, series, any_step=any_step)
    table = found.to_series(levels, latent=latent)
    recordings.write_table(table, output, found.describe(), json=json, sentence="given all readings")


def impute(
    run: Run,
    files: Files,
    output: Output,
    columns: Columns = None,
    time_column: TimeColumn = None,
    recording_column: RecordingColumn = None,
    time_tolerance: TimeTolerance = None,
    any_step: AnyStep = False,
    quantiles: Quantiles = "0.05,0.95",
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Fill the gaps of recordings by the smoothed mean, with bands for the readings that are missing.

    Columns for each coordinate x: x itself, x_std and quantiles. Recorded readings stay as they are, with x_std 0.
    """
    from kaffee.inference.recordings import impute as impute_recordings

    recordings.check_output(output, files)
    levels = recordings.levels_of(quantiles)
    model = recordings.model_at(run, core)
    series = recordings.read_recordings(model, files, columns, time_column, recording_column, time_tolerance)
    found = impute_recordings(model, series, any_step=any_step)
    facts = found.describe()
    sentence = f"{facts['imputed']} readings imputed ({100 * facts['imputed_fraction']:.1f} %)"
    recordings.write_table(found.to_series(levels), output, facts, json=json, sentence=sentence)
