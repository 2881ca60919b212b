"""Filters by name, as settings and the command line spell them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kaffee.errors import ConfigError, unknown
from kaffee.filtering.assumed_density import Cubature, Iterated, Moments
from kaffee.filtering.beliefs import Dense, Filter
from kaffee.filtering.kalman_ensembles import ETKF, LETKF, EnKF
from kaffee.filtering.lowrank import LowRank
from kaffee.filtering.particles import ParticleFilter
from kaffee.filtering.square_root import SquareRoot

# Each name, what builds the filter, and what the number after the colon is; None: it has none.
FILTERS: dict[str, tuple[Callable[..., Filter], str | None]] = {
    "ekf": (Dense, None),
    "srekf": (SquareRoot, None),
    "lowrank": (LowRank, "rank"),
    "moments": (Moments, None),
    "ukf": (Cubature, None),
    "iekf": (Iterated, "iterations"),
    "enkf": (EnKF, "size"),
    "etkf": (ETKF, "size"),
    "letkf": (LETKF, "size"),
    "particle": (ParticleFilter, "size"),
}
_FORM = "NAME, NAME:NUMBER or NAME:NUMBER,option=number, as in lowrank:32 or letkf:7,radius=4,inflation=1.04"
_MOST = 1_000_000
_OPTIONS = {"inflation", "radius", "period", "seed", "rotate", "jitter", "resample_below"}
# Options that are whole numbers; all others are real ones.
_WHOLE = ("seed", "rotate")


@lru_cache
def parse_filter(text: str) -> Filter:
    """Build a filter from its name, number and options.

    >>> parse_filter("lowrank:32").rank, parse_filter("enkf:40,inflation=1.06").inflation
    (32, 1.06)
    """
    head, *options = (part.strip() for part in text.strip().lower().split(","))
    name, colon, number = head.partition(":")
    if name not in FILTERS:
        raise ConfigError(unknown("filter", name, FILTERS))
    build, main = FILTERS[name]
    arguments: dict[str, Any] = {}
    if colon:
        if main is None:
            raise ConfigError(f"The filter {name} takes no number, but got {text!r}. Write {name}.")
        if not number.isdecimal() or not 1 <= int(number) <= _MOST:
            raise ConfigError(f"{text!r}: {main} of the filter {name} is a whole number from 1 to {_MOST}.")
        arguments[main] = int(number)
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in _numbers(build):
            allowed = ", ".join(sorted(_numbers(build))) or "none"
            raise ConfigError(
                f"{text!r}: {option!r} is no option of the filter {name} (options: {allowed}). Write {_FORM}."
            )

        arguments[key] = _read(text, key, value)
    return build(**arguments)


def _numbers(build: Any) -> set[str]:
    """Return the options of a filter that are numbers."""
    return set(build.__dataclass_fields__) & _OPTIONS


def _read(text: str, key: str, value: str) -> float | int | bool:
    try:
        number = float(value)
    except ValueError:
        raise ConfigError(f"{text!r}: {key} is a number, not {value!r}.") from None
    if key in ("inflation", "radius", "period") and not 0 < number < float("inf"):
        raise ConfigError(f"{text!r}: {key} must be positive, not {value}.")
    if key in _WHOLE:
        if number != int(number) or number < 0:
            raise ConfigError(f"{text!r}: {key} is a whole number, not {value}.")
        return bool(number) if key == "rotate" else int(number)
    return number
