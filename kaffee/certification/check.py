"""A first check of a surrogate: does it predict, is it calibrated, does its free run stay on the attractor?

The full three-axis evaluation needs the true system; this needs a reference trajectory only.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.certification.free_runs import CORE_SEED, MIN_ROWS, TRANSIENT, compare_attractors
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import complete
from kaffee.data.series import Series
from kaffee.data.windows import padded
from kaffee.filtering.rollout import core_key_of, free_run
from kaffee.filtering.sweep import Filtered, run_filter
from kaffee.metrics.calibration import coverage
from kaffee.metrics.lyapunov import lyapunov_spectrum

# The shortest free run: exponents of fewer steps say nothing, however short the reference is.
MIN_STEPS = 1000


@dataclass(frozen=True)
class Check:
    """The numbers of a first check; `protocol` says how they were made.

    Attributes:
        nll: One-step innovation NLL per observed entry on held-out data, in standardised units.
        coverage_90: Share of held-out observations inside their 90 % predictive interval.
        d_stsp_core: State-space divergence of the core's free run from the reference; infinite if it left the
            attractor, NaN if the reference has fewer than MIN_ROWS complete rows.
        d_h_core: Hellinger distance of their power spectra; NaN in both cases.
        lambda_1: Largest Lyapunov exponent of the core, per unit of time.
        diverged_at: Step at which the free run left the attractor; 0 if it did not.
    """

    nll: float
    coverage_90: float
    d_stsp_core: float
    d_h_core: float
    lambda_1: float
    diverged_at: int
    protocol: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; non-finite numbers become None."""
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(self).items()}


def filter_series(reconstruction: Reconstruction, series: Series) -> tuple[Filtered, Array, Array]:
    """Filter a series in data units; returns the moments, the standardised rows and their mask."""
    standard = series.standardised(reconstruction.scaler)
    x, mask = padded(standard, reconstruction.model.dtype)
    return run_filter(reconstruction.model, x, mask, reconstruction.filter), x, mask


def core_trajectory(
    reconstruction: Reconstruction, start: Float[np.ndarray, " N"], num_steps: int
) -> tuple[Float[np.ndarray, "T N"], Float[Array, "T M"], int]:
    """The core's free run from an observation: in data units, as latent states, and where it diverged (0: nowhere).

    Shell off; a core that draws noise of its own does so from CORE_SEED.
    """
    model = reconstruction.model
    x = jnp.asarray(reconstruction.scaler.transform(np.asarray(start)), model.dtype)
    noise = core_key_of(model.core, CORE_SEED)
    run = free_run(model, model.embed(x[None]), num_steps, core_key=noise, transient=TRANSIENT)
    observations = np.asarray(run.observations[0], np.float64)
    return reconstruction.scaler.inverse(observations), run.states[0], int(run.diverged_at[0])


def compare_runs(
    reference: Float[np.ndarray, "T N"], generated: Float[np.ndarray, "T N"], *, least: int = 4
) -> tuple[float, float]:
    """(D_stsp, D_H) of `compare_attractors`."""
    return compare_attractors(reference, generated, least=least)[:2]


def start_row(reconstruction: Reconstruction, recording: Float[np.ndarray, "T N"]) -> Float[np.ndarray, " N"]:
    """A row to start a free run from: the first complete one, else the mean of the training data."""
    rows = complete(recording)
    return rows[0] if len(rows) else reconstruction.scaler.mean


def check(
    reconstruction: Reconstruction,
    test: Series,
    *,
    reference: Float[np.ndarray, "T N"] | None = None,
    num_steps: int = 20_000,
) -> Check:
    """Check a surrogate on held-out data.

    Args:
        reference: Clean states in data units, if they are known; the longest held-out recording otherwise.
        num_steps: At most this many steps of the reference and of the free run are compared.
    """
    kind = "clean states" if reference is not None else "held-out recording"
    reference = max(test.recordings, key=len) if reference is None else reference
    reference = reference[:num_steps]
    filtered, _, mask = filter_series(reconstruction, test)
    seen = np.asarray(mask[:, 1:])
    start = start_row(reconstruction, reference)
    generated, states, diverged_at = core_trajectory(reconstruction, start, max(len(reference), MIN_STEPS))
    d_stsp, d_h = compare_runs(reference, generated[: len(reference)], least=MIN_ROWS)
    if diverged_at:
        # Perhaps later than the rows that are compared; and a spectrum knows no size.
        d_stsp, d_h = np.nan if np.isnan(d_stsp) else np.inf, np.nan
    spectrum = lyapunov_spectrum(reconstruction.model.core.exact(), states, num_exponents=1, dt=reconstruction.dt)
    return Check(
        nll=float(np.asarray(filtered.nll, np.float64).sum() / seen.sum()) if seen.any() else np.nan,
        coverage_90=coverage(np.asarray(filtered.innovations), np.asarray(filtered.predicted_std), 0.9, seen),
        d_stsp_core=d_stsp,
        d_h_core=d_h,
        lambda_1=spectrum.maximal,
        diverged_at=diverged_at,
        protocol={
            "reference": kind,
            "num_steps": len(reference),
            "transient": TRANSIENT,
            "core_seed": CORE_SEED if reconstruction.model.core.noise_dim else None,
            "d_stsp": "histogram, 30 bins" if reference.shape[1] <= 3 else "Gaussian mixture, variance 1",
            "d_h": "Gaussian smoothing of 20 bins",
            "nll": "one step, standardised units",
        },
    )
