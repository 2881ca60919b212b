"""Advice of the library in the words of the command line."""

import re

_OPTIONS = {"time_column": "--time-column", "recording_column": "--recording-column", "columns": "--columns"}
_OPTIONS |= {"time_tolerance": "--time-tolerance", "any_step": "--any-step"}
_KEYWORD = re.compile(rf"\b({'|'.join(_OPTIONS)})=(False\b|'[^']*'|[\d.]*\d)?")


def as_options(message: str) -> str:
    """Keywords of readers as options.

    >>> as_options("Raise time_tolerance=, or pass time_column=False or time_column='Zeit'.")
    "Raise --time-tolerance, or pass --time-column none or --time-column 'Zeit'."
    """

    def option(found: re.Match[str]) -> str:
        value = found[2] or ""
        return f"{_OPTIONS[found[1]]} {'none' if value == 'False' else value}".strip()

    return _KEYWORD.sub(option, message)
