"""The Kalman innovation likelihood of the scalar system, which identifies all four parameters (proposition 2 (iii))."""

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
from kaffee.theory.attenuation import Estimate, ScalarSystem

MAP = Projection(1, 1)


def kalman_nll(theta: Float[Array, " 4"], x: Float[Array, "W T"]) -> Float[Array, ""]:
    """-log p_theta(x_{1:T}) averaged over windows, theta = (a, q, r, p), by kaffee's own recursion.

    The first row is assimilated into N(0, p); every later one is a step of `kaffee.filtering.recursion`.
    """
    a, q, r, p = theta
    first = jnp.ones((x.shape[0], 1), bool)
    prior = Belief(jnp.zeros((x.shape[0], 1), x.dtype), jnp.broadcast_to(p, (x.shape[0], 1, 1)))
    innovation = innovate(prior, x[:, :1], first, MAP, r[None])
    core = Linear(a[None, None], jnp.zeros(1, x.dtype))
    dynamics = Dynamics(core, q[None], r[None], assimilate(prior, innovation))
    later = x.T[1:, :, None]
    terms = scan_terms(Recursion(), dynamics, Observations(later, jnp.ones(later.shape, bool), MAP))
    return jnp.mean(innovation.nll + jnp.sum(terms.nll, axis=0))


def sufficient_windows(x: Float[np.ndarray, "W T"]) -> Float[np.ndarray, "T T"]:
    """T windows with the same mean of x x', and so the same `kalman_nll` for every theta.

    The innovations of a linear filter are linear in the data and their covariances do not depend on them: the mean
    likelihood of any number of complete windows is a function of their second moments alone.
    """
    second_moment = x.T @ x / len(x)
    return np.sqrt(x.shape[1]) * np.linalg.cholesky(second_moment).T


def moment_estimate(x: Float[np.ndarray, "W T"]) -> ScalarSystem:
    """(a, q, r, p) from the covariances of x_1, x_2, x_3, as the identifiability proof of appendix A.2 solves them.

        a = s31 / s21,    p = s21 / a,    r = s11 - p,    q = s22 - a^2 p - r

    Variances that come out negative, as they can in a small sample, become 1 % of s11.
    """
    if x.shape[1] < 3:
        raise ConfigError(f"Three steps are needed to identify (a, q, r, p); the windows have {x.shape[1]}.")
    s11, s22 = (x[:, 0] ** 2).mean(), (x[:, 1] ** 2).mean()
    s21, s31 = (x[:, 1] * x[:, 0]).mean(), (x[:, 2] * x[:, 0]).mean()
    a = float(s31 / s21)
    floor = 0.01 * s11
    p = max(s21 / a, floor)
    r = max(s11 - p, floor)
    q = max(s22 - a**2 * p - r, floor)
    return ScalarSystem(a, float(q), float(r), float(p))


class KalmanFit(NamedTuple):
    """The maximum of the innovation likelihood, with standard errors from the observed information."""

    a: Estimate
    q: Estimate
    r: Estimate
    p: Estimate

    @property
    def system(self) -> ScalarSystem:
        """The fitted values alone."""
        return ScalarSystem(*(estimate.value for estimate in self))


def _free_nll(free: Float[Array, " 4"], x: Float[Array, "W T"]) -> Float[Array, ""]:
    return kalman_nll(jnp.concatenate([free[:1], jnp.exp(free[1:])]), x)


_value_and_gradient = jax.jit(jax.value_and_grad(_free_nll))
# Forward mode twice: four parameters are few, and it compiles in half the time.
_gradient = jax.jacfwd(kalman_nll)
_gradient_and_hessian = jax.jit(lambda theta, x: (_gradient(theta, x), jax.jacfwd(_gradient)(theta, x)))


def fit_kalman(x: Float[np.ndarray, "W T"]) -> KalmanFit:
    """Maximise the exact innovation likelihood of independent windows over (a, q, r, p), in float64.

    The variances move on a log scale. Standard errors are the roots of the diagonal of (W H)^-1, where H is the
    Hessian of `kalman_nll` in (a, q, r, p) at the optimum.

    Raises:
        KaffeeError: The likelihood has no maximum inside: a variance runs to 0, as it may in a small sample.
    """
    start = moment_estimate(x)
    with jax.enable_x64(True):
        data = jnp.asarray(sufficient_windows(x))

        def evaluate(free: np.ndarray) -> tuple[float, Any]:
            value, gradient = _value_and_gradient(jnp.asarray(free), data)
            return float(value), np.asarray(gradient)

        free = np.array([start.a, *np.log([start.q, start.r, start.p])])
        found = minimize(evaluate, free, jac=True, method="BFGS", options={"gtol": 1e-8})
        theta = np.concatenate([found.x[:1], np.exp(found.x[1:])])
        gradient, hessian = (np.asarray(a) for a in _gradient_and_hessian(jnp.asarray(theta), data))
    variances = np.diag(np.linalg.inv(len(x) * hessian))
    errors = np.sqrt(np.maximum(variances, 0.0))
    inside = theta[1:].min() > 1e-6 * np.mean(x**2)
    # The slope in units of standard errors, so that the number of windows does not matter.
    if not (inside and (variances > 0).all() and (len(x) * np.abs(gradient) * errors < 0.1).all()):
        raise KaffeeError(
            f"The likelihood has no maximum inside: it stopped at (a, q, r, p) = {theta.round(4)}. Bring more windows."
        )
    return KalmanFit(*(Estimate(float(v), float(s)) for v, s in zip(theta, errors, strict=True)))
