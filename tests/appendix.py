"""Closed forms and textbook estimators of appendix A that tests compare the library with."""

import equinox as eqx
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
from hypothesis.extra.numpy import arrays
from models import LATENT, OBSERVED, STEPS, WINDOWS, make_problem
from scipy.optimize import minimize_scalar

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Observations
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.theory.attenuation import Measured

PROBLEMS = {
    "x": arrays(np.float64, (STEPS, WINDOWS, OBSERVED), elements=st.floats(-3.0, 3.0)),
    "process": arrays(np.float64, LATENT, elements=st.floats(-2.0, 1.0)),
    "noise": arrays(np.float64, OBSERVED, elements=st.floats(-2.0, 1.0)),
}
SIZE = st.floats(0.1, 2.0)


def random_problem(x, process, noise, size=1.0):
    """A random small model with missing data, always of the same shapes: rows, log standard deviations, weights."""
    dynamics, observations = make_problem("smooth", "general")
    dynamics = dynamics._replace(
        core=eqx.tree_at(lambda c: c.W, dynamics.core, size * dynamics.core.W),
        process_variance=jnp.exp(2 * jnp.asarray(process)),
        observation_variance=jnp.exp(2 * jnp.asarray(noise)),
    )
    return dynamics, observations._replace(x=jnp.asarray(x))


def linear_problem(A, process, noise, covariance, x):
    """The system z -> A z from the mean 0, its first coordinates observed as rows (T, W, N)."""
    A, x = jnp.asarray(A), jnp.asarray(x)
    M, (_, W, N) = len(A), x.shape
    start = Belief(jnp.zeros((W, M)), jnp.broadcast_to(jnp.asarray(covariance), (W, M, M)))
    dynamics = Dynamics(Linear(A, jnp.zeros(M)), jnp.full(M, process), jnp.full(N, noise), start)
    return dynamics, Observations(x, jnp.ones(x.shape, bool), Projection(N, M))


def simulate_windows(system, num_windows, num_steps, *, seed):
    """Draw independent windows x_1, ..., x_T of a scalar system."""
    rng = np.random.default_rng(seed)
    z = np.sqrt(system.p) * rng.standard_normal(num_windows)
    states = [z]
    while len(states) < num_steps:
        z = system.a * z + np.sqrt(system.q) * rng.standard_normal(num_windows)
        states.append(z)
    x = np.stack(states, axis=1)
    return x + np.sqrt(system.r) * rng.standard_normal(x.shape)


def pooled_target(system, num_steps):
    """a sum P_t / sum (P_t + r), t < T: one multiplier for a whole window (appendix A.2)."""
    P = system.state_variances(num_steps - 1)
    return float(system.a * P.sum() / (P + system.r).sum())


def one_step_target(system, t):
    """kappa_t a, where the one-step noisy-state fit at time t = 1, 2, ... converges (proposition 2 (i))."""
    return float(system.kappas(t)[-1] * system.a)


def open_loop_target(system, t, horizon):
    """The minimiser of J_H(a) = 1/2 sum_h log E(x_{t+h} - a^h x_t)^2 for an infinite sample (proposition 2)."""
    P = system.state_variances(t + horizon)
    lagged = system.a ** np.arange(1, horizon + 1) * P[t - 1]
    return _open_loop_minimiser(P[t - 1] + system.r, lagged, P[t:] + system.r)


def fit_one_step(x, t=None):
    """Least squares of x_{t+1} on x_t, at one time or pooled; the standard error is the sandwich over windows."""
    before, after = (x[:, :-1], x[:, 1:]) if t is None else (x[:, t - 1 : t], x[:, t : t + 1])
    a = float((before * after).sum() / (before**2).sum())
    scores = (before * (after - a * before)).sum(axis=1)
    return Measured(a, float(np.sqrt((scores**2).sum()) / (before**2).sum()))


def fit_open_loop(x, t, horizon):
    """The multiplier that minimises the H-step noisy-state open-loop NLL from time t, the variances optimised out."""
    start, later = x[:, t - 1], x[:, t : t + horizon]
    return _open_loop_minimiser((start**2).mean(), (start[:, None] * later).mean(axis=0), (later**2).mean(axis=0))


def _open_loop_minimiser(start, lagged, later):
    """argmin_a>0 of sum_h log(E x_{t+h}^2 - 2 a^h E x_t x_{t+h} + a^2h E x_t^2).

    Summand h falls until its own root b_h = (E x_t x_{t+h} / E x_t^2)^(1/h) and rises beyond it: the minimum lies
    between the smallest and the largest root. There may be several local ones, so a grid comes first.
    """
    powers = np.arange(1, len(lagged) + 1)
    roots = np.maximum(lagged / start, np.finfo(float).tiny) ** (1.0 / powers)

    def loss(a):
        ah = a**powers
        return float(np.log(later - 2.0 * ah * lagged + ah**2 * start).sum())

    grid = np.linspace(roots.min(), roots.max(), 201)
    best = int(np.argmin([loss(a) for a in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if high <= low:
        return float(low)
    return float(minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10}).x)


def pressure_by_transports(terms, observation_variance, s=0.0):
    """l e^{2 l s} tr[Omega(s)^-1 A_l] for l = 0, ..., h; their sum is the derivative of 1/2 log det Omega at s."""
    order = jnp.arange(terms.shape[0], dtype=terms.dtype)
    weights = jnp.exp(2.0 * s * order)[:, None, None, None]
    Omega = jnp.sum(weights * terms, axis=0) + jnp.diag(observation_variance)
    return order[:, None] * jnp.einsum("wij,lwij->lw", jnp.linalg.inv(Omega), weights * terms)


def rescaling_derivative(transported, fixed, true, s=1.0):
    """The summands of L'(s) of lemma 1 for given A, C and Omega*."""
    precision = jnp.linalg.inv(s**2 * transported + fixed)
    twice = precision @ true @ precision
    return s * jnp.sum((precision - twice) * transported, axis=(-2, -1))


def underdispersed(omega, true):
    """The assumption of lemma 1, Omega <= Omega*: no predicted variance exceeds the true one, in any direction."""
    return jnp.linalg.eigvalsh(true - omega)[..., 0] >= 0.0
