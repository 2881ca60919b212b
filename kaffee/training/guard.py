"""The guard, which rolls back updates that make free runs or forecasts worse, and the box around a trained core.

A likelihood of short windows hardly sees what a free run does after thousands of steps: it may rest or circle in a
small part of the attractor (core collapse, section 4); and a likelihood of few rows does not see that it learns them by
heart. The guard rolls back to the parameters of its last look if free runs or forecasts of held-back rows have become
worse; the schedule of learning rates goes on, so that later steps from there are smaller.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.data.gaps import complete, complete_rows, constant_columns, evenly, stretches
from kaffee.data.series import Series
from kaffee.data.windows import group_rows, training_windows
from kaffee.filtering.evaluation import Target, evaluate_free_runs
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import make_core_key
from kaffee.filtering.sweep import run_filter
from kaffee.model.inputs import InputRuns
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import Confined
from kaffee.training.update import GuardState, TrainState

# A distance of up to FACTOR times the best so far and MARGIN nats is no worse: it differs from look to look.
FACTOR, MARGIN = 2.0, 0.25
LOST_MARGIN = 1  # of 20 runs without and 20 with noise, one may be lost by chance
NUM_WINDOWS, WINDOW_ROWS = 64, 256  # windows of training data whose filtered states a core is confined to
# Nats per entry by which forecasts of held-back rows may be worse than the best so far; and how many looks in a row may
# find them worse before training stops.
NLL_MARGIN, PATIENCE = 0.02, 8


class _Look(NamedTuple):
    """What a guard sees of a model.

    Attributes:
        lost: Number of free runs that diverge, stay in a part of the attractor or live at a wall.
        distance: Nats from the data of the others, or infinite.
        nll: Of forecasts of held-back rows, if there are any.
        noisy: Nats from the data of runs with noise.
    """

    lost: int
    distance: float
    nll: float = 0.0
    noisy: float = 0.0


class Guard(Protocol):
    """Looks at a model every `every` updates, and at the end of training."""

    @property
    def every(self) -> int: ...

    def look(self, model: StateSpaceModel, /) -> _Look: ...


class FreeRunGuard:
    """Looks at free runs of the core from rows of a standardised series, as `finish` leaves it when training ends.

    A run is lost if it diverges, stays in a part of the attractor, rests at its end, repeats itself where the data do
    not (`kaffee.metrics.attractors`), or lives at the wall that the core is confined to. Runs with the shell's noise on
    are counted as well: noise may kick a core that is right out of the data's region. The distance is D_stsp, by kernel
    densities, of all other runs of the bare core together from the rows of the series. A driven core runs with recorded
    inputs, those of the series again and again.
    """

    RUNS, STEPS, KEPT, ROWS, SEED = 20, 20_000, 1_000, 5_000, 0
    LEAST_ROWS, TIMES = 200, 10

    def __init__(
        self,
        series: Series,
        every: int,
        finish: Callable[[StateSpaceModel], StateSpaceModel] = lambda model: model,
        score: Callable[[StateSpaceModel], float] | None = None,
    ) -> None:
        self.every, self._finish, self._score = every, finish, score
        rows = complete_rows(series)
        self._length = min(self.KEPT, max(series.lengths))
        # What few rows know of an attractor does not take the longest runs to see.
        self._steps = min(self.STEPS, max(self.TIMES * len(rows), 2 * self._length))
        self._starts = rows[evenly(len(rows), self.RUNS)]
        some = rows[evenly(len(rows), min(self.ROWS, len(rows)))]
        target = Target(some, "kernel", spectra=False, columns=~constant_columns(rows))
        known = [part for values in series.recordings for part in stretches(values)]
        delayed = target.with_delays(known)
        if delayed.delays is not None:
            past = np.concatenate([delayed.delays.embed(part[:, target.columns]) for part in known])
            if len(past) >= self.LEAST_ROWS:
                target = replace(delayed, past=past[evenly(len(past), min(self.ROWS, len(past)))])
        self._inputs = None if series.inputs is None else series.inputs.concatenated()
        # With delays only stretches without gaps can be compared.
        whole = [complete(x) for x in series.recordings] if target.delays is None else known
        self._target = target.with_extent(whole, self._length)

    @classmethod
    def possible(cls, series: Series) -> bool:
        """Tell whether a series has enough complete rows, and any that vary."""
        rows = complete_rows(series)
        return len(rows) >= cls.LEAST_ROWS and not constant_columns(rows).all()

    def look(self, model: StateSpaceModel) -> _Look:
        """Count lost runs of the finished model, without and with noise, and measure the distance of its core's."""
        model = self._finish(model)
        how: dict[str, Any] = {
            "transient": self._steps - self._length,
            "core_key": make_core_key(model.core, self.SEED),
        }
        if self._inputs is not None and model.input_dim:
            how["inputs"] = InputRuns.spread(self._inputs, len(self._starts), model.dtype)
        noise = jax.random.key(self.SEED)
        bare, noisy = (
            evaluate_free_runs(model, self._starts, self._target, self._length, key=key, **how) for key in (None, noise)
        )
        lost = bare.trapped | bare.at_wall | (bare.find_periods(noisy) > 0)
        kicked = noisy.trapped | noisy.at_wall
        num_lost = bare.num_diverged + noisy.num_diverged + int(lost.sum()) + int(kicked.sum())
        nll = 0.0 if self._score is None else self._score(model)
        core, shell = (
            self._target.measure_together(runs.observations[~away], self.ROWS)
            for runs, away in ((bare, lost), (noisy, kicked))
        )
        return _Look(num_lost, core, nll, shell)


