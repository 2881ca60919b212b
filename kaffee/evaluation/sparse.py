"""A model as an online Bayesian filter: sparse, partial, noisy observations assimilated as they come (section 5.2)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kaffee.evaluation.reference import Reference
from kaffee.filtering import run_filter
from kaffee.metrics.calibration import coverage, normalised_nis
from kaffee.recursion import Recursion
from kaffee.ssm import StateSpaceModel

LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True, eq=False)
class SparseRun:
    """What the filter believed of the clean state at every step, in data units.

    Attributes:
        truth: The clean state.
        mean, std: Of the filtered belief about it.
        observations: What was measured.
        seen: Which of the measurements the filter was shown.
        nis: Normalised innovations squared per shown entry: 1 if calibrated.
    """

    truth: Float[np.ndarray, "T N"]
    mean: Float[np.ndarray, "T N"]
    std: Float[np.ndarray, "T N"]
    observations: Float[np.ndarray, "T N"]
    seen: Bool[np.ndarray, "T N"]
    nis: float

    def coverage(self, level: float) -> float:
        """The share of true coordinates inside the central bands."""
        return coverage(self.truth - self.mean, self.std, level)

    def to_dict(self, scale: Float[np.ndarray, " N"]) -> dict[str, Any]:
        """Coverage, NIS and the RMSE in units of `scale`; JSON values."""
        error = (self.mean - self.truth) / scale
        bands = {f"coverage_{round(100 * level)}": self.coverage(level) for level in LEVELS}
        return {**bands, "nis": self.nis, "rmse": float(np.sqrt(np.mean(error**2)))}


def sparse_mask(num_steps: int, num_coordinates: int, *, every: int, hidden: tuple[int, ...] = ()) -> np.ndarray:
    """True for every `every`-th step, but in the hidden coordinates.

    >>> sparse_mask(4, 2, every=3, hidden=(1,)).astype(int).tolist()
    [[1, 0], [0, 0], [0, 0], [1, 0]]
    """
    mask = np.zeros((num_steps, num_coordinates), bool)
    mask[::every] = True
    mask[:, list(hidden)] = False
    return mask


def assimilate_sparsely(
    model: StateSpaceModel,
    reference: Reference,
    recursion: Recursion,
    *,
    num_steps: int,
    warm_up: int = 200,
    every: int = 4,
    hidden: tuple[int, ...] = (),
    seed: int = 0,
) -> SparseRun:
    """Filter the held-out observations of which only some are shown; the first row anchors the belief.

    Args:
        num_steps: Steps that are kept, after `warm_up`.
        every: Show every k-th step.
        hidden: Coordinates that are never shown, not even in the first row.
    """
    x = reference.test_observations[: warm_up + num_steps + 1]
    mask = sparse_mask(len(x), x.shape[1], every=every, hidden=hidden)
    standard = jnp.asarray(reference.scaler.transform(x), model.dtype)[None]
    run = run_filter(model, standard, jnp.asarray(mask)[None], recursion, key=jax.random.key(seed))
    kept = slice(warm_up, None)  # of the filter's steps, which begin with the second row
    scale, shown = reference.scaler.scale, mask[1:][kept]
    mean = np.asarray(model.observation.observe(run.mean[0, kept]), np.float64)
    return SparseRun(
        truth=reference.test_states[: len(x)][1:][kept],
        mean=reference.scaler.inverse(mean),
        std=np.asarray(run.signal_std[0, kept], np.float64) * scale,
        observations=x[1:][kept],
        seen=shown,
        nis=normalised_nis(np.asarray(run.nis[0, kept], np.float64), shown.sum(axis=1)),
    )
