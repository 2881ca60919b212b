"""Small models, data and independent NumPy oracles that several test files share.

The oracles are written from the textbook equations, one window and one step at a time, and use nothing of kaffee.
"""

from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, settings
from jax.flatten_util import ravel_pytree

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Recursion, arrange_observations, step
from kaffee.model.alrnn import ALRNN
from kaffee.model.maps import Linear, Polynomial, ResidualMLP, _monomials
from kaffee.model.matrices import BandedMatrix, LowRankMatrix
from kaffee.model.observation import LinearObservation, Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import Custom

LATENT, OBSERVED, GATES = 5, 2, 3
WINDOWS, STEPS = 3, 7

SWITCHES = [Recursion(assimilate=a, transport=t) for a in (True, False) for t in (True, False)]
CORES = ["straight_through", "smooth", "hard", "linear", "polynomial", "mlp", "custom", "lowrank", "banded"]
MAPS = ["projection", "general"]

# Examples are few because each one runs a filter; derandomised, so that a failure is the same on every machine.
PROPERTY = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def array(values, dtype=None):
    """Place NumPy numbers on the device; `jnp.asarray` compiles a program for every shape and type."""
    return jax.device_put(np.asarray(values, dtype))


class Swing(eqx.Module):
    """A user's own map without a Jacobian: a damped, coupled sine."""

    weights: jax.Array

    def __call__(self, z):
        return 0.7 * z + 0.5 * jnp.sin(self.weights @ z)


def make_core(kind, *, latent_dim=LATENT, seed=0, dtype=np.float64):
    """Build a core of any kind, non-trivial in all its parameters; each gate of the AL-RNN is a kind."""
    rng = np.random.default_rng(seed)

    def draw(*shape, scale=0.4):
        return array(scale * rng.standard_normal(shape), dtype)

    M = latent_dim
    match kind:
        case "straight_through" | "smooth" | "hard":
            return ALRNN(0.6 + draw(M, scale=0.1), draw(M, M), draw(M), GATES, kind)
        case "lowrank":
            return ALRNN(0.6 + draw(M, scale=0.1), LowRankMatrix(draw(M, 2), draw(M, 2)), draw(M), GATES, "smooth")
        case "banded":
            return ALRNN(0.6 + draw(M, scale=0.1), BandedMatrix(draw(5, M)), draw(M), GATES, "smooth")
        case "linear":
            return Linear(draw(M, M), draw(M))
        case "polynomial":
            features = len(_monomials(M, degree=2))
            return Polynomial(draw(M, M, scale=0.3), draw(M, features, scale=0.1), draw(M, scale=0.1), degree=2)
        case "mlp":
            core = ResidualMLP.create(M, hidden_dim=6, depth=2, key=jax.random.key(seed), dtype=dtype)
            return eqx.tree_at(lambda c: c.biases, core, tuple(draw(len(b)) for b in core.biases))
        case "custom":
            return Custom(Swing(draw(M, M)), M)
    raise ValueError(kind)


def make_map(kind, *, dtype=np.float64):
    """Build B = [I 0] or a dense B."""
    if kind == "projection":
        return Projection(OBSERVED, LATENT)
    B = np.random.default_rng(7).standard_normal((OBSERVED, LATENT))
    return LinearObservation(array(B, dtype))


def matrix_of(observation):
    """Return B as a NumPy array."""
    return np.asarray(observation.matrix(), np.float64)


def make_model(core="smooth", observation="projection", *, seed=0, dtype=np.float64):
    """Build a model with different noise in every coordinate."""
    rng = np.random.default_rng(100 + seed)
    return StateSpaceModel(
        core=make_core(core, seed=seed, dtype=dtype) if isinstance(core, str) else core,
        shell=Shell.from_std(rng.uniform(0.2, 0.6, LATENT), rng.uniform(0.3, 0.8, OBSERVED), dtype),
        observation=make_map(observation, dtype=dtype),
        embedding=array(rng.uniform(-0.7, 0.7, (LATENT, OBSERVED)), dtype),
    )


def make_data(*, missing=0.3, seed=0, rows=STEPS + 1, windows=WINDOWS, dtype=np.float64):
    """Draw standard normal windows (W, T, N) with a mask; missing entries hold NaN. The first rows are complete."""
    rng = np.random.default_rng(200 + seed)
    x = rng.standard_normal((windows, rows, OBSERVED))
    mask = rng.uniform(size=x.shape) >= missing
    mask[:, 0] = True
    if missing and rows > 2:
        mask[0, 2] = False  # one step without any observation
    return array(np.where(mask, x, np.nan), dtype), array(mask)


def make_belief(*, seed=0, windows=WINDOWS, latent_dim=LATENT, dtype=np.float64):
    """Draw a different dense belief for every window."""
    rng = np.random.default_rng(300 + seed)
    root = rng.standard_normal((windows, latent_dim, latent_dim))
    covariance = 0.3 * root @ np.swapaxes(root, 1, 2) / latent_dim + 0.1 * np.eye(latent_dim)
    mean = rng.standard_normal((windows, latent_dim))
    return Belief(array(mean, dtype), array(covariance, dtype))


def make_problem(core="smooth", observation="projection", *, missing=0.3, seed=0):
    """Build (dynamics, observations) for the recursion, with a dense initial belief."""
    model = make_model(core, observation, seed=seed)
    shell = model.shell
    belief = make_belief(seed=seed)
    dynamics = Dynamics(model.core, shell.process_variance(), shell.observation_variance(), belief)
    x, mask = make_data(missing=missing, seed=seed)
    return dynamics, arrange_observations(x[:, 1:], mask[:, 1:], model.observation)


