"""What a filter knows at one row, or at every row of a recording: the same numbers in data units."""

from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kaffee.data.scaler import Scaler
from kaffee.filtering.gated import Row
from kaffee.filtering.recursion import QUANTITIES


class Estimate:
    """A filtered belief in data units; every array has the leading axes of its rows: none, or (T,).

    Numbers are converted when they are asked for, so that an online filter does not pay for what nobody reads.
    """

    def __init__(self, row: Row, scaler: Scaler) -> None:
        self._row, self._scaler = row, scaler

    def at(self, rows: Int[np.ndarray, " K"]) -> "Estimate":
        """Some rows of many."""
        return Estimate(Row(*(np.asarray(value)[rows] for value in self._row)), self._scaler)

    @cached_property
    def mean(self) -> Float[np.ndarray, "... N"]:
        """Of the signal B z, given all readings up to this one."""
        return self._scaler.inverse(_float64(self._row.signal_mean))

    @cached_property
    def std(self) -> Float[np.ndarray, "... N"]:
        """Of the signal, without observation noise."""
        return self._scaler.inverse_std(_float64(self._row.signal_std))

    @cached_property
    def predicted_mean(self) -> Float[np.ndarray, "... N"]:
        """Of the reading, given those before it; NaN where the belief (re)starts."""
        return self._scaler.inverse(_float64(self._row.reading_mean))

    @cached_property
    def predicted_std(self) -> Float[np.ndarray, "... N"]:
        """Of the reading, observation noise included."""
        return self._scaler.inverse_std(_float64(self._row.reading_std))

    @property
    def state_mean(self) -> Float[np.ndarray, "... M"]:
        """Of the latent state, in the model's standardised coordinates, given all readings up to this one."""
        return _float64(self._row.state_mean)

    @property
    def state_std(self) -> Float[np.ndarray, "... M"]:
        """Likewise."""
        return _float64(self._row.state_std)

    @property
    def predicted_state_mean(self) -> Float[np.ndarray, "... M"]:
        """Of the latent state, given the readings before this one."""
        return _float64(self._row.predicted_state_mean)

    @property
    def predicted_state_std(self) -> Float[np.ndarray, "... M"]:
        """Likewise."""
        return _float64(self._row.predicted_state_std)

    @cached_property
    def log_likelihood(self) -> Float[np.ndarray, "..."]:
        """log p of the accepted entries given all earlier ones, in data units; NaN where the belief (re)starts.

        log p_data(x) = log p_standard((x - mean) / scale) - sum log scale
        """
        return 0.0 - _float64(self._row.nll) - self.accepted @ np.log(self._scaler.scale)

    @property
    def nis(self) -> Float[np.ndarray, "..."]:
        """v' Omega^-1 v: chi-square with as many degrees of freedom as entries were accepted, if all is well."""
        return _float64(self._row.nis)

    @property
    def accepted(self) -> Bool[np.ndarray, "... N"]:
        """Which entries were read and used."""
        return np.asarray(self._row.accepted, bool)

    @property
    def rejected(self) -> Bool[np.ndarray, "... N"]:
        """Which entries were read but not believed: beyond the gate, infinite, or absurdly large."""
        return np.asarray(self._row.rejected, bool)

    @property
    def restarted(self) -> Bool[np.ndarray, "..."]:
        """Whether the belief starts anew: at the first row, and after it was lost."""
        return np.asarray(self._row.restarted, bool)

    @property
    def faults(self) -> Int[np.ndarray, "..."]:
        """What was not finite before a restart, as an index in `recursion.QUANTITIES`; 0 if all was."""
        return np.asarray(self._row.fault, np.int32)

    @property
    def fault(self) -> str:
        """The first such quantity in words; empty if there is none."""
        faults = self.faults.ravel()
        return QUANTITIES[int(faults[np.argmax(faults > 0)])] if faults.size else ""


def _float64(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)
