"""What a fit will cost, from a measured matrix product and the sizes of its stages; and what is special of its data."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.fitting.settings import IN_CONTEXT, UNTRAINED_RUNGS, FitSettings
from kaffee.training.autoregression import find_season, interpolate

# Batched products of M x M matrices in one step of the filter and its adjoint, and seconds of everything else in it.
PRODUCTS, STEP_SECONDS = 10.0, 8e-5
# The same of teacher forcing, whose products are of vectors.
FORCED_SECONDS = 1.2e-5
# Compiling all programs of a fit; looks of the guard and the linear model are about a third of all.
COMPILE_SECONDS, BESIDE = 40.0, 1.5
# Numbers kept for every step and window, in units of M^2; and megabytes of the process before anything.
KEPT, BASE_MB = 4.0, 600.0
CHAIN = 50  # products that are timed together
FEW_ROWS, MANY_COORDINATES = 10, 64
# Share of a column's variance that a straight line explains where there is a trend; distinct values and repetitions of
# each from which on readings are quantised.
TREND, FEW_VALUES, REPEATED = 0.5, 1024, 4


class Cost(NamedTuple):
    """Seconds of the stages together, and peak memory in megabytes."""

    seconds: float
    megabytes: float

    def describe(self) -> str:
        """Say it in words."""
        minutes = self.seconds / 60.0
        time_ = f"{minutes:.0f} min" if minutes >= 2.0 else f"{self.seconds:.0f} s"
        return f"about {time_} on this machine, {self.megabytes / 1024:.1f} GB of memory"


def measure_product(batch: int, size: int) -> float:
    """Time a batched product of square matrices, the unit of a filter's work; the best of five, in seconds.

    In a loop, as in a filter: calling a program takes longer than a product of small matrices. On a machine with other
    work the clock counts that, too, and processor time does not.
    """
    X = jax.random.normal(jax.random.key(0), (batch, size, size)) / size**0.5  # powers stay of one size
    chain = jax.jit(lambda X: jax.lax.fori_loop(0, CHAIN, lambda _, Y: X @ Y, X))
    jax.block_until_ready(chain(X))
    times = []
    for _ in range(5):
        began, worked = time.perf_counter(), time.process_time()
        jax.block_until_ready(chain(X))
        times += [time.perf_counter() - began, time.process_time() - worked]
    return min(times) / CHAIN


def _relative_work(name: str | None, latent_dim: int) -> float:
    """Compare the products of a step of a filter with those of the dense one: M^2 r and M^2 n instead of M^3.

    >>> _relative_work("lowrank:32", 1000), _relative_work("enkf:40", 20), _relative_work(None, 20)
    (0.032, 1.0, 1.0)
    """
    kind, _, size = (name or "ekf").partition(":")
    size = size.partition(",")[0]
    return min(int(size) / latent_dim, 1.0) if size.isdigit() and kind != "ekf" else 1.0


def estimate_cost(settings: FitSettings, num_observed: int) -> Cost:
    """Estimate what a fit costs, without its certificate."""
    num_observed = settings.num_explained(num_observed)
    M = settings.core.resolved_dim(num_observed)
    forcing, filtering = settings.pretraining, settings.adaptation
    product = measure_product(filtering.schedule.batch_size, M)
    steps = filtering.burn_in + filtering.scored
    updates = filtering.schedule.num_updates + (filtering.calibration or 0) / 2
    share = _relative_work(filtering.filter, M)
    seconds = updates * steps * (PRODUCTS * share * product + STEP_SECONDS)
    seconds += forcing.schedule.num_updates * forcing.window * (FORCED_SECONDS + product / max(M, 1))
    kept = KEPT * share * filtering.schedule.batch_size * steps * M**2 * 4 / 1024**2
    return Cost(COMPILE_SECONDS + BESIDE * seconds, BASE_MB + kept)


def find_risks(series: Series, settings: FitSettings) -> list[str]:
    """Name what of a recording is little or much for its model, before the work."""
    train, _ = series.split(1.0 - settings.test_fraction)
    N = settings.num_explained(series.num_coordinates)
    M, rows = settings.core.resolved_dim(N), train.num_steps
    risks = []
    if rows < FEW_ROWS * M and settings.rung not in UNTRAINED_RUNGS and settings.core.start != IN_CONTEXT:
        choice = " It is kept if it forecasts rows better that are held back; else the linear model is."
        risks.append(
            f"{rows} training rows for {M} latent coordinates: a core may learn them by heart."
            + choice * (settings.rung == "auto")
        )
    if N >= MANY_COORDINATES:
        risks.append(f"{N} coordinates: a filter costs the cube of them. Consider components: --observation learned.")
    return risks


def describe_traits(series: Series, settings: FitSettings) -> list[str]:
    """Say what of the training rows is calendar, drift or rounding and not dynamics, and what a fit makes of it."""
    train, _ = series.split(1.0 - settings.test_fraction)
    standard = train.standardised(Scaler.fit(train))
    traits = []
    period = find_season(standard)
    if period is not None:
        traits.append(f"A period of {period:.4g} rows stands out: a season of the linear model is tried.")
    longest = interpolate(max(standard.recordings, key=len))
    explained = np.corrcoef(np.arange(len(longest)), longest.T)[0, 1:] ** 2
    columns = np.array(series.columns)
    if (trend := explained > TREND).any():
        names = _list_names(columns[trend])
        share = f"{100 * explained[trend].max():.0f} %"
        traits.append(f"A trend explains up to {share} of the variance of {names}: models of differences are tried.")
    stacked = train.concatenated()
    coarse = []
    for name, column in zip(columns, stacked.T, strict=True):
        seen = column[~np.isnan(column)]
        distinct = len(np.unique(seen))
        if 2 < distinct <= FEW_VALUES and len(seen) >= REPEATED * distinct:
            coarse.append(name)
    if coarse:
        traits.append(
            f"{_list_names(coarse)}: the same few values come again and again: readings are rounded, and no forecast "
            "is sharper than a step of them."
        )
    return traits


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
