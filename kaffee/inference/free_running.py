"""Free runs in data units."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from kaffee.checkpoint import Reconstruction
from kaffee.data.series import Series
from kaffee.errors import DataError, KaffeeError
from kaffee.inference.counts import check_count
from kaffee.inference.matching import model_columns
from kaffee.rollout import DIVERGENCE_BOUND, describe_divergence, free_run


@dataclass(frozen=True)
class FreeRuns:
    """The surrogate on its own.

    Attributes:
        series: One recording for each run, in data units; missing from where a run left the attractor.
        states: Latent states, in the model's standardised coordinates.
        diverged_at: Step (from 1, transient included) at which each run left; 0 if it did not.
    """

    series: Series
    states: Float[np.ndarray, "S T M"]
    diverged_at: Int[np.ndarray, " S"]

    def describe(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "runs": self.series.num_recordings,
            "steps": self.series.lengths[0],
            "diverged_at": self.diverged_at.tolist(),
            "divergence": describe_divergence(jnp.asarray(self.diverged_at)),
        }


def simulate(
    reconstruction: Reconstruction,
    num_steps: int,
    *,
    shell: bool = True,
    core_noise: bool = True,
    start: Float[np.ndarray, "S N"] | None = None,
    runs: int = 1,
    transient: int = 1000,
    seed: int = 0,
) -> FreeRuns:
    """Let a trained surrogate run freely: no observation is assimilated.

    Args:
        shell: Process noise at every step and observation noise on the output; without it the bare core runs.
        core_noise: Draw the noise inside the core, where it has any (DynaMix's gate).
        start: Observations to start from, (N,) or one row for each run; by default drawn from a normal distribution
            with the moments of the training data.
        runs: How many, if `start` does not say so.
        transient: Steps before the first that is kept.
        seed: Of everything random.
    """
    num_steps, runs = check_count("num_steps", num_steps, 1), check_count("runs", runs, 1)
    transient, seed = check_count("transient", transient, 0), check_count("seed", seed, 0)
    model, scaler = reconstruction.model, reconstruction.scaler
    key_start, key_shell, key_core = jax.random.split(jax.random.key(seed), 3)
    if start is None:
        first = jax.random.normal(key_start, (runs, model.num_observed), model.dtype)
    else:
        first = jnp.asarray(_start_rows(reconstruction, start), model.dtype)
    run = free_run(
        model,
        model.embed(first),
        num_steps,
        key=key_shell if shell else None,
        core_key=key_core if core_noise else None,
        transient=transient,
    )
    values, diverged_at = scaler.inverse(np.asarray(run.observations, np.float64)), np.asarray(run.diverged_at)
    for run_values, step in zip(values, diverged_at, strict=True):
        if step:
            run_values[max(step - 1 - transient, 0) :] = np.nan
    if np.isnan(values).all():
        raise KaffeeError(
            f"The free run left the attractor (beyond {DIVERGENCE_BOUND:g} standard deviations of the training data) "
            f"at step {diverged_at.max()}, before the first that is kept. Start from an observation, with a shorter "
            "transient."
        )
    columns, times = model_columns(reconstruction), reconstruction.dt * np.arange(1, num_steps + 1)
    series = Series(tuple(values), columns, (times,) * len(values), "free run")
    return FreeRuns(series, np.asarray(run.states, np.float64), diverged_at)


def _start_rows(reconstruction: Reconstruction, start: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S N"]:
    rows = np.atleast_2d(np.asarray(start, np.float64))
    N = reconstruction.model.num_observed
    if rows.ndim != 2 or rows.shape[1] != N or not np.isfinite(rows).all():
        raise DataError(
            f"start has shape {np.shape(start)}; it must be ({N},), or one row of {N} finite numbers for each run."
        )
    return reconstruction.scaler.transform(rows)
