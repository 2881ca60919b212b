"""Which delays an in-context map should read: forecasts with each set of lags, and with those that are chosen.

    python -m benchmarks.delays [--systems 10] [--noise 10] [--rows 512] [--corpus FILE.npz]

    driven    x'' = -d x' + a x - b x^3 + c x^2 + F cos(w t) with random coefficients, of which x, x' and the cosine are
              read: no state, since the cosine does not tell the phase
    states    discovered flows of three dimensions (`benchmarks.corpus`), all coordinates read; with --corpus only

Rows are 1/30 of a Lyapunov time apart, or 1/8 of the drive's or 1/6 of the flow's period where that is less. Scores are
VPT of the map's trajectory from the last smoothed rows, as in `benchmarks.zeroshot`.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks.corpus import generate
from benchmarks.draws import simulate
from benchmarks.zeroshot import PER_LYAPUNOV_TIME, valid_time
from kaffee.data.series import Series
from kaffee.foundation.incontext import ContextReading, ContextSettings, denoise

LAGS = ((0,), (0, 1), (0, 1, 2))
LONGEST, AHEAD, CANDIDATES = 512, 300, 3000
LEAST_EXPONENT, STEP = 0.06, 0.03


class Case(NamedTuple):
    """Rows of a context and of what follows, and how many of them are in a Lyapunov time."""

    rows: Float[np.ndarray, "T N"]
    per_time: float


def driven(count: int, seed: int) -> list[Case]:
    """Search chaotic driven oscillators with random coefficients and sample them."""
    rng = np.random.default_rng(seed)
    ranges = ((0.05, 0.5), (-2.0, 2.0), (0.2, 1.5), (-1.0, 1.0), (0.2, 3.0), (0.4, 2.0))
    p = np.array([rng.uniform(*bounds, CANDIDATES) for bounds in ranges])

    def slope(s: np.ndarray, t: np.ndarray, p: np.ndarray) -> np.ndarray:
        (x, y), (d, a, b, c, F, w) = s, p
        return np.array([y, -d * y + a * x - b * x**3 + c * x**2 + F * np.cos(w * t)])

    def step(s: np.ndarray, t: np.ndarray, h: np.ndarray, p: np.ndarray) -> np.ndarray:
        k1 = slope(s, t, p)
        k2 = slope(s + h / 2 * k1, t + h / 2, p)
        k3 = slope(s + h / 2 * k2, t + h / 2, p)
        return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(s + h * k3, t + h, p))

    s, t, h = rng.normal(0.0, 0.5, (2, CANDIDATES)), np.zeros(CANDIDATES), np.full(CANDIDATES, STEP)
    apart, growth, steps = 1e-6, np.zeros(CANDIDATES), 6000
    for _ in range(steps // 2):
        s, t = step(s, t, h, p), t + h
    other = s + apart * np.array([[1.0], [0.0]])
    for i in range(steps):
        s, other, t = step(s, t, h, p), step(other, t, h, p), t + h
        if i % 20 == 19:
            distance = np.linalg.norm(other - s, axis=0)
            growth, other = growth + np.log(distance / apart), s + apart * (other - s) / distance
    exponent = growth / (steps * STEP)
    found = np.flatnonzero(exponent > LEAST_EXPONENT)[:count]
    s, t, p, exponent = s[:, found], t[found], p[:, found], exponent[found]
    interval, inner, rows = np.minimum(1 / (PER_LYAPUNOV_TIME * exponent), 2 * np.pi / p[5] / 8), 30, []
    for _ in range(LONGEST + AHEAD):
        for _ in range(inner):
            s, t = step(s, t, interval / inner, p), t + interval / inner
        rows.append([s[0], s[1], np.cos(p[5] * t)])
    every = np.array(rows).transpose(2, 0, 1)
    return [Case(x, 1 / (e * dt)) for x, e, dt in zip(every, exponent, interval, strict=True)]


def flows(count: int, seed: int, path: Path) -> list[Case]:
    """Sample discovered chaotic flows of three dimensions."""
    systems = [s for s in generate(seed, 90, 60, path=path) if s.is_chaotic and s.dimension == 3 and not s.is_map]
    systems = systems[:count]
    intervals = [min(1 / (PER_LYAPUNOV_TIME * s.exponent), s.period / 6) for s in systems]
    paths = simulate(systems, [s.states[0] for s in systems], intervals, [LONGEST + AHEAD] * len(systems))
    return [Case(x, 1 / (s.exponent * dt)) for x, s, dt in zip(paths, systems, intervals, strict=True)]


def follow(reading: ContextReading, num_steps: int) -> Float[np.ndarray, "H N"]:
    """Iterate the map from the last smoothed rows, in units of the context's deviation."""
    [states], lags = reading.smoothed.mean, reading.lags
    low, high = states.min(axis=0) - 0.5, states.max(axis=0) + 0.5
    path = list(states[-1 - lags[-1] :])
    for _ in range(num_steps):
        u = np.concatenate([path[-1 - lag] for lag in lags])
        path.append(np.clip(reading.regression(u[None])[0], low, high))
    return np.array(path[-num_steps:])


def score(case: Case, rows: int, noise: float, seed: int) -> list[float]:
    """Compute VPT with every set of lags, then with the chosen one, and how many lags that has."""
    context, truth = case.rows[LONGEST - rows : LONGEST], case.rows[LONGEST:]
    std = context.std(axis=0)
    series = Series.from_arrays(context + noise * std * np.random.default_rng(seed).standard_normal(context.shape))
    found = []
    for lags in (*LAGS, None):
        *_, reading = denoise(series, ContextSettings(lags=lags))
        ahead = reading.scaler.inverse(follow(reading, len(truth)))
        found.append(valid_time(truth, ahead, std) * PER_LYAPUNOV_TIME / case.per_time)
    return [*found, len(reading.lags)]


def main() -> None:
    """Print medians and means over systems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=10)
    parser.add_argument("--noise", type=float, default=10.0, help="percent of the context's standard deviation")
    parser.add_argument("--rows", type=int, default=LONGEST)
    parser.add_argument("--corpus", type=Path, help="npz file of discovered systems, written if it is not there")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    kinds = {"driven": driven(given.systems, given.seed)}
    if given.corpus is not None:
        kinds["states"] = flows(given.systems, given.seed, given.corpus)
    for name, cases in kinds.items():
        found = np.array([score(case, given.rows, given.noise / 100, i) for i, case in enumerate(cases)])
        print(f"{name}, {len(cases)} systems, {given.rows} rows, {given.noise:g} % noise: VPT, median and mean")
        for label, values in zip((*map(str, LAGS), "chosen"), found.T, strict=False):
            print(f"  {label:10s} {np.median(values):.2f} {values.mean():.2f}")
        print(
            f"  chosen lags: {np.bincount(found[:, -1].astype(int), minlength=4)[1:].tolist()} of 1, 2, 3", flush=True
        )


if __name__ == "__main__":
    main()
