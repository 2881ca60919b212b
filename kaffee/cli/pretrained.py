"""Commands on foundation models: `kaffee adapt` and `kaffee models`."""

import json as json_module
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaffee.cli._options import SYSTEM_CONTEXT
from kaffee.cli.fit import Certify

if TYPE_CHECKING:
    from kaffee.certification.check import Check
    from kaffee.fitting.run import Source
    from kaffee.foundation.hub import Located

commands = typer.Typer()

CHECKED_ROWS = 1_000  # after the context of a simulated system, for the check
_ENOUGH_ROWS = 10_000  # of which D_stsp is small for the truth

models = typer.Typer(help="Pretrained foundation models: list, fetch, show.", no_args_is_help=True)

Model = Annotated[str | None, typer.Option(help="A model, a weight file or a folder; see kaffee models.")]
Columns = Annotated[str | None, typer.Option(help="Columns of the file to use, separated by commas.")]
Download = Annotated[
    bool, typer.Option("--download", help="Fetch the model from its authors' hub if it is not on this machine.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _find_data(data: str, columns: str | None) -> "Source":
    from kaffee.fitting.run import parse_source

    return parse_source([data], {}, {} if columns is None else {"columns": [c.strip() for c in columns.split(",")]})


@commands.command("adapt")
def _adapt(
    data: Annotated[str, typer.Argument(help="A file with the context, or the name of a system to simulate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the run.")],
    method: Annotated[str, typer.Option(help="kaffee, frozen_core (shell only) or one of the controls.")] = "kaffee",
    model: Model = None,
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
    columns: Columns = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of windows and gate noise.")] = 0,
    download: Download = False,
    certify: Certify = True,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Adapt the pretrained DynaMix to a recording: zero-shot, then a few updates, then a certificate on held-out rows.

    The result is a run like those of `kaffee fit`, with certificate and report: all commands on runs accept it.
    """
    from dataclasses import replace

    from kaffee.certification.check import check, compare_runs
    from kaffee.cli._conclusion import conclude, show
    from kaffee.errors import ConfigError, DataError
    from kaffee.fitting.initial_core import absolute, find_start
    from kaffee.fitting.pipeline import UNTRAINED
    from kaffee.fitting.run import Run
    from kaffee.fitting.settings import FitSettings, FoundationSettings, ShellSettings, SimulationSettings
    from kaffee.foundation import context as contexts
    from kaffee.foundation.hub import obtain
    from kaffee.foundation.weights import DEFAULT
    from kaffee.metrics.scores import NLL_UNIT
    from kaffee.records import jsonable

    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file; the adapted model needs a folder. Choose another name with -o.")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty. Choose another folder with -o.")
    contexts.lyapunov_window(lyapunov, 1.0)  # an exponent that is no number, before anything is read
    source = _find_data(data, columns)
    total = (context or SYSTEM_CONTEXT) + CHECKED_ROWS
    settings = FitSettings(
        seed=seed,
        method=method,
        test_fraction=CHECKED_ROWS / total,
        pretraining=UNTRAINED,
        shell=ShellSettings(residuals="every_step"),
        simulation=SimulationSettings(total, 0.0, noise),
    )
    loaded = source.load(settings)
    series = loaded.series
    if series.num_recordings != 1:
        raise ConfigError(f"A context is one recording; {series.label} has {series.num_recordings}. Split the file.")
    total = series.num_steps
    rows = context or (int(0.8 * total) if source.system is None else SYSTEM_CONTEXT)
    if rows >= total:
        raise ConfigError(
            f"--context {rows}: the recording has {total} rows only, and the rows after the context check the result. "
            "Choose a shorter one."
        )
    adaptation, held_out = (contexts.IN_CONTEXT, 0.0) if paper else (contexts.CALIBRATED, contexts.HELD_OUT)
    fewest = contexts.fewest_rows(adaptation, held_out)
    if rows < fewest:
        less = "" if paper else f"; with --paper {contexts.fewest_rows(contexts.IN_CONTEXT, 0.0)} are enough"
        raise DataError(
            f"{series.label} has {total} rows, of which {rows} are the context: too few to adapt on, which needs at "
            f"least {fewest}{less}. Give more rows, or make more of them the context by --context."
        )
    obtain(model or DEFAULT, download=download)
    updates = adaptation.schedule.num_updates if updates is None else updates
    adaptation = replace(
        adaptation,
        scored=contexts.lyapunov_window(lyapunov, series.time_step or 1.0),
        schedule=replace(adaptation.schedule, num_updates=updates),
    )
    settings = replace(
        settings,
        test_fraction=(total - rows) / total,
        adaptation=contexts.shorten_window(adaptation, rows, held_out),
        foundation=FoundationSettings(absolute(model or DEFAULT), tangent, held_out=held_out or None),  # type: ignore[arg-type]
    )
    find_start(settings, series)  # a context that the model cannot read, before the folder is made
    run = Run.start(output, settings, source, loaded)
    result = run.train()
    facts = {"output": str(output), "context": rows, "method": method, "tangent": tangent, "updates": updates}
    line = f"{output}: {method} on a context of {rows} rows, {updates} updates"
    if certify:
        conclusion = conclude(run.output, result, loaded, title=run.title, quiet=True)
        if json:
            typer.echo(json_module.dumps({**facts, "checks": jsonable(conclusion.certificate.checks)}, indent=2))
        else:
            typer.echo(line)
            show(conclusion, json=False)
        return
    # Without a certificate a quick check, against the true states where they are known.
    states = None if loaded.truth is None else loaded.truth.states
    likeness = None if loaded.truth is None else compare_runs(loaded.truth.states, loaded.truth.again)
    checked = None if result.test.num_steps < 2 else check(result.fitted.reconstruction, result.test, reference=states)
    if json:
        between = None if likeness is None else {"d_stsp": likeness[0], "d_h": likeness[1]}
        measured = {"check": jsonable(checked), "truth_against_truth": between}
        typer.echo(json_module.dumps({**facts, **measured}, indent=2))
        return
    typer.echo(line)
    if checked is not None:
        typer.echo(
            f"held out ({result.test.num_steps} rows): NLL {checked.nll:.3f} {NLL_UNIT}, one step; "
            f"90 % bands cover {100 * checked.coverage_90:.1f} %"
        )
        typer.echo(_describe_free_run(checked, likeness))


def _describe_free_run(checked: "Check", likeness: tuple[float, float] | None) -> str:
    """Say how the core runs on its own; D_stsp of few rows is large even for the truth, hence the number beside it."""
    from kaffee.certification.free_runs import MIN_ROWS

    if checked.diverged_at:
        return f"free run of the core: diverged at step {checked.diverged_at}"
    rows = checked.protocol["num_steps"]
    if math.isnan(checked.d_stsp_core):
        needed = f"{MIN_ROWS} complete rows that vary"
        return f"free run of the core: not compared, which needs {needed}; {rows} are held out"
    d_stsp, d_h = f"D_stsp {checked.d_stsp_core:.2f}", f"D_H {checked.d_h_core:.3f}"
    if likeness is None:
        hint = "" if rows >= _ENOUGH_ROWS else f"; {rows} rows are few: D_stsp would be large for the truth, too"
        return f"free run of the core against the held-out rows: {d_stsp}, {d_h}{hint}"
    beside = f"{d_stsp} (truth against truth {likeness[0]:.2f}), {d_h} ({likeness[1]:.3f})"
    return f"free run of the core against {rows} true states: {beside}"


def read_weights(located: "Located") -> Any:
    """Read the weights of a model, and say on stderr why they may not be the published ones."""
    weights = located.read()
    if doubt := located.doubt(weights):
        typer.echo(f"warning: {doubt}", err=True)
    return weights


@models.command("list")
def _list_models(json: Json = False) -> None:
    """List the known models, where they are on this machine, and whose they are."""
    from kaffee.errors import CheckpointError
    from kaffee.foundation.hub import locate
    from kaffee.foundation.weights import KNOWN

    rows = []
    for name, release in KNOWN.items():
        row: dict[str, Any] = {"name": name, "path": None, **release.terms}
        with suppress(CheckpointError):
            row["path"] = str(locate(name).weights)
        rows.append(row)
    if json:
        typer.echo(json_module.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(row["name"])
        typer.echo(f"  {row['path'] or 'not on this machine; fetch it: kaffee models pull ' + row['name']}")
        typer.echo(f"  {row['licence']}: {row['attribution']}")


@models.command("pull")
def _pull(
    name: Annotated[str | None, typer.Argument(help="A model; see kaffee models list.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Copy from this file or folder instead of the network.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another model that is there under this name.")
    ] = False,
) -> None:
    """Bring a model to this machine: from its authors' hub (https), or from a path."""
    from kaffee.foundation.hub import pull as bring
    from kaffee.foundation.weights import DEFAULT, KNOWN

    located, release = bring(name or DEFAULT, source=source, force=force), KNOWN[name or DEFAULT]
    typer.echo(f"{located.weights}: sha256 {read_weights(located).sha256[:12]}")
    typer.echo(f"{release.licence}: {release.attribution}")


@models.command("show")
def _show(
    name: Annotated[str | None, typer.Argument(help="A model, a weight file or a folder.")] = None, json: Json = False
) -> None:
    """Show a model on this machine: sizes, gate noise, temperatures, checksum, licence."""
    from rich.console import Console

    from kaffee.foundation.hub import locate
    from kaffee.foundation.weights import DEFAULT, KNOWN
    from kaffee.records import jsonable
    from kaffee.tables import Table

    located = locate(name or DEFAULT)
    weights = read_weights(located)
    gate = {key.removeprefix("gating_network."): value for key, value in weights.tensors.items()}
    facts: dict[str, Any] = {
        **jsonable(weights.architecture),
        "num_parameters": sum(tensor.size for tensor in weights.tensors.values()),
        "sigma": gate["sigma"].tolist(),
        "attention_temperature": float(abs(gate["softmax_temp1"][0])),
        "expert_temperature": float(abs(gate["softmax_temp2"][0])),
        "sha256": weights.sha256,
    }
    shapes = {  # the experts share theirs
        key.replace("experts.0.", "experts.*."): list(value.shape)
        for key, value in sorted(weights.tensors.items())
        if not key.startswith("experts.") or key.startswith("experts.0.")
    }
    release = KNOWN.get(weights.name)
    terms = {} if release is None else release.terms
    if json:
        typer.echo(json_module.dumps({**facts, "tensors": shapes, "path": str(located.weights), **terms}, indent=2))
        return
    facts["sigma"] = " ".join(f"{s:.4f}" for s in facts["sigma"])
    rows = [[key.replace("_", " "), value] for key, value in {**facts, **terms}.items()]
    rows += [[f"tensor {key}", " x ".join(map(str, value))] for key, value in shapes.items()]
    Console().print(Table(weights.name, ("", "value"), rows))
    typer.echo(located.weights)
