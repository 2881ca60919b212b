"""Noisy-state attenuation (appendices A.2 and A.3): what is learned when noisy observations are taken for states.

    z_1 ~ N(0, p),    z_{t+1} = a z_t + xi_t,    x_t = z_t + eps_t,    xi ~ N(0, q),    eps ~ N(0, r)

Predicting x_{t+1} from x_t estimates kappa_t a with kappa_t = P_t / (P_t + r) < 1, P_t = Var(z_t); an open-loop
objective over H steps lands in [kappa_t a, kappa_t^(1/H) a]; the Kalman innovation likelihood finds (a, q, r, p).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from kaffee.errors import ConfigError
from kaffee.model.statespace import StateSpaceModel


@dataclass(frozen=True)
class ScalarSystem:
    """theta = (a, q, r, p) of the scalar linear-Gaussian system.

    >>> system = ScalarSystem(a=1.05, q=0.1, r=1.0, p=1.0)
    >>> [round(float(k), 3) for k in system.kappas(3)]
    [0.5, 0.546, 0.588]
    >>> [round(bound, 3) for bound in system.open_loop_interval(t=1, horizon=4)]
    [0.525, 0.883]
    """

    a: float
    q: float
    r: float
    p: float

    def __post_init__(self) -> None:
        if not (min(self.q, self.r, self.p) > 0 and np.isfinite([self.a, self.q, self.r, self.p]).all()):
            raise ConfigError(f"The variances q, r and p must be positive and all parameters finite; got {self}.")

    def state_variances(self, num_steps: int) -> Float[np.ndarray, " T"]:
        """P_1, ..., P_T: P_{t+1} = a^2 P_t + q."""
        variances = [self.p]
        while len(variances) < num_steps:
            variances.append(self.a**2 * variances[-1] + self.q)
        return np.array(variances[:num_steps])

    def kappas(self, num_steps: int) -> Float[np.ndarray, " T"]:
        """kappa_t = P_t / (P_t + r), the share of the variance of x_t that is signal."""
        P = self.state_variances(num_steps)
        return P / (P + self.r)

    def one_step_target(self, t: int) -> float:
        """kappa_t a, where the one-step noisy-state fit at time t = 1, 2, ... converges (proposition 2 (i))."""
        return float(self.kappas(t)[-1] * self.a)

    def pooled_target(self, num_steps: int) -> float:
        """a sum P_t / sum (P_t + r), t < T: one multiplier for a whole window (appendix A.2)."""
        P = self.state_variances(num_steps - 1)
        return float(self.a * P.sum() / (P + self.r).sum())

    def open_loop_interval(self, t: int, horizon: int) -> tuple[float, float]:
        """[kappa_t a, kappa_t^(1/H) a], which holds every open-loop noisy-state target (proposition 2 (ii))."""
        if self.a <= 0:
            raise ConfigError(f"Proposition 2 (ii) assumes a > 0, not {self.a}.")
        kappa = float(self.kappas(t)[-1])
        return kappa * self.a, kappa ** (1.0 / horizon) * self.a

    def open_loop_target(self, t: int, horizon: int) -> float:
        """The minimiser of J_H(a) = 1/2 sum_h log E(x_{t+h} - a^h x_t)^2 for an infinite sample (proposition 2)."""
        P = self.state_variances(t + horizon)
        lagged = self.a ** np.arange(1, horizon + 1) * P[t - 1]
        return _open_loop_minimiser(P[t - 1] + self.r, lagged, P[t:] + self.r)

    def simulate(self, num_windows: int, num_steps: int, *, seed: int) -> Float[np.ndarray, "W T"]:
        """Independent windows x_1, ..., x_T."""
        rng = np.random.default_rng(seed)
        z = np.sqrt(self.p) * rng.standard_normal(num_windows)
        states = [z]
        while len(states) < num_steps:
            z = self.a * z + np.sqrt(self.q) * rng.standard_normal(num_windows)
            states.append(z)
        x = np.stack(states, axis=1)
        return x + np.sqrt(self.r) * rng.standard_normal(x.shape)


class Estimate(NamedTuple):
    """A fitted number and its standard error."""

    value: float
    se: float


def fit_one_step(x: Float[np.ndarray, "W T"], t: int | None = None) -> Estimate:
    """Least squares of x_{t+1} on x_t, which also minimises the one-step noisy-state NLL (appendix A.2).

    The standard error is the sandwich over windows: right also where residuals within a window are correlated.

    Args:
        t: At this time only, 1, 2, ...; None: one multiplier for all times of the windows.
    """
    before, after = (x[:, :-1], x[:, 1:]) if t is None else (x[:, t - 1 : t], x[:, t : t + 1])
    a = float((before * after).sum() / (before**2).sum())
    scores = (before * (after - a * before)).sum(axis=1)
    return Estimate(a, float(np.sqrt((scores**2).sum()) / (before**2).sum()))


def fit_open_loop(x: Float[np.ndarray, "W T"], t: int, horizon: int) -> float:
    """The multiplier that minimises the H-step noisy-state open-loop NLL from time t, over a > 0 (proposition 2 (ii)).

    The variances v_1, ..., v_H are optimised out: v_h(a) = mean (x_{t+h} - a^h x_t)^2.
    """
    start, later = x[:, t - 1], x[:, t : t + horizon]
    if later.shape[1] < horizon:
        raise ConfigError(f"Windows of {x.shape[1]} steps do not reach {horizon} steps beyond t = {t}.")
    return _open_loop_minimiser((start**2).mean(), (start[:, None] * later).mean(axis=0), (later**2).mean(axis=0))


def _open_loop_minimiser(start: float, lagged: Float[np.ndarray, " H"], later: Float[np.ndarray, " H"]) -> float:
    """argmin_a>0 of sum_h log(E x_{t+h}^2 - 2 a^h E x_t x_{t+h} + a^2h E x_t^2).

    Summand h falls until its own root b_h = (E x_t x_{t+h} / E x_t^2)^(1/h) and rises beyond it: the minimum lies
    between the smallest and the largest root. There may be several local ones, so a grid comes first.
    """
    powers = np.arange(1, len(lagged) + 1)
    roots = np.maximum(lagged / start, np.finfo(float).tiny) ** (1.0 / powers)

    def loss(a: float) -> float:
        ah = a**powers
        return float(np.log(later - 2.0 * ah * lagged + ah**2 * start).sum())

    grid = np.linspace(roots.min(), roots.max(), 201)
    best = int(np.argmin([loss(a) for a in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if high <= low:
        return float(low)
    return float(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x)


class SeriesAttenuation(NamedTuple):
    """How much of a series is signal, if the shell of a model is right about its observation noise.

    Attributes:
        kappa: kappa_j = 1 - Lambda_jj / Var(x_j): a one-step noisy-state fit shrinks the multiplier of coordinate j by
            this factor. Negative where the model claims more noise than the data have variance.
        worst: The smallest eigenvalue of I - Lambda Cov(x)^-1, the factor in the direction with the least signal; never
            above the smallest kappa, and far below it where coordinates are strongly correlated.
    """

    kappa: Float[np.ndarray, " N"]
    worst: float


def series_attenuation(model: StateSpaceModel, x: Float[np.ndarray, "T N"]) -> SeriesAttenuation:
    """The attenuation to fear on a series: A.2 for vectors, where x_{t+1} on x_t gives A (I - Lambda Cov(x)^-1).

    Args:
        x: Rows of the series in the model's standardised units; NaN where missing.
    """
    Lambda = np.asarray(model.shell.observation_variance(), np.float64)
    kappa = 1.0 - Lambda / np.nanvar(x, axis=0)
    complete = x[np.isfinite(x).all(axis=1)]
    if len(complete) <= x.shape[1]:
        return SeriesAttenuation(kappa, float("nan"))
    root = np.sqrt(Lambda)
    covariance = np.atleast_2d(np.cov(complete.T, ddof=0)) / np.outer(root, root)
    return SeriesAttenuation(kappa, float(1.0 - 1.0 / np.linalg.eigvalsh(covariance)[0]))
