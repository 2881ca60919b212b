"""Panel g: the belief about one coordinate while observations come and go."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes

from kaffee.certification.fidelity import Reference
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.errors import CheckpointError
from kaffee.filtering.likelihood import get_method
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.sweep import run_filter
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.figures.rows import DrawnRow
from kaffee.paper.models import reference_for, stored_model, trained_model

LYAPUNOV_STEPS = 15
"""Steps of a Lyapunov time: the paper's horizons 0.13, 0.27, 0.60 and 1.00 are 2, 4, 9 and 15 steps."""
SEEN, UNSEEN = LYAPUNOV_STEPS, 2 * LYAPUNOV_STEPS
NUM_GAPS = 2


class Cycle(NamedTuple):
    """One coordinate over the steps that are shown, in data units.

    Attributes:
        times: In Lyapunov times.
        truth: Without observation noise.
        assimilated: Which observations the filter saw.
    """

    times: Float[np.ndarray, " T"]
    truth: Float[np.ndarray, " T"]
    observed: Float[np.ndarray, " T"]
    assimilated: Bool[np.ndarray, " T"]


class Band(NamedTuple):
    """The prediction of the observation at each step from those assimilated before it, in data units."""

    mean: Float[np.ndarray, " T"]
    std: Float[np.ndarray, " T"]


def assimilated_steps(available: int | None = None) -> Bool[np.ndarray, " T"]:
    """One Lyapunov time with observations, two without, and again; ends with observations if so many are available."""
    return np.array(([True] * SEEN + [False] * UNSEEN) * NUM_GAPS + [True] * SEEN)[:available]


def observed_cycle(reference: Reference, warm_up: int, coordinate: int = 0) -> Cycle:
    """What is known of the steps that are shown: the first ones of the test data after the warm-up, not chosen."""
    seen = assimilated_steps(len(reference.test_states) - warm_up - 1)
    rows = slice(warm_up + 1, warm_up + 1 + len(seen))
    return Cycle(
        np.arange(len(seen)) / LYAPUNOV_STEPS,
        reference.test_states[rows, coordinate],
        reference.test_observations[rows, coordinate],
        seen,
    )


def predicted_band(
    model: Reconstruction, recursion: Recursion, reference: Reference, warm_up: int, coordinate: int = 0
) -> Band:
    """B z_{t|t-1} and the marginal standard deviation of B Sigma_{t|t-1} B' + Lambda over the cycle.

    All coordinates are assimilated or none; the first `warm_up` steps of the test data are.
    """
    shown = assimilated_steps(len(reference.test_observations) - warm_up - 1)
    seen = np.concatenate([np.ones(warm_up + 1, bool), shown])
    data = reference.test_observations[: len(seen)]
    x = jnp.asarray(model.scaler.transform(data), model.model.dtype)
    mask = jnp.broadcast_to(jnp.asarray(seen)[:, None], x.shape)
    filtered = run_filter(model.model, x[None], mask[None], recursion)
    mean = model.scaler.inverse(np.asarray(filtered.predicted_mean[0, warm_up:], np.float64))
    std = model.scaler.inverse_std(np.asarray(filtered.predicted_std[0, warm_up:], np.float64))
    return Band(mean[:, coordinate], std[:, coordinate])


def cycle_panel(axis: Axes, row: DrawnRow, cycle: Cycle, band: Band, *, label: str) -> None:
    """Truth, assimilated observations, and a row's predictive mean with its +-2 sigma band."""
    step = 1.0 / LYAPUNOV_STEPS
    for first, last in _gaps(cycle.assimilated):
        axis.axvspan(cycle.times[first] - step / 2, cycle.times[last] + step / 2, color="0.93", linewidth=0)
    low, high = band.mean - 2.0 * band.std, band.mean + 2.0 * band.std
    axis.fill_between(
        cycle.times, low, high, color=row.colour, alpha=0.35, linewidth=0, label=r"prediction $\pm2\sigma$"
    )
    axis.plot(cycle.times, band.mean, color=row.colour, label="predictive mean")
    axis.plot(cycle.times, cycle.truth, "--", color="black", linewidth=0.9, label="truth")
    seen = cycle.assimilated
    axis.plot(cycle.times[seen], cycle.observed[seen], ".", color="0.35", markersize=3, label="assimilated observation")
    # A band without bounds would hide everything else.
    span = np.ptp(cycle.truth) or 1.0
    axis.set_ylim(cycle.truth.min() - 0.5 * span, cycle.truth.max() + 0.5 * span)
    axis.set_xlim(cycle.times[0], cycle.times[-1])
    axis.set_ylabel(label)
    axis.annotate(row.title, (0.005, 0.97), xycoords="axes fraction", va="top", weight="bold")


def _gaps(seen: Bool[np.ndarray, " T"]) -> list[tuple[int, int]]:
    """First and last step of every stretch without observations."""
    change = np.diff(np.concatenate([[True], seen, [True]]).astype(int))
    return list(zip(np.flatnonzero(change == -1), np.flatnonzero(change == 1) - 1, strict=True))


# The trained models of one seed, for the panel that needs more than the numbers in the cells.


SHOWN = ("kaffee", "blind")


class CycleData(NamedTuple):
    """What panel g shows."""

    cycle: Cycle
    bands: list[tuple[DrawnRow, Band]]
    seed: int


def cycle_data(store: ResultStore, rows: list[DrawnRow], say: Callable[[str], None]) -> CycleData | None:
    """Filter the test data by the models of the first seed that all shown rows have; None if there is no model.

    A model that is not on disk is trained again from its prior, which is part of the results.

    Args:
        say: Told what takes time, and what is missing.
    """
    shown = [row for row in rows if row.method in SHOWN]
    seeds = [{record["seed"] for record in row.records} for row in shown]
    common = set.intersection(*seeds) if seeds else set()
    if not common:
        return None
    seed = min(common)
    settings = shown[0].row.settings
    reference, warm_up = reference_for(settings.data, settings.protocol), settings.protocol.warm_up
    bands = []
    for row in shown:
        cell = Cell(row.row.name, seed)
        if stored_model(store, cell) is None:
            say(f"The model of {cell.name} is not on disk: training it again from its prior (about half a minute).")
        try:
            model = trained_model(store, cell, reference)
        except CheckpointError as error:
            say(f"Panel g is drawn without {cell.name}. {error}")
            continue
        bands.append((row, predicted_band(model, get_method(row.method).filter, reference, warm_up)))
    return CycleData(observed_cycle(reference, warm_up), bands, seed) if bands else None
