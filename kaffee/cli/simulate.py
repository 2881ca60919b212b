"""`kaffee systems` and `kaffee simulate`."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kaffee.tables import Table

commands = typer.Typer()


@commands.command("systems")
def _systems(
    name: Annotated[str | None, typer.Argument(help="A system; all of them if left out.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure Lyapunov exponents now instead of showing stored ones.")
    ] = False,
    steps: Annotated[int, typer.Option(help="Steps to measure over.")] = 100_000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the built-in systems, or show one, with measured Lyapunov exponents beside the paper's."""
    from kaffee.systems.catalogue import get_system, measure_system, stored_measurements, system_names

    chosen = [get_system(known) for known in ([name] if name else system_names())]
    measured: dict[str, Any] = {} if measure else stored_measurements()
    for system in chosen if measure else ():
        if not json:
            typer.echo(f"measuring {system.name} over {steps} steps ...", err=True)
        measured[system.name] = measure_system(system, steps)
    if json:
        facts: dict[str, dict[str, Any]] = {}
        for system in chosen:
            known = {name: getattr(system, name) for name in ("title", "dim", "dt", "burn_in", "parameters")}
            facts[system.name] = {**known, "lambda_1_paper": system.lambda_1, **(measured.get(system.name) or {})}
        typer.echo(json_module.dumps(facts, indent=2))
        return
    from rich.console import Console

    from kaffee.tables import Table

    if name:
        Console().print(_describe(chosen[0], measured.get(chosen[0].name) or {}))
        return
    leading = {key: (m["exponents"][0], m["standard_errors"][0]) for key, m in measured.items()}
    rows = [[s.name, s.dim, s.dt, s.burn_in, *leading.get(s.name, (None, None)), s.lambda_1] for s in chosen]
    columns = ("system", "dim", "dt", "burn-in", "lambda_1", "± se", "paper")
    note = "lambda_1 per unit of time; details: kaffee systems NAME"
    Console().print(Table("Systems", columns, rows, note=note))


def _describe(system: Any, measured: dict[str, Any]) -> "Table":
    """Set the facts about one system in a table."""
    from kaffee.tables import Table, number

    start = ", ".join(f"{v:.4g}" for v in system.initial_state[:6]) + (" ..." if system.dim > 6 else "")
    rows: list[list[Any]] = [
        ["dimension", system.dim],
        ["parameters", ", ".join(f"{k} = {v:.6g}" for k, v in system.parameters.items()) or "none"],
        ["step dt", system.dt],
        ["burn-in (steps)", system.burn_in],
        ["initial state", start],
        ["lambda_1 of the paper", system.lambda_1],
    ]
    if measured:
        rows += [
            [f"Lyapunov spectrum ({measured['num_steps']} steps)", " ".join(map(number, measured["exponents"]))],
            ["h (sum of positive exponents)", measured["sum_positive"]],
            ["Kaplan-Yorke dimension", measured["kaplan_yorke_dimension"]],
        ]
    return Table(system.title, ("", system.name), rows)


@commands.command("simulate")
def _simulate(
    name: Annotated[str, typer.Argument(help="A system; see kaffee systems.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File: .csv, .tsv, .npy, .npz or .parquet.")],
    steps: Annotated[int, typer.Option(help="Rows to write.")] = 10_000,
    process_noise: Annotated[float, typer.Option(help="sigma_proc, in units of the attractor's spread.")] = 0.0,
    observation_noise: Annotated[float, typer.Option(help="sigma_obs, in the same units.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    param: Annotated[list[str] | None, typer.Option(help="A parameter, such as F=10; may be repeated.")] = None,
    states: Annotated[Path | None, typer.Option(help="Also write the states before observation noise here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Simulate a system with process and observation noise as the paper defines them."""
    from kaffee.cli._options import check_output
    from kaffee.cli.fit import numbers
    from kaffee.data.series import Series
    from kaffee.data.writing import write_series
    from kaffee.errors import ConfigError
    from kaffee.systems.catalogue import get_system
    from kaffee.systems.simulation import simulate as run

    check_output(output)
    if states is not None:
        check_output(states)
        if states.resolve() == output.resolve():
            raise ConfigError(f"--states {states} would overwrite -o {output}. Choose another name for one of them.")
    system = get_system(name, **numbers(param or []))
    simulation = run(system, steps, seed=seed, process_noise=process_noise, observation_noise=observation_noise)
    written: dict[str, dict[str, Any]] = {}
    for path, values in ((output, simulation.observations), (states, simulation.states)):
        if path is not None:
            series = Series.from_arrays(values, times=simulation.times, name=system.name)
            write_series(series, path)
            written[str(path)] = {"steps": steps, "coordinates": system.dim, "fingerprint": series.fingerprint}
            if not json:
                typer.echo(f"{path}: {steps} x {system.dim}, fingerprint {series.fingerprint[:12]}")
    if json:
        typer.echo(json_module.dumps(written, indent=2))
