"""Results as series whose columns say what they are: `x_mean`, `x_std`, `x_q05`."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from kaffee.data.series import Series
from kaffee.data.timeaxis import NUMBERED, Origin
from kaffee.errors import ConfigError, DataError

BAND = (0.05, 0.95)
"""The quantile levels of a 90 % band."""


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Quantile levels, each once and in order."""
    bad = [level for level in levels if not 0.0 < level < 1.0]
    if bad:
        raise ConfigError(f"A quantile level lies between 0 and 1, as in 0.05; not {bad[0]:g}.")
    return tuple(sorted(set(levels)))


def quantile_name(level: float) -> str:
    """How a column of quantiles ends.

    >>> [quantile_name(level) for level in (0.05, 0.5, 0.025, 0.95)]
    ['q05', 'q50', 'q025', 'q95']
    """
    return "q" + f"{level:.10f}"[2:].rstrip("0").ljust(2, "0")


def gaussian_columns(
    names: Sequence[str], mean: Float[np.ndarray, "T K"], std: Float[np.ndarray, "T K"], levels: Sequence[float] = ()
) -> dict[str, Float[np.ndarray, " T"]]:
    """Mean, standard deviation and Gaussian quantiles of every coordinate."""
    found = {}
    for k, name in enumerate(names):
        found[f"{name}_mean"], found[f"{name}_std"] = mean[:, k], std[:, k]
        for level in check_levels(levels):
            found[f"{name}_{quantile_name(level)}"] = mean[:, k] + ndtri(level) * std[:, k]
    return found


def joined(*tables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tables side by side; a name that two of them need is an error."""
    found: dict[str, np.ndarray] = {}
    for table in tables:
        taken = sorted(set(found) & set(table))
        if taken:
            raise DataError(
                f"The column '{taken[0]}' of the result would be there twice. Rename the one of the recording."
            )
        found |= table
    return found


def state_names(latent_dim: int) -> list[str]:
    """z1..zM."""
    return [f"z{m + 1}" for m in range(latent_dim)]


def as_series(
    recordings: Sequence[Mapping[str, Float[np.ndarray, " T"]]],
    times: Sequence[Float[np.ndarray, " T"]] | None,
    name: str,
    origin: Origin = NUMBERED,
) -> Series:
    """Tables of the same columns, one for each recording, with times and labels written as in `origin`."""
    return Series(
        recordings=tuple(np.stack(list(table.values()), axis=1) for table in recordings),
        columns=tuple(recordings[0]),
        times=None if times is None else tuple(times),
        name=name,
        origin=origin,
    )
