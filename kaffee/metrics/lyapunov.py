"""Lyapunov spectra of maps: growth rates of volumes, by repeated QR of Jacobian products."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from kaffee.errors import ConfigError

NUM_BLOCKS = 20
"""Blocks of time from whose spread standard errors are computed."""


@dataclass(frozen=True, eq=False)
class LyapunovSpectrum:
    """Lyapunov exponents per unit time, largest first.

    Attributes:
        exponents: All NaN if the run diverged, -inf along directions that a map annihilates.
        standard_errors: From the spread of the means over blocks of time; NaN where there are too few steps.
        block_exponents: Those means, one row per block, in order of time.
        num_steps: Number of steps averaged over, transient not counted.
        dim: Dimension of the state space, which may exceed the number of exponents.
        diverged_at: Index of the first state at which it or the tangent vectors were not finite; None if all went well.
    """

    exponents: Float[np.ndarray, " K"]
    standard_errors: Float[np.ndarray, " K"]
    block_exponents: Float[np.ndarray, "B K"]
    num_steps: int
    dt: float
    dim: int
    diverged_at: int | None = None

    @property
    def maximal(self) -> float:
        """The leading exponent, lambda_1."""
        return float(self.exponents[0])

    @property
    def sum_positive(self) -> float:
        """h, the sum of the positive exponents: the growth rate of unstable volumes, or KS entropy.

        A lower bound if all exponents that were computed are positive and there are more.
        """
        if self.diverged_at is not None:
            return math.nan
        return float(self.exponents[self.exponents > 0].sum())

    @property
    def sum_positive_error(self) -> float:
        """The standard error of `sum_positive`, from the scatter of the blocks' sums of the same exponents."""
        if len(self.block_exponents) < 2:
            return math.nan
        sums = self.block_exponents[:, self.exponents > 0].sum(axis=1)
        return float(sums.std(ddof=1) / math.sqrt(len(sums)))

    @property
    def kaplan_yorke_dimension(self) -> float:
        """The dimension in which volumes neither grow nor shrink.

            j + (lambda_1 + ... + lambda_j) / |lambda_{j+1}|,  j the last with a sum that is not negative

        NaN if that takes more exponents than were computed.
        """
        sums = np.cumsum(self.exponents)
        if np.isnan(sums).any():
            return math.nan
        j = int((sums >= 0).sum())  # the sums are concave in j: once negative, they stay so
        if j == 0:
            return 0.0
        if j == len(sums):
            return float(j) if j == self.dim else math.nan
        return float(j - sums[j - 1] / self.exponents[j])


