"""Discover dynamical systems: random polynomial flows that stay bounded, and their largest Lyapunov exponents.

A system is a polynomial of degree three or less, dx_i/dt = sum_p C_ip m_p(x) with the monomials m of `monomials`, or
the map x' = tanh(C m(x)). All candidates of one dimension are integrated together, in one array (D, B) by RK4.

No system is a named one. Coefficients are drawn from continuous distributions, so the coefficients of a published flow
have probability zero; and a candidate in three dimensions that has the very terms of a Sprott, Lorenz or Roessler flow
(`NAMED`, up to the order of the coordinates) is rejected, because the few parameters of so simple a flow could come
close to them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations

import numpy as np

BOX = 100.0
"""Half the width of the box that no accepted trajectory leaves."""
STEP = 0.02
"""Step of the search, in units of a candidate's time; what is kept gets its own."""
STEPS_PER_PERIOD, SLOWEST = 60, 2_000
"""Steps per period of what is kept, and the period in steps beyond which motion counts as rest."""
CHAOTIC, REGULAR = 0.03, 0.01
"""Least lambda_1 of chaos and most of order, per period."""
LONG = 100_000
"""Steps over which an accepted system was bounded."""
NUM_STATES = 64
"""Stored states of a system's attractor: starts of recordings."""
DELTA = 1e-7
"""Distance of the two trajectories that measure lambda_1."""

# Terms of flows that are for tests only, equation by equation.
NAMED = """
y|x yz|1 yy; yz|x y|1 xy; yz|x y|1 xx; y|x z|xz yy; yz|xx y|1 x; y z|x y|xx z; x z|xz y|x y; y zz|x y|x z; y|x z|x yy z
z|y z|x y yy; xy z|x y|x z; y z|xx y|1 x; z|xx y|1 x y; y|x zz|1 y z; y|x z|x xz y; y z|x yy|x y; z|x y|x yy z
1 y|1 z|xy z; x y|x zz|1 x; x y|x y xz|xy z; x y|x xz|xy z; y z|x y|1 z xz; x y yz|x|yy z; x y z yy|x y z zz|x y z xx
x y yz|x y xz|xy z; x yz|y xz|z xy; x y yz|y xz|z xy; x y|xz y|1 xy; x y|xz|1 xy; y|z|1 x y z xx; y|z|x y z xx
"""


def monomials(dimension: int) -> np.ndarray:
    """List the monomials of degree three or less as (P, 3) indices into (1, x_1, ..., x_D), quadratic ones first.

    >>> monomials(2).tolist()[:6]
    [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 1, 1], [0, 1, 2], [0, 2, 2]]
    """
    return np.array(list(combinations_with_replacement(range(dimension + 1), 3)))


def position(dimension: int, *factors: int) -> int:
    """Find a monomial by the coordinates, from 0, that are multiplied; none of them is the constant."""
    wanted = sorted([*(0 for _ in range(3 - len(factors))), *(factor + 1 for factor in factors)])
    return int(np.flatnonzero((monomials(dimension) == wanted).all(axis=1))[0])


@dataclass(frozen=True)
class System:
    """A discovered system with what was measured of it. Times are in units of its own equation.

    coefficients: (D, P) of `monomials(D)`.
    states:       (64, D) states of the attractor; of a spiral, starts of its transients.
    scale:        (D,) standard deviations of the coordinates.
    step:         step of integration; a map's is 1.
    period:       2 pi sd(x) / sd(dx/dt), median over coordinates: the mean period of a Gaussian process.
    exponent:     lambda_1 per unit of time.
    process:      standard deviation of its own noise per square root of a period, in units of `scale`.
    """

    kind: str
    coefficients: np.ndarray
    states: np.ndarray
    scale: np.ndarray
    step: float
    period: float
    exponent: float
    process: float = 0.0
    is_map: bool = False

    @property
    def dimension(self) -> int:
        return len(self.coefficients)

    @property
    def is_chaotic(self) -> bool:
        return self.exponent * self.period > CHAOTIC


