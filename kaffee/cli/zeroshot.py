"""`kaffee zeroshot`: forecasts of a recording that nothing was trained on, in context or by the pretrained DynaMix."""

import json as json_module
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaffee.cli import _options as options
from kaffee.cli._options import SYSTEM_CONTEXT, check_output, write_table
from kaffee.cli.infer import DIVERGED

if TYPE_CHECKING:
    from kaffee.data.series import Series
    from kaffee.inference.results import Estimates
    from kaffee.surrogate.estimator import Surrogate

commands = typer.Typer()

IN_CONTEXT, DYNAMIX = "incontext", "dynamix"
_FORECAST, _HISTORY = Path("forecast.csv"), 100
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@commands.command("zeroshot")
def _zeroshot(
    data: Annotated[
        list[str], typer.Argument(help="Files, each with one or more recordings; or the name of a system.")
    ],
    output: Annotated[Path | None, options.OUTPUT] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to forecast.", show_default="100; 1000 of DynaMix")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the ensemble, or of DynaMix' gate noise.")] = 0,
    model: Annotated[
        str, typer.Option(help="incontext, or DynaMix: dynamix, a name of kaffee models, a weight file or a folder.")
    ] = IN_CONTEXT,
    context: Annotated[
        int | None, typer.Option(min=3, help="Last rows of a recording to read; all of a file, 2000 of a system.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns to use, separated by commas.")] = None,
    recording: Annotated[
        int | None, typer.Option(min=0, help="Which recording to continue.", show_default="all; the first of DynaMix")
    ] = None,
    time_column: options.TimeColumn = None,
    recording_column: options.RecordingColumn = None,
    time_tolerance: options.TimeTolerance = None,
    decimal: options.Decimal = None,
    members: Annotated[int | None, typer.Option(min=2, help="Size of the ensemble.", show_default="500")] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(help="Quantile levels, separated by commas; empty for none.", show_default="0.05,0.5,0.95"),
    ] = None,
    observation_noise: Annotated[
        bool | None, typer.Option(help="Forecast readings, or the signal behind them.", show_default="readings")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Folder for the model, for kaffee filter, smooth, impute, forecast.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of the forecast: .html, .png, .pdf or .svg.")] = None,
    noise: Annotated[
        bool | None, typer.Option(help="DynaMix: gate noise, which it was trained with.", show_default="noise")
    ] = None,
    embedding: Annotated[
        str | None,
        typer.Option(help="DynaMix: delay or positional, how fewer coordinates become three.", show_default="delay"),
    ] = None,
    delay: Annotated[
        int | None, typer.Option(help="DynaMix: delay in steps; from the autocorrelation by default.")
    ] = None,
    period: Annotated[float | None, typer.Option(help="DynaMix: period in steps, for positional.")] = None,
    download: Annotated[
        bool | None,
        typer.Option("--download", help="DynaMix: fetch it from its authors' hub if it is not on this machine."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Forecast recordings without training, with bands: a map over their own rows, denoised by its smoother.

    Works offline. Columns for each coordinate x: x_point, the most likely trajectory; x_mean, x_std and quantiles of
    the ensemble, as of `kaffee forecast`.

    With --model dynamix the pretrained DynaMix continues one recording, without bands.

    The first row of the output is one step after the last of the file (or of 2000 simulated steps of the system).
    """
    from kaffee.errors import ConfigError
    from kaffee.fitting.run import parse_source

    here: dict[str, Any] = {"members": members, "quantiles": quantiles, "observation_noise": observation_noise}
    here |= {"save": save, "plot": plot}
    there: dict[str, Any] = {"noise": noise, "embedding": embedding, "delay": delay, "period": period}
    there |= {"download": download}
    for name, value in (there if model == IN_CONTEXT else here).items():
        if value is not None:
            fits = "DynaMix (--model dynamix)" if model == IN_CONTEXT else "the in-context model (leave out --model)"
            raise ConfigError(f"--{name.replace('_', '-')} is an option of {fits}. Leave out the one or the other.")
    if output is None and (model != IN_CONTEXT or (save is None and plot is None)):
        output = _FORECAST
    if output is not None:
        check_output(output, data)
    reading = options.reading_options(time_column, recording_column, time_tolerance, decimal)
    if columns is not None:
        reading["columns"] = [name.strip() for name in columns.split(",")]
    source = parse_source(data, {}, reading)
    given: dict[str, Any] = {"seed": seed, "json": json, "recording": recording}
    if model == IN_CONTEXT:
        levels = options.parse_levels("0.05,0.5,0.95" if quantiles is None else quantiles)
        how = {"members": members or 500, "observation_noise": observation_noise is not False}
        _check_places(save, plot)
        series = _read(source, context)
        _forecast_in_context(series, output, steps or 100, levels, how, save=save, plot=plot, **given)
    else:
        series = _read(source, context, recording or 0)
        shape = {"embedding": embedding or "delay", "delay": delay, "period": period}
        assert output is not None
        weights = None if model == DYNAMIX else model
        _continue_by_dynamix(series, output, steps or 1000, weights, shape, noise is not False, bool(download), **given)


def _read(source: Any, context: int | None, recording: int | None = None) -> "Series":
    """Read or simulate the recordings, or one of them, and keep the last rows of each."""
    from kaffee.data.reading import read_series
    from kaffee.data.series import Series
    from kaffee.errors import ConfigError
    from kaffee.systems.catalogue import get_system
    from kaffee.systems.simulation import simulate

    if source.system is None:
        series = read_series(list(source.paths), **source.options)
    else:
        simulation = simulate(get_system(source.system), SYSTEM_CONTEXT if context is None else context)
        series = Series.from_arrays(simulation.observations, times=simulation.times, name=source.system)
    if recording is not None:
        series = _take(series, recording)
    if context is None:
        return series
    if context > max(series.lengths):
        rows = f"the recording has {max(series.lengths)} rows only"
        raise ConfigError(f"--context {context}: {rows if series.num_recordings == 1 else f'at most, {rows}'}.")
    return series.take([(r, slice(max(rows - context, 0), None)) for r, rows in enumerate(series.lengths)])


def _take(series: "Series", recording: int) -> "Series":
    from kaffee.errors import ConfigError

    if recording >= series.num_recordings:
        raise ConfigError(f"There is no recording {recording}; {series.label} has {series.num_recordings}.")
    return series.take([(recording, slice(None))])


def _check_places(save: Path | None, plot: Path | None) -> None:
    """Refuse a folder or a picture that could not be written, before the work is done."""
    from kaffee.errors import ConfigError

    if save is not None and save.exists() and (not save.is_dir() or any(save.iterdir())):
        raise ConfigError(f"--save {save} is there and not an empty folder. Choose another name.")
    if plot is not None and plot.suffix.lower() not in (".html", ".png", ".pdf", ".svg"):
        raise ConfigError(f"--plot {plot}: cannot draw '{plot.suffix}'. Supported: .html, .png, .pdf, .svg.")
    if plot is not None and not plot.parent.is_dir():
        raise ConfigError(f"--plot {plot}: there is no folder {plot.parent}. Make it first, or choose another.")


def _forecast_in_context(
    series: "Series",
    output: Path | None,
    steps: int,
    levels: tuple[float, ...],
    how: dict[str, Any],
    *,
    save: Path | None,
    plot: Path | None,
    recording: int | None,
    seed: int,
    json: bool,
) -> None:
    import numpy as np

    from kaffee.inference.ensembles import forecast
    from kaffee.surrogate.untrained import zero_shot

    began = time.perf_counter()
    surrogate: Surrogate = zero_shot(series)
    model = surrogate.reconstruction_
    wanted = series if recording is None else _take(series, recording)
    estimates = forecast(model, wanted, steps, seed=seed, point=True, **how)
    std = np.sqrt(np.asarray(model.model.shell.observation_variance(), np.float64))
    core: Any = model.model.core
    facts = {
        **estimates.describe(),
        "seed": seed,
        "observation_noise": how["observation_noise"],
        "rows": series.num_steps,
        "noise": dict(zip(series.columns, (std * model.scaler.scale).tolist(), strict=True)),
        "noise_share": float(np.sqrt(np.mean(std**2))),
        **core.hyperparameters(),
        "seconds": round(time.perf_counter() - began, 2),
    }
    if not json:
        shown = ", ".join(f"{name} {value:.3g}" for name, value in list(facts["noise"].items())[:4])
        more = ", ..." if len(series.columns) > 4 else ""
        typer.echo(
            f"{series.label}: {series.num_steps} rows x {series.num_coordinates}; noise found {shown}{more} "
            f"({100 * facts['noise_share']:.2g} % of the spread); {facts['kernel']} kernel on {facts['num_centres']} "
            f"rows; {steps} steps, {facts['seconds']:.1f} s"
        )
    if save is not None:
        facts["model"] = str(surrogate.save(save))
    if plot is not None:
        facts["plot"] = str(plot)
        _draw(wanted, estimates, plot)
    if output is not None:
        sentence = f"{how['members']} members from {len(estimates)} recording{'s' * (len(estimates) > 1)}"
        write_table(estimates.to_series(levels), output, facts, json=json, sentence=sentence)
    elif json:
        typer.echo(json_module.dumps(facts, indent=2))
    if not json and (written := [str(path) for path in (save, plot) if path is not None]):
        typer.echo(f"written: {', '.join(written)}")
    if facts["diverged"]:
        left = f"{facts['diverged']} of {how['members'] * len(estimates)} members"
        typer.echo(f"warning: {left} left the attractor and are left out", err=True)
        raise typer.Exit(DIVERGED)


def _draw(series: "Series", estimates: "Estimates", path: Path) -> None:
    """Draw the forecast of the last recording after its last readings."""
    import numpy as np

    ahead, before = estimates[-1], series.recordings[-1][-_HISTORY:]
    step = ahead.times[1] - ahead.times[0] if len(ahead.times) > 1 else series.time_step or 1.0
    parts: dict[str, Any] = {
        "times": ahead.times,
        "quantiles": {level: ahead.quantile(level) for level in _LEVELS},
        "columns": ahead.columns,
        "history_times": ahead.times[0] - step * np.arange(len(before), 0, -1),
        "history": before,
    }
    if path.suffix.lower() == ".html":
        from kaffee.report.figures import plot_forecast

        plot_forecast(**parts).write_html(path)
    else:
        from kaffee.report.stills import draw_forecast

        draw_forecast(**parts).savefig(path)


def _continue_by_dynamix(
    series: "Series",
    output: Path,
    steps: int,
    model: str | None,
    shape: dict[str, Any],
    noise: bool,
    download: bool,
    *,
    recording: int | None,
    seed: int,
    json: bool,
) -> None:
    import jax
    import numpy as np

    from kaffee.cli.pretrained import read_weights
    from kaffee.data.series import Series
    from kaffee.data.writing import write_series
    from kaffee.errors import KaffeeError
    from kaffee.filtering.rollout import DIVERGENCE_BOUND
    from kaffee.foundation.continuation import zero_shot
    from kaffee.foundation.hub import obtain
    from kaffee.foundation.weights import DEFAULT

    [values] = series.recordings
    core = read_weights(obtain(model or DEFAULT, download=download)).to_core()
    forecast = zero_shot(core, values, steps, key=jax.random.key(seed) if noise else None, **shape)
    left = forecast.diverged_at
    if left == 1:
        raise KaffeeError(
            f"The forecast diverged in its first step: a state beyond {DIVERGENCE_BOUND:g} standard deviations. "
            "Nothing was written. Are these the weights of a trained model?"
        )
    written = forecast.values.copy()
    written[left - 1 if left else steps :] = np.nan
    table = Series.from_arrays(written, columns=series.columns)
    if series.times is not None and series.time_step and output.suffix.lower() != ".npy":
        times = series.times[0][-1] + series.time_step * np.arange(1, steps + 1)
        table = replace(table, times=(times,), origin=series.origin)
    write_series(table, output)
    facts = {
        "output": str(output),
        "steps": steps,
        "coordinates": len(series.columns),
        "context": len(values),
        "embedding": forecast.embedding,
        "delays": list(forecast.delays),
        "periods": list(forecast.periods),
        "diverged_at": left,
        "model": core.origin,
        "seed": seed if noise else None,
    }
    if json:
        typer.echo(json_module.dumps(facts, indent=2))
    else:
        how = {"direct": "", "delay": f", delays {facts['delays']}", "positional": f", periods {facts['periods']}"}
        typer.echo(
            f"{output}: {steps} x {facts['coordinates']} from a context of {facts['context']}{how[forecast.embedding]}"
        )
        if left:
            typer.echo(f"warning: the forecast diverged at step {left}; later values are missing.", err=True)
    if left:
        raise typer.Exit(DIVERGED)
