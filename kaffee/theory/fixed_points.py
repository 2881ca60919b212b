"""Fixed points and cycles of cores: by linear regions for AL-RNNs, exactly, and by Newton's method for any other.

With its gates' pattern D fixed, an AL-RNN is affine, and so are k steps through regions D_1, ..., D_k:

    z* = (I - J_k ... J_1)^-1 c,    J_i = diag(A) + W D_i,    c = h + J_k h + J_k J_{k-1} h + ...

z* is a point of a cycle if the states of its orbit lie in these regions; otherwise it is virtual, and the regions in
which they do lie are the next to try.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float

from kaffee.data.gaps import evenly
from kaffee.errors import ConfigError
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.inputs import Driven
from kaffee.model.matrices import as_dense
from kaffee.model.wrappers import Confined

MAX_GATES = 14
"""All sequences of regions are tried as long as order times gates is no more than this: 16 384."""
_ROUNDS = 60
_NEWTON_STEPS, _HALVINGS, _NEWTON_STARTS = 60, 10, 200
_BORDER = 1e-9  # how far beyond the border of its region rounding may put a state, in units of 1 + |z|
_SAME = 1e-6
_NUMBERS = 20_000_000  # in the matrices of one batch
_REFINED = 2_000  # unknowns of a cycle up to which its states are solved for together

_States = Float[np.ndarray, "k M"]
_Patterns = Bool[np.ndarray, "S k P"]


@dataclass(frozen=True, eq=False)
class Cycle:
    """States z_1, ..., z_k with z_{i+1} = F(z_i) and z_1 = F(z_k); a fixed point is a cycle of order 1.

    Attributes:
        eigenvalues: Of J(z_k) ... J(z_1), largest modulus first: how perturbations grow in one round.
        residual: The largest absolute entry of F(z_i) - z_{i+1}.
        inside: Whether all states are in the box of a confined core. Outside, they are cycles of the map without its
            box, which free runs do not see.
    """

    states: _States
    eigenvalues: Complex[np.ndarray, " M"]
    residual: float
    inside: bool = True

    @property
    def order(self) -> int:
        """k, the number of states."""
        return len(self.states)

    @property
    def radius(self) -> float:
        """The largest modulus of an eigenvalue."""
        return float(np.abs(self.eigenvalues[0]))

    @property
    def num_unstable(self) -> int:
        """The number of eigenvalues beyond the unit circle."""
        return int((np.abs(self.eigenvalues) > 1.0).sum())

    @property
    def stability(self) -> str:
        """stable, saddle or unstable: none, some or all directions grow."""
        return "stable" if self.radius < 1.0 else "unstable" if self.num_unstable == len(self.eigenvalues) else "saddle"


class Found(NamedTuple):
    """Cycles of one order, those inside and with few unstable directions first.

    Attributes:
        method: "regions" or "newton".
        complete: Whether every sequence of regions was tried, so that there are no others.
    """

    cycles: list[Cycle]
    method: str
    complete: bool


def find_cycles(
    core: Core, starts: Float[np.ndarray, "S M"], *, order: int = 1, seed: int = 0, max_gates: int = MAX_GATES
) -> Found:
    """Find the fixed points (order 1) or the cycles of an order of a core, in float64.

    Args:
        starts: States from which the regions of an AL-RNN with many gates, or Newton's method, start: of training data,
            of free runs. Newton's method takes 200 of them.
        seed: Of regions that are drawn in addition.
        max_gates: All sequences of regions are tried if order times gates is at most so many.

    >>> core = ALRNN(A=jnp.zeros(1), W=-2.0 * jnp.eye(1), h=jnp.ones(1), num_gates=1)  # z' = 1 - 2 max(z, 0)
    >>> found = find_cycles(core, np.zeros((1, 1)))
    >>> print(found.cycles[0].states.round(4), found.cycles[0].eigenvalues.real, found.complete)
    [[0.3333]] [-2.] True
    """
    if order < 1:
        raise ConfigError(f"The order of a cycle is the number of its states, at least 1; got {order}.")
    states = np.atleast_2d(np.asarray(starts, np.float64))
    if states.shape[1] != core.latent_dim or not len(states):
        raise ConfigError(f"Starts have shape {np.shape(starts)}; give rows of {core.latent_dim} latent coordinates.")
    regions = _Regions.of(core)
    if regions is not None:
        complete = order * regions.num_gates <= max_gates
        candidates = regions.enumerate(order) if complete else regions.search(states, order, seed)
        orbits = [regions.refine(orbit) for orbit in candidates]
    else:
        some = states[evenly(len(states), min(_NEWTON_STARTS, len(states)))]
        complete, orbits = False, _newton(core, some, order)
    found = _merge([orbit for orbit in orbits if _least_period(orbit) == order])
    cycles = [cycle for cycle in (_describe(core, orbit) for orbit in found) if cycle is not None]
    cycles.sort(key=lambda cycle: (not cycle.inside, cycle.num_unstable, *cycle.states[0]))
    return Found(cycles, "newton" if regions is None else "regions", complete)


def solve_cycle(core: Core, orbit: _States) -> Cycle | None:
    """Solve for the cycle near states that nearly repeat themselves; None if there is none, or it has a lower order."""
    regions = _Regions.of(core)
    if regions is not None:
        found = [regions.refine(np.asarray(orbit, np.float64))]
    else:
        found = _newton(core, np.asarray(orbit[:1], np.float64), len(orbit))
    near = [each for each in found if _distance(each, orbit) < 1e-2 and _least_period(each) == len(orbit)]
    return _describe(core, near[0]) if near else None


def unwrap(core: Core) -> Core:
    """Return the map without the box around it and what drives it, at mean inputs, with its exact Jacobian."""
    while isinstance(core, Confined | Driven):
        core = core.inner
    return core.without_noise().exact()


class _Regions(NamedTuple):
    """The affine pieces of an AL-RNN in float64: one for each pattern of gates that are open."""

    A: Float[np.ndarray, " M"]
    W: Float[np.ndarray, "M M"]
    h: Float[np.ndarray, " M"]
    num_gates: int

    @classmethod
    def of(cls, core: Core) -> "_Regions | None":
        """Return the pieces of an AL-RNN with hard gates; None for any other core."""
        inner = unwrap(core)
        if not isinstance(inner, ALRNN) or inner.gate != "hard":
            return None
        A, W, h = (np.asarray(array, np.float64) for array in (inner.A, as_dense(inner.W), inner.h))
        return cls(A, W, h, inner.num_gates)

    def open_gates(self, z: Float[np.ndarray, "... M"]) -> Bool[np.ndarray, "... P"]:
        """Return the pattern of a state."""
        return z[..., len(self.h) - self.num_gates :] > 0

    def jacobians(self, patterns: Bool[np.ndarray, "... P"]) -> Float[np.ndarray, "... M M"]:
        """Compute diag(A) + W D."""
        linear = np.ones((*patterns.shape[:-1], len(self.h) - self.num_gates))
        slopes = np.concatenate([linear, patterns], axis=-1)
        return np.diag(self.A) + self.W * slopes[..., None, :]

    def solve(self, patterns: _Patterns) -> Float[np.ndarray, "S k M"]:
        """Solve for the cycle, real or virtual, of each sequence of regions; NaN where the matrix is singular."""
        S, k, _ = patterns.shape
        M = len(self.h)
        product, offset = np.broadcast_to(np.eye(M), (S, M, M)), np.zeros((S, M))
        steps = [self.jacobians(patterns[:, i]) for i in range(k)]
        for J in steps:
            product, offset = J @ product, np.einsum("sij,sj->si", J, offset) + self.h
        states = [_solve_each(np.eye(M) - product, offset)]
        for J in steps[:-1]:
            states.append(np.einsum("sij,sj->si", J, states[-1]) + self.h)
        return np.stack(states, axis=1)

    def refine(self, orbit: _States) -> _States:
        """Solve for all states of a cycle together, in the regions of `orbit`: products of many steps lose digits."""
        k, M = orbit.shape
        J = self.jacobians(self.open_gates(orbit))
        if k * M > _REFINED:
            return self.solve(self.open_gates(orbit)[None])[0]
        system = np.eye(k * M)
        for i in range(k):
            rows, columns = ((i + 1) % k) * M, i * M
            system[rows : rows + M, columns : columns + M] -= J[i]
        return _solve_each(system[None], np.tile(self.h, k)[None])[0].reshape(k, M)

    def _real(self, patterns: _Patterns, states: Float[np.ndarray, "S k M"]) -> Bool[np.ndarray, " S"]:
        """Mark solutions whose states lie in the regions that they were solved for, or on a border of them."""
        gated = states[..., len(self.h) - self.num_gates :]
        wrong = np.where(self.open_gates(states) != patterns, np.abs(gated), 0.0).max(axis=(1, 2), initial=0.0)
        size = 1.0 + np.abs(states).max(axis=(1, 2))
        return np.isfinite(size) & (wrong <= _BORDER * size)

    def _solve_real(self, patterns: _Patterns) -> tuple[list[_States], _Patterns]:
        """Return the cycles of sequences of regions, and of the virtual ones the regions in which they lie."""
        real: list[_States] = []
        moved = []
        batch = max(_NUMBERS // (len(self.h) ** 2 * patterns.shape[1]), 1)
        for part in (patterns[i : i + batch] for i in range(0, len(patterns), batch)):
            states = self.solve(part)
            kept = self._real(part, states)
            real += list(states[kept])
            moved.append(self.open_gates(states[~kept & np.isfinite(states).all(axis=(1, 2))]))
        return real, np.concatenate(moved)

    def enumerate(self, order: int) -> list[_States]:
        """Try all sequences of regions."""
        bits = order * self.num_gates
        numbers = np.arange(2**bits)[:, None] >> np.arange(bits) & 1
        return self._solve_real(numbers.astype(bool).reshape(-1, order, self.num_gates))[0]

    def search(self, starts: Float[np.ndarray, "S M"], order: int, seed: int) -> list[_States]:
        """Try the sequences of regions along orbits and random ones, and then those in which virtual cycles lie."""
        z, visited = starts, []
        for _ in range(order):
            visited.append(self.open_gates(z))
            z = self.A * z + np.where(self._linear() | (z > 0), z, 0.0) @ self.W.T + self.h
        rng = np.random.default_rng(seed)
        drawn = rng.random((len(starts), order, self.num_gates)) < 0.5
        waiting = np.unique(np.concatenate([np.stack(visited, axis=1), drawn]), axis=0)
        seen: set[bytes] = set()
        found: list[_States] = []
        for _ in range(_ROUNDS):
            fresh = [pattern for pattern in waiting if pattern.tobytes() not in seen]
            if not fresh:
                break
            seen.update(pattern.tobytes() for pattern in fresh)
            real, waiting = self._solve_real(np.stack(fresh))
            found += real
        return found

    def _linear(self) -> Bool[np.ndarray, " M"]:
        return np.arange(len(self.h)) < len(self.h) - self.num_gates


def _solve_each(matrices: Float[np.ndarray, "S M M"], right: Float[np.ndarray, "S M"]) -> Float[np.ndarray, "S M"]:
    """Solve a batch of systems; NaN where a matrix is singular."""
    try:
        return np.linalg.solve(matrices, right[..., None])[..., 0]
    except np.linalg.LinAlgError:
        if len(matrices) == 1:
            return np.full_like(right, np.nan)
        return np.concatenate([_solve_each(matrices[i : i + 1], right[i : i + 1]) for i in range(len(matrices))])


# --- Newton's method ---


def widen(tree: Any) -> Any:
    """Copy a core or model with its floating-point arrays in float64; call it where JAX's 64-bit mode is on."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float64) if eqx.is_inexact_array(leaf) else leaf, tree)


