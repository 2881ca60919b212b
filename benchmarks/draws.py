"""Draw recordings from discovered systems: what a user of the in-context core could have measured.

A recording has a context, which a model sees, and what follows. Its length, sampling rate, observed coordinates, noise
and gaps are drawn from `Conditions`; a condition is fixed by a range of one value, `Conditions(noise=(0.1, 0.1), ...)`.
Recordings of many systems are integrated together, so `draw_many` is much faster than as many calls of `draw`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.discovery import BOX, Batch, System

CHUNK = 64
"""Recordings that are integrated together."""
UNSETTLED = ("spiral", "oscillator")
"""Kinds whose stored states are starts as they are."""


@dataclass(frozen=True)
class Conditions:
    """Ranges from which the conditions of a recording are drawn, and shares of recordings that have them.

    lengths:            numbers of rows K of the context.
    horizon:            rows that follow.
    rows_per_period:    of all kinds, log-uniform; a map has one row per step.
    rows_per_lyapunov:  half of the chaotic recordings are sampled by lambda_1 instead, within the former range.
    least_periods:      periods that a context has at least: bounds the sampling rate of short contexts.
    noise:              observation noise in standard deviations of the clean context, uniform.
    clean:              share of recordings without observation noise.
    process:            process noise per square root of a period in standard deviations, log-uniform.
    disturbed:          share of recordings with process noise beside that of the system itself.
    gaps:               share of recordings with missing entries, in half of them as blocks of whole rows.
    missing:            share of missing entries where there are gaps, uniform.
    univariate:         share of recordings of one coordinate.
    mixed:              share of recordings whose standardised coordinates were rotated and scaled at random.
    """

    lengths: tuple[int, ...] = (128, 256, 512, 1000, 2000)
    horizon: int = 300
    rows_per_period: tuple[float, float] = (10.0, 300.0)
    rows_per_lyapunov: tuple[float, float] = (10.0, 100.0)
    least_periods: float = 3.0
    noise: tuple[float, float] = (0.0, 0.3)
    clean: float = 0.25
    process: tuple[float, float] = (0.003, 0.05)
    disturbed: float = 0.2
    gaps: float = 0.2
    missing: tuple[float, float] = (0.02, 0.3)
    univariate: float = 0.3
    mixed: float = 0.3


@dataclass(frozen=True)
class Recording:
    """A recording of K rows and N coordinates, and what follows.

    context, future:             (K, N) and (horizon, N) readings; missing entries of the context are NaN.
    clean_context, clean_future: the same without observation noise and gaps, but with process noise.
    rows_per_time:               rows per Lyapunov time of a chaotic system, else per period.
    noise:                       observation noise in standard deviations of the clean context, per coordinate.
    process:                     process noise per square root of a period in standard deviations of the states.
    """

    context: np.ndarray
    future: np.ndarray
    clean_context: np.ndarray
    clean_future: np.ndarray
    rows_per_time: float
    rows_per_period: float
    noise: float
    process: float
    kind: str


@dataclass(frozen=True)
class _Plan:
    system: System
    start: np.ndarray
    length: int
    rows_per_period: float
    process: float
    disturbance: np.ndarray  # (rows, D), of standard deviation 1
    seed: np.random.Generator


def simulate(
    systems: Sequence[System],
    starts: Sequence[np.ndarray],
    intervals: Sequence[float],
    rows: Sequence[int],
    disturbances: Sequence[np.ndarray | None] | None = None,
) -> list[np.ndarray]:
    """Simulate systems from their starts and return (rows, D) states each, the start excluded.

    intervals:    time between rows; whatever it is, steps are no longer than the system's own.
    disturbances: (rows, D) that are added to the states row by row.
    """
    groups = defaultdict(list)
    for i, system in enumerate(systems):
        inner = 1 if system.is_map else int(np.ceil(intervals[i] / system.step - 1e-9))
        groups[system.dimension, system.is_map].append((inner, rows[i], i))
    results: dict[int, np.ndarray] = {}
    for (dimension, is_map), members in groups.items():
        # Neighbours in this order need about as many steps, so that little is integrated in vain.
        members.sort()
        for first in range(0, len(members), CHUNK):
            chunk = members[first : first + CHUNK]
            inner, most = max(member[0] for member in chunk), max(member[1] for member in chunk)
            chosen = [i for _, _, i in chunk]
            kicks = np.zeros((most, dimension, len(chosen)))
            for b, i in enumerate(chosen):
                if disturbances is not None and disturbances[i] is not None:
                    kicks[: rows[i], :, b] = disturbances[i]
            batch = Batch(np.array([systems[i].coefficients for i in chosen]), is_map)
            step = np.array([intervals[i] for i in chosen]) / inner
            x, path = np.array([starts[i] for i in chosen]).T, np.empty_like(kicks)
            with np.errstate(over="ignore", invalid="ignore"):
                for t in range(most):
                    for _ in range(inner):
                        x = batch.step(x, step)
                    path[t] = x = x + kicks[t]
            for b, i in enumerate(chosen):
                results[i] = path[: rows[i], :, b].copy()
    return [results[i] for i in range(len(systems))]


def draw(system: System, rng: np.random.Generator, conditions: Conditions = Conditions()) -> Recording:
    """Draw one recording of a system."""
    return draw_many([system], rng, conditions)[0]


def draw_many(
    systems: Sequence[System],
    rng: np.random.Generator,
    conditions: Conditions = Conditions(),
) -> list[Recording]:
    """Draw one recording of each system; name a system twice to have two.

    A trajectory that a disturbance drove out of its basin is replaced by an undisturbed one.
    """
    plans = _settle(
        [_plan(system, child, conditions) for system, child in zip(systems, rng.spawn(len(systems)), strict=True)]
    )
    paths = _run(plans)
    lost = [i for i, path in enumerate(paths) if not (np.abs(path) < BOX).all()]
    for i in lost:
        state = plans[i].system.states[plans[i].seed.integers(len(plans[i].system.states))]
        plans[i] = replace(plans[i], start=state, process=plans[i].system.process)
    for i, path in zip(lost, _run([plans[i] for i in lost]), strict=True):
        paths[i] = path
    return [_observe(plan, path, conditions) for plan, path in zip(plans, paths, strict=True)]


def _log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(bounds))))


def _plan(system: System, rng: np.random.Generator, conditions: Conditions) -> _Plan:
    length = int(rng.choice(conditions.lengths))
    rows = _log_uniform(rng, conditions.rows_per_period)
    if system.is_chaotic and rng.random() < 0.5:
        rows = _log_uniform(rng, conditions.rows_per_lyapunov) * system.exponent * system.period
    low, high = conditions.rows_per_period
    rows = 1.0 if system.is_map else float(np.clip(rows, low, max(low, min(high, length / conditions.least_periods))))
    process = system.process
    if rng.random() < conditions.disturbed:
        process = float(np.hypot(process, _log_uniform(rng, conditions.process)))
    return _Plan(
        system=system,
        start=system.states[rng.integers(len(system.states))],
        length=length,
        rows_per_period=rows,
        process=process,
        disturbance=rng.normal(size=(length + conditions.horizon, system.dimension)),
        seed=rng,
    )


def _settle(plans: list[_Plan]) -> list[_Plan]:
    """Move starts by a random time from a point near the stored state, so that no two recordings share a trajectory."""
    settled = [plan for plan in plans if plan.system.kind not in UNSETTLED]
    starts = [plan.start + 1e-3 * plan.system.scale * plan.seed.normal(size=plan.start.shape) for plan in settled]
    times = [1.0 if plan.system.is_map else plan.seed.uniform(0.3, 1.0) * plan.system.period for plan in settled]
    paths = iter(simulate([plan.system for plan in settled], starts, times, [20] * len(settled)))
    return [plan if plan.system.kind in UNSETTLED else replace(plan, start=next(paths)[-1]) for plan in plans]


def _run(plans: list[_Plan]) -> list[np.ndarray]:
    return simulate(
        [plan.system for plan in plans],
        [plan.start for plan in plans],
        [plan.system.period / plan.rows_per_period for plan in plans],
        [len(plan.disturbance) for plan in plans],
        [
            plan.process / np.sqrt(plan.rows_per_period) * plan.system.scale * plan.disturbance
            if plan.process
            else None
            for plan in plans
        ],
    )


def _observe(plan: _Plan, states: np.ndarray, conditions: Conditions) -> Recording:
    rng, system = plan.seed, plan.system
    if rng.random() < conditions.mixed:
        turn, _ = np.linalg.qr(rng.normal(size=(system.dimension, system.dimension)))
        states = states / system.scale @ turn * np.exp(rng.normal(size=system.dimension))
    if rng.random() < conditions.univariate:
        states = states[:, [rng.integers(system.dimension)]]
    clean_context, clean_future = states[: plan.length], states[plan.length :]
    noise = 0.0 if rng.random() < conditions.clean else float(rng.uniform(*conditions.noise))
    readings = states + noise * clean_context.std(axis=0) * rng.normal(size=states.shape)
    context, future = readings[: plan.length].copy(), readings[plan.length :]
    if rng.random() < conditions.gaps:
        context[_gaps(rng, context.shape, rng.uniform(*conditions.missing))] = np.nan
    time = 1 / (system.exponent * system.period) if system.is_chaotic else 1.0
    return Recording(
        context=context,
        future=future,
        clean_context=clean_context,
        clean_future=clean_future,
        rows_per_time=plan.rows_per_period * time,
        rows_per_period=plan.rows_per_period,
        noise=noise,
        process=plan.process,
        kind=system.kind,
    )


def _gaps(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> np.ndarray:
    """Choose entries, or in half of the cases one to three blocks of rows, that are about `share` of all."""
    if rng.random() < 0.5:
        return rng.random(shape) < share
    missing = np.zeros(shape, dtype=bool)
    blocks = rng.integers(1, 4)
    size = max(1, round(share * shape[0] / blocks))
    for start in rng.integers(0, shape[0] - size, size=blocks):
        missing[start : start + size] = True
    return missing
