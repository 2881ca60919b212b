"""The guard of a core while a likelihood trains it: free runs that leave the training data send it back.

A likelihood of short windows hardly sees what a free run does after thousands of steps. In between, a core may pass
through regions where its free runs rest or circle in a small part of the attractor (core collapse, section 4), at no
cost in likelihood. The guard looks every so many updates, and returns to the parameters of its last look if the free
runs have become worse; the schedule of learning rates goes on, so that later steps from there are smaller.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from kaffee.data.gaps import complete, complete_rows, constant_columns, evenly, pieces
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import core_key_of, free_run
from kaffee.filtering.sweep import run_filter
from kaffee.metrics.geometry import d_stsp_kernel
from kaffee.metrics.trapping import Extent
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import Confined
from kaffee.training.update import GuardState, TrainState

FACTOR, MARGIN = 2.0, 0.25
"""A distance of up to FACTOR times the best so far and MARGIN nats is no worse: it differs from look to look."""


class Look(NamedTuple):
    """What a guard sees.

    Attributes:
        lost: Free runs that diverge or stay in a part of the attractor.
        distance: Of the others from the data, in nats; infinite if there are none.
    """

    lost: int
    distance: float


class Guard(Protocol):
    """Who looks at a model every so many updates.

    Attributes:
        every: Updates between two looks; there is one at the end as well.
    """

    @property
    def every(self) -> int: ...

    def look(self, model: StateSpaceModel, /) -> Look: ...


class FreeRunGuard:
    """Looks at free runs of the core from rows of a standardised series.

    A run that diverges, or that stays in a part of the attractor or at rest at its end (`kaffee.metrics.trapping`), is
    lost; the distance is D_stsp of all others together from the rows of the series (`metrics.geometry.d_stsp_kernel`).

    Args:
        finish: What becomes of a model when training ends; its core is looked at like that.
    """

    RUNS, STEPS, KEPT, ROWS, SEED = 20, 20_000, 1_000, 5_000, 0
    LEAST_ROWS = 200

    def __init__(
        self, series: Series, every: int, finish: Callable[[StateSpaceModel], StateSpaceModel] = lambda model: model
    ) -> None:
        self.every, self._finish = every, finish
        rows = complete_rows(series)
        self._varying = ~constant_columns(rows)
        self._kept = min(self.KEPT, max(series.lengths))
        self._starts = rows[evenly(len(rows), self.RUNS)]
        self._rows = rows[evenly(len(rows), min(self.ROWS, len(rows)))][:, self._varying]
        floors = self._each([complete(x) for x in pieces(series, self._kept, gaps=True)])
        known = [complete(x)[:, self._varying] for x in series.recordings]
        self._extent = Extent.of(floors, known, self._kept)

    @classmethod
    def possible(cls, series: Series) -> bool:
        """Whether a series has enough complete rows, and any that vary."""
        rows = complete_rows(series)
        return len(rows) >= cls.LEAST_ROWS and not constant_columns(rows).all()

    def _each(self, runs: Sequence[Float[np.ndarray, "T N"]]) -> Float[np.ndarray, " S"]:
        return d_stsp_kernel(self._rows, [run[:, self._varying] for run in runs])

    def runs_that_stay(self, model: StateSpaceModel) -> Float[np.ndarray, "S T N"]:
        """The ends of those of RUNS free runs of the core that neither diverge nor get trapped."""
        model = self._finish(model)
        starts = model.embed(jnp.asarray(self._starts, model.dtype))
        noise = core_key_of(model.core, self.SEED)
        run = free_run(model, starts, self._kept, core_key=noise, transient=self.STEPS - self._kept)
        ends = np.asarray(run.observations, np.float64)[np.asarray(run.diverged_at) == 0]
        return ends[~self._extent.trapped(self._each(ends), ends[:, :, self._varying])]

    def look(self, model: StateSpaceModel) -> Look:
        runs = self.runs_that_stay(model)
        lost = len(self._starts) - len(runs)
        seen = runs.reshape(-1, runs.shape[-1])
        seen = seen[evenly(len(seen), min(self.ROWS, len(seen)))]
        return Look(lost, float(self._each([seen])[0]) if len(seen) else float("inf"))


def checked(guard: Guard, model: StateSpaceModel, state: TrainState, kept: TrainState) -> TrainState:
    """The state if `model`, made of it, is no worse than the best so far; else that of the last look, `kept`."""
    memory = state.guard
    assert memory is not None
    lost, distance = guard.look(model)
    best = float(memory.distance)
    worse = lost > int(memory.lost) or not distance <= FACTOR * best + MARGIN
    if worse:
        state = go_back(state, kept)
    new = GuardState(
        lost=jnp.minimum(memory.lost, lost),
        distance=jnp.asarray(np.fmin(best, distance), memory.distance.dtype),
        sent_back=memory.sent_back + int(worse),
    )
    return eqx.tree_at(lambda state: state.guard, state, new)


def go_back(state: TrainState, kept: TrainState) -> TrainState:
    """Parameters, moments and averages of `kept`, and the counts of `state`: learning rates go on falling."""

    def choose(now: Array, then: Array) -> Array:
        return now if jnp.issubdtype(now.dtype, jnp.integer) else then

    def both(state: TrainState) -> PyTree:
        return state.parameters, state.optimiser

    return eqx.tree_at(both, state, jax.tree.map(choose, both(state), both(kept)))


# Bounded rollouts: the box of filtered training states around a trained core.


NUM_WINDOWS = 64
WINDOW_ROWS = 256


def state_range(
    model: StateSpaceModel, series: Series, recursion: Recursion, *, seed: int = 0
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Lowest and highest filtered mean of every latent coordinate over windows of a standardised series.

    Steps at which the filter fails do not count; a coordinate without any other is unbounded.
    """
    sampler = training_windows(series, min(WINDOW_ROWS, max(series.lengths)), model.dtype)
    batch = sampler.sample(jax.random.key(seed), NUM_WINDOWS)
    means = np.asarray(run_filter(model.exact(), batch.observations, batch.mask, recursion).mean)
    means = means.reshape(-1, means.shape[-1])
    finite = np.isfinite(means)
    known = finite.any(axis=0)
    low = np.where(known, np.where(finite, means, np.inf).min(axis=0), -np.inf)
    high = np.where(known, np.where(finite, means, -np.inf).max(axis=0), np.inf)
    return low, high


def confined(model: StateSpaceModel, series: Series, recursion: Recursion, *, margin: float = 0.25) -> StateSpaceModel:
    """The model with its core confined to the range of filtered states, widened by `margin` of it on both sides."""
    low, high = state_range(model, series, recursion)
    with np.errstate(invalid="ignore"):
        width = np.where(np.isfinite(high - low), margin * (high - low), 0.0)
    core = model.core.inner if isinstance(model.core, Confined) else model.core
    box = (jnp.asarray(edge, model.dtype) for edge in (low - width, high + width))
    return model.replace(core=Confined(core, *box))
