"""The commands that use a trained model: `kaffee filter`, `smooth`, `impute`, `forecast` and `run-free`."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaffee.cli import _options as options
from kaffee.cli._options import Json, OwnCore, RecordingOptions, Run, write_table

if TYPE_CHECKING:
    from kaffee.checkpoint.reconstruction import Reconstruction
    from kaffee.data.series import Series
    from kaffee.data.timeaxis import Dates

commands = typer.Typer()

DIVERGED = BROKEN_LINES = 3  # exit codes of results that are there, but not as they should be


@commands.command("filter")
@options.with_groups
def _filter(
    run: Run,
    *,
    files: Annotated[list[str] | None, options.FILES] = None,
    output: Annotated[Path | None, options.OUTPUT] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Filter lines from standard input as they come.")] = False,
    gate: Annotated[
        float | None, typer.Option(help="Reject readings beyond this chi-square quantile, such as 0.9999.")
    ] = None,
    patience: Annotated[int, typer.Option(min=1, help="Rejections in a row after which a column is believed.")] = 10,
    reading: RecordingOptions,
    quantiles: Annotated[
        str | None,
        typer.Option(help="Quantile levels, separated by commas.", show_default="0.05,0.95; none with --follow"),
    ] = None,
    latent: options.Latent = False,
    state: Annotated[
        Path | None, typer.Option(help="With --follow: go on from the state in this folder, if any, and save it there.")
    ] = None,
    skip_broken: Annotated[
        bool,
        typer.Option("--skip-broken", help="With --follow: a broken line is no step, even where no line has a time."),
    ] = False,
    by: options.FilterName = None,
    std_columns: options.StdColumns = None,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Filter recordings: what the model knows at every row, and what it expected to read there.

    Columns for each coordinate x: x_mean, x_std and quantiles of the signal given all readings so far, x_predicted_mean
    and x_predicted_std of the reading given those before; then log_likelihood, in data
    units, and nis.

    With --follow, lines of numbers or JSON come in on standard input and one JSON line for each goes out. Steps that
    their times leave out are filled in ("skipped"); among lines with times, one that is broken or blank is no step.
    Broken lines are reported; the exit code is 3 if there were any.
    """
    from kaffee.errors import ConfigError, DataError
    from kaffee.filtering.particles import describe_collapse
    from kaffee.inference.recordings import filter_recordings
    from kaffee.metrics.scores import NLL_UNIT

    believed: dict[str, Any] = {"gate": gate, "patience": patience}
    if follow:
        if files or output is not None:
            raise ConfigError("--follow reads standard input and writes standard output; leave out files and -o.")
        if reading.columns is not None or reading.recording_column is not None or latent or std_columns is not None:
            raise ConfigError(
                "--columns, --recording-column, --std-columns and --latent are for files; leave them out with --follow."
            )
        timed = reading.time_column != "none"
        how: dict[str, Any] = {"skip_broken": skip_broken, "levels": options.parse_levels(quantiles or "")}
        how |= {"any_step": reading.any_step or not timed, "time_column": reading.time_column if timed else None}
        _filter_stream(run, core, by, reading.group, believed, state, how, json=json)
        return
    if not files or output is None:
        raise ConfigError(f"Name a recording and an output, as in: kaffee filter {run} recording.csv -o filtered.csv")
    if state is not None or skip_broken:
        raise ConfigError("--state and --skip-broken belong to --follow.")
    levels = None if quantiles is None else options.parse_levels(quantiles)
    model, series = _open(run, files, output, reading, core, by)
    if max(series.lengths) < 2:
        raise DataError(f"{series.label}: one row anchors the filter, so two are the least that it can filter.")
    noise = reading.read_noise(files, std_columns)
    estimates = filter_recordings(model, series, **believed, any_step=reading.any_step, observation_std=noise)
    facts, nll = estimates.describe(), estimates.facts["nll"]
    sentence = "no reading to score" if nll is None else f"NLL {nll:.3f} {NLL_UNIT}"
    write_table(estimates.to_series(levels, latent=latent), output, facts, json=json, sentence=sentence)
    if facts["rejected"]:
        _warn(f"{facts['rejected']} readings were rejected")
    if facts["restarts"]:
        often = f"{facts['restarts']} times, in gaps longer than the model can bridge, and"
        _warn(f"warning: the belief was lost {often} started again")
    if sentence := describe_collapse(facts.get("collapsed_fraction"), facts.get("effective_particles")):
        _warn(f"warning: {sentence}")