def flat(tree):
    """Concatenate all floating-point leaves to one NumPy vector."""
    return np.asarray(ravel_pytree(eqx.filter(tree, eqx.is_inexact_array))[0])


def directional_differences(function, tree, direction, *, step=1e-5):
    """Compute the central difference (f(tree + h d) - f(tree - h d)) / 2h of a scalar function."""
    arrays, static = eqx.partition(tree, eqx.is_inexact_array)
    moved = [eqx.combine(jax.tree.map(lambda a, d, s=s: a + s * d, arrays, direction), static) for s in (step, -step)]
    high, low = (float(function(t)) for t in moved)
    return (high - low) / (2.0 * step)


def random_direction(tree, seed):
    """Draw a standard normal tree of the same structure, with symmetric changes of a belief's covariance."""
    arrays = eqx.filter(tree, eqx.is_inexact_array)
    rng = np.random.default_rng(seed)
    direction = jax.tree.map(lambda a: array(rng.standard_normal(a.shape), a.dtype), arrays)
    if isinstance(direction, Dynamics):
        direction = symmetric_start(direction)
    return direction


def symmetric_start(dynamics):
    """Symmetrise the cotangent of the initial covariance, whose antisymmetric part has no meaning."""
    mean, covariance = dynamics.initial
    return dynamics._replace(initial=Belief(mean, 0.5 * (covariance + covariance.mT)))


def inner(a, b):
    """Compute <a, b> over all leaves."""
    return float(flat(a) @ flat(b))


def finite_jacobian(function, z, step=1e-6):
    """Compute dF/dz by central differences."""
    columns = [
        (np.asarray(function(z + step * e)) - np.asarray(function(z - step * e))) / (2.0 * step) for e in np.eye(len(z))
    ]
    return np.stack(columns, axis=1)


def gaussian_nll(x, mean, covariance):
    """Compute -log N(x; mean, covariance) by a dense solve."""
    if len(x) == 0:
        return 0.0
    v = x - mean
    _, log_det = np.linalg.slogdet(covariance)
    return 0.5 * (log_det + v @ np.linalg.solve(covariance, v) + len(x) * np.log(2 * np.pi))


def textbook_filter(step, jacobian, B, Gamma, Lambda, mean, covariance, x, mask, *, assimilate=True, transport=True):
    """Filter one window by the extended Kalman filter in textbook form: K = P B' S^-1, P = (I - K B) P.

    A missing entry is a row that B, Lambda and x do not have.

    Returns:
        The negative log likelihood, filtered mean and filtered covariance of every step.
    """
    z, P = np.array(mean), np.array(covariance)
    nlls, means, covariances = [], [], []
    for x_t, seen in zip(np.asarray(x), np.asarray(mask), strict=True):
        J = np.asarray(jacobian(z)) if transport else np.eye(len(z))
        z, P = np.asarray(step(z)), J @ P @ J.T + Gamma
        H, R = B[seen], Lambda[np.ix_(seen, seen)]
        S = H @ P @ H.T + R
        nlls.append(gaussian_nll(x_t[seen], H @ z, S))
        if assimilate:
            K = P @ H.T @ np.linalg.inv(S)
            z, P = z + K @ (x_t[seen] - H @ z), (np.eye(len(z)) - K @ H) @ P
        means.append(z)
        covariances.append(P)
    return np.array(nlls), np.array(means), np.array(covariances)


def joint_density(A, h, B, Gamma, Lambda, mean, covariance, num_steps):
    """Compute mean (T N,) and covariance (T N, T N) of x_1..x_T for z' = A z + h + noise, x = B z + noise."""
    m, P = np.array(mean), np.array(covariance)
    means, cross = [], []
    for _ in range(num_steps):
        m, P = A @ m + h, A @ P @ A.T + Gamma
        means.append(B @ m)
        cross.append(P)
    N = len(B)
    joint = np.zeros((num_steps * N, num_steps * N))
    for s in range(num_steps):
        lagged = cross[s]  # Cov(z_t, z_s) = A^(t-s) Cov(z_s)
        for t in range(s, num_steps):
            block = B @ lagged @ B.T + (Lambda if s == t else 0.0)
            joint[t * N : (t + 1) * N, s * N : (s + 1) * N] = block
            joint[s * N : (s + 1) * N, t * N : (t + 1) * N] = block.T
            lagged = A @ lagged
    return np.concatenate(means), joint


def iterate(step, z, num_steps):
    """Compute z_1..z_T from z_0."""
    states = [np.asarray(z)]
    for _ in range(num_steps):
        states.append(np.asarray(step(states[-1])))
    assert all(a.shape == b.shape for a, b in pairwise(states))
    return np.stack(states[1:])


class Run(NamedTuple):
    """The results of a run by `step` alone."""

    nll: jax.Array
    faults: jax.Array
    predicted: Belief
    filtered: Belief


@eqx.filter_jit
def run(recursion, dynamics, observations):
    """Run a batch of windows; one compiled program serves all tests with the same shapes."""

    def body(belief, inputs):
        now = step(recursion, dynamics, observations.observation, belief, *inputs)
        return now.filtered, Run(now.innovation.nll, now.fault, now.predicted, now.filtered)

    return jax.lax.scan(body, dynamics.initial, (observations.x, observations.mask))[1]