class ScoreGuard:
    """Looks at a score of held-back rows alone."""

    def __init__(self, every: int, score: Callable[[StateSpaceModel], float]) -> None:
        self.every, self._score = every, score

    def look(self, model: StateSpaceModel) -> _Look:
        """Return the score."""
        return _Look(0, 0.0, self._score(model))


def apply_guard(guard: Guard, model: StateSpaceModel, state: TrainState, kept: TrainState) -> TrainState:
    """Return `state` if its model is no worse than the best so far; else roll back to that of the last look, `kept`."""
    memory = state.guard
    assert memory is not None
    lost, distance, nll, _ = guard.look(model)
    best, lowest = float(memory.distance), float(memory.nll)
    overfitted = not nll <= lowest + NLL_MARGIN
    worse = overfitted or lost > int(memory.lost) + LOST_MARGIN or not distance <= FACTOR * best + MARGIN
    new = GuardState(
        lost=jnp.minimum(memory.lost, lost),
        distance=jnp.asarray(np.fmin(best, distance), memory.distance.dtype),
        sent_back=memory.sent_back + int(worse),
        nll=jnp.asarray(np.fmin(lowest, nll), memory.nll.dtype),
        in_a_row=(memory.in_a_row + 1) * int(overfitted),
    )
    return eqx.tree_at(lambda state: state.guard, _roll_back(state, kept) if worse else state, new)


def _roll_back(state: TrainState, kept: TrainState) -> TrainState:
    """Take parameters, moments and averages of `kept`, but the counts of `state`: learning rates go on falling."""
    now, then = ((each.parameters, each.optimiser) for each in (state, kept))
    chosen = jax.tree.map(lambda a, b: a if jnp.issubdtype(a.dtype, jnp.integer) else b, now, then)
    return eqx.tree_at(lambda each: (each.parameters, each.optimiser), state, chosen)


def _state_range(
    model: StateSpaceModel, series: Series, recursion: Recursion, *, seed: int = 0
) -> tuple[Float[np.ndarray, " M"], Float[np.ndarray, " M"]]:
    """Return the lowest and highest filtered mean of every latent coordinate over windows of a standardised series.

    Steps at which the filter fails do not count; a coordinate without any other is unbounded.
    """
    sampler = training_windows(series, min(WINDOW_ROWS, max(series.lengths)), model.dtype)
    batch = sampler.sample(jax.random.key(seed), NUM_WINDOWS)
    local = model.select(jnp.asarray(group_rows(series))[batch.starts]) if model.num_groups else model
    means = np.asarray(run_filter(local.exact(), batch.observations, batch.mask, recursion).mean)
    means = means.reshape(-1, means.shape[-1])
    finite = np.isfinite(means)
    known = finite.any(axis=0)
    low = np.where(known, np.where(finite, means, np.inf).min(axis=0), -np.inf)
    return low, np.where(known, np.where(finite, means, -np.inf).max(axis=0), np.inf)


def confine(model: StateSpaceModel, series: Series, recursion: Recursion, *, margin: float = 0.25) -> StateSpaceModel:
    """Confine the core of a model to the range of filtered states, widened by `margin` of it on both sides."""
    low, high = _state_range(model, series, recursion)
    with np.errstate(invalid="ignore"):
        width = np.where(np.isfinite(high - low), margin * (high - low), 0.0)
    core = model.core.inner if isinstance(model.core, Confined) else model.core
    box = (jnp.asarray(edge, model.dtype) for edge in (low - width, high + width))
    return model.replace(core=Confined(core, *box))
