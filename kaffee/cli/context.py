"""The recording that a foundation model reads, for the commands that use one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaffee.data import Series

SYSTEM_CONTEXT = 2000
"""The paper's context, in rows."""


def context_series(data: str, columns: str | None, length: int, *, noise: float = 0.0, seed: int = 0) -> "Series":
    """The file; or a simulation of the system, `length` rows with observation noise."""
    from kaffee.data import Series, read_series
    from kaffee.sources import parse_source
    from kaffee.systems import get_system, simulate

    options = {} if columns is None else {"columns": [name.strip() for name in columns.split(",")]}
    source = parse_source([data], {}, options)
    if source.system is None:
        return read_series(source.paths[0], **source.options)
    simulation = simulate(get_system(source.system), length, observation_noise=noise, seed=seed)
    return Series.from_arrays(simulation.observations, times=simulation.times, name=source.system)
