"""Kernel ridge regression of the next reading on the present state, with settings chosen by leaving blocks out.

    y = b + A x + sum_k a_k k(|x - c_k| / l),    minimise |y - f(x)|^2 + ridge a' K a    (Rasmussen, Williams 2006)

Its mean is that of a Gaussian process; b + A x is a ridge regression before it. Neighbours in time are neighbours in
space: a row is predicted from all but its block of time, which is a closed form (`left_out`). In float64 by LAPACK: at
small ridges single precision would not do, and nothing has to be compiled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve, eigh, solve_triangular
from scipy.spatial.distance import cdist

from kaffee.model.kernel import KERNELS

LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""In units of the median distance of two rows."""
RIDGES = tuple(10.0**p for p in range(-10, 2))
"""Relative to the kernel's value at 0."""
BLOCK = 5
LINEAR_RIDGES = (1e-6, 1e-4, 1e-2, 1e-1, 1.0, 1e1, 1e3)
ROUNDING = 1e-7
"""Error of a kernel's value in single precision."""
_JITTER = 1e-10


@dataclass(frozen=True, eq=False)
class KernelRegression:
    """A fitted regression.

    Attributes:
        centres, weights: c_k and a_k.
        linear, offset: A and b.
        length: l.
        left_out: Residuals of all rows, each left out with its block.
        score: Mean log of their root mean squares.
    """

    kernel: str
    length: float
    ridge: float
    centres: Float[np.ndarray, "K M"]
    weights: Float[np.ndarray, "K N"]
    linear: Float[np.ndarray, "N M"]
    offset: Float[np.ndarray, " N"]
    left_out: Float[np.ndarray, "T N"]
    score: float

    def __call__(self, x: Float[np.ndarray, "B M"]) -> Float[np.ndarray, "B N"]:
        """Predict."""
        profile = KERNELS[self.kernel].profile
        k = profile(cdist(x, self.centres) / self.length, np)
        return self.offset + x @ self.linear.T + k @ self.weights

    def jacobian(self, x: Float[np.ndarray, "B M"]) -> Float[np.ndarray, "B N M"]:
        """Compute A + sum_k a_k k'(r) / (r l^2) (x - c_k)'."""
        slope = KERNELS[self.kernel].slope(cdist(x, self.centres) / self.length, np) / self.length**2
        towards = np.einsum("bk,kn,km->bnm", slope, self.weights, self.centres, optimize=True)
        return self.linear + np.einsum("bk,kn->bn", slope, self.weights)[:, :, None] * x[:, None, :] - towards


class _Spectrum(NamedTuple):
    """The kernel's features of the rows: orthonormal Z and the squares s of their singular values."""

    kernel: str
    length: float
    Z: Float[np.ndarray, "T K"]
    s: Float[np.ndarray, " K"]


def regress(
    x: Float[np.ndarray, "T M"],
    y: Float[np.ndarray, "T N"],
    *,
    kernels: Iterable[str] = ("matern52",),
    lengths: Iterable[float] = LENGTHS,
    ridges: Iterable[float] = RIDGES,
    block: int = BLOCK,
    max_centres: int = 1000,
    max_trial: int = 300,
    measured: bool = True,
    same: tuple[str, float] | None = None,
) -> KernelRegression:
    """Regress y on x; kernel, length and ridge are those with the least left-out residuals.

    Args:
        lengths: In units of the median distance of two rows.
        block: Rows that are left out together.
        max_centres: Centres of the result; with fewer rows all of them are.
        max_trial: Centres of the trials.
        measured: Leave rows out of the result again, where it has more centres than the trials.
        same: The kernel and its length, where they are known; only the ridge is chosen.
    """
    offset, linear, larger = _fit_linear(x, y)
    rest = y - offset - x @ linear.T
    few, many = (x[_spread(len(x), count)] for count in (max_trial, max_centres))
    unit = _median_distance(few)
    distances, inner = cdist(x, few), cdist(few, few)
    choices = [(kernel, length * unit) for kernel in kernels for length in lengths]
    best: tuple[float, float, _Spectrum] | None = None
    for kernel, length in choices if same is None else [same]:
        spectrum = _decompose(distances, inner, kernel, length)
        found, ridge, _ = min(_leave_out(spectrum, rest, ridges, block), key=lambda each: each[0])
        if best is None or found < best[0]:
            best = found, ridge, spectrum
    assert best is not None, "there is a kernel and a length"
    _, ridge, trial = best
    between = inner if len(many) == len(few) else cdist(many, many)
    if len(many) > len(few):
        distances = cdist(x, many)
        trial = _decompose(distances, between, trial.kernel, trial.length) if measured else trial
    ((score, _, left_out),) = _leave_out(trial, rest, (ridge,), block)
    left_out = larger * left_out  # rows are left out of the kernels only
    weights = _solve(trial.kernel, trial.length, ridge, distances, between, rest)
    return KernelRegression(trial.kernel, trial.length, ridge, many, weights, linear, offset, left_out, score)


