"""Draw candidates of every kind in the corpus: coefficients (B, D, P) of the monomials of `benchmarks.discovery`.

Sparse and forced flows, mutations and driven pairs are searched for chaos. Cycles, tori, spirals and noisy oscillators
are built from normal forms with random coefficients; maps are x' = tanh(W x + b).
"""

from itertools import combinations

import numpy as np

from benchmarks.discovery import monomials, position


def embed(coefficients: np.ndarray, dimension: int, offset: int = 0) -> np.ndarray:
    """Write flows as flows of a higher dimension that move its coordinates from `offset` on."""
    own = coefficients.shape[1]
    moved = np.zeros((len(coefficients), dimension, len(monomials(dimension))))
    for p, term in enumerate(monomials(own)):
        moved[:, offset : offset + own, position(dimension, *(i - 1 + offset for i in term if i))] = coefficients[
            :, :, p
        ]
    return moved


def sparse_flows(rng: np.random.Generator, count: int, dimension: int, *, cubic: bool) -> np.ndarray:
    """Draw flows with few terms: linear ones, squares and products, and with `cubic` a damping or coupling cube."""
    terms = monomials(dimension)
    degree = (terms > 0).sum(axis=1)
    # About 1.6 linear and 1.2 nonlinear terms per equation, whatever the dimension.
    share = np.select([degree == 0, degree == 1, degree == 2], [0.25, 1.6 / dimension, 1.2 / (degree == 2).sum()], 0.0)
    if cubic:
        share[degree == 3] = 0.5 / (degree == 3).sum()
    coefficients = rng.normal(size=(count, dimension, len(terms))) * (
        rng.random((count, dimension, len(terms))) < share
    )
    for d in range(dimension):
        # Damping in most equations, because what only grows leaves the box.
        own = position(dimension, d)
        coefficients[:, d, own] = np.where(
            rng.random(count) < 0.6, -rng.exponential(size=count), coefficients[:, d, own]
        )
        if cubic:
            cube = position(dimension, d, d, d)
            coefficients[:, d, cube] = np.where(rng.random(count) < 0.5, -0.5 * rng.exponential(size=count), 0.0)
    return coefficients


