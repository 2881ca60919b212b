"""Analyse what a model has learned: fixed points, cycles, Lyapunov exponents, basins, and how refits agree on them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.gaps import evenly
from kaffee.data.scaler import Scaler
from kaffee.data.validation import check_count
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import start_state
from kaffee.fitting.run import load
from kaffee.inference.matching import model_columns
from kaffee.metrics.lyapunov import LyapunovSpectrum, lyapunov_spectrum
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import jsonable
from kaffee.theory.basins import (
    DIVERGED,
    MOVING,
    OUTSIDE,
    Basins,
    Grid,
    choose_plane,
    find_reached_cycles,
    follow,
    label_ends,
    make_grid,
)
from kaffee.theory.fixed_points import Cycle, find_cycles, unwrap, widen

MAX_EXPONENTS = 50
NEAR = 0.5
"""Root mean square of standardised distances within which points of two refits may be the same."""
_MAX_SHOWN = 5_000


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a model has learned; latent states are standardised, `observe` gives data units.

    Attributes:
        core: Class of the core, without its box.
        method: "regions" (exact) or "newton".
        complete: For each order whether all cycles of it were found (every sequence of regions was tried).
        cycles: Fixed points first, then by order.
        ends: Share of the starts, states of training data, whose runs end on each.
        measured: What most runs that do not diverge end on; None if all diverge.
        spectrum: Lyapunov exponents per unit time of a run on it; None if there is none.
        free_run: That run, in data units.
        refits: Analyses of other fits of the same data.
    """

    columns: tuple[str, ...]
    dt: float
    core: str
    latent_dim: int
    method: str
    complete: Mapping[int, bool]
    cycles: tuple[Cycle, ...]
    ends: Mapping[str, float]
    measured: str | None
    spectrum: LyapunovSpectrum | None
    free_run: Float[np.ndarray, "T N"]
    basins: Basins | None
    observation: Float[np.ndarray, "N M"]
    scaler: Scaler
    seed: int
    refits: tuple["Analysis", ...] = field(default=())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name the cycles: "fixed point 1", ..., "2-cycle 1", ..."""
        return _name_cycles(self.cycles)

    @property
    def fixed_points(self) -> tuple[Cycle, ...]:
        """The fixed points in the data's region."""
        return tuple(cycle for cycle in self.cycles if cycle.order == 1 and cycle.inside)

    def observe(self, states: Float[np.ndarray, "... M"]) -> Float[np.ndarray, "... N"]:
        """Return latent states as observations in data units."""
        return self.scaler.inverse_signal(states @ self.observation.T)

    def to_record(self) -> dict[str, Any]:
        """Convert to JSON values, without the free run and the refits' basins."""
        spectrum, basins = self.spectrum, self.basins
        cycles = [
            {
                "name": name,
                "order": cycle.order,
                "stability": cycle.stability,
                "num_unstable": cycle.num_unstable,
                "inside": cycle.inside,
                "residual": cycle.residual,
                "observed": self.observe(cycle.states),
                "latent": cycle.states,
                "eigenvalue_moduli": np.abs(cycle.eigenvalues),
                "eigenvalue_angles": np.angle(cycle.eigenvalues),
            }
            for name, cycle in zip(self.names, self.cycles, strict=True)
        ]
        exponents = spectrum and {
            "values": spectrum.exponents,
            "standard_errors": spectrum.standard_errors,
            "kaplan_yorke_dimension": spectrum.kaplan_yorke_dimension,
            "num_steps": spectrum.num_steps,
        }
        record = {
            "core": self.core,
            "latent_dim": self.latent_dim,
            "columns": self.columns,
            "dt": self.dt,
            "seed": self.seed,
            "method": self.method,
            "complete": self.complete,
            "cycles": cycles,
            "ends": self.ends,
            "measured": self.measured,
            "exponents": exponents,
            "basins": basins and {**vars(basins), "shares": basins.shares()},
        }
        if self.refits:
            spread = compare_analyses([self, *self.refits])
            record["spread"] = spread
            record["refits"] = [{**each.to_record(), "basins": None} for each in self.refits]
        return jsonable(record)


def _name_cycles(cycles: Sequence[Cycle]) -> tuple[str, ...]:
    """Number cycles within their order."""
    counts: Counter[int] = Counter()
    names = []
    for cycle in cycles:
        counts[cycle.order] += 1
        kind = "fixed point" if cycle.order == 1 else f"{cycle.order}-cycle"
        names.append(f"{kind} {counts[cycle.order]}")
    return tuple(names)