def _filter_stream(
    run: Path,
    core: str | None,
    by: str | None,
    group: str | None,
    believed: dict[str, Any],
    state: Path | None,
    how: dict[str, Any],
    *,
    json: bool,
) -> None:
    """Filter standard input until it ends, the reader of the output leaves, or Ctrl-C; all three are a good end."""
    from kaffee.fitting.run import load
    from kaffee.inference.online import OnlineFilter
    from kaffee.inference.stream import Interruptible, follow

    online = OnlineFilter(load(run, core=core).group(group).with_filter(by), **believed)
    if state is not None and (state / "online.json").exists():
        online.restore(state)
        if believed["gate"] is not None:
            online.set_gate(**believed)
    with Interruptible(sys.stdin.buffer) as source:
        counts = follow(online, source, sys.stdout, _warn, **how)
    if counts.closed:
        # Python flushes standard output once more at its end, and would complain of the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if state is not None:
        online.save(state)
    facts = vars(counts)
    if json:
        _warn(json_module.dumps(facts))
    elif counts.broken or counts.rejected or counts.restarts or counts.skipped:
        _warn(", ".join(f"{name}: {facts[name]}" for name in ("lines", "broken", "skipped", "rejected", "restarts")))
    if counts.broken:
        raise typer.Exit(BROKEN_LINES)