def forced_flows(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Draw flows whose products keep the energy x'x, with damping and constant forcing: bounded by construction."""
    coefficients = np.zeros((count, dimension, len(monomials(dimension))))
    for d in range(dimension):
        coefficients[:, d, position(dimension, d)] = -rng.uniform(0.1, 1.5, count)
        coefficients[:, d, 0] = rng.normal(0.0, 4.0, count) * (rng.random(count) < 0.6)
    for i, j in combinations(range(dimension), 2):
        turn = rng.normal(size=count) * (rng.random(count) < 1.0 / dimension)
        coefficients[:, i, position(dimension, j)] += turn
        coefficients[:, j, position(dimension, i)] -= turn
        square = rng.normal(size=count) * (rng.random(count) < 1.0 / dimension)
        coefficients[:, i, position(dimension, i, j)] += square
        coefficients[:, j, position(dimension, i, i)] -= square
    for i, j, k in combinations(range(dimension), 3):
        here = rng.random(count) < min(1.0, 6.0 / dimension**2)
        a, b = rng.normal(size=(2, count)) * here
        coefficients[:, i, position(dimension, j, k)] += a
        coefficients[:, j, position(dimension, i, k)] += b
        coefficients[:, k, position(dimension, i, j)] -= a + b
    return coefficients


def mutations(rng: np.random.Generator, parents: np.ndarray) -> np.ndarray:
    """Change all coefficients of flows by about a quarter, and give every second one a small new product."""
    changed = parents * np.exp(0.25 * rng.normal(size=parents.shape))
    products = np.flatnonzero((monomials(parents.shape[1]) > 0).sum(axis=1) == 2)
    for flow in changed[::2]:
        flow[rng.integers(parents.shape[1]), rng.choice(products)] += 0.2 * rng.normal()
    return changed


def driven_flows(rng: np.random.Generator, drivers: np.ndarray, scales: np.ndarray, dimension: int) -> np.ndarray:
    """Let flows drive damped nonlinear responses, which act on nothing: skew products of a higher dimension.

    scales: (B, D) standard deviations of the drivers' coordinates, so that the forcing is of order one.
    """
    count, own, _ = drivers.shape
    coefficients = embed(drivers, dimension)
    for d in range(own, dimension):
        coefficients[:, d, position(dimension, d)] = -rng.uniform(0.1, 1.0, count)
        coefficients[:, d, position(dimension, d, d, d)] = -rng.uniform(0.05, 0.5, count)
        source = rng.integers(own, size=count)
        for i in range(own):
            strength = rng.normal(0.0, 1.5, (2, count)) * (source == i) / scales[:, i]
            coefficients[:, d, position(dimension, i)] = strength[0]
            coefficients[:, d, position(dimension, i, d)] = strength[1] * (rng.random(count) < 0.5)
    for i, j in combinations(range(own, dimension), 2):
        turn = rng.normal(0.0, 2.0, count)
        coefficients[:, i, position(dimension, j)] = turn
        coefficients[:, j, position(dimension, i)] = -turn
    return coefficients


def _oscillator(rng: np.random.Generator, count: int, omega: np.ndarray) -> np.ndarray:
    """Draw planar flows with a stable cycle: a Hopf normal form with a shear."""
    flows = np.zeros((count, 2, len(monomials(2))))
    growth, shear = rng.uniform(0.3, 1.5, count), rng.normal(0.0, 0.3, count)
    for i, j, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        flows[:, i, position(2, i)], flows[:, i, position(2, j)] = growth, -sign * omega
        for k in (0, 1):
            flows[:, i, position(2, i, k, k)] += -growth
            flows[:, i, position(2, j, k, k)] += -sign * shear
    return flows


def _follow(rng: np.random.Generator, flows: np.ndarray, own: int) -> np.ndarray:
    """Fill the coordinates from `own` on with relaxation to random quadratic functions of the ones before."""
    dimension = flows.shape[1]
    for d in range(own, dimension):
        flows[:, d, position(dimension, d)] = -rng.uniform(0.3, 2.0, len(flows))
        for i in range(own):
            flows[:, d, position(dimension, i)] = rng.normal(size=len(flows))
            for j in range(i + 1):
                flows[:, d, position(dimension, i, j)] = rng.normal(size=len(flows))
    return flows


def cycles(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Draw limit cycles: a planar one with random quadratic terms, and coordinates that follow it."""
    planar = _oscillator(rng, count, rng.uniform(0.7, 3.0, count))
    products = np.flatnonzero((monomials(2) > 0).sum(axis=1) == 2)
    planar[:, :, products] += rng.normal(0.0, 0.5, (count, 2, len(products)))
    return _follow(rng, embed(planar, dimension), 2)


def tori(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Draw two oscillators of incommensurate frequencies, weakly coupled, and coordinates that mix their products."""
    omega = rng.uniform(0.7, 1.5, count)
    flows = embed(_oscillator(rng, count, omega), dimension)
    flows += embed(_oscillator(rng, count, omega * rng.uniform(1.2, 4.0, count)), dimension, 2)
    for i, j in ((0, 2), (2, 0)):
        flows[:, i, position(dimension, j)] = rng.normal(0.0, 0.05, count)
    return _follow(rng, flows, 4)


def spirals(
    rng: np.random.Generator, count: int, dimension: int, decay: tuple[float, float], strength: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw damped oscillators, one per two coordinates, with products of the given strength that keep the energy.

    decay: least and most periods in which the first oscillator's amplitude falls by e.
    Returns coefficients, periods of the first oscillators and their rates of damping.
    """
    flows = np.zeros((count, dimension, len(monomials(dimension))))
    omega = rng.uniform(0.7, 3.0, count)
    rate = omega / (2 * np.pi * np.exp(rng.uniform(*np.log(decay), count)))
    for pair in range(0, dimension, 2):
        speed = omega * (rng.uniform(1.2, 4.0, count) if pair else 1.0)
        for i, j, sign in ((pair, pair + 1, 1.0), (pair + 1, pair, -1.0)):
            flows[:, i, position(dimension, i)], flows[:, i, position(dimension, j)] = -rate, -sign * speed
    for i, j in combinations(range(dimension), 2):
        product = strength * rng.normal(size=count)
        flows[:, i, position(dimension, i, j)] += product
        flows[:, j, position(dimension, i, i)] -= product
    return flows, 2 * np.pi / omega, rate


def smooth_maps(rng: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Draw the weights and biases of maps x' = tanh(W x + b)."""
    maps = np.zeros((count, dimension, len(monomials(dimension))))
    gain = rng.uniform(1.5, 4.0, (count, 1, 1)) / np.sqrt(dimension)
    maps[:, :, 1 : dimension + 1] = gain * rng.normal(size=(count, dimension, dimension))
    maps[:, :, 0] = rng.normal(0.0, 0.5, (count, dimension))
    return maps
