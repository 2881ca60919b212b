"""One forecast as a picture: what was read, what came, and what the surrogate expected."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from kaffee.certification.passes import FilterPass
from kaffee.forecast import forecast_ensemble
from kaffee.gaussian import Belief
from kaffee.rollout import DIVERGENCE_BOUND

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
HISTORY = 50
MAX_COLUMNS = 3


@dataclass(frozen=True)
class Fan:
    """A forecast from one filtered belief, in data units; row numbers count from where it starts.

    Attributes:
        columns: Coordinates that are shown.
        recording, row: Of the held-out data, where it starts.
        history: Readings up to and including that row, NaN where missing.
        truth: Readings after it.
        levels: Of the quantiles.
        quantiles: Of future readings, noise included.
        dt: Time of one row.
    """

    columns: tuple[str, ...]
    recording: int
    row: int
    history: Float[np.ndarray, "P C"]
    truth: Float[np.ndarray, "H C"]
    levels: tuple[float, ...]
    quantiles: Float[np.ndarray, "Q H C"]
    dt: float


def forecast_fan(run: FilterPass, num_steps: int, members: int, *, seed: int) -> Fan | None:
    """The forecast from the start in the middle of those with `num_steps` rows after them; None if there is none.

    The middle one, so that nobody chose it for its looks.
    """
    starts = run.starts
    lengths = np.array(run.series.lengths)[starts.recordings]
    candidates = np.flatnonzero(starts.rows + num_steps < lengths)
    if not len(candidates):
        return None
    s = int(candidates[len(candidates) // 2])
    r, t = int(starts.recordings[s]), int(starts.rows[s])
    belief = Belief(run.beliefs.mean[s : s + 1], run.beliefs.covariance[s : s + 1])
    key = jax.random.key(seed)
    values = np.asarray(forecast_ensemble(run.reconstruction.model, belief, num_steps, members, key=key), np.float64)
    values = np.where(np.abs(values) < DIVERGENCE_BOUND, values, np.nan)[:, 0]
    if np.isnan(values).all(axis=0).any():
        return None
    columns = slice(0, MAX_COLUMNS)
    inside = run.reconstruction.scaler.inverse(np.nanquantile(values, LEVELS, axis=0))
    recording = run.series.recordings[r]
    return Fan(
        columns=run.series.columns[columns],
        recording=r,
        row=t,
        history=recording[max(t - HISTORY, 0) : t + 1, columns],
        truth=recording[t + 1 : t + 1 + num_steps, columns],
        levels=LEVELS,
        quantiles=inside[:, :, columns],
        dt=run.reconstruction.dt,
    )
