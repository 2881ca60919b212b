"""Numbers of steps, members and runs, checked before a compiler sees them."""

from operator import index
from typing import Any

from kaffee.errors import ConfigError


def check_count(name: str, value: Any, least: int) -> int:
    """A whole number that is large enough.

    >>> check_count("num_steps", 5, 1)
    5
    """
    try:
        whole = index(value)
    except TypeError:
        raise ConfigError(f"{name} = {value!r:.80} is no whole number; use {least} or more, as in {name}=10.") from None
    if isinstance(value, bool):
        raise ConfigError(f"{name} = {value} is no number; use {least} or more, as in {name}=10.")
    if whole < least:
        raise ConfigError(f"{name} = {whole} is too few; use {least} or more.")
    return whole