def lyapunov_spectrum(
    step: Callable[..., Any],
    states: ArrayLike | None = None,
    *,
    num_steps: int | None = None,
    num_exponents: int | None = None,
    dt: float | None = None,
    transient: int | None = None,
    reorthonormalise_every: int = 1,
) -> LyapunovSpectrum:
    """Compute the Lyapunov spectrum of a map, by the QR method of Benettin et al. (used throughout appendix C).

        J(z_t) Q_t = Q_{t+1} R_{t+1},    lambda_i = 1/(T dt) sum_t log |R_t,ii|

    With one state, the map is iterated from it: the autonomous spectrum. With a trajectory, the Jacobians are taken at
    its states, whatever produced them: the spectrum along a noisy or filtered run.

    The products use `step.jacobian` if there is one and automatic differentiation otherwise. The cost of a step is that
    of the Jacobian, one product with it and one QR of M x num_exponents numbers: ask only for the exponents you need,
    and for wide spectra of large models set `reorthonormalise_every` to a few steps. Systems run in float64, other maps
    in the dtype of `states`. A run that diverges gives NaN and says where, it does not raise.

    >>> import jax.numpy as jnp
    >>> spectrum = lyapunov_spectrum(lambda z: jnp.array([2.0, 0.5]) * z, jnp.zeros(2), num_steps=100)
    >>> print(spectrum.exponents.round(4))
    [ 0.6931 -0.6931]

    Args:
        step: A map from state to next state: a `System`, a core or any function.
        states: The initial state (M,) or a trajectory (T, M). May be left out for a System, which then starts at its
            initial state.
        num_steps: Steps to average over after the transient. Needed without a trajectory; with one, None uses all of
            it. A remainder that does not fill 20 equal blocks of whole QR intervals is added to the transient.
        num_exponents: How many exponents, largest first. None: all.
        dt: Time of one step. None: the step of a System, otherwise 1.
        transient: First steps, in which the state relaxes and the tangent vectors turn into their directions. None:
            1000, but at most a tenth of a trajectory, and at least the burn-in of a System at its own initial state.
        reorthonormalise_every: Steps between two QR decompositions. More is faster, and equally exact for the leading
            exponents; the most negative ones are lost when the vectors become parallel to rounding.
    """
    system, every = _as_system(step), reorthonormalise_every
    if system is None:
        if states is None:
            raise ConfigError("Give an initial state (M,) or a trajectory (T, M): only a System brings its own.")
        z = jnp.asarray(states)
        z = z if jnp.issubdtype(z.dtype, jnp.floating) else z.astype(jnp.result_type(float))
        return _spectrum(step, z, num_steps, num_exponents, 1.0 if dt is None else dt, transient, every)
    with jax.enable_x64(True):
        if states is None:
            states = np.array(system.initial_state)
            transient = max(1000, system.burn_in) if transient is None else transient
        z = jnp.asarray(states, jnp.float64)
        return _spectrum(step, z, num_steps, num_exponents, system.dt if dt is None else dt, transient, every)


def _as_system(step: Any) -> Any | None:
    """Return a map that has its own start, burn-in and time step, such as a `System`; None for any other."""
    return step if hasattr(step, "burn_in") else None


def _spectrum(
    step: Callable[..., Any],
    z: Float[Array, "..."],
    num_steps: int | None,
    num_exponents: int | None,
    dt: float,
    transient: int | None,
    every: int,
) -> LyapunovSpectrum:
    if z.ndim not in (1, 2) or z.size == 0:
        raise ConfigError(f"Got states of shape {z.shape}. Give an initial state (M,) or a trajectory (T, M).")
    M = z.shape[-1]
    K = M if num_exponents is None else num_exponents
    if not 1 <= K <= M:
        raise ConfigError(f"Got num_exponents = {K}. The state has {M} coordinates: give 1 to {M}.")
    if every < 1:
        raise ConfigError(f"Got reorthonormalise_every = {every}. Give an integer >= 1.")
    if not dt > 0:
        raise ConfigError(f"Got dt = {dt}. The step must be a positive number.")
    transient, num_steps = _plan(z, transient, num_steps)

    blocks = min(NUM_BLOCKS, num_steps // every)
    if blocks < 1:
        raise ConfigError(f"{num_steps} steps are fewer than reorthonormalise_every = {every}. Give more steps.")
    intervals = num_steps // every // blocks
    averaged = blocks * intervals * every
    warm_up = transient + num_steps - averaged
    along, start = (z, z[0]) if z.ndim == 2 else (None, z)
    # In general position: coordinate axes may be invariant and miss the growth.
    frame, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((M, K)))
    carry: _Carry = (start, jnp.asarray(frame, z.dtype), jnp.int32(0), jnp.int32(-1))
    carry, _ = _advance(step, carry, along, jnp.int32(warm_up), 1)
    log_growth = []
    for _ in range(blocks):
        carry, growth = _advance(step, carry, along, jnp.int32(intervals), every)
        log_growth.append(growth)
    diverged_at = int(carry[3]) if carry[3] >= 0 else None
    block_exponents = np.array(log_growth, np.float64) / (intervals * every * dt)
    if diverged_at is not None:
        block_exponents = np.full_like(block_exponents, np.nan)
    exponents = block_exponents.mean(axis=0)
    order = np.argsort(-exponents, kind="stable")  # close exponents may come out in the wrong order
    return LyapunovSpectrum(
        exponents=exponents[order],
        standard_errors=_standard_errors(block_exponents)[order],
        block_exponents=block_exponents[:, order],
        num_steps=averaged,
        dt=float(dt),
        dim=M,
        diverged_at=diverged_at,
    )


