"""Denoise a context by the model that it defines: an iterated extended Kalman smoother on our recursion.

A regression predicts every row from the others (`kaffee.training.kernel_regression`); its tangents at the present
estimate of the states make a linear model with another map at every step. Its smoother is the next estimate:

    x_{t+1} = F_t + J_t (z_t - zhat_t),    F_t without the block of row t,    zhat <- smoothed z        (Bell 1994)

Of several levels of process and observation noise the one with the least innovation NLL is used.
"""

from itertools import product
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, scan_terms, step
from kaffee.filtering.smoother import smooth_back
from kaffee.model.kernel import Register, Tangents
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.training.gaussian_process import JointEstimate
from kaffee.training.kernel_regression import KernelRegression

NOISE_LEVELS = (0.0003, 0.001, 0.003, 0.01, 0.02, 0.04, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5)
"""Standard deviations of the observation noise that are tried, in those of the data."""
CLEAN = 0.003
"""Less noise than this needs no denoising."""
REFINED = (0.8, 1.0, 1.25)
PROCESS_LEVELS = (0.03, 0.1, 0.3, 1.0)
"""Process noise that is tried, in standard deviations of the regression's left-out residuals."""
LEAST_STD = 1e-4
_BEYOND, _ENOUGH, _AFFORDABLE = 1.0, 30, 2e10


class Smoothed(NamedTuple):
    """Smoothed readings, their variances, and the levels of noise."""

    mean: list[Float[np.ndarray, "T N"]]
    variance: list[Float[np.ndarray, "T N"]]
    process_std: Float[np.ndarray, " N"]
    observation_std: Float[np.ndarray, " N"]
    nll: float


class Pairs(NamedTuple):
    """What a regression learns from: features u_t, next readings, and where they come from (recording, row)."""

    features: Float[np.ndarray, "P D"]
    targets: Float[np.ndarray, "P N"]
    recording: Any
    row: Any