def _newton(core: Core, starts: Float[np.ndarray, "S M"], order: int) -> list[_States]:
    """Solve F^k(z) = z by damped Newton steps from every start; those that did not converge are left out."""
    with jax.enable_x64(True):
        wide = widen(unwrap(core))
        orbits, residuals = _descend(wide, jnp.asarray(starts, jnp.float64), order)
        precision = jnp.finfo(jax.eval_shape(wide, jax.ShapeDtypeStruct((core.latent_dim,), jnp.float64)).dtype).eps
        states, residual = np.asarray(orbits, np.float64), np.asarray(residuals, np.float64)
    return list(states[residual <= float(precision) ** 0.5 * (1.0 + np.abs(states).max(axis=(1, 2)))])


@eqx.filter_jit
def _descend(core: Core, starts: Float[Array, "S M"], order: int) -> tuple[Float[Array, "S k M"], Float[Array, " S"]]:
    """Take z - t (J_k ... J_1 - I)^-1 (F^k(z) - z), with the t = 1, 1/2, 1/4, ... that leaves the least residual."""
    shares = jnp.asarray(0.5 ** np.arange(_HALVINGS), starts.dtype)

    def miss(z: Array) -> Array:
        return jax.lax.fori_loop(0, order, lambda _, x: core(x).astype(x.dtype), z) - z

    def size(z: Array) -> Array:
        norm = jnp.max(jnp.abs(miss(z)))
        return jnp.where(jnp.isfinite(norm), norm, jnp.inf)

    def improve(z: Array) -> Array:
        def push(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            x, product = carry
            return core(x).astype(x.dtype), core.jacobian(x).astype(x.dtype) @ product

        end, product = jax.lax.fori_loop(0, order, push, (z, jnp.eye(len(z))))
        step = jnp.linalg.solve(product - jnp.eye(len(z)), end - z)
        trials = z - shares[:, None] * step
        sizes = jax.vmap(size)(trials)
        best = jnp.argmin(sizes)
        return jnp.where(sizes[best] < size(z), trials[best], z)

    def solve(z: Array) -> tuple[Array, Array]:
        # Where no share of a step improves, none ever will.
        going = jax.lax.while_loop(
            lambda now: now[1] & (now[2] < _NEWTON_STEPS),
            lambda now: (after := improve(now[0]), jnp.any(after != now[0]), now[2] + 1),
            (z, jnp.array(True), 0),
        )
        z = going[0]
        orbit = [z]
        for _ in range(order - 1):
            orbit.append(core(orbit[-1]).astype(z.dtype))
        return jnp.stack(orbit), size(z)

    return jax.lax.map(solve, starts, batch_size=64)


# --- what was found ---


def _describe(core: Core, orbit: _States) -> Cycle | None:
    """Add eigenvalues, residual and place; None for what the core itself does not map onto itself."""
    if not np.isfinite(orbit).all():
        return None
    with jax.enable_x64(True):
        wide, z = widen(unwrap(core)), jnp.asarray(orbit, jnp.float64)
        after, jacobians = (np.asarray(part, np.float64) for part in wide.linearise(z))
        inside = bool(np.asarray(widen(core).contains(z)).all())
    residual = float(np.abs(after - np.roll(orbit, -1, axis=0)).max())
    if residual > _SAME * (1.0 + np.abs(orbit).max()):
        return None
    product = np.eye(orbit.shape[1])
    for J in jacobians:
        product = J @ product
    eigenvalues = np.linalg.eigvals(product).astype(complex)
    return Cycle(orbit, eigenvalues[np.argsort(-np.abs(eigenvalues), kind="stable")], residual, inside)


def _least_period(orbit: _States) -> int:
    """Return the smallest d after which the states repeat themselves."""
    k, size = len(orbit), _SAME * (1.0 + np.abs(orbit).max())
    periods = (d for d in range(1, k) if k % d == 0 and np.abs(np.roll(orbit, -d, axis=0) - orbit).max() <= size)
    return next(periods, k)


def _distance(one: _States, other: _States) -> float:
    """Measure the largest difference of two cycles, at the best choice of their first states."""
    return min(float(np.abs(np.roll(one, shift, axis=0) - other).max()) for shift in range(len(one)))


def _merge(orbits: list[_States]) -> list[_States]:
    """Keep one of each set of equal cycles."""
    kept: list[_States] = []
    for orbit in orbits:
        if np.isfinite(orbit).all() and all(_distance(orbit, one) > _SAME * (1.0 + np.abs(one).max()) for one in kept):
            kept.append(orbit)
    return kept