def _plan(z: Float[Array, "..."], transient: int | None, num_steps: int | None) -> tuple[int, int]:
    """Return the numbers of steps to discard and to average."""
    if z.ndim == 1:
        if num_steps is None:
            raise ConfigError("Give num_steps: an initial state does not say how far to iterate.")
        transient = 1000 if transient is None else transient
    else:
        transient = min(1000, len(z) // 10) if transient is None else transient
        num_steps = len(z) - transient if num_steps is None else num_steps
        if transient + num_steps > len(z):
            raise ConfigError(
                f"A trajectory of {len(z)} states is too short for a transient of {transient} and "
                f"{num_steps} further steps."
            )
    if transient < 0 or num_steps < 1:
        got = f"Got transient = {transient}, num_steps = {num_steps}."
        raise ConfigError(f"{got} Give transient >= 0 and num_steps >= 1.")
    return transient, num_steps


def _standard_errors(blocks: Float[np.ndarray, "B K"]) -> Float[np.ndarray, " K"]:
    if len(blocks) < 2:
        return np.full(blocks.shape[1], np.nan)
    finite = np.isfinite(blocks).all(axis=0)
    spread = np.where(finite, blocks, 0.0).std(axis=0, ddof=1) / math.sqrt(len(blocks))
    return np.where(finite, spread, np.nan)


_Carry = tuple[Float[Array, " M"], Float[Array, "M K"], Int[Array, ""], Int[Array, ""]]


@eqx.filter_jit
def _advance(
    step: Callable[..., Any], carry: _Carry, along: Float[Array, "T M"] | None, intervals: Int[Array, ""], every: int
) -> tuple[_Carry, Float[Array, " K"]]:
    """Take `intervals` times `every` steps, and sum log |R_ii|.

    The number of intervals is not static: transient, blocks and runs of any length share one program.
    """

    def push(carry: _Carry) -> _Carry:
        z, Y, t, diverged_at = carry
        z = z if along is None else along[t]
        z_next, Y = _tangent(step, z, Y)
        return z_next, Y, t + 1, _first(diverged_at, jnp.isfinite(z).all(), t)

    def interval(_: Any, state: tuple[_Carry, Float[Array, " K"]]) -> tuple[_Carry, Float[Array, " K"]]:
        carry, total = state
        z, Y, t, diverged_at = push(carry) if every == 1 else lax.fori_loop(0, every, lambda _, c: push(c), carry)
        # Householder QR, for any Jacobian. Cholesky is up to a third faster but fails on singular ones (in
        # float32 long before), Gram-Schmidt is not faster.
        Q, R = jnp.linalg.qr(Y)
        growth = jnp.log(jnp.abs(jnp.diagonal(R)))
        diverged_at = _first(diverged_at, (growth < jnp.inf).all(), t - 1)
        return (z, Q, t, diverged_at), total + growth

    zero = jnp.zeros_like(carry[1][0])
    return lax.fori_loop(jnp.zeros_like(intervals), intervals, interval, (carry, zero))


def _first(index: Int[Array, ""], ok: Array, t: Int[Array, ""]) -> Int[Array, ""]:
    """Remember the first t at which something was not ok."""
    return jnp.where((index < 0) & ~ok, t, index)


def _tangent(
    step: Callable[..., Any], z: Float[Array, " M"], Y: Float[Array, "M K"]
) -> tuple[Float[Array, " M"], Float[Array, "M K"]]:
    """Return the next state and J(z) Y."""
    if hasattr(step, "jacobian") and _as_system(step) is None:
        return step(z), step.jacobian(z) @ Y
    # K directions only, without the M x M matrix
    z_next, linear = jax.linearize(step, z)
    return z_next, jax.vmap(linear, in_axes=1, out_axes=1)(Y)
