"""One compiled pass over a batch of windows: everything that a diagnosis averages."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.diagnostics.attenuation import Estimate
from kaffee.diagnostics.contraction import anti_contraction, dispersion, rescaling_of_run
from kaffee.diagnostics.forcing import (
    chain,
    filter_factors,
    forcing_strengths,
    gain_variation,
    largest_singular,
    sensitivity,
)
from kaffee.diagnostics.tracing import trace
from kaffee.diagnostics.volume import assimilation, pressure
from kaffee.filtering import run_filter
from kaffee.objectives import dynamics_of
from kaffee.recursion import Dynamics, Observations, Recursion, observations_of
from kaffee.ssm import StateSpaceModel

# What a perturbation is pushed along costs M^4 per step for all M directions: large models get some random ones.
MAX_DIRECTIONS = 128

Windows = tuple[Float[Array, "W L N"], Bool[Array, "W L N"]]


def _after_burn_in(
    model: StateSpaceModel, recursion: Recursion, windows: Windows, burn_in: int
) -> tuple[Dynamics, Observations]:
    """The model at the belief that it filtered from the first rows, and the rows after them."""
    x, mask = windows
    rows = burn_in + 1
    belief = run_filter(model, x[:, :rows], mask[:, :rows], recursion).final
    return dynamics_of(model, belief), observations_of(x[:, rows:], mask[:, rows:], model.observation)


@eqx.filter_jit
def measure(model: StateSpaceModel, recursion: Recursion, windows: Windows, burn_in: int) -> dict[str, Array]:
    """Volume, update, dispersion and forcing strength of every step and window; (T, W, ...)."""
    problem = _after_burn_in(model, recursion, windows, burn_in)
    free = trace(Recursion(assimilate=False, transport=recursion.transport), *problem)
    run = trace(recursion, *problem)
    in_filter, update, spread = pressure(run), assimilation(run), dispersion(run)
    return {
        "faults": jnp.maximum(run.faults, free.faults),
        "open_loop": pressure(free).through,
        "through": in_filter.through,
        "one_step": in_filter.one_step,
        "log_volume": update.log_volume,
        "trace_ratio": update.trace_ratio,
        "coordinates": spread.coordinates,
        "whitened": run.innovation.whitened,
        "mask": run.mask,
        "lemma": anti_contraction(run),
        "full": rescaling_of_run(recursion, *problem),
        "strengths": forcing_strengths(run),
    }


@eqx.filter_jit
def measure_forcing(model: StateSpaceModel, recursion: Recursion, windows: Windows, burn_in: int) -> dict[str, Array]:
    """The factors of proposition 3 and the growth of perturbations; (T, W)."""
    problem = _after_burn_in(model, recursion, windows, burn_in)
    factors = filter_factors(problem[0].core, trace(recursion, *problem))
    Q = probes(model.latent_dim, model.dtype)
    free = sensitivity(Recursion(assimilate=False, transport=False), *problem, Q)
    return {
        "singular_jacobian": largest_singular(factors.jacobian),
        "singular_factor": largest_singular(factors.factor),
        "gain_share": _norm(factors.gain) / _norm(factors.factor),
        "unfactored": gain_variation(factors).unfactored,
        "open_loop": largest_singular(free),
        "filter": largest_singular(sensitivity(recursion, *problem, Q)),
        "chain": largest_singular(chain(factors.factor) @ Q),
    }


def probes(latent_dim: int, dtype: Any) -> Float[Array, "M K"]:
    """Orthonormal directions: all of them, or a fixed random choice from a large space."""
    if latent_dim <= MAX_DIRECTIONS:
        return jnp.eye(latent_dim, dtype=dtype)
    square = np.random.default_rng(0).standard_normal((latent_dim, MAX_DIRECTIONS))
    return jnp.asarray(np.linalg.qr(square)[0], dtype)


def _norm(X: Float[Array, "*batch M M"]) -> Float[Array, "*batch"]:
    return jnp.sqrt(jnp.sum(X**2, axis=(-2, -1)))


def finite_mean(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """The mean over what is finite; NaN where nothing is."""
    fine = np.isfinite(values)
    count = fine.sum(axis=axis)
    total = np.where(fine, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def geometric_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """exp of the mean logarithm over what is positive and finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(finite_mean(np.log(values), axis))


def window_estimate(values: Float[np.ndarray, "T W"]) -> Estimate:
    """The mean over steps and windows; its standard error from the spread between windows."""
    each = finite_mean(values, axis=0)
    each = each[np.isfinite(each)]
    if len(each) == 0:
        return Estimate(float("nan"), float("nan"))
    se = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
    return Estimate(float(each.mean()), float(se))