def make_pairs(
    states: list[Float[np.ndarray, "T N"]], lags: tuple[int, ...], usable: list[Bool[np.ndarray, " T"]]
) -> Pairs:
    """Pair the readings at some lags with the next one, where all of them are usable."""
    parts = []
    for number, (x, ok) in enumerate(zip(states, usable, strict=True)):
        rows = np.arange(lags[-1], len(x) - 1)
        good = ok[rows + 1] & np.all([ok[rows - lag] for lag in lags], axis=0)
        rows = rows[good]
        features = np.concatenate([x[rows - lag] for lag in lags], axis=1) if len(rows) else np.zeros((0, 1))
        if len(rows):
            parts.append((features, x[rows + 1], np.full(len(rows), number), rows))
    if not parts:
        empty = np.zeros(0, int)
        return Pairs(np.zeros((0, 1)), np.zeros((0, 1)), empty, empty)
    return Pairs(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def smooth_states(
    readings: list[Float[np.ndarray, "T N"]],
    joint: JointEstimate,
    lags: tuple[int, ...],
) -> Smoothed:
    """Compute how sure the states of a joint estimate are: as a smoother with its map is, and by the map's own doubt.

    The mean stays: it is the mode already, to which the smoother of the linearised model returns.
    """
    x = _stack(readings)
    core, process = Tangents(readings[0].shape[1], lags), np.sqrt(joint.process_variance)
    inputs = _linearise(joint.states, lags, joint.regression, None, len(x))
    begin, later, maps = _pad(readings, x, inputs, lags)
    shell = Shell.from_std(pad_process(process, core), np.sqrt(joint.observation_variance))
    _, variances = _split(readings, *_smooth(core, begin, later, maps, shell))
    total = [own + added for own, added in zip(variances, joint.map_variance, strict=True)]
    predicted = np.sqrt(np.mean(joint.regression.left_out**2, axis=0))
    return Smoothed(joint.states, total, predicted, np.sqrt(joint.observation_variance), -joint.evidence)


def smooth_context(
    readings: list[Float[np.ndarray, "T N"]],
    states: list[Float[np.ndarray, "T N"]],
    lags: tuple[int, ...],
    regression: KernelRegression,
    pairs: Pairs,
    noise: Float[np.ndarray, " N"] | None = None,
) -> Smoothed:
    """Smooth readings (NaN is missing) around estimated states by the tangents of a regression on them.

    Args:
        noise: Observation noise around which levels are tried; None: all of `NOISE_LEVELS`.
    """
    x = _stack(readings)
    T, R, N = x.shape
    left_out = np.sqrt(np.mean(regression.left_out**2, axis=0))
    inputs = _linearise(states, lags, regression, pairs, T)
    # What hardly any rows were left out of does not show how good a regression is.
    shares = PROCESS_LEVELS if len(pairs.features) >= _ENOUGH else PROCESS_LEVELS[-1:]
    levels = [(q, np.full(N, s)) for q, s in product(shares, NOISE_LEVELS)]
    if noise is not None:
        levels = [(q, s * noise) for q, s in product(shares, REFINED)]
    # Wide recordings: as many levels as there is time for.
    most = max(3, int(_AFFORDABLE / (T * R * N**3)))
    levels = levels[:: -(-len(levels) // most)]
    process = np.maximum([q * left_out for q, _ in levels], LEAST_STD)
    observed = np.maximum([s for _, s in levels], LEAST_STD)
    begin, later, maps = _pad(readings, x, inputs, lags)
    core = Tangents(N, lags)
    nll = np.asarray(_score(core, begin, later, maps, *(jnp.asarray(a, jnp.float32) for a in (process, observed))))
    best = int(np.argmin(np.where(np.isfinite(nll), nll, np.inf)))
    shell = Shell.from_std(pad_process(process[best], core), observed[best])
    means, variances = _split(readings, *_smooth(core, begin, later, maps, shell))
    for r, values in enumerate(readings):
        # A smoother that broke down, or left the data, knows less than the estimate before it.
        sane = np.abs(means[r]) < np.nanmax(np.abs(values), axis=0, initial=1.0) + _BEYOND
        means[r] = np.where(sane, means[r], states[r])
    count = np.isfinite(x[lags[-1] + 1 :]).sum()
    return Smoothed(means, variances, process[best], observed[best], float(nll[best] / max(count, 1)))


def _stack(readings: list[Float[np.ndarray, "T N"]]) -> Float[np.ndarray, "T R N"]:
    x = np.full((max(map(len, readings)), len(readings), readings[0].shape[1]), np.nan)
    for r, values in enumerate(readings):
        x[: len(values), r] = values
    return x


def _pad(readings: list[np.ndarray], x: np.ndarray, inputs: np.ndarray, lags: tuple[int, ...]) -> tuple[Array, ...]:
    """Return first registers, later readings and maps; with steps without readings and without a past at the end.

    They go up to a power of two: contexts of other lengths share programs.
    """
    first, T = lags[-1], len(x)
    blank = ((0, _fill_up(T - first - 1)), (0, 0), (0, 0))
    padded = np.pad(x[first + 1 :], blank, constant_values=np.nan), np.pad(inputs[first : T - 1], blank)
    return tuple(jnp.asarray(a, jnp.float32) for a in (_start(readings, first), *padded))


def _split(readings: list[np.ndarray], mean: Array, variance: Array) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Take readings out of smoothed registers; those of the first register are all of its rows, oldest last."""
    found, N = [], readings[0].shape[1]
    for values in (mean, variance):
        every = np.asarray(values, np.float64)
        found.append(
            [
                np.concatenate([every[0, r].reshape(-1, N)[::-1], every[1:, r, :N]])[: len(x)]
                for r, x in enumerate(readings)
            ]
        )
    return found[0], found[1]


def _fill_up(count: int) -> int:
    """Count what is missing up to the next power of two, at least 64.

    >>> [_fill_up(count) for count in (3, 64, 65, 500)]
    [61, 0, 63, 12]
    """
    return max(64, 1 << max(count - 1, 0).bit_length()) - count


def pad_process(process: Float[np.ndarray, " N"], core: Register) -> Float[np.ndarray, " M"]:
    """Give the past readings of the register as little noise as there can be."""
    return np.concatenate([process, np.full(core.latent_dim - len(process), LEAST_STD)])


def _start(readings: list[np.ndarray], first: int) -> Float[np.ndarray, "R M"]:
    """Fill the first registers with readings, newest first; NaN is missing."""
    rows = []
    for values in readings:
        head = np.full((first + 1, values.shape[1]), np.nan)
        head[: len(values)] = values[: first + 1]
        rows.append(head[::-1].ravel())
    return np.array(rows)


def _linearise(
    states: list[np.ndarray], lags: tuple[int, ...], regression: KernelRegression, pairs: Pairs | None, T: int
) -> Float[np.ndarray, "T R K"]:
    """Compute [F, J] around the states for every step; where the row was in the regression, F without its block."""
    N = states[0].shape[1]
    D = N * len(lags)
    inputs = np.zeros((T, len(states), N * (1 + D)))
    for r, x in enumerate(states):
        rows = np.arange(lags[-1], len(x) - 1)
        if not len(rows):
            continue
        u = np.concatenate([x[rows - lag] for lag in lags], axis=1)
        J, mean = regression.jacobian(u), regression(u)
        if pairs is not None:
            mine = pairs.recording == r
            mean[pairs.row[mine] - lags[-1]] = pairs.targets[mine] - regression.left_out[mine]
        inputs[rows, r, :N] = mean - np.einsum("tnd,td->tn", J, u)
        inputs[rows, r, N:] = J.reshape(len(rows), -1)
    return inputs


def _begin(core: Tangents, start: Float[Array, "R M"], observed: Float[Array, " N"]) -> Belief:
    """Believe the first register's readings up to their noise; what is missing has the variance of the data."""
    seen = jnp.isfinite(start)
    variance = jnp.where(seen, jnp.tile(observed**2, core.lags[-1] + 1), 1.0)
    return Belief(jnp.where(seen, start, 0.0), jax.vmap(jnp.diag)(variance))


def _arrange(x: Float[Array, "T R N"], core: Tangents) -> Observations:
    seen = jnp.isfinite(x)
    return Observations(jnp.where(seen, x, 0.0), seen, Projection(core.num_observed, core.latent_dim))


@eqx.filter_jit
def _score(core: Tangents, start: Array, x: Array, inputs: Array, process: Array, observed: Array) -> Array:
    """Compute the innovation NLL of all rows for every level of noise."""

    def one(process: Array, observed: Array) -> Array:
        past = jnp.full(core.latent_dim - core.num_observed, LEAST_STD, x.dtype)
        Gamma = jnp.concatenate([process, past]) ** 2
        dynamics = Dynamics(core, Gamma, observed**2, _begin(core, start, observed))
        return jnp.sum(scan_terms(Recursion(), dynamics, _arrange(x, core)._replace(noise=inputs)).nll)

    return jax.vmap(one)(process, observed)


@eqx.filter_jit
def _smooth(core: Tangents, start: Array, x: Array, inputs: Array, shell: Shell) -> tuple[Array, Array]:
    """Filter and smooth; return means and variances of the registers, (T, R, M)."""
    recursion, observations = Recursion(), _arrange(x, core)
    initial = _begin(core, start, jnp.exp(shell.log_observation_std))
    dynamics = Dynamics(core, shell.process_variance(), shell.observation_variance(), initial)

    def forward(belief: Belief, now: Any) -> tuple[Belief, Belief]:
        return step(recursion, dynamics, observations.observation, belief, *now).filtered, belief

    def backward(later: Belief, now: Any) -> tuple[Belief, tuple[Array, Array]]:
        earlier, inputs = now
        M, N = core.latent_dim, core.num_observed
        model = StateSpaceModel(core.with_noise(inputs), shell, observations.observation, jnp.zeros((M, N)))
        smoothed = smooth_back(model, recursion, earlier, later)
        return smoothed, (smoothed.mean, jnp.diagonal(smoothed.covariance, axis1=1, axis2=2))

    last, filtered = jax.lax.scan(forward, initial, (observations.x, observations.mask, inputs))
    _, earlier = jax.lax.scan(backward, last, (filtered, inputs), reverse=True)
    final = (last.mean, jnp.diagonal(last.covariance, axis1=1, axis2=2))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), earlier, final)
