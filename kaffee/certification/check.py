"""Summarise a model in a few numbers, by the estimators of the certificate."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kaffee.certification.free_runs import (
    CORE_SEED,
    MAX_ROWS,
    MIN_KEPT,
    MIN_ROWS,
    TRANSIENT,
    Exponents,
    RunSummary,
    average_exponents,
    run_freely,
    summarise_runs,
)
from kaffee.certification.innovations import JUDGED, Residuals, Starts, filter_pass, residual_checks
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import complete, complete_rows, constant_columns, evenly, longest_stretch
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.evaluation import Target
from kaffee.metrics.scores import NLL_UNIT


@dataclass(frozen=True)
class Check:
    """Summarise a model in a few numbers; `protocol` says how they were computed.

    Attributes:
        nll: Of one-step predictions of the held-out readings, in `NLL_UNIT`.
        coverage_90: Share of held-out readings inside their 90 % band.
        d_stsp_core: D_stsp of the core's free runs by kernel densities, the median of those that did not diverge; NaN
            if all did, or if there are fewer than `MIN_ROWS` complete rows to compare with.
        d_h_core: Median Hellinger distance of their power spectra; NaN in these cases, and where rows have gaps.
        lambda_1: Largest Lyapunov exponent of the core, per unit of time.
        diverged_at: The earliest step at which a free run left the attractor; 0 if none did.
        num_diverged: How many did.
    """

    nll: float
    coverage_90: float
    d_stsp_core: float
    d_h_core: float
    lambda_1: float
    diverged_at: int
    num_diverged: int
    protocol: dict[str, Any]


FreeRuns = tuple[RunSummary, Exponents | None, int]
"""Free runs of a core: what became of them, their exponents, and the number of rows that they were compared with."""
_Path = Float[np.ndarray, "T N"]


def check(
    reconstruction: Reconstruction,
    test: Series,
    *,
    reference: _Path | None = None,
    runs: int = 20,
    steps: int = 20_000,
    residuals: Residuals | None = None,
    free: FreeRuns | None = None,
) -> Check:
    """Summarise a surrogate on held-out data.

    Args:
        reference: States in data units that free runs are compared with; the held-out data by default.
        runs, steps: How many free runs, and how long at least.
        residuals, free: Parts that a certificate has computed already.
    """
    local = residuals or _check_innovations(reconstruction, test)
    summary, exponents, num_rows = free or _run_core(reconstruction, test, reference, runs, steps)
    return Check(
        nll=math.nan if local is None else local.nll_standard,
        coverage_90=math.nan if local is None else local.coverage[f"{JUDGED:g}"],
        d_stsp_core=summary.typical.d_stsp,
        d_h_core=summary.typical.d_h,
        lambda_1=math.nan if exponents is None else float(exponents.values[0]),
        diverged_at=summary.first,
        num_diverged=summary.diverged,
        protocol={
            "reference": f"{num_rows} {'held-out rows' if reference is None else 'given states'}",
            "num_steps": num_rows,
            "num_runs": runs,
            "transient": TRANSIENT,
            "core_seed": CORE_SEED if reconstruction.model.core.noise_dim else None,
            "d_stsp": "kernel densities, median of free runs",
            "d_h": "Gaussian smoothing of 20 bins, median of free runs",
            "noise": "distances of readings of free runs, with the model's observation noise",
            "nll": f"{NLL_UNIT}, one step" + ", after the warm-up" * (reconstruction.model.climate is None),
        },
    )


def compare_runs(reference: _Path, generated: _Path) -> tuple[float, float]:
    """Return D_stsp and D_H of a run from a complete reference, by the estimators of a check."""
    rows = reference[:MAX_ROWS]
    return Target(rows, "kernel", length=len(rows)).measure([generated])[0][:2]


def _check_innovations(reconstruction: Reconstruction, test: Series) -> Residuals | None:
    """Check the innovations, however few; None if there is nothing to predict."""
    nowhere = Starts(np.zeros(0, int), np.zeros(0, int))
    try:
        return residual_checks(filter_pass(reconstruction, test, nowhere), least=1)
    except DataError:
        return None


def _run_core(
    reconstruction: Reconstruction, test: Series, reference: _Path | None, num_runs: int, steps: int
) -> FreeRuns:
    """Compare the ends of free runs of the core with the longest complete stretch, or with all complete rows."""
    given = (longest_stretch(test) if reference is None else reference)[:MAX_ROWS]
    rows = complete(given)
    in_order = len(rows) == len(given)
    if reference is None and len(rows) < MIN_ROWS:
        rows, in_order = complete_rows(test)[:MAX_ROWS], False
    starts = (
        rows[evenly(len(rows), num_runs)]
        if len(rows)
        else reconstruction.scaler.inverse(np.zeros((1, reconstruction.model.num_observed)))
    )
    end = max(len(rows), MIN_KEPT)
    varying = ~constant_columns(rows) if len(rows) >= MIN_ROWS else np.zeros(rows.shape[1], bool)
    target = Target(rows, "kernel", spectra=in_order, length=len(rows), columns=varying)
    if in_order and len(rows):
        target = target.with_delays([rows])
    transient = max(steps - end, TRANSIENT)
    free = run_freely(reconstruction, starts, target, end, transient=transient, recorded=(test,))
    exponents = average_exponents(free, reconstruction.dt)
    if not varying.any():
        free = replace(free, observations=free.observations[:0], readings=None)  # nothing to compare with
    return summarise_runs(free), exponents, len(rows)
