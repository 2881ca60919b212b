"""Basins: where runs of a core end that start on a grid, and what they end on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from kaffee.errors import ConfigError, unknown
from kaffee.filtering.likelihood import start_state
from kaffee.filtering.rollout import DIVERGENCE_BOUND
from kaffee.model.core import Core
from kaffee.model.statespace import StateSpaceModel
from kaffee.theory.fixed_points import Cycle, solve_cycle, widen

TAIL = 400
"""Last states of a run that are looked at; cycles of up to half as many are recognised."""
DIVERGED, OUTSIDE, MOVING = "diverged", "outside the data's region", "moving set"
"""Ends of runs that are on no cycle; the last is chaotic, quasi-periodic or a slow transient."""
_AT_CYCLE = 1e-3  # standardised units
_STILL = 1e-6
_REACH = 0.25  # of the range of training states, beyond it on both sides


class Ends(NamedTuple):
    """The last states of runs, in float64; those of a run that diverged are NaN."""

    tails: Float[np.ndarray, "S L M"]
    outside: Float[np.ndarray, " S"]

    @property
    def diverged(self) -> np.ndarray:
        """Mark runs that left for good."""
        return ~np.isfinite(self.tails).all(axis=(1, 2))


def follow(core: Core, starts: Float[np.ndarray, "S M"], num_steps: int, *, tail: int | None = None) -> Ends:
    """Run a core from states for `num_steps`, and keep the last ones; a confined core is held at its wall.

    Args:
        tail: How many; None: 400, but at most half of them.
    """
    tail = min(TAIL, num_steps // 2) if tail is None else tail
    with jax.enable_x64(True):
        wide = widen(core.without_noise().exact())
        tails, outside = _run_tails(wide, jnp.asarray(starts, jnp.float64), num_steps - tail, tail)
        states, share = np.asarray(tails, np.float64), np.asarray(outside, np.float64)
    away: np.ndarray = ~np.all(np.abs(states) < DIVERGENCE_BOUND, axis=(1, 2))
    return Ends(np.where(away[:, None, None], np.nan, states), share)


@eqx.filter_jit
def _run_tails(
    core: Core, starts: Float[Array, "S M"], transient: int, tail: int
) -> tuple[Float[Array, "S L M"], Float[Array, " S"]]:
    step = core.stepper()

    def advance(z: Array) -> Array:
        # Infinity times zero is NaN in a product of matrices and stays it; a bound keeps diverged runs recognisable.
        return jnp.clip(step(z).astype(z.dtype), -10.0 * DIVERGENCE_BOUND, 10.0 * DIVERGENCE_BOUND)

    z = jax.lax.fori_loop(0, transient, lambda _, z: advance(z), starts)

    def keep(z: Array, _: None) -> tuple[Array, Array]:
        z = advance(z)
        return z, z

    _, states = jax.lax.scan(keep, z, None, length=tail)
    outside = jnp.mean(~core.contains(states), axis=0)
    return jnp.swapaxes(states, 0, 1), outside


def _find_period(tail: Float[np.ndarray, "L M"]) -> int:
    """Find the smallest k with |z_{t+k} - z_t| small at all times; 0 if there is none up to half the length.

    >>> _find_period(np.tile([[0.0], [1.0], [3.0]], (4, 1))), _find_period(np.arange(8.0)[:, None])
    (3, 0)
    """
    if not np.isfinite(tail).all():
        return 0
    limit = _STILL * (1.0 + np.abs(tail).max())
    close = (k for k in range(1, len(tail) // 2 + 1) if np.abs(tail[k:] - tail[:-k]).max() <= limit)
    return next(close, 0)


def find_reached_cycles(core: Core, ends: Ends, known: Sequence[Cycle]) -> list[Cycle]:
    """Solve for the cycles that runs reached and that are not known yet."""
    found: list[Cycle] = []
    for tail in ends.tails:
        period = 0 if _nearest([*known, *found], tail) is not None else _find_period(tail)
        cycle = solve_cycle(core, tail[-period:]) if period else None
        if cycle is not None:
            found.append(cycle)
    return found


def label_ends(ends: Ends, cycles: Sequence[Cycle], names: Sequence[str]) -> list[str]:
    """Name what each run ended on: a cycle, by its name, or one of `DIVERGED, OUTSIDE, MOVING`."""
    labels = []
    for tail, outside in zip(ends.tails, ends.outside, strict=True):
        at = _nearest(cycles, tail)
        if not np.isfinite(tail).all():
            labels.append(DIVERGED)
        elif at is not None:
            labels.append(names[at])
        else:
            labels.append(OUTSIDE if outside > 0.1 else MOVING)
    return labels


def _nearest(cycles: Sequence[Cycle], tail: Float[np.ndarray, "L M"]) -> int | None:
    """Return the number of the cycle that a run follows: a stable one in its last round, any other in its whole tail.

    Runs pass by what is not stable; only those that start on its stable manifold, such as an axis, end there.
    """
    for i, cycle in enumerate(cycles):
        if cycle.inside and cycle.order <= len(tail):
            last = tail[-cycle.order :] if cycle.stability == "stable" else tail
            gaps = np.abs(last[:, None] - cycle.states[None]).max(axis=2)
            if gaps.min(axis=1).max() <= _AT_CYCLE:
                return i
    return None


@dataclass(frozen=True, eq=False)
class Basins:
    """What runs end on that start on a grid of two observed coordinates, the others at the mean of the data.

    Attributes:
        plane: Names of the two coordinates.
        x, y: Values of the grid, in the units of the model's scaler.
        labels: Index into `names` for each y (rows) and x (columns).
        names: Of what runs ended on.
    """

    plane: tuple[str, str]
    x: Float[np.ndarray, " G"]
    y: Float[np.ndarray, " G"]
    labels: Int[np.ndarray, "G G"]
    names: tuple[str, ...]

    def shares(self) -> dict[str, float]:
        """Return the share of the grid that ends on each."""
        return {name: float((self.labels == i).mean()) for i, name in enumerate(self.names)}


class Grid(NamedTuple):
    """Starts on a slice through two observed coordinates, standardised."""

    plane: tuple[int, int]
    x: Float[np.ndarray, " G"]
    y: Float[np.ndarray, " G"]
    states: Float[np.ndarray, "S M"]


def choose_plane(plane: Sequence[str] | None, columns: Sequence[str]) -> tuple[int, int] | None:
    """Return the numbers of the coordinates of a slice; by default the first two, None if there is only one."""
    if plane is None:
        return (0, 1) if len(columns) > 1 else None
    for name in plane:
        if name not in columns:
            raise ConfigError(unknown("coordinate", name, columns))
    if len(plane) != 2 or plane[0] == plane[1]:
        raise ConfigError(f"A slice has two different coordinates, such as {', '.join(columns[:2])}; got {plane}.")
    return columns.index(plane[0]), columns.index(plane[1])


def make_grid(model: StateSpaceModel, plane: tuple[int, int], size: int) -> Grid:
    """Lay a grid over the range of training states, a quarter wider on each side, or over +-3 without a climate."""
    if size < 2:
        raise ConfigError(f"A grid of {size} x {size} starts shows no basins. Give at least 2.")
    i, j = plane
    if model.climate is None:
        axes = [np.linspace(-3.0, 3.0, size)] * 2
    else:
        seen = np.asarray(model.observation.observe(model.climate.states), np.float64)[:, [i, j]]
        low, high = seen.min(axis=0), seen.max(axis=0)
        room = np.where(high > low, _REACH * (high - low), 1.0)
        axes = [np.linspace(low[a] - room[a], high[a] + room[a], size) for a in range(2)]
    x = np.zeros((size, size, model.num_observed))
    x[..., i], x[..., j] = axes[0][None, :], axes[1][:, None]
    states = _embed_rows(model, x.reshape(-1, model.num_observed))
    return Grid(plane, axes[0], axes[1], states)


def _embed_rows(model: StateSpaceModel, x: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S M"]:
    """Return the latent states of observations, in batches: the climate's states are compared with each."""
    parts = np.array_split(x, max(math.ceil(len(x) / 500), 1))
    return np.concatenate(
        [np.asarray(start_state(model, jnp.asarray(part, model.dtype)), np.float64) for part in parts]
    )
