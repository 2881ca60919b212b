"""`kaffee adapt`: a foundation model and a recording become a calibrated filter."""

import json as json_module
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kaffee.cli.context import SYSTEM_CONTEXT, Download, context_series, foundation_model

if TYPE_CHECKING:
    import numpy as np

    from kaffee.certification.check import Check
    from kaffee.training.adaptation import Adaptation

CHECKED_ROWS = 1_000
"""Rows after the context of a simulated system, for the check."""
TRUE_STEPS = 10_000
"""True states of a simulated system that the free run is compared with, and that are compared with as many others."""


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
    download: Download = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Adapt the pretrained DynaMix to a recording: zero-shot, then a few updates, then a check on held-out rows.

    The result is a model like those of `kaffee fit`: `kaffee.load(FOLDER)` gives it back.
    """
    from dataclasses import replace

    from kaffee.certification.check import check, compare_runs
    from kaffee.data.series import Series
    from kaffee.errors import ConfigError
    from kaffee.foundation.context import CALIBRATED, HELD_OUT, IN_CONTEXT, adapt_foundation_model, lyapunov_window

    _check_output(output)
    lyapunov_window(lyapunov, 1.0)  # an exponent that is no number, before anything is read
    wanted = (context or SYSTEM_CONTEXT) + CHECKED_ROWS
    series, system = context_series(data, columns, wanted, noise=noise, seed=seed)
    if series.num_recordings != 1:
        raise ConfigError(f"A context is one recording; {series.label} has {series.num_recordings}. Split the file.")
    values = series.recordings[0]
    rows = context or (int(0.8 * len(values)) if system is None else SYSTEM_CONTEXT)
    if rows > len(values):
        raise ConfigError(f"--context {rows}: the recording has {len(values)} rows only.")
    settings = IN_CONTEXT if paper else CALIBRATED
    _check_rows(f"{series.label} has {len(values)} rows", rows, settings, 0.0 if paper else HELD_OUT)
    core = foundation_model(model, download=download).with_tangent(tangent)  # type: ignore[arg-type]
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
    reference, likeness = None, None
    if system is not None:
        reference, other = _true_states(system, seed)
        likeness = compare_runs(reference, other)
    checked = check(surrogate, Series.from_arrays(held_out), reference=reference) if len(held_out) > 1 else None
    if json:
        facts = {"output": str(output), "context": rows, "method": method, "tangent": tangent, "updates": updates}
        between = None if likeness is None else {"d_stsp": likeness[0], "d_h": likeness[1]}
        measured = {"check": None if checked is None else checked.to_dict(), "truth_against_truth": between}
        typer.echo(json_module.dumps({**facts, **measured}, indent=2))
        return
    typer.echo(f"{output}: {method} on a context of {rows} rows, {updates} updates")
    if checked is not None:
        typer.echo(
            f"held out ({len(held_out)} rows): NLL {checked.nll:.3f} (one step, standardised), "
            f"90 % bands cover {100 * checked.coverage_90:.1f} %"
        )
        typer.echo(_free_run_line(checked, likeness))


def _check_output(output: Path) -> None:
    """Refuse a folder that could not be written, before the work is done."""
    from kaffee.errors import ConfigError

    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{there} is a file; the adapted model needs a folder. Choose another name with -o.")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty. Choose another folder with -o.")


def _check_rows(given: str, rows: int, settings: "Adaptation", held_out: float) -> None:
    """Refuse a context that is too short, in the numbers that the user gave."""
    from kaffee.errors import DataError
    from kaffee.foundation.context import IN_CONTEXT, fewest_rows

    fewest = fewest_rows(settings, held_out)
    if rows < fewest:
        paper = f"; with --paper {fewest_rows(IN_CONTEXT, 0.0)} are enough" if held_out else ""
        raise DataError(
            f"{given}, of which {rows} are the context: too few to adapt on, which needs at least {fewest}{paper}. "
            "Give more rows, or make more of them the context by --context."
        )


def _true_states(system: str, seed: int) -> "tuple[np.ndarray, np.ndarray]":
    """Two stretches of the attractor, equally long."""
    from kaffee.systems.catalogue import get_system
    from kaffee.systems.simulation import simulate

    states = simulate(get_system(system), 2 * TRUE_STEPS, seed=seed).states
    return states[:TRUE_STEPS], states[TRUE_STEPS:]


def _free_run_line(checked: "Check", likeness: tuple[float, float] | None) -> str:
    """How the core runs on its own; D_stsp of few rows is large even for the truth, hence the number beside it."""
    from kaffee.certification.free_runs import MIN_ROWS

    if checked.diverged_at:
        return f"free run of the core: diverged at step {checked.diverged_at}"
    rows = checked.protocol["num_steps"]
    if math.isnan(checked.d_stsp_core):
        return (
            f"free run of the core: not compared, which needs {MIN_ROWS} complete rows that vary; {rows} are held out"
        )
    if likeness is None:
        hint = "" if rows >= TRUE_STEPS else f"; {rows} rows are few: D_stsp would be large for the truth, too"
        found = f"D_stsp {checked.d_stsp_core:.2f}, D_H {checked.d_h_core:.3f}"
        return f"free run of the core against the held-out rows: {found}{hint}"
    return (
        f"free run of the core against {rows} true states: D_stsp {checked.d_stsp_core:.2f} (truth against truth "
        f"{likeness[0]:.2f}), D_H {checked.d_h_core:.3f} ({likeness[1]:.3f})"
    )