def analyse(
    model: Any,
    *,
    max_order: int = 4,
    num_steps: int = 10_000,
    num_starts: int = 200,
    plane: Sequence[str] | None = None,
    grid: int | None = 40,
    refits: Sequence[Any] = (),
    seed: int = 0,
) -> Analysis:
    """Analyse what a model has learned, in float64.

        analysis = kaffee.analyse(surrogate)
        analysis.fixed_points[0].states, analysis.spectrum.exponents, analysis.basins.shares()

    Fixed points and cycles of an AL-RNN are exact, by its linear regions, and of low orders all that there are
    (`Analysis.complete`); those of other cores are what Newton's method finds from many starts. Cycles of any order up
    to 200 that runs end on are added. All is of the noise-free core; runs of a confined one are held at its wall.

    Args:
        model: A `Surrogate`, a `Reconstruction`, a `StateSpaceModel`, or the folder of a run.
        max_order: Cycles of up to so many states are searched for.
        num_steps: Steps of the run that exponents are averaged over, a tenth of it discarded; runs to basins take a
            fifth of it.
        num_starts: States of training data (without them normal observations) that runs and searches start from.
        plane: Two observed coordinates for basins; by default the first two.
        grid: Starts along each of them; None: no basins.
        refits: Other fits of the same data, in any of these forms, to compare with (`compare_analyses`).
    """
    reconstruction = _reconstruct(model)
    model, scaler, columns = reconstruction.model, reconstruction.scaler, model_columns(reconstruction)
    max_order, num_starts = check_count("max_order", max_order, 1), check_count("num_starts", num_starts, 1)
    num_steps, seed = check_count("num_steps", num_steps, 100), check_count("seed", seed, 0)
    chosen = None if grid is None else choose_plane(plane, columns)
    slice_ = None if chosen is None or grid is None else make_grid(model, chosen, grid)
    starts = _choose_starts(model, num_starts, seed)
    few = max(num_steps // 5, 100)
    ends = follow(model.core, starts, few)
    tails = ends.tails[np.isfinite(ends.tails).all(axis=(1, 2))]
    seen = np.concatenate([starts, tails[:, -1], tails[:, len(tails[0]) // 2] if len(tails) else tails[:, -1]])
    searched = [find_cycles(model.core, seen, order=order, seed=seed) for order in range(1, max_order + 1)]
    cycles = [cycle for found in searched for cycle in found.cycles]
    cycles += find_reached_cycles(model.core, ends, cycles)
    from_grid = None if slice_ is None else follow(model.core, slice_.states, few)
    if from_grid is not None:
        cycles += find_reached_cycles(model.core, from_grid, cycles)
    cycles.sort(key=lambda cycle: cycle.order)
    names = _name_cycles(cycles)
    labels = label_ends(ends, cycles, names)
    shares = {name: count / len(labels) for name, count in Counter(labels).most_common()}
    basins = None
    if slice_ is not None and from_grid is not None:
        basins = _draw_basins(slice_, label_ends(from_grid, cycles, names), columns, scaler)
    measured = next((name for name in shares if name != DIVERGED), None)
    start = None if measured is None else ends.tails[labels.index(measured), -1]
    spectrum, run = _measure_run(model, start, num_steps, reconstruction.dt)
    B = np.asarray(model.observation.matrix(), np.float64)
    offset = getattr(model.observation, "offset", None)
    if offset is not None:  # what a learned map adds is part of the units
        scaler = Scaler(scaler.mean + scaler.scale * np.asarray(offset, np.float64), scaler.scale)
    return Analysis(
        columns=tuple(columns),
        dt=reconstruction.dt,
        core=type(unwrap(model.core)).__name__,
        latent_dim=model.latent_dim,
        method=searched[0].method,
        complete={order: found.complete for order, found in enumerate(searched, start=1)},
        cycles=tuple(cycles),
        ends=shares,
        measured=measured,
        spectrum=spectrum,
        free_run=scaler.inverse_signal(run @ B.T),
        basins=basins,
        observation=B,
        scaler=scaler,
        seed=seed,
        refits=tuple(
            analyse(
                other,
                max_order=max_order,
                num_steps=num_steps,
                num_starts=num_starts,
                plane=plane,
                grid=None,
                seed=seed,
            )
            for other in refits
        ),
    )


def _reconstruct(model: Any) -> Reconstruction:
    """Return the model of a surrogate or a folder; a bare state-space model is in the units of its data."""
    if isinstance(model, str | Path):
        return load(model)
    model = getattr(model, "reconstruction_", model)
    if isinstance(model, StateSpaceModel):
        return Reconstruction(model, Scaler.identity(model.num_observed))
    if not isinstance(model, Reconstruction):
        raise ConfigError(
            f"A {type(model).__name__} cannot be analysed. Give a fitted Surrogate, what kaffee.load returns, a "
            "StateSpaceModel, or the folder of a run."
        )
    return model


def _choose_starts(model: StateSpaceModel, count: int, seed: int) -> Float[np.ndarray, "S M"]:
    """Return states of training data, or else of normal observations."""
    if model.climate is not None and len(model.climate.states) > 1:
        states = np.asarray(model.climate.states, np.float64)
        return states[evenly(len(states), min(count, len(states)))]
    x = np.random.default_rng(seed).standard_normal((count, model.num_observed))
    return np.asarray(start_state(model, jnp.asarray(x, model.dtype)), np.float64)


def _measure_run(
    model: StateSpaceModel, start: Float[np.ndarray, " M"] | None, num_steps: int, dt: float
) -> tuple[LyapunovSpectrum | None, Float[np.ndarray, "T M"]]:
    """Measure exponents along a run from a state on the attractor, and return the first steps of it."""
    if start is None:
        return None, np.zeros((0, model.latent_dim))
    run = follow(model.core, start[None], num_steps, tail=num_steps).tails[0]
    if not np.isfinite(run).all():
        return None, np.zeros((0, model.latent_dim))
    count = min(model.latent_dim, MAX_EXPONENTS)
    with jax.enable_x64(True):
        core = widen(model.core.without_noise().exact())
        spectrum = lyapunov_spectrum(core, jnp.asarray(run, jnp.float64), num_exponents=count, dt=dt)
    return spectrum, run[:_MAX_SHOWN]


def _draw_basins(grid: Grid, labels: Sequence[str], columns: Sequence[str], scaler: Scaler) -> Basins:
    (i, j), order = grid.plane, {MOVING: 1, OUTSIDE: 2, DIVERGED: 3}
    names = sorted(set(labels), key=lambda name: (order.get(name, 0), name))
    numbers = np.array([names.index(label) for label in labels]).reshape(len(grid.y), len(grid.x))
    x, y = (scaler.mean[k] + scaler.scale[k] * axis for k, axis in ((i, grid.x), (j, grid.y)))
    return Basins((columns[i], columns[j]), x, y, numbers, tuple(names))


# --- refits ---


@dataclass(frozen=True, eq=False)
class MatchedPoint:
    """A fixed point as several fits have it, in data units.

    Attributes:
        found: In how many fits.
        mean, std: Over these fits; the standard deviation of one is NaN.
        unstable: The number of unstable directions in each of them.
        radius: The largest modulus of an eigenvalue in each of them.
    """

    found: int
    mean: Float[np.ndarray, " N"]
    std: Float[np.ndarray, " N"]
    unstable: tuple[int, ...]
    radius: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Spread:
    """How analyses of several fits agree.

    Attributes:
        num_fixed_points, num_stable: In the data's region, for each fit; the second counts stable ones.
        num_cycles: Of orders above 1, in the data's region.
        points: Matched fixed points, those that most fits have first.
        leading: The largest Lyapunov exponent of each fit; NaN if its runs diverge.
        dimensions: The Kaplan-Yorke dimension of each fit.
        ends: What most runs of each fit end on.
    """

    num_fixed_points: tuple[int, ...]
    num_stable: tuple[int, ...]
    num_cycles: tuple[int, ...]
    points: tuple[MatchedPoint, ...]
    leading: tuple[float, ...]
    dimensions: tuple[float, ...]
    ends: tuple[str, ...]


def compare_analyses(analyses: Sequence[Analysis]) -> Spread:
    """Compare analyses of fits of the same data; fixed points are matched by their observed place.

    Points of each fit are assigned to those of the fits before it so that the sum of distances is smallest; a pair
    farther apart than `NEAR` is none.
    """
    scale, columns = np.asarray(analyses[0].scaler.scale), analyses[0].columns
    if other := next((each.columns for each in analyses if each.columns != columns), None):
        raise ConfigError(
            f"Fits of other columns cannot be compared: {', '.join(columns)} and {', '.join(other)}. Name fits of the "
            "same data."
        )
    groups: list[list[tuple[np.ndarray, Cycle]]] = []
    for each in analyses:
        own = [(each.observe(cycle.states[0]), cycle) for cycle in each.fixed_points]
        centres = [np.mean([place for place, _ in group], axis=0) for group in groups]
        gaps = np.array(
            [[np.sqrt(np.mean(((place - centre) / scale) ** 2)) for centre in centres] for place, _ in own]
        ).reshape(len(own), len(centres))
        rows, assigned = linear_sum_assignment(np.minimum(gaps, 10.0 * NEAR))
        joined = {row: column for row, column in zip(rows, assigned, strict=True) if gaps[row, column] <= NEAR}
        for row, point in enumerate(own):
            if row in joined:
                groups[joined[row]].append(point)
            else:
                groups.append([point])
    points = [_summarise_group(group) for group in groups]
    spectra = [each.spectrum for each in analyses]
    return Spread(
        num_fixed_points=tuple(len(each.fixed_points) for each in analyses),
        num_stable=tuple(sum(p.stability == "stable" for p in each.fixed_points) for each in analyses),
        num_cycles=tuple(sum(c.order > 1 and c.inside for c in each.cycles) for each in analyses),
        points=tuple(sorted(points, key=lambda point: -point.found)),
        leading=tuple(float("nan") if s is None else s.maximal for s in spectra),
        dimensions=tuple(float("nan") if s is None else s.kaplan_yorke_dimension for s in spectra),
        ends=tuple(next(iter(each.ends)) for each in analyses),
    )


def _summarise_group(group: Sequence[tuple[np.ndarray, Cycle]]) -> MatchedPoint:
    places = np.array([place for place, _ in group])
    std = places.std(axis=0, ddof=1) if len(group) > 1 else np.full(places.shape[1], np.nan)
    unstable = tuple(cycle.num_unstable for _, cycle in group)
    return MatchedPoint(len(group), places.mean(axis=0), std, unstable, tuple(cycle.radius for _, cycle in group))
