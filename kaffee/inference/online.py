"""Filtering as readings arrive: constant memory, one compiled program, state that can be saved."""

from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from kaffee.checkpoint import Reconstruction
from kaffee.checks import filter_of
from kaffee.errors import DataError
from kaffee.inference.estimate import Estimate
from kaffee.inference.gate import gate_of
from kaffee.inference.matching import model_columns
from kaffee.inference.online_state import read_track, write_track
from kaffee.inference.programs import CHUNK, packed_width, programs, unpack, weights_of
from kaffee.inference.tracking import before_the_first_row


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
        self._programs = programs(filter_of(reconstruction), rest)
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