class Batch:
    """Integrate systems of one dimension together: states are (D, B), coefficients (B, D, P)."""

    def __init__(self, coefficients: np.ndarray, is_map: bool = False):
        dimension = coefficients.shape[1]
        terms = monomials(dimension)
        quadratic = int((terms[:, 0] == 0).sum())
        self.is_map = is_map
        self.cubic = bool(coefficients[:, :, quadratic:].any())
        used = len(terms) if self.cubic else quadratic
        self.coefficients = np.ascontiguousarray(np.moveaxis(coefficients[:, :, :used], 0, -1))
        self.first, self.second, self.third = terms[:used].T

    def polynomial(self, x: np.ndarray) -> np.ndarray:
        one = np.concatenate([np.ones_like(x[:1]), x])
        values = one.take(self.second, 0)
        values *= one.take(self.third, 0)
        if self.cubic:
            values *= one.take(self.first, 0)
        return np.einsum("dpb,pb->db", self.coefficients, values)

    def step(self, x: np.ndarray, dt: np.ndarray) -> np.ndarray:
        """Advance all states by one step, each by its own dt (B,)."""
        if self.is_map:
            return np.tanh(self.polynomial(x))
        k1 = self.polynomial(x)
        k2 = self.polynomial(x + 0.5 * dt * k1)
        k3 = self.polynomial(x + 0.5 * dt * k2)
        k4 = self.polynomial(x + dt * k3)
        return x + dt / 6 * (k1 + 2 * (k2 + k3) + k4)


@dataclass(frozen=True)
class Candidates:
    """Systems of one dimension before they are accepted: coefficients (B, D, P), states (D, B), the rest (B,)."""

    coefficients: np.ndarray
    x: np.ndarray
    step: np.ndarray
    period: np.ndarray
    exponent: np.ndarray
    is_map: bool = False

    def __len__(self) -> int:
        return len(self.coefficients)

    def __getitem__(self, keep: np.ndarray) -> "Candidates":
        rest = {name: getattr(self, name)[keep] for name in ("coefficients", "step", "period", "exponent")}
        return Candidates(x=self.x[:, keep], is_map=self.is_map, **rest)


def as_candidates(coefficients: np.ndarray, x: np.ndarray, is_map: bool = False) -> Candidates:
    """Make candidates that have been measured in nothing."""
    unknown = np.full(len(coefficients), np.nan)
    return Candidates(coefficients, x, np.full(len(coefficients), 1.0 if is_map else STEP), unknown, unknown, is_map)


def inside(x: np.ndarray) -> np.ndarray:
    """Say of which candidates the state is finite and in the box."""
    return (np.abs(x) < BOX).all(axis=0)


