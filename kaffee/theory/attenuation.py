"""Compute noisy-state attenuation, and fit the scalar system by its Kalman likelihood (appendices A.2 and A.3).

    z_1 ~ N(0, p),    z_{t+1} = a z_t + xi_t,    x_t = z_t + eps_t,    xi ~ N(0, q),    eps ~ N(0, r)

Predicting x_{t+1} from x_t estimates kappa_t a with kappa_t = P_t / (P_t + r) < 1, P_t = Var(z_t); an open-loop
objective over H steps lands in [kappa_t a, kappa_t^(1/H) a]; the Kalman innovation likelihood identifies (a, q, r, p).
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from kaffee.errors import ConfigError, KaffeeError
from kaffee.filtering.gaussian import Belief, assimilate, innovate
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, scan_terms
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import StateSpaceModel


class Measured(NamedTuple):
    """A number that is estimated from data or free runs, with its standard error."""

    value: float
    se: float = 0.0


def series_attenuation(model: StateSpaceModel, x: Float[np.ndarray, "T N"]) -> tuple[Float[np.ndarray, " N"], float]:
    """Compute the share of signal in a series `x` (standardised, NaN where missing), if the model's shell is right.

    kappa_j = 1 - Lambda_jj / Var(x_j): a one-step noisy-state fit shrinks the multiplier of coordinate j by this
    factor; negative where the model claims more noise than the data have variance. By A.2 for vectors, where x_{t+1} on
    x_t gives A (I - Lambda Cov(x)^-1), the smallest eigenvalue of this matrix is the factor in the direction with the
    least signal: never above the smallest kappa, and far below it where coordinates are strongly correlated.
    """
    Lambda = np.asarray(model.shell.observation_variance(), np.float64)
    kappa = 1.0 - Lambda / np.nanvar(x, axis=0)
    complete = x[np.isfinite(x).all(axis=1)]
    if len(complete) <= x.shape[1]:
        return kappa, float("nan")
    root = np.sqrt(Lambda)
    covariance = np.atleast_2d(np.cov(complete.T, ddof=0)) / np.outer(root, root)
    return kappa, float(1.0 - 1.0 / np.linalg.eigvalsh(covariance)[0])


@dataclass(frozen=True)
class ScalarSystem:
    """Hold theta = (a, q, r, p) of the scalar linear-Gaussian system.

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
        """Compute P_1, ..., P_T by P_{t+1} = a^2 P_t + q."""
        return np.array(list(accumulate(range(1, num_steps), lambda P, _: self.a**2 * P + self.q, initial=self.p)))

    def kappas(self, num_steps: int) -> Float[np.ndarray, " T"]:
        """Compute kappa_t = P_t / (P_t + r), the share of the variance of x_t that is signal."""
        P = self.state_variances(num_steps)
        return P / (P + self.r)

    def open_loop_interval(self, t: int, horizon: int) -> tuple[float, float]:
        """Bound every open-loop noisy-state target: [kappa_t a, kappa_t^(1/H) a] (proposition 2 (ii))."""
        if self.a <= 0:
            raise ConfigError(f"Proposition 2 (ii) assumes a > 0, not {self.a}.")
        kappa = float(self.kappas(t)[-1])
        return kappa * self.a, kappa ** (1.0 / horizon) * self.a


class _KalmanFit(NamedTuple):
    """The maximum of the innovation likelihood, with standard errors from the observed information."""

    a: Measured
    q: Measured
    r: Measured
    p: Measured

    @property
    def system(self) -> ScalarSystem:
        return ScalarSystem(*(estimate.value for estimate in self))


def _kalman_nll(theta: Float[Array, " 4"], x: Float[Array, "W T"]) -> Float[Array, ""]:
    """Average -log p_theta(x_{1:T}) over windows, theta = (a, q, r, p), by kaffee's own recursion.

    The first row is assimilated into N(0, p); every later one is a step of `kaffee.filtering.recursion`.
    """
    a, q, r, p = theta
    identity, first = Projection(1, 1), jnp.ones((x.shape[0], 1), bool)
    prior = Belief(jnp.zeros((x.shape[0], 1), x.dtype), jnp.broadcast_to(p, (x.shape[0], 1, 1)))
    innovation = innovate(prior, x[:, :1], first, identity, r[None])
    core = Linear(a[None, None], jnp.zeros(1, x.dtype))
    dynamics = Dynamics(core, q[None], r[None], assimilate(prior, innovation))
    later = x.T[1:, :, None]
    terms = scan_terms(Recursion(), dynamics, Observations(later, jnp.ones(later.shape, bool), identity))
    return jnp.mean(innovation.nll + jnp.sum(terms.nll, axis=0))


