"""Diagnose one model on windows of one series by all of appendix A."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import make_dynamics
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, arrange_observations
from kaffee.filtering.sweep import run_filter
from kaffee.model.statespace import StateSpaceModel
from kaffee.theory.adaptive_forcing import chain, filter_factors, forcing_strengths, gain_variation, norm, sensitivity
from kaffee.theory.attenuation import Measured, series_attenuation
from kaffee.theory.contraction import anti_contraction, dispersed_directions, dispersion, measure_rescaling
from kaffee.theory.tracing import trace
from kaffee.theory.volume import assimilation, pressure

# Differentiating a filter in all M directions costs M^4 per step: large models get some random directions, and the
# windows for it are rationed.
_MAX_DIRECTIONS = 128
_FORCING_WINDOWS, _FORCING_BUDGET = 16, 1e10
# Bytes that the runs of one batch of windows may take.
_MEMORY = 4e8

_Windows = tuple[Float[Array, "W L N"], Bool[Array, "W L N"]]
_Numbers = list[float]


def _after_burn_in(
    model: StateSpaceModel, recursion: Recursion, windows: _Windows, burn_in: int
) -> tuple[Dynamics, Observations]:
    """Filter the first rows; return the model at the belief reached there, and the rows after them."""
    x, mask = windows
    rows = burn_in + 1
    belief = run_filter(model, x[:, :rows], mask[:, :rows], recursion).final
    (later, inputs), seen = model.split(x[:, rows:]), model.split(mask[:, rows:])[0]
    return make_dynamics(model, belief), arrange_observations(later, seen, model.observation, inputs=inputs)


@eqx.filter_jit
def _measure(model: StateSpaceModel, recursion: Recursion, windows: _Windows, burn_in: int) -> dict[str, Array]:
    """Measure volume, update, dispersion and forcing strength of every step and window; (T, W, ...)."""
    problem = _after_burn_in(model, recursion, windows, burn_in)
    free = trace(Recursion(assimilate=False, transport=recursion.transport), *problem)
    run = trace(recursion, *problem)
    in_filter, update = pressure(run), assimilation(run)
    return {
        "faults": jnp.maximum(run.faults, free.faults),
        "pressure_open_loop": pressure(free).through,
        "pressure_filter": in_filter.through,
        "pressure_one_step": in_filter.one_step,
        "log_volume": update.log_volume,
        "trace_ratio": update.trace_ratio,
        "coordinates": dispersion(run),
        "whitened": run.innovation.whitened,
        "mask": run.mask,
        "lemma": anti_contraction(run),
        "full": measure_rescaling(recursion, *problem),
        "strengths": forcing_strengths(run),
    }


@eqx.filter_jit
def _measure_forcing(model: StateSpaceModel, recursion: Recursion, windows: _Windows, burn_in: int) -> dict[str, Array]:
    """Measure the factors of proposition 3 and the growth of perturbations; (T, W)."""
    problem = _after_burn_in(model, recursion, windows, burn_in)
    factors = filter_factors(problem[0].core, trace(recursion, *problem))
    Q = _probes(model.latent_dim, model.dtype)
    free = sensitivity(Recursion(assimilate=False, transport=False), *problem, Q)
    return {
        "singular_jacobian": norm(factors.jacobian, ord=2),
        "singular_factor": norm(factors.factor, ord=2),
        "gain_share": norm(factors.gain) / norm(factors.factor),
        "unfactored": gain_variation(factors)[1],
        "gradient_open_loop": norm(free, ord=2),
        "gradient_filter": norm(sensitivity(recursion, *problem, Q), ord=2),
        "gradient_chain": norm(chain(factors.factor) @ Q, ord=2),
    }


def _probes(latent_dim: int, dtype: Any) -> Float[Array, "M K"]:
    """Return orthonormal directions: all of them, or a fixed random choice from a large space."""
    if latent_dim <= _MAX_DIRECTIONS:
        return jnp.eye(latent_dim, dtype=dtype)
    square = np.random.default_rng(0).standard_normal((latent_dim, _MAX_DIRECTIONS))
    return jnp.asarray(np.linalg.qr(square)[0], dtype)


def _finite_mean(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Average the finite values; NaN where there are none."""
    count = np.isfinite(values).sum(axis=axis)
    total = np.where(np.isfinite(values), values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _geometric_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """Average the logarithms of the positive, finite values, and return the exponential."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.exp(_finite_mean(np.log(values), axis))


def _estimate_over_windows(values: Float[np.ndarray, "T W"]) -> Measured:
    """Average over steps and windows; the standard error is that of the spread between windows."""
    each = _finite_mean(values, axis=0)
    each = each[np.isfinite(each)]
    if len(each) == 0:
        return Measured(float("nan"), float("nan"))
    se = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.nan
    return Measured(float(each.mean()), float(se))


@dataclass(frozen=True)
class Diagnosis:
    """All diagnostics of a model; lists are by horizon 1, ..., H or by observed coordinate.

    Attributes:
        transport: Whether the method moves covariances by the Jacobian.
        faulty: Windows in which the free run or the filter became non-finite; means are over the finite rest.
        pressure_open_loop, pressure_filter, pressure_one_step: Proposition 1, see `volume.pressure`, in nats.
        log_volume, trace_ratio: Mean contraction by an update, see `volume.assimilation`.
        kappa, kappa_worst: See `attenuation.series_attenuation`.
        dispersion, dispersion_se: Mean normalised innovation squared of every coordinate; 1 is calibrated.
        directions: The smallest and the largest eigenvalue of `contraction.dispersed_directions`.
        lemma, full: d NLL / ds of a step along J -> s J, as in lemma 1 and through the whole recursion.
        strengths: Mean smallest, mean and mean largest forcing strength, see `adaptive_forcing.forcing_strengths`.
        singular_jacobian, singular_factor: Mean largest singular value of J and of the filter's factor, one step.
        gain_share: Mean `||G|| / ||factor||`; unfactored: the largest share that no R explains (proposition 3).
        gradient_open_loop, gradient_filter, gradient_chain: Geometric mean over windows of the spectral norm of
            dz_{t|t}/dz_{0|0}: free run, filter, and the product of the factors of proposition 3.
    """

    columns: tuple[str, ...]
    num_windows: int
    horizon: int
    burn_in: int
    transport: bool
    faulty: int
    pressure_open_loop: _Numbers
    pressure_filter: _Numbers
    pressure_one_step: _Numbers
    log_volume: float
    trace_ratio: float
    kappa: _Numbers
    kappa_worst: float
    dispersion: _Numbers
    dispersion_se: _Numbers
    directions: _Numbers
    lemma: Measured
    full: Measured
    strengths: _Numbers
    forcing_windows: int
    num_directions: int
    singular_jacobian: float
    singular_factor: float
    gain_share: float
    unfactored: float
    gradient_open_loop: _Numbers
    gradient_filter: _Numbers
    gradient_chain: _Numbers


def diagnose(
    model: StateSpaceModel,
    x: Float[np.ndarray, "W L N"],
    mask: Bool[np.ndarray, "W L N"],
    rows: Float[np.ndarray, "T N"],
    *,
    recursion: Recursion | None = None,
    burn_in: int = 8,
    columns: tuple[str, ...] = (),
) -> Diagnosis:
    """Diagnose a model on standardised windows, in float64.

    Each window is filtered for `burn_in` steps after its first row; from the belief reached there, its remaining H rows
    are both forecast in open loop and filtered, so that the two agree at the first step and part ways after it.

    Args:
        rows: The whole series, from which variances are taken; NaN where missing.
        recursion: The filter of the model's method (`Method.filter`).
    """
    recursion = recursion or Recursion()
    horizon = x.shape[1] - 1 - burn_in
    if horizon < 1:
        raise ConfigError(f"Windows of {x.shape[1]} rows leave no horizon after burn_in = {burn_in}: use longer ones.")
    values, forced = _measure_batches(model, x, mask, recursion, burn_in)
    kappa, kappa_worst = series_attenuation(model, rows)
    each = [_estimate_over_windows(values["coordinates"][..., j]) for j in range(model.num_observed)]
    strengths = values["strengths"]
    overall = ("log_volume", "trace_ratio", "singular_jacobian", "singular_factor", "gain_share")
    means: Any = {name: float(_finite_mean((values | forced)[name])) for name in overall}
    for run in ("open_loop", "filter", "one_step"):
        means[f"pressure_{run}"] = _finite_mean(values[f"pressure_{run}"], 1).tolist()
    for run in ("open_loop", "filter", "chain"):
        means[f"gradient_{run}"] = _geometric_mean(forced[f"gradient_{run}"], 1).tolist()
    return Diagnosis(
        columns=columns or tuple(f"x{j + 1}" for j in range(model.num_observed)),
        num_windows=values["faults"].shape[1],
        horizon=horizon,
        burn_in=burn_in,
        transport=recursion.transport,
        faulty=int((values["faults"] > 0).any(axis=0).sum()),
        kappa=kappa.tolist(),
        kappa_worst=kappa_worst,
        dispersion=[estimate.value for estimate in each],
        dispersion_se=[estimate.se for estimate in each],
        directions=dispersed_directions(values["whitened"], values["mask"])[[0, -1]].tolist(),
        lemma=_estimate_over_windows(values["lemma"]),
        full=_estimate_over_windows(values["full"]),
        strengths=[float(_finite_mean(s)) for s in (strengths[..., 0], strengths, strengths[..., -1])],
        forcing_windows=forced["gradient_filter"].shape[1],
        num_directions=min(model.latent_dim, _MAX_DIRECTIONS),
        unfactored=float(np.nanmax(np.append(forced["unfactored"], 0.0))),
        **means,
    )


def _measure_batches(
    model: StateSpaceModel, x: np.ndarray, mask: np.ndarray, recursion: Recursion, burn_in: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Call `_measure` on batches of windows that fit into memory, and `_measure_forcing` on a few windows."""
    num_windows, M, horizon = len(x), model.latent_dim, x.shape[1] - 1 - burn_in
    num_batches = math.ceil(num_windows / max(_MEMORY // (80 * horizon * M**2), 1))
    size = num_windows // num_batches  # all of one size, so that one program serves them; a remainder is left out
    few = int(np.clip(_FORCING_BUDGET / (M**4 * horizon), 1, min(_FORCING_WINDOWS, num_windows)))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, model)
        rows, seen = jnp.asarray(np.where(mask, x, 0.0), jnp.float64), jnp.asarray(mask)
        parts = []
        for batch in (slice(i * size, (i + 1) * size) for i in range(num_batches)):
            measured = _measure(wide, recursion, (rows[batch], seen[batch]), burn_in)
            parts.append(jax.tree.map(np.asarray, measured))
        spread = slice(None, few * (num_windows // few), num_windows // few)
        forced = _measure_forcing(wide, recursion, (rows[spread], seen[spread]), burn_in)
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    return joined, jax.tree.map(np.asarray, forced)