@commands.command("smooth")
@options.with_groups
def _smooth(
    run: Run,
    files: options.Files,
    output: options.Output,
    reading: RecordingOptions,
    quantiles: options.Quantiles = "0.05,0.95",
    latent: options.Latent = False,
    by: options.FilterName = None,
    std_columns: options.StdColumns = None,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Smooth recordings: what the model knows at every row given all readings before and after it.

    Columns for each coordinate x: x_mean, x_std and quantiles of the signal, without observation noise.
    """
    from kaffee.inference import recordings

    levels = options.parse_levels(quantiles)
    model, series = _open(run, files, output, reading, core, by)
    noise = reading.read_noise(files, std_columns)
    estimates = recordings.smooth(model, series, any_step=reading.any_step, observation_std=noise)
    table = estimates.to_series(levels, latent=latent)
    write_table(table, output, estimates.describe(), json=json, sentence="given all readings")


@commands.command("impute")
@options.with_groups
def _impute(
    run: Run,
    files: options.Files,
    output: options.Output,
    reading: RecordingOptions,
    quantiles: options.Quantiles = "0.05,0.95",
    by: options.FilterName = None,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Fill the gaps of recordings by the smoothed mean, with bands for the readings that are missing.

    Columns for each coordinate x: x itself, x_std and quantiles. Recorded readings stay as they are, with x_std 0.
    """
    from kaffee.inference import recordings

    levels = options.parse_levels(quantiles)
    model, series = _open(run, files, output, reading, core, by)
    estimates = recordings.impute(model, series, any_step=reading.any_step)
    facts = estimates.describe()
    sentence = f"{facts['imputed']} readings imputed ({100 * facts['imputed_fraction']:.1f} %)"
    write_table(estimates.to_series(levels), output, facts, json=json, sentence=sentence)


@commands.command("forecast")
@options.with_groups
def _forecast(
    run: Run,
    files: options.Files,
    output: options.Output,
    *,
    steps: Annotated[int, typer.Option(min=1, help="Steps to forecast.")] = 100,
    at: Annotated[
        str | None, typer.Option(help="Start after this time (number, or ISO 8601) instead of the last row.")
    ] = None,
    members: Annotated[int, typer.Option(min=2, help="Size of the ensemble.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the ensemble.")] = 0,
    observation_noise: Annotated[bool, typer.Option(help="Forecast readings, or the signal behind them.")] = True,
    refits: Annotated[
        bool, typer.Option("--refits", help="Average over all refits of a run that was fitted with --seeds.")
    ] = False,
    inputs: options.InputFile = None,
    reading: RecordingOptions,
    quantiles: options.Quantiles = "0.05,0.5,0.95",
    by: options.FilterName = None,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Forecast recordings: an ensemble from the filtered belief at the end of each, or at a given time.

    Columns for each coordinate x: x_mean, x_std and quantiles of the ensemble. With --refits every refit gives the same
    share of its members, so that bands contain the spread between models.
    """
    from kaffee.certification.purpose import read_purpose, remark_forecast
    from kaffee.fitting.refits import load_pool
    from kaffee.inference import ensembles

    levels = options.parse_levels(quantiles)
    model, series = _open(run, files, output, reading, core, by)
    start = None if at is None else _parse_time(at, series.origin.dates)
    sampling: dict[str, Any] = {"members": members, "seed": seed, "observation_noise": observation_noise}
    sampling["inputs"] = reading.read_inputs(model, inputs)
    models = [each.group(reading.group).with_filter(by) for each in load_pool(run, core=core)] if refits else model
    estimates = ensembles.forecast(models, series, steps, at=start, any_step=reading.any_step, **sampling)
    facts = {**estimates.describe(), "seed": seed, "observation_noise": observation_noise}
    pooled = f" of {facts['models']} refits" if facts.get("models") else ""
    sentence = f"{members} members{pooled} from {len(estimates)} recording{'s' * (len(estimates) > 1)}"
    write_table(estimates.to_series(levels), output, facts, json=json, sentence=sentence)
    if (purpose := read_purpose(run)) and not json:
        _warn(purpose["sentence"])
    if purpose and (remark := remark_forecast(purpose, steps)):
        _warn(remark)
    if facts["diverged"]:
        _warn(f"warning: {facts['diverged']} of {members * len(estimates)} members left the attractor and are left out")
        raise typer.Exit(DIVERGED)


@commands.command("run-free")
def _run_free(
    run: Run,
    output: options.Output,
    steps: Annotated[int, typer.Option(min=1, help="Steps to keep.")] = 10_000,
    shell: Annotated[bool, typer.Option(help="Process and observation noise, or the bare core.")] = True,
    core_noise: Annotated[bool, typer.Option(help="Noise inside the core, where it has any.")] = True,
    runs: Annotated[int, typer.Option(min=1, help="How many runs.")] = 1,
    transient: Annotated[int, typer.Option(min=0, help="Steps before the first that is kept.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of start and noise.")] = 0,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            help="File with inputs for a driven model, used again when they end.",
            show_default="those that the run was trained on",
        ),
    ] = None,
    group: options.Group = None,
    core: OwnCore = None,
    json: Json = False,
) -> None:
    """Let a trained model run freely, in the units of its data; `kaffee simulate` does the same for a true system."""
    from kaffee.certification.purpose import read_purpose, remark_run
    from kaffee.fitting.run import load, recorded_inputs
    from kaffee.inference.ensembles import simulate

    options.check_output(output)
    how: dict[str, Any] = {"shell": shell, "core_noise": core_noise, "runs": runs, "transient": transient, "seed": seed}
    model = load(run, core=core).group(group)
    how["inputs"] = RecordingOptions().read_inputs(model, inputs) or recorded_inputs(run, model)
    estimates = simulate(model, steps, **how)
    facts = {**estimates.describe(), "seed": seed, "shell": shell}
    write_table(estimates.to_series(), output, facts, json=json, sentence=facts["divergence"])
    if (purpose := read_purpose(run)) and not json:
        _warn(purpose["sentence"])
    if purpose and (remark := remark_run(purpose, noise=shell)):
        _warn(remark)
    if any(facts["diverged_at"]):
        raise typer.Exit(DIVERGED)


def _open(
    run: Path, files: list[str], output: Path, reading: RecordingOptions, core: str | None, by: str | None
) -> tuple["Reconstruction", "Series"]:
    """Load the model and read the recordings, once it is clear that the output can be written."""
    from kaffee.fitting.run import load

    options.check_output(output, files)
    model = load(run, core=core).group(reading.group).with_filter(by)
    return model, reading.read(model, files)


def _parse_time(text: str, dates: "Dates | None") -> float:
    """Read a time that was typed, in the unit of a recording's times, which are `dates` or numbers."""
    from kaffee.data.timeaxis import is_timestamp, seconds
    from kaffee.errors import ConfigError

    # Python reads 20240131 as a date, too.
    if is_timestamp(text) and (dates is not None or not text.isdecimal()):
        times = seconds([text], lambda row: "--at", "time")
        return float((times if dates is None else dates.count(times, f"--at {text}"))[0])
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--at {text}: neither a number nor an ISO 8601 time such as 2024-05-31T12:00:00.") from None


def _warn(sentence: str) -> None:
    typer.echo(sentence, err=True)