# In (a, log q, log r, log p).
_value_and_gradient = jax.jit(
    jax.value_and_grad(lambda free, x: _kalman_nll(jnp.concatenate([free[:1], jnp.exp(free[1:])]), x))
)
# Forward mode twice: four parameters are few, and it compiles in half the time.
_gradient = jax.jacfwd(_kalman_nll)
_gradient_and_hessian = jax.jit(lambda theta, x: (_gradient(theta, x), jax.jacfwd(_gradient)(theta, x)))


def _compress_windows(x: Float[np.ndarray, "W T"]) -> Float[np.ndarray, "T T"]:
    """Return T windows with the same mean of x x', and so the same likelihood for every theta.

    The innovations of a linear filter are linear in the data and their covariances do not depend on them: the mean
    likelihood of any number of complete windows is a function of their second moments alone.
    """
    return np.sqrt(x.shape[1]) * np.linalg.cholesky(x.T @ x / len(x)).T


def _solve_moments(x: Float[np.ndarray, "W T"]) -> ScalarSystem:
    """Solve for (a, q, r, p) from the covariances of x_1, x_2, x_3, as the identifiability proof of A.2 does.

        a = s31 / s21,    p = s21 / a,    r = s11 - p,    q = s22 - a^2 p - r

    Variances that come out negative, as they can in a small sample, become 1 % of s11.
    """
    if x.shape[1] < 3:
        raise ConfigError(f"Three steps are needed to identify (a, q, r, p); the windows have {x.shape[1]}.")
    s11, s22 = (x[:, 0] ** 2).mean(), (x[:, 1] ** 2).mean()
    s21, s31 = (x[:, 1] * x[:, 0]).mean(), (x[:, 2] * x[:, 0]).mean()
    a, floor = float(s31 / s21), 0.01 * s11
    p = max(s21 / a, floor)
    r = max(s11 - p, floor)
    q = max(s22 - a**2 * p - r, floor)
    return ScalarSystem(a, float(q), float(r), float(p))


def fit_kalman(x: Float[np.ndarray, "W T"]) -> _KalmanFit:
    """Maximise the exact innovation likelihood of independent windows over (a, q, r, p) (proposition 2 (iii)).

    In float64, the variances on a log scale. Standard errors are the roots of the diagonal of (W H)^-1, where H is
    the Hessian of the mean negative log-likelihood at the optimum. Raise if a variance runs to 0, as it may in a small
    sample.
    """
    start = _solve_moments(x)
    with jax.enable_x64(True):
        data = jnp.asarray(_compress_windows(x))

        def evaluate(free: np.ndarray) -> tuple[float, Any]:
            value, gradient = _value_and_gradient(jnp.asarray(free), data)
            return float(value), np.asarray(gradient)

        free = np.array([start.a, *np.log([start.q, start.r, start.p])])
        optimum = minimize(evaluate, free, jac=True, method="BFGS", options={"gtol": 1e-8}).x
        theta = np.concatenate([optimum[:1], np.exp(optimum[1:])])
        gradient, hessian = (np.asarray(a) for a in _gradient_and_hessian(jnp.asarray(theta), data))
    variances = np.diag(np.linalg.inv(len(x) * hessian))
    errors = np.sqrt(np.maximum(variances, 0.0))
    inside = theta[1:].min() > 1e-6 * np.mean(x**2)
    # The slope in units of standard errors, so that the number of windows does not matter.
    if not (inside and (variances > 0).all() and (len(x) * np.abs(gradient) * errors < 0.1).all()):
        stopped = f"it stopped at (a, q, r, p) = {theta.round(4)}"
        raise KaffeeError(f"The likelihood has no maximum inside: {stopped}. Bring more windows.")
    return _KalmanFit(*(Measured(float(v), float(s)) for v, s in zip(theta, errors, strict=True)))
