"""Stability: the same recording fitted with several seeds, and how far the results lie apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kaffee.certification.check import Check, check
from kaffee.certification.free_runs import Agreement, Exponents, agreement
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.errors import DataError


class Candidate(NamedTuple):
    """A refit before it is certified.

    Attributes:
        rung: The model that its held-back rows chose; "scratch" if there was no choice.
        validation: What refits are chosen by, the smaller the better: NLL of held-back rows, in nats per reading and
            standardised units, or of training windows where a fit holds no rows back.
    """

    seed: int
    rung: str
    validation: float
    reconstruction: Reconstruction


class Refit(NamedTuple):
    """A refit in numbers: `validation` as of its `Candidate`, the others on held-out data as of a `Check`.

    Attributes:
        d_stsp_noisy, d_h_noisy: Of free runs with process and observation noise.
        lost_core, lost_noisy: Free runs that left the attractor in any way; None where there are too few rows to tell.
        runs: How many free runs there were of each kind.
    """

    seed: int
    rung: str
    validation: float
    nll: float
    coverage_90: float
    d_stsp_core: float
    d_h_core: float
    d_stsp_noisy: float
    d_h_noisy: float
    lost_core: int | None
    lost_noisy: int | None
    lambda_1: float
    runs: int


NUMBERS = tuple(name for name in Refit._fields if name not in ("seed", "rung", "runs"))
"""Fields of a refit that have a mean and a spread."""


@dataclass(frozen=True)
class Stability:
    """Refits of one recording; `chosen` is the seed of the one that a certificate is about."""

    refits: tuple[Refit, ...]
    chosen: int

    def summarise(self) -> tuple[dict[str, float], dict[str, float]]:
        """Compute means and standard deviations over refits by field, of those that have a number; NaN without any."""
        means, spreads = {}, {}
        for name in NUMBERS:
            values = np.array([math.nan if (v := getattr(refit, name)) is None else v for refit in self.refits], float)
            values = values[np.isfinite(values)]
            means[name] = float(values.mean()) if len(values) else math.nan
            # Of equal numbers it is 0 and not what rounding leaves.
            spread = values.std(ddof=1) * bool(np.ptp(values)) if len(values) > 1 else math.nan
            spreads[name] = float(spread)
        return means, spreads


def compare_refits(
    candidates: Sequence[Candidate],
    chosen: int,
    known: tuple[Check, Agreement | None],
    train: Series,
    test: Series,
    *,
    runs: int = 20,
    steps: int = 20_000,
    seed: int = 0,
) -> tuple[Stability, Exponents | None]:
    """Check every refit on held-out data as a certificate does.

    Args:
        chosen: The seed of the refit that the certificate is about, and `known` what it has computed for it.
        train, test: In data units, with the model's columns.
        runs, steps, seed: Of free runs.

    Returns:
        The numbers, and the chosen refit's Lyapunov exponents with errors that contain the spread over refits.
    """
    rows, spectra = [], []
    for candidate in candidates:
        model = candidate.reconstruction
        if candidate.seed == chosen:
            checked, free = known
        else:
            try:
                free = agreement(model, train, test, runs=runs, steps=steps, seed=seed)
            except DataError:
                free = None  # too few complete rows to compare with, which is the same for all of them
            core = None if free is None else (free.core, free.exponents, free.num_rows)
            checked = check(model, test, free=core, runs=runs, steps=steps)
        noisy = None if free is None else free.stochastic
        if free is not None and free.exponents is not None:
            spectra.append(free.exponents)
        rows.append(
            Refit(
                seed=candidate.seed,
                rung=candidate.rung,
                validation=candidate.validation,
                nll=checked.nll,
                coverage_90=checked.coverage_90,
                d_stsp_core=checked.d_stsp_core,
                d_h_core=checked.d_h_core,
                d_stsp_noisy=math.nan if noisy is None else noisy.typical.d_stsp,
                d_h_noisy=math.nan if noisy is None else noisy.typical.d_h,
                lost_core=None if free is None else free.core.lost,
                lost_noisy=None if noisy is None else noisy.lost,
                lambda_1=checked.lambda_1,
                runs=runs,
            )
        )
    own = None if known[1] is None else known[1].exponents
    return Stability(tuple(rows), chosen), None if own is None else widen_exponents(own, spectra)


def widen_exponents(own: Exponents, refits: Sequence[Exponents]) -> Exponents:
    r"""Add the spread over refits to errors of exponents, which know that of free runs of one model only.

    $\sqrt{e^2 + s^2}$ with the standard error $e$ and the standard deviation $s$ over refits, rank by rank; a rank that
    fewer than two refits have keeps its error.

    >>> first = Exponents(np.array([0.9]), np.array([0.03]), 0.9, 0.03, 2.0, 100)
    >>> second = first._replace(values=np.array([0.9 + 0.04 * 2**0.5]))
    >>> wide = widen_exponents(first, [first, second])
    >>> round(float(wide.errors[0]), 3), wide.refits
    (0.05, 2)
    """
    if len(refits) < 2:
        return own
    errors = own.errors.copy()
    for rank in range(len(errors)):
        values = [each.values[rank] for each in refits if rank < len(each.values)]
        if len(values) > 1:
            errors[rank] = np.hypot(errors[rank], np.std(values, ddof=1))
    entropy = math.hypot(own.sum_positive_error, float(np.std([each.sum_positive for each in refits], ddof=1)))
    return own._replace(errors=errors, sum_positive_error=entropy, refits=len(refits))
