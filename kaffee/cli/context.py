"""What the commands that use a foundation model share: its weights, and the recording that it reads."""

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from kaffee.data.series import Series
    from kaffee.model.dynamix import DynaMix

SYSTEM_CONTEXT = 2000
"""The paper's context, in rows."""

Download = Annotated[
    bool, typer.Option("--download", help="Fetch the model from its authors' hub if it is not on this machine.")
]


class Context(NamedTuple):
    """A recording, and the name of the system if it was simulated."""

    series: "Series"
    system: str | None


def context_series(data: str, columns: str | None, length: int, *, noise: float = 0.0, seed: int = 0) -> Context:
    """The file; or a simulation of the system, `length` rows with observation noise."""
    from kaffee.data.reading import read_series
    from kaffee.data.series import Series
    from kaffee.fitting.run import parse_source
    from kaffee.systems.catalogue import get_system
    from kaffee.systems.simulation import simulate

    options = {} if columns is None else {"columns": [name.strip() for name in columns.split(",")]}
    source = parse_source([data], {}, options)
    if source.system is None:
        return Context(read_series(source.paths[0], **source.options), None)
    simulation = simulate(get_system(source.system), length, observation_noise=noise, seed=seed)
    series = Series.from_arrays(simulation.observations, times=simulation.times, name=source.system)
    return Context(series, source.system)


def foundation_model(model: str | None, *, download: bool) -> "DynaMix":
    """The model of that name or path; a warning if it is not the published one although it is called so."""
    from kaffee.foundation.hub import obtain
    from kaffee.foundation.weights import DEFAULT

    located = obtain(model or DEFAULT, download=download)
    weights = located.read()
    warn_if_altered(located.doubt(weights))
    return weights.to_core()


def warn_if_altered(doubt: str) -> None:
    """Say on stderr why a file may not be the published one."""
    if doubt:
        typer.echo(f"warning: {doubt}", err=True)