def settle(candidates: Candidates, rejected: Counter[str], steps: int) -> Candidates:
    """Integrate past the transient, drop what leaves the box or comes to rest, and measure period and step."""
    for _ in range(steps // 100):
        batch, x = Batch(candidates.coefficients, candidates.is_map), candidates.x
        for _ in range(100):
            x = batch.step(x, candidates.step)
        keep = inside(x)
        rejected["left the box"] += int((~keep).sum())
        candidates = replace(candidates, x=x)[keep]
    batch, x = Batch(candidates.coefficients, candidates.is_map), candidates.x
    path = np.empty((1_000, *x.shape))
    for t in range(len(path)):
        path[t] = x = batch.step(x, candidates.step)
    # A map has no time but its steps.
    period = np.ones(len(candidates)) if candidates.is_map else period_of(path, candidates.step)
    spread = path.std(axis=0)
    candidates = replace(
        candidates,
        x=x,
        period=period,
        step=np.ones_like(period) if candidates.is_map else np.minimum(period / STEPS_PER_PERIOD, 4 * STEP),
    )
    gone = ~inside(x)
    still = ~gone & ~((spread > 1e-2).all(axis=0) & (period < SLOWEST * STEP))
    rejected["left the box"] += int(gone.sum())
    rejected["came to rest"] += int(still.sum())
    return candidates[~gone & ~still]


def period_of(path: np.ndarray, step: np.ndarray | float) -> np.ndarray:
    """Measure the mean period of paths (T, D, ...) from the standard deviations of values and slopes."""
    slopes = np.diff(path, axis=0).std(axis=0) / step
    return np.median(2 * np.pi * path.std(axis=0) / np.maximum(slopes, 1e-12), axis=0)


def exponents(
    candidates: Candidates,
    steps: int,
    *,
    start: int = 0,
    watch: Callable[[int, np.ndarray], None] = lambda t, x: None,
    every: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Measure lambda_1 of all candidates after `start` steps by two near trajectories; also return the last states.

    `watch(t, x)` sees the states each time the distance is set back to `DELTA`.
    """
    size = len(candidates)
    batch = Batch(np.concatenate([candidates.coefficients] * 2), candidates.is_map)
    offset = np.full_like(candidates.x, DELTA / np.sqrt(len(candidates.x)))
    pair, step = np.concatenate([candidates.x, candidates.x + offset], axis=1), np.concatenate([candidates.step] * 2)
    growth = np.zeros(size)
    for t in range(every, steps + 1, every):
        for _ in range(every):
            pair = batch.step(pair, step)
        x, offset = pair[:, :size], pair[:, size:] - pair[:, :size]
        length = np.maximum(np.sqrt((offset**2).sum(axis=0)), 1e-300)
        if t > start:
            growth += np.log(length / DELTA)
        pair[:, size:] = x + offset * (DELTA / length)
        watch(t, x)
    return growth / (candidates.step * (steps - start)), pair[:, :size]


def explore(candidates: Candidates, rejected: Counter[str], steps: int = 4_000) -> Candidates:
    """Keep what is bounded and moves, with a first lambda_1."""
    with np.errstate(over="ignore", invalid="ignore"):
        moving = settle(candidates, rejected, steps // 2)
        if not len(moving):
            return moving
        exponent, x = exponents(moving, steps, start=steps // 4)
        return replace(moving, x=x, exponent=exponent)[inside(x) & np.isfinite(exponent)]


def verify(
    candidates: Candidates,
    kinds: Sequence[str],
    rejected: Counter[str],
    *,
    chaotic: Collection[str],
    resting: Collection[str] = (),
    long: int = LONG,
) -> list[System]:
    """Accept what stays in the box for `long` steps and has the same lambda_1 at 0.6 of the step.

    The exponent is that of the second half, so that transient chaos is rejected; one that depends on the step is
    numerical. Kinds in `chaotic` must be so and others not; those in `resting` may come to rest, and keep their period.
    """
    every, saved = 10, list[np.ndarray]()
    spacing = long // (2 * NUM_STATES) // every * every

    def watch(t: int, x: np.ndarray) -> None:
        if t > long // 2 and t % spacing == 0 and len(saved) < NUM_STATES:
            saved.append(x.copy())

    with np.errstate(over="ignore", invalid="ignore"):
        exponent, x = exponents(candidates, long, start=long // 2, watch=watch, every=every)
        finer = exponent
        if not candidates.is_map:
            other = replace(candidates, x=x, step=0.6 * candidates.step)
            finer, _ = exponents(other, long // 4, start=long // 40)
        path = np.empty((min(6_000, long), *x.shape))
        batch = Batch(candidates.coefficients, candidates.is_map)
        for t in range(len(path)):
            path[t] = x = batch.step(x, candidates.step)
        spread, period = path.std(axis=0), period_of(path, candidates.step)
    rest, wild = np.isin(kinds, list(resting)), np.isin(kinds, list(chaotic))
    period = candidates.period if candidates.is_map else np.where(rest, candidates.period, period)
    first, second = exponent * period, finer * period
    reasons = {
        "left the box": ~(inside(x) & np.isfinite(second)),
        "came to rest": ~rest & ~((spread > 1e-2).all(axis=0) & (period < SLOWEST * candidates.step)),
        "not chaotic in the long run": wild & (first < CHAOTIC),
        "numerical exponent": wild & (np.abs(first - second) > 0.15 * np.maximum(first, second)),
        "not regular": ~wild & (np.maximum(first, second) > REGULAR),
        "named structure": np.array([is_named(each) for each in candidates.coefficients]),
    }
    systems = []
    for b, kind in enumerate(kinds):
        reason = next((name for name, holds in reasons.items() if holds[b]), None)
        if reason:
            rejected[reason] += 1
            continue
        systems.append(
            System(
                kind=kind,
                coefficients=candidates.coefficients[b],
                states=np.array(saved)[:, :, b],
                scale=spread[:, b],
                step=float(candidates.step[b]),
                period=float(period[b]),
                exponent=float(exponent[b]),
                is_map=candidates.is_map,
            )
        )
    return systems


def _support(coefficients: np.ndarray) -> frozenset[tuple[int, tuple[int, ...]]]:
    terms = monomials(len(coefficients))
    return frozenset(
        (int(d), tuple(sorted(map(int, terms[p])))) for d, p in zip(*np.nonzero(coefficients), strict=True)
    )


def _variants(support: Iterable[tuple[int, tuple[int, ...]]]) -> set[frozenset[tuple[int, tuple[int, ...]]]]:
    """Rename the coordinates of a flow in three dimensions in all ways."""
    return {
        frozenset((order[d], tuple(sorted(0 if i == 0 else order[i - 1] + 1 for i in term))) for d, term in support)
        for order in permutations(range(3))
    }


def _read_named() -> set[frozenset[tuple[int, tuple[int, ...]]]]:
    found = set()
    for flow in NAMED.replace("\n", ";").split(";"):
        if flow.strip():
            support = [
                (d, tuple(sorted(([0, 0, 0] + ["1xyz".index(letter) for letter in term])[-3:])))
                for d, equation in enumerate(flow.split("|"))
                for term in equation.split()
            ]
            found |= _variants(support)
    return found


_NAMED = _read_named()


def is_named(coefficients: np.ndarray) -> bool:
    """Say whether a flow has exactly the terms of a named simple flow in some order of its coordinates."""
    return len(coefficients) == 3 and _support(coefficients) in _NAMED
