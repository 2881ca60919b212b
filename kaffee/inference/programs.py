"""The compiled programs of the online filter: one row, or as many as are waiting.

A program is compiled once for the structure and sizes of a model and shared by all filters of that structure; weights
are arguments. Results travel as one array, since every array that crosses the border costs a microsecond.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.inference.tracking import Gate, Row, Track, advance
from kaffee.recursion import Recursion
from kaffee.ssm import StateSpaceModel

CHUNK = 256
"""Rows that one call of `many` takes at most."""


class Programs(NamedTuple):
    """Compiled for one structure of models.

    Attributes:
        one: (weights, gate, track, x) -> (track, packed row).
        many: (weights, gate, track, xs, count) -> (track, packed rows), of which the first `count` are filled. The
            loop's body does not know how many rows there are, so results do not depend on how rows arrive.
    """

    one: Callable[..., tuple[Track, Array]]
    many: Callable[..., tuple[Track, Array]]


def weights_of(model: StateSpaceModel) -> tuple[list[Array], Any]:
    """The arrays of a model, and the hashable rest."""
    arrays, static = eqx.partition(model, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    return leaves, (structure, static)


@lru_cache(maxsize=16)
def programs(recursion: Recursion, rest: Any) -> Programs:
    """The programs for models of one structure."""
    structure, static = rest

    def model_of(weights: list[Array]) -> StateSpaceModel:
        return eqx.combine(jax.tree.unflatten(structure, weights), static)

    @jax.jit
    def one(weights: list[Array], gate: Gate, track: Track, x: Float[Array, " N"]) -> tuple[Track, Array]:
        track, row = advance(model_of(weights), recursion, gate, track, x[None])
        return track, pack(row)

    @jax.jit
    def many(
        weights: list[Array], gate: Gate, track: Track, xs: Float[Array, "B N"], count: Array
    ) -> tuple[Track, Array]:
        model = model_of(weights)

        def body(i: Array, carry: tuple[Track, Array]) -> tuple[Track, Array]:
            track, rows = carry
            track, row = advance(model, recursion, gate, track, jax.lax.dynamic_slice_in_dim(xs, i, 1))
            return track, jax.lax.dynamic_update_slice_in_dim(rows, pack(row)[None], i, axis=0)

        width = packed_width(model.num_observed, model.latent_dim)
        return jax.lax.fori_loop(0, count, body, (track, jnp.zeros((xs.shape[0], width), model.dtype)))

    return Programs(one, many)


def pack(row: Row) -> Float[Array, " K"]:
    """The row of the only track as one vector."""
    return jnp.concatenate([value[0].reshape(-1).astype(row.nll.dtype) for value in row])


@lru_cache
def places(num_observed: int, latent_dim: int) -> tuple[slice | int, ...]:
    """Where `pack` puts each field of a row; one number has no axis of its own."""
    N, M = num_observed, latent_dim
    found: list[slice | int] = []
    end = 0
    for width in (M, M, M, M, N, N, N, N, None, None, N, N, None, None):
        found.append(end if width is None else slice(end, end + width))
        end += 1 if width is None else width
    return tuple(found)


def packed_width(num_observed: int, latent_dim: int) -> int:
    """How many numbers `pack` packs."""
    return 4 * latent_dim + 6 * num_observed + 4


def unpack(packed: Float[np.ndarray, "... K"], num_observed: int, latent_dim: int) -> Row:
    """What `pack` packed."""
    fields: list[Any] = [packed[..., place] for place in places(num_observed, latent_dim)]
    return Row(*fields)
