"""Filter readings as they arrive: constant memory, one compiled program, a state that can be saved."""

import hashlib
import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from kaffee.checkpoint.reconstruction import Reconstruction, fill_arrays, named_arrays
from kaffee.data.validation import check_count
from kaffee.errors import CheckpointError, ConfigError, DataError
from kaffee.filtering.gated import Gate, Row, Track, advance, make_gate, new_track
from kaffee.filtering.particles import ParticleFilter
from kaffee.filtering.recursion import Recursion
from kaffee.inference.ensembles import check_left, run_members, summarise_members
from kaffee.inference.matching import model_columns
from kaffee.inference.results import Estimate, RowArrays
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import read_record, versions, write_record

CHUNK = 256  # rows that one call of the compiled loop takes at most
_FORMAT = {"format": "kaffee-online", "format_version": 1}
_NAME = "online"
_OF_MODEL = ("reconstruction", "_weights", "_filter_row", "_filter_rows", "_mean", "_scale")
_MAX_PATIENCE = 2**31 - 1  # the counter of rejections has 32 bits


class OnlineFilter:
    """The filter of a trained model, one reading at a time, in data units.

        online = OnlineFilter(kaffee.load("run/kaffee"))
        for reading in sensor:
            belief = online.step(reading)
            print(belief.mean, belief.std)

    Every call is one step of the model, with a reading or without. The first one starts the belief, as in training
    and in `filter_recordings`, whose beliefs these are. The first call compiles for a second or two; after that a step
    takes about a hundred microseconds, a row of `run` less than ten, whatever came before. A belief stays finite
    whatever is read: infinite and absurd values are rejected, and a belief that is lost starts again (`restarted`).

    Args:
        gate: Reject readings whose squared normalised innovation exceeds this chi-square quantile, such as 0.9999.
        patience: Rejections in a row after which a coordinate is believed again.
    """

    def __init__(self, reconstruction: Reconstruction, *, gate: float | None = None, patience: int = 10) -> None:
        model = reconstruction.model
        if model.discrete is not None:
            raise ConfigError("Counts and binary readings are filtered as files (filter_recordings), not online yet.")
        self.reconstruction = reconstruction
        self.set_gate(gate, patience)
        self.columns = model_columns(reconstruction)
        self.num_steps = 0
        # The time of the last line that had one, for streams with times, and the steps since; saved with the state.
        self.time: float | None = None
        self.steps_since_time = 0
        self._compile()
        self._track = new_track(model, reconstruction.filter, 1)
        self._sizes = (model.num_observed, model.latent_dim)
        self._dtype = np.dtype(model.dtype)
        self._mean, self._scale = reconstruction.scaler.mean, reconstruction.scaler.scale
        # The last inputs of a driven model, in data units; saved with the state.
        known = reconstruction.scaler.inputs
        self.inputs = np.zeros(0) if known is None else known.mean

    def step(self, observation: ArrayLike | None = None, inputs: ArrayLike | None = None) -> Estimate:
        """Go one step ahead and assimilate a reading, if there is one: (N,) in data units, NaN for missing entries.

        `inputs` are those that act on this step, (K,) in data units; of a driven model, those that are left out or NaN
        stay what they were at the step before, at first the mean of the training data.
        """
        x = self._standardise(np.full(self._sizes[0], np.nan) if observation is None else observation, axes=1)
        x = self._append_inputs(x[None], None if inputs is None else np.asarray(inputs)[None])[0]
        self._track, packed = self._filter_row(self._weights, self._gate, self._track, x)
        self.num_steps += 1
        return self._estimate(np.asarray(packed))

    def run(self, observations: Float[np.ndarray, "T N"], inputs: Float[np.ndarray, "T K"] | None = None) -> Estimate:
        """Take as many steps as there are rows; the result has a leading axis (T,). Faster than single steps."""
        x = self._append_inputs(self._standardise(observations, axes=2), inputs)
        rows = [np.empty((0, self._places()[1]), self._dtype)]
        for first in range(0, len(x), CHUNK):
            part = x[first : first + CHUNK]
            chunk = np.full((CHUNK, x.shape[1]), np.nan, self._dtype)  # rows beyond `part` are not filtered
            chunk[: len(part)] = part
            arguments = (self._weights, self._gate, self._track, chunk, np.int32(len(part)))
            self._track, packed = self._filter_rows(*arguments)
            rows.append(np.asarray(packed)[: len(part)])
            self.num_steps += len(part)
        return self._estimate(np.concatenate(rows))

    def forecast(
        self,
        num_steps: int,
        *,
        members: int = 500,
        seed: int = 0,
        observation_noise: bool = True,
        inputs: Float[np.ndarray, "H K"] | None = None,
    ) -> Estimate:
        """Forecast the steps after the last one from the present belief, which stays as it is.

        The ensemble of `kaffee.inference.ensembles.forecast` after the same rows; times count from the last row.
        `inputs` are those of the steps to come; of a driven model, without them the last ones stay.
        """
        num_steps, members = check_count("num_steps", num_steps, 1), check_count("members", members, 2)
        if self.num_steps == 0:
            raise DataError("A forecast goes on from what was read, and nothing was read yet. Call step or run first.")
        key = jax.random.key(check_count("seed", seed, 0))
        blank = np.full((num_steps, self._sizes[0]), np.nan, self._dtype)
        last, rows = self.inputs, self._append_inputs(blank, inputs)
        self.inputs = last  # looking ahead is no step
        how: dict[str, Any] = {"observation_noise": observation_noise}
        how["inputs"] = jnp.asarray(rows[None, :, self._sizes[0] :]) if self.inputs.size else None
        belief = self._track.belief
        values, away = run_members(self.reconstruction, belief, num_steps, members, key, **how)
        check_left(away)
        return summarise_members(self.columns, self.reconstruction.dt * np.arange(1, num_steps + 1), values[:, 0])

    def adopt(self, reconstruction: Reconstruction) -> None:
        """Go on with another model of the same columns and states, such as one whose context has grown.

        The belief stays. Weights of the same sizes need no compilation.
        """
        old, new = self.reconstruction, reconstruction
        same = (new.model.num_observed, new.model.latent_dim) == self._sizes and model_columns(new) == self.columns
        if not same or not np.array_equal(old.scaler.mean, new.scaler.mean) or old.filter != new.filter:
            raise DataError(
                f"The model has {new.model.num_observed} columns and {new.model.latent_dim} latent coordinates; this "
                f"filter goes on with models of its own columns, units and {self._sizes[1]} latent coordinates only. "
                "Start a filter of its own."
            )
        track = self._track
        self.__dict__ |= {k: v for k, v in OnlineFilter(new).__dict__.items() if k in _OF_MODEL}
        self._track = track

    def save(self, path: str | Path) -> Path:
        """Write the belief, and all else that the next step depends on, to a folder; returns it."""
        facts: dict[str, Any] = {"gate": self.gate, "patience": self.patience}
        facts |= {"num_steps": self.num_steps, "time": self.time, "steps_since_time": self.steps_since_time}
        if self.inputs.size:
            facts["inputs"] = self.inputs.tolist()
        meta = {**_FORMAT, "versions": versions(), "model": _fingerprint(self.reconstruction), "facts": facts}
        write_record(Path(path), _NAME, named_arrays(self._track), meta)
        return Path(path)

    def restore(self, path: str | Path) -> Self:
        """Go on where `save` was called, gate included; the model must be the same."""
        arrays, facts = _read_state(Path(path), self.reconstruction)
        self._track = fill_arrays(
            new_track(self.reconstruction.model, self.reconstruction.filter, 1), arrays, str(Path(path))
        )
        self.set_gate(facts["gate"], facts["patience"])
        self.num_steps, self.time, self.steps_since_time = (facts[n] for n in ("num_steps", "time", "steps_since_time"))
        if self.inputs.size:
            self.inputs = np.array(facts["inputs"])
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the compiled programs, so that a filter can be copied and sent to another process."""
        return {name: value for name, value in vars(self).items() if name not in ("_filter_row", "_filter_rows")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def _compile(self) -> None:
        arrays, static = eqx.partition(self.reconstruction.model, eqx.is_array)
        self._weights, structure = jax.tree.flatten(arrays)
        self._filter_row, self._filter_rows = _compile(self.reconstruction.filter, structure, static)

    def set_gate(self, gate: float | None, patience: int = 10) -> None:
        """Choose which readings are believed from now on; see the class."""
        self._gate = make_gate(gate, patience)
        self.gate, self.patience = gate, patience

    def _standardise(self, readings: Any, axes: int) -> Float[np.ndarray, "... N"]:
        """Check readings with this many axes and bring them to the model's units."""
        try:
            values = np.asarray(readings)
            if values.dtype.kind == "c":  # NumPy would drop the imaginary part
                raise TypeError
            values = values.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"A reading must be numbers, nan for missing ones, not {readings!r:.80}.") from error
        N = self._sizes[0]
        if values.ndim != axes or values.shape[-1] != N:
            raise DataError(
                f"A reading of shape {values.shape} does not fit: the model observes {N} coordinate{'s' * (N > 1)} "
                f"({', '.join(self.columns)}). Write nan for those that are missing."
            )
        # In float64 before the cast: a large offset would cost digits. Overflow becomes infinite, which is rejected.
        with np.errstate(over="ignore"):
            return ((values - self._mean) / self._scale).astype(self._dtype)

    def _append_inputs(self, x: Float[np.ndarray, "T N"], inputs: Any) -> Float[np.ndarray, "T D"]:
        """Put the inputs of every row after its readings, standardised; missing ones are those of the row before."""
        names = self.reconstruction.inputs
        if inputs is None:
            given = np.full((len(x), len(names)), np.nan)
        else:
            given = np.asarray(inputs, np.float64)
            if given.shape != (len(x), len(names)):
                raise DataError(
                    f"Inputs of shape {given.shape} do not fit: the model is driven by {len(names)} inputs "
                    f"({', '.join(names) or 'none'}), one row for each of {len(x)} steps."
                )
        if not names or not len(x):
            return x
        held = np.concatenate([self.inputs[None], given])
        last = np.maximum.accumulate(np.where(np.isfinite(held), np.arange(len(held))[:, None], 0), axis=0)
        held = np.take_along_axis(held, last, axis=0)
        self.inputs = held[-1]
        scaler = self.reconstruction.scaler.inputs
        assert scaler is not None
        return np.hstack([x, scaler.transform(held[1:]).astype(self._dtype)])

    def _places(self) -> tuple[list[slice | int], int]:
        return _find_places(*self._sizes, isinstance(self.reconstruction.filter.filter, ParticleFilter))

    def _estimate(self, packed: Float[np.ndarray, "... K"]) -> Estimate:
        fields: list[Any] = [packed[..., place] for place in self._places()[0]]
        return Estimate(self.columns, None, RowArrays(Row(*fields), self.reconstruction.scaler))


