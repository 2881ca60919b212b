"""Pytrees as named arrays: the bridge between Equinox modules and files."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError
from kaffee.model.core import Core


def _name(path: Any) -> str:
    parts = []
    for entry in path:
        for attribute in ("name", "key", "idx"):
            if hasattr(entry, attribute):
                parts.append(str(getattr(entry, attribute)))
                break
    return ".".join(parts)


def _is_array_like(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) or eqx.is_array(leaf)


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Every array leaf under its path, such as "core.W".

    >>> sorted(named_arrays({"a": jnp.zeros(2), "b": {"c": jnp.ones(())}}))
    ['a', 'b.c']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))
    named = {_name(path): np.asarray(leaf) for path, leaf in leaves}
    if len(named) < len(leaves):
        raise CheckpointError(f"Two arrays have the same name; rename one of {', '.join(named)}.")
    return named


def fill_arrays(template: PyTree, arrays: Mapping[str, np.ndarray], what: str) -> PyTree:
    """The template with every array leaf replaced by the array of its name; names, shapes and kinds must fit exactly.

    The kind is float, integer or truth value; float64 arrays become float32 where JAX's 64-bit mode is off.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = {_name(path) for path, leaf in leaves if _is_array_like(leaf)}
    missing, extra = sorted(wanted - set(arrays)), sorted(set(arrays) - wanted)
    if missing or extra:
        raise CheckpointError(
            f"{what}: arrays missing: {missing or 'none'}; not expected: {extra or 'none'}. "
            "Restore the folder, or train again."
        )
    filled = []
    for path, leaf in leaves:
        if not _is_array_like(leaf):
            filled.append(leaf)
            continue
        array = arrays[_name(path)]
        if array.shape != leaf.shape:
            raise CheckpointError(
                f"{what}: {_name(path)} has shape {array.shape} but should have {leaf.shape}. Restore the folder."
            )
        if array.dtype.kind != np.dtype(leaf.dtype).kind:
            raise CheckpointError(
                f"{what}: {_name(path)} is of type {array.dtype} but should be {leaf.dtype}. Restore the folder."
            )
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
        filled.append(jnp.asarray(array.astype(dtype)))
    return jax.tree_util.tree_unflatten(structure, filled)


# What the description of a stored model may say: every value is checked before anything is built of it.


_PLAIN = (bool, int, float, str)


class WrongCall(CheckpointError):
    """Nothing is wrong with the folder; it has to be loaded in another way."""


class Ties(NamedTuple):
    """What ties a model to data."""

    scaler: Scaler
    columns: tuple[str, ...]
    dt: float
    method: str
    provenance: dict[str, Any]


def read_sizes(entry: Mapping[str, Any]) -> tuple[int, int]:
    """N and M."""
    sizes = entry["num_observed"], entry["latent_dim"]
    for size in sizes:
        if type(size) is not int:
            raise CheckpointError(f"A size of the model is {size!r}; it must be a whole number.")
    return sizes


def read_ties(meta: Mapping[str, Any], num_observed: int) -> Ties:
    """Scaler, columns, step, method and provenance, for N coordinates."""
    scaler = Scaler.from_dict(meta["scaler"])
    columns, dt, method, provenance = (meta[key] for key in ("columns", "dt", "method", "provenance"))
    if scaler.num_coordinates != num_observed:
        raise CheckpointError(
            f"The scaler is one of {scaler.num_coordinates} coordinates, the model of {num_observed}."
        )
    named = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    if not named or len(columns) not in (0, num_observed):
        raise CheckpointError(f"'columns' must be {num_observed} names, or none; not {columns!r:.80}.")
    if type(dt) not in (int, float) or not 0 < dt < math.inf:
        raise CheckpointError(f"'dt', the time between two steps, must be a positive number, not {dt!r:.80}.")
    if not isinstance(method, str) or not isinstance(provenance, dict):
        raise CheckpointError("'method' must be a word and 'provenance' an object.")
    return Ties(scaler, tuple(columns), float(dt), method, provenance)


def check_core(core: Core, latent_dim: int) -> None:
    """Refuse settings of a core that are of another type than it was written for, or of another size."""
    if core.latent_dim != latent_dim:
        raise CheckpointError(f"The core has {core.latent_dim} latent coordinates, the model {latent_dim}.")
    for field in dataclasses.fields(core):
        value = getattr(core, field.name)
        choices = get_args(field.type) if get_origin(field.type) is Literal else None
        wanted = (int, float) if field.type is float else (field.type,)
        if choices is not None and value not in choices:
            raise CheckpointError(f"The core's {field.name} is {value!r:.80}; it must be one of {choices}.")
        if field.metadata.get("static") and field.type in _PLAIN and type(value) not in wanted:
            raise CheckpointError(f"The core's {field.name} is {value!r:.80}, which is no {field.type.__name__}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"The core's {field.name} is {value}; it must be finite.")


def check_weights(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse weights that no model of kaffee has: not numbers, or in types that its arithmetic does not mix."""
    types = {array.dtype.name for array in arrays.values() if array.dtype.kind == "f"}
    if len(types) > 1 or not types <= {"float32", "float64"}:
        raise CheckpointError(f"The weights are of type {', '.join(sorted(types))}; all must be float32, or float64.")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise CheckpointError(f"The weights {name!r:.80} hold values that are not numbers (nan).")