def refit(
    regression: KernelRegression, x: Float[np.ndarray, "P M"], y: Float[np.ndarray, "P N"], num_centres: int
) -> KernelRegression:
    """Learn the kernels' weights from other rows, with all settings and the linear part of a regression."""
    centres = x[_spread(len(x), num_centres)]
    rest = y - regression.offset - x @ regression.linear.T
    how = regression.kernel, regression.length, regression.ridge
    weights = _solve(*how, cdist(x, centres), cdist(centres, centres), rest)
    return replace(regression, centres=centres, weights=weights)


def _solve(
    kernel: str, length: float, ridge: float, distances: Any, between: Any, rest: Float[np.ndarray, "T N"]
) -> Float[np.ndarray, "K N"]:
    """Solve for the weights of the kernels; distances of all rows from the centres, and of these from one another."""
    profile = KERNELS[kernel].profile
    K = profile(between / length, np)
    if len(distances) == len(K):
        return cho_solve(cho_factor(K + (ridge + _JITTER) * np.eye(len(K))), rest)
    Phi = profile(distances / length, np)
    normal = Phi.T @ Phi + ridge * K
    normal[np.diag_indices(len(K))] += _JITTER * np.trace(normal) / len(K)
    return cho_solve(cho_factor(normal), Phi.T @ rest)


def _spread(count: int, most: int) -> Any:
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))


def _median_distance(x: Float[np.ndarray, "K M"]) -> float:
    distances = cdist(x, x)[np.triu_indices(len(x), 1)]
    found = float(np.median(distances)) if distances.size else 0.0
    return found if found > 0 else 1.0


def _fit_linear(x: Float[np.ndarray, "T M"], y: Float[np.ndarray, "T N"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit b and A by ridge regression, its ridge by left-out rows; return also by how much these have larger errors."""
    mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
    centred, rest = x - mean_x, y - mean_y
    s, U = eigh(centred.T @ centred, driver="evd")
    unit, P = max(s.mean(), 1e-300), centred @ U
    tried = []
    for ridge in LINEAR_RIDGES:
        shrunk = 1.0 / (np.maximum(s, 0.0) + ridge * unit)
        A = (U * shrunk) @ (P.T @ rest)
        residual = rest - centred @ A
        kept = np.maximum(1.0 - 1.0 / len(x) - np.sum(P**2 * shrunk, axis=1), 1e-9)
        errors = np.sqrt(np.mean((residual / kept[:, None]) ** 2, axis=0) + 1e-30)
        tried.append((float(np.mean(np.log(errors))), A.T, errors / np.sqrt(np.mean(residual**2, axis=0) + 1e-30)))
    _, A, larger = min(tried, key=lambda each: each[0])
    return mean_y - A @ mean_x, A, np.maximum(larger, 1.0)


def _decompose(distances: Any, inner: Any, kernel: str, length: float) -> _Spectrum:
    """Decompose the kernel's features: K = Z s Z' for all rows as centres, else that of the Nystroem features.

    distances: Of all rows from the centres; inner: of the centres from one another.
    """
    Phi = KERNELS[kernel].profile(distances / length, np)
    if len(distances) == len(inner):
        s, Z = eigh(Phi, driver="evd", overwrite_a=True, check_finite=False)
        return _Spectrum(kernel, length, Z, np.maximum(s, 0.0))
    K = KERNELS[kernel].profile(inner / length, np)
    K[np.diag_indices(len(K))] += _JITTER * len(K)
    L = np.linalg.cholesky(K)
    Psi = solve_triangular(L, Phi.T, lower=True, check_finite=False).T
    s, U = eigh(Psi.T @ Psi, driver="evd", overwrite_a=True, check_finite=False)
    s = np.maximum(s, 1e-12 * s[-1])
    return _Spectrum(kernel, length, Psi @ (U / np.sqrt(s)), s)


def _leave_out(
    spectrum: _Spectrum, y: Any, ridges: Iterable[float], block: int
) -> Iterator[tuple[float, float, np.ndarray]]:
    """Compute the score, the ridge and the residuals with each row's block left out, for every ridge.

    With H = Z g Z', g = s / (s + ridge), the block b leaves  (I - H_bb)^-1 (y - H y)_b.
    """
    Z, s = spectrum.Z, spectrum.s
    projected = Z.T @ y
    (T, K), N = Z.shape, y.shape[1]
    pad = -T % block
    Zb = np.concatenate([Z, np.zeros((pad, K))]).reshape(-1, block, K)
    yb = np.concatenate([y, np.zeros((pad, N))]).reshape(-1, block, N)
    across = np.ascontiguousarray(Zb.transpose(0, 2, 1))
    # Rounding: a block that determines itself completely is not predicted at all.
    identity = (1.0 + 1e-12) * np.eye(block)
    for ridge in ridges:
        g = s / (s + ridge)
        weighted = Zb * g
        left_out = np.linalg.solve(identity - weighted @ across, yb - weighted @ projected).reshape(-1, N)[:T]
        # What single precision makes of sums of large weights with alternating signs.
        rounding = ROUNDING**2 * np.sum((projected / (s + ridge)[:, None]) ** 2, axis=0)
        yield float(np.mean(0.5 * np.log(np.mean(left_out**2, axis=0) + rounding + 1e-30))), ridge, left_out
