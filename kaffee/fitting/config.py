"""Configuration: nested frozen dataclasses from TOML and from `--set key=value`, and back to JSON and TOML."""

import contextlib
import dataclasses
import json
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from kaffee.errors import ConfigError, unknown

T = TypeVar("T")

# TOML and NumPy count in 64 bits.
_TOO_LARGE = 2**63


def to_dict(settings: Any) -> dict[str, Any]:
    """Convert settings to nested dictionaries; optional groups, and fields marked as `unset`, are left out if None."""
    hints, values = get_type_hints(type(settings)), {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            values[field.name] = to_dict(value)
        elif value is not None or not (field.metadata.get("unset") or _group(hints[field.name]) is not None):
            values[field.name] = value
    return values


def update(settings: T, values: Mapping[str, Any], where: str = "") -> T:
    """Replace nested `values` in a copy of `settings`; types are checked, unknown keys are errors."""
    hints = get_type_hints(type(settings))
    names = [f.name for f in dataclasses.fields(settings)]  # type: ignore[arg-type]
    changes = {}
    for key, value in values.items():
        path = f"{where}{key}"
        if key not in names:
            raise ConfigError(unknown("setting", path, [f"{where}{name}" for name in names]))
        current = getattr(settings, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                example = f"{path}.{dataclasses.fields(current)[0].name}"
                raise ConfigError(f"{path} is a group of settings; set one of its keys, such as {example}.")
            changes[key] = update(current, value, f"{path}.")
        elif isinstance(value, Mapping) and (group := _group(hints[key])) is not None:
            changes[key] = update(group(), value, f"{path}.")
        else:
            changes[key] = _coerce(hints[key], value, path)
    return dataclasses.replace(settings, **changes)  # type: ignore[type-var]


def _shorten(value: Any) -> str:
    """Cut a value for a message to a readable length."""
    text = f"{value!r:.200}"
    return text if len(text) < 200 else f"{text} ..."


def _group(hint: Any) -> Any:
    """Return the class of an optional group of settings, or None for other types."""
    return next((option for option in get_args(hint) if dataclasses.is_dataclass(option)), None)


def _coerce(hint: Any, value: Any, path: str) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    # Before all else: TOML has no None, and "none" would also do for a text.
    if type(None) in options and (value is None or value == "none"):
        return None
    # A whole number may have more digits than a float can hold.
    number = isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)
    words = []
    for option in options:
        if get_origin(option) is Literal:
            if value in get_args(option):
                return value
            words += [repr(choice) for choice in get_args(option)]
            continue
        if option is float and number:
            return float(value)
        if option in (int, str, bool) and type(value) is option and (option is not int or abs(value) < _TOO_LARGE):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(value)
        large = " of at most 19 digits" if type(value) is int and abs(value) >= _TOO_LARGE else ""
        names = {type(None): "none", int: f"a whole number{large}", float: "a number"}
        words.append(names.get(option, str(option)))
    raise ConfigError(f"{path} = {_shorten(value)} does not fit; it must be {' or '.join(words)}.")


def parse_override(text: str) -> dict[str, Any]:
    """Read `a.b=3` as {"a": {"b": 3}}; the value is TOML, or a plain word, or `none`.

    >>> parse_override("pretraining.schedule.num_updates=2000")
    {'pretraining': {'schedule': {'num_updates': 2000}}}
    """
    key, separator, raw = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"{_shorten(text)} is not of the form key=value. Write it like seed=3.")
    value: Any = raw.strip()
    if value.lower() in ("none", "null"):
        return nested(key.strip(), None)
    with contextlib.suppress(ValueError, RecursionError):
        value = tomllib.loads(f"value = {value}")["value"]
    return nested(key.strip(), value)


def nested(key: str, value: Any) -> dict[str, Any]:
    """Write a dotted key as nested dictionaries: "a.b" and 3 as {"a": {"b": 3}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested dictionaries; the second wins.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def override(settings: T, texts: Iterable[str]) -> T:
    """Apply `--set` options in order."""
    return reduce(update, map(parse_override, texts), settings)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; errors name the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no settings file at {path}. Check the path.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}. Fix it.") from error


def to_toml(settings: Any) -> str:
    """Write settings as TOML; None, which TOML does not have, becomes "none"."""
    return "\n".join(_toml_lines(to_dict(settings))).strip() + "\n"


def _toml_lines(values: Mapping[str, Any], name: str = "") -> list[str]:
    lines = [f"{key} = {_toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
    if name and lines:
        lines = ["", f"[{name}]", *lines]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += _toml_lines(value, f"{name}.{key}" if name else key)
    return lines


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str = "") -> list[str]:
    """List the keys in which two nested dictionaries differ, as sentences."""
    changes = []
    for key in sorted(set(ours) | set(theirs)):
        path, a, b = f"{where}{key}", ours.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changes += differences(a, b, f"{path}.")
        elif a != b:
            changes.append(f"{path}: {b!r} before, {a!r} now")
    return changes