@lru_cache(maxsize=16)
def _compile(recursion: Recursion, structure: Any, static: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Compile the filter of one row and of many for models of one structure and size; weights are arguments.

    The first maps (weights, gate, track, x) to (track, packed row). The second maps (weights, gate, track, xs, count)
    to (track, packed rows), of which the first `count` are filled; its loop's body does not know how many rows there
    are, so results do not depend on how rows arrive.
    """

    def advance_one(
        model: StateSpaceModel, gate: Gate, track: Track, x: Float[Array, "1 N"]
    ) -> tuple[Track, Float[Array, " K"]]:
        track, row, _ = advance(model, recursion, gate, track, x)
        # One array, since every array that leaves the program costs a microsecond.
        return track, jnp.concatenate(
            [value[0].reshape(-1).astype(row.nll.dtype) for value in row if value is not None]
        )

    def build(weights: list[Array]) -> StateSpaceModel:
        return eqx.combine(jax.tree.unflatten(structure, weights), static)

    @jax.jit
    def one(weights: list[Array], gate: Gate, track: Track, x: Float[Array, " N"]) -> tuple[Track, Array]:
        return advance_one(build(weights), gate, track, x[None])

    @jax.jit
    def many(
        weights: list[Array], gate: Gate, track: Track, xs: Float[Array, "B N"], count: Array
    ) -> tuple[Track, Array]:
        model = build(weights)

        def body(i: Array, carry: tuple[Track, Array]) -> tuple[Track, Array]:
            track, row = advance_one(model, gate, carry[0], jax.lax.dynamic_slice_in_dim(xs, i, 1))
            return track, jax.lax.dynamic_update_slice_in_dim(carry[1], row[None], i, axis=0)

        weighted = isinstance(recursion.filter, ParticleFilter)
        width = _find_places(model.num_observed, model.latent_dim, weighted)[1]
        return jax.lax.fori_loop(0, count, body, (track, jnp.zeros((xs.shape[0], width), model.dtype)))

    return one, many


@lru_cache
def _find_places(num_observed: int, latent_dim: int, weighted: bool) -> tuple[list[slice | int], int]:
    """Find the fields of a `Row` in a packed one, and its width; a single number has no axis of its own."""
    N, M = num_observed, latent_dim
    places: list[slice | int] = []
    end = 0
    for width in (M, M, M, M, N, N, N, N, None, None, N, N, None, None, *[None] * weighted):
        places.append(end if width is None else slice(end, end + width))
        end += 1 if width is None else width
    return places, end


def _fingerprint(reconstruction: Reconstruction) -> str:
    """Hash (SHA-256) all that decides what a filter computes: weights, scaler, method."""
    head = {"scaler": reconstruction.scaler.to_dict(), "method": reconstruction.method}
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, array in sorted(named_arrays(reconstruction.model).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _read_state(folder: Path, reconstruction: Reconstruction) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `OnlineFilter.save` wrote: the arrays of the track, and checked facts."""
    arrays, meta = read_record(folder, _NAME, "state of an online filter")
    if any(meta.get(key) != value for key, value in _FORMAT.items()):
        raise CheckpointError(
            f"{folder}/{_NAME}.json is not the state of an online filter that this version reads (format "
            f"{meta.get('format')!r:.80}, version {meta.get('format_version')!r:.80}). Start again without it."
        )
    if meta.get("model") != _fingerprint(reconstruction):
        raise CheckpointError(
            f"{folder} is the state of another model's filter. Restore it with the model it was saved with, or start "
            "again without it."
        )
    facts = meta.get("facts")
    if not isinstance(facts, dict) or not _are_valid(
        facts := {"steps_since_time": 0, **facts}, len(reconstruction.inputs)
    ):
        raise CheckpointError(
            f"{folder}/{_NAME}.json does not say which gate the filter had and how many steps it took. "
            "Start again without it."
        )
    return arrays, facts


def _are_valid(facts: dict[str, Any], num_inputs: int) -> bool:
    """Check the facts beside a track for the values that they can have."""
    gate, time, inputs = facts.get("gate"), facts.get("time"), facts.get("inputs", [])
    counts = [facts.get(name) for name in ("patience", "num_steps", "steps_since_time")]
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and 1 <= facts["patience"] <= _MAX_PATIENCE
        and (time is None or (type(time) is float and math.isfinite(time)))
        and (gate is None or (type(gate) is float and 0 < gate < 1))
        and (type(inputs) is list and len(inputs) == num_inputs)
        and all(type(u) is float and math.isfinite(u) for u in inputs)
    )
