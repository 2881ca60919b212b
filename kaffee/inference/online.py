"""The compiled programs of the online filter: one row, or as many as are waiting.

A program is compiled once for the structure and sizes of a model and shared by all filters of that structure; weights
are arguments. Results travel as one array, since every array that crosses the border costs a microsecond.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from kaffee.checkpoint.pytrees import fill_arrays, named_arrays
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.errors import CheckpointError, DataError
from kaffee.filtering.gated import Gate, Row, Track, advance, before_the_first_row, gate_of
from kaffee.filtering.recursion import Recursion
from kaffee.inference.matching import model_columns
from kaffee.inference.results import Estimate
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import read_record, versions, write_record

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


# The state of an online filter on disk: safetensors and JSON, checksummed, tied to its model.


FORMAT = "kaffee-online"
FORMAT_VERSION = 1
NAME = "online"
# The counter of rejections has 32 bits.
MAX_PATIENCE = 2**31 - 1


def fingerprint(reconstruction: Reconstruction) -> str:
    """SHA-256 of all that decides what a filter computes: weights, scaler, method."""
    head = {"scaler": reconstruction.scaler.to_dict(), "method": reconstruction.method}
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, array in sorted(named_arrays(reconstruction.model).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write_track(folder: Path, reconstruction: Reconstruction, track: Track, facts: Mapping[str, Any]) -> Path:
    """Write a track and the facts beside it; JSON values."""
    meta = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions(),
        "model": fingerprint(reconstruction),
        "facts": dict(facts),
    }
    write_record(folder, NAME, named_arrays(track), meta)
    return folder


def read_track(folder: Path, reconstruction: Reconstruction, template: Track) -> tuple[Track, dict[str, Any]]:
    """Read what `write_track` wrote for the same model."""
    arrays, meta = read_record(folder, NAME, "state of an online filter")
    if meta.get("format") != FORMAT or meta.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder}/{NAME}.json is not the state of an online filter that this version reads (format "
            f"{meta.get('format')!r:.80}, version {meta.get('format_version')!r:.80}). Start anew without it."
        )
    if meta.get("model") != fingerprint(reconstruction):
        raise CheckpointError(
            f"{folder} is the state of another model's filter. Restore it with the model it was saved with, or start "
            "anew without it."
        )
    return fill_arrays(template, arrays, str(folder)), _facts(meta.get("facts"), folder)


def _facts(given: Any, folder: Path) -> dict[str, Any]:
    """What `OnlineFilter.save` notes beside the track, with the values that it can have."""
    if isinstance(given, dict):
        gate, patience, steps, time = (given.get(name) for name in ("gate", "patience", "num_steps", "time"))
        whole = type(patience) is int and 1 <= patience <= MAX_PATIENCE and type(steps) is int and steps >= 0
        since = given.get("steps_since_time", 0)  # older states do not say
        known = (time is None or (type(time) is float and math.isfinite(time))) and type(since) is int and since >= 0
        if whole and known and (gate is None or (type(gate) is float and 0.0 < gate < 1.0)):
            facts = {"gate": gate, "patience": patience, "num_steps": steps}
            return facts | {"time": time, "steps_since_time": since}
    raise CheckpointError(
        f"{folder}/{NAME}.json does not say which gate the filter had and how many steps it took. "
        "Start anew without it."
    )


# Filtering as readings arrive: constant memory, one compiled program, state that can be saved.


class OnlineFilter:
    """The filter of a trained model, one reading at a time, in data units.

        online = OnlineFilter(kaffee.load("run/kaffee"))
        for reading in sensor:
            belief = online.step(reading)
            print(belief.mean, belief.std)

    Every call is one step of the model, with a reading or without. The first one anchors the belief, as in training
    and in `filter_recordings`, whose beliefs these are. The first call compiles for a second or two; after that a step
    takes about a hundred microseconds, a row of `run` less than ten, whatever came before. A belief stays finite
    whatever is read: infinite and absurd values are rejected, and a belief that is lost starts anew (`restarted`).

    Args:
        gate: Reject readings whose squared normalised innovation exceeds this chi-square quantile, such as 0.9999.
        patience: Rejections in a row after which a coordinate is believed again.
    """

    def __init__(self, reconstruction: Reconstruction, *, gate: float | None = None, patience: int = 10) -> None:
        model = reconstruction.model
        self.reconstruction = reconstruction
        self.set_gate(gate, patience)
        self.columns = model_columns(reconstruction)
        self.num_steps = 0
        # The last time that was told, for those who know it, and the steps since; kept with the state.
        self.time: float | None = None
        self.steps_since_time = 0
        self._weights, rest = weights_of(model)
        self._programs = programs(reconstruction.filter, rest)
        self._track = before_the_first_row(model, 1)
        self._sizes = (model.num_observed, model.latent_dim)
        self._dtype = np.dtype(model.dtype)
        self._mean, self._scale = reconstruction.scaler.mean, reconstruction.scaler.scale

    def step(self, observation: ArrayLike | None = None) -> Estimate:
        """Go one step ahead and assimilate a reading, if there is one.

        Args:
            observation: (N,) in data units, NaN for entries that are missing; None for a step without any.
        """
        if observation is None:
            values = np.full(self._sizes[0], np.nan)
        else:
            values = _numbers(observation)
            if values.shape != self._mean.shape:
                raise self._misshapen(values)
        x = self._standardised(values)
        self._track, packed = self._programs.one(self._weights, self._gate, self._track, x)
        self.num_steps += 1
        return Estimate(unpack(np.asarray(packed), *self._sizes), self.reconstruction.scaler)

    def run(self, observations: Float[np.ndarray, "T N"]) -> Estimate:
        """As many steps as there are rows; the result has a leading axis (T,). Faster than single steps."""
        values = _numbers(observations)
        if values.ndim != 2 or values.shape[1] != self._sizes[0]:
            raise self._misshapen(values)
        x = self._standardised(values)
        found: list[np.ndarray] = []
        for first in range(0, len(x), CHUNK):
            part = x[first : first + CHUNK]
            chunk = np.full((CHUNK, x.shape[1]), np.nan, self._dtype)
            chunk[: len(part)] = part
            self._track, packed = self._programs.many(
                self._weights, self._gate, self._track, chunk, np.int32(len(part))
            )
            found.append(np.asarray(packed)[: len(part)])
            self.num_steps += len(part)
        rows = np.concatenate(found) if found else np.empty((0, packed_width(*self._sizes)))
        return Estimate(unpack(rows, *self._sizes), self.reconstruction.scaler)

    def save(self, path: str | Path) -> Path:
        """Write the belief, and all else that the next step depends on, to a folder; returns it."""
        facts: dict[str, Any] = {"gate": self.gate, "patience": self.patience}
        facts |= {"num_steps": self.num_steps, "time": self.time, "steps_since_time": self.steps_since_time}
        return write_track(Path(path), self.reconstruction, self._track, facts)

    def restore(self, path: str | Path) -> Self:
        """Go on where `save` was called, gate included; the model must be the same."""
        self._track, facts = read_track(
            Path(path), self.reconstruction, before_the_first_row(self.reconstruction.model, 1)
        )
        self.set_gate(facts["gate"], facts["patience"])
        self.num_steps, self.time = facts["num_steps"], facts["time"]
        self.steps_since_time = facts["steps_since_time"]
        return self

    def set_gate(self, gate: float | None, patience: int = 10) -> None:
        """Choose which readings are believed from now on; see the class."""
        self._gate = gate_of(gate, patience)
        self.gate, self.patience = gate, patience

    def _standardised(self, values: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
        # In float64 before the cast: a large offset would cost digits. Overflow becomes infinite, which is rejected.
        with np.errstate(over="ignore"):
            return ((values - self._mean) / self._scale).astype(self._dtype)

    def _misshapen(self, values: np.ndarray) -> DataError:
        N = self._sizes[0]
        return DataError(
            f"A reading of shape {values.shape} does not fit: the model observes {N} coordinate{'s' * (N > 1)} "
            f"({', '.join(self.columns)}). Write nan for those that are missing."
        )


def _numbers(values: Any) -> np.ndarray:
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":  # NumPy would drop the imaginary part
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"A reading must be numbers, nan for missing ones, not {values!r:.80}.") from error
