"""Exceptions whose messages say what was given, what is allowed and what to do next."""

from collections.abc import Iterable
from difflib import get_close_matches


class KaffeeError(Exception):
    """Base of every error that kaffee raises on purpose; the command line prints it without a traceback."""


class DataError(KaffeeError, ValueError):
    """Error for a file or array that cannot be used as a series."""


class ConfigError(KaffeeError, ValueError):
    """Error for an option, key or value that does not exist or does not fit."""


class CheckpointError(KaffeeError):
    """Error for a checkpoint that is missing, damaged, foreign or newer than this version."""


def unknown(kind: str, given: str, allowed: Iterable[str], see: str = "") -> str:
    """Write the message for an unknown name, with the nearest allowed one: "Unknown system 'x'. Did you mean 'y'?"."""
    names = list(allowed)
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"Allowed: {', '.join(names)}."
    return f"Unknown {kind} '{given}'. {hint}" + (f" See: {see}" if see else "")
