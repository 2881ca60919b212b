"""Pytrees as named arrays: the bridge between Equinox modules and files."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from kaffee.errors import CheckpointError


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
