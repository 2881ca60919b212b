"""One compiled pass over a batch of windows: everything that a diagnosis averages."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import dynamics_of
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, observations_of
from kaffee.filtering.sweep import run_filter
from kaffee.model.statespace import StateSpaceModel
from kaffee.theory.adaptive_forcing import (
    chain,
    filter_factors,
    forcing_strengths,
    gain_variation,
    largest_singular,
    sensitivity,
)
from kaffee.theory.attenuation import Estimate, series_attenuation
from kaffee.theory.contraction import anti_contraction, dispersed_directions, dispersion, rescaling_of_run
from kaffee.theory.tracing import trace
from kaffee.theory.volume import assimilation, pressure

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


# All diagnostics of appendix A for one model on windows of one series, as plain numbers.


Numbers = list[float]
# Differentiating a filter in all M directions costs M^4 per step, so the windows for it are rationed.
FORCING_WINDOWS, FORCING_BUDGET = 16, 1e10
# Bytes that the runs of one batch of windows may take.
MEMORY = 4e8


@dataclass(frozen=True)
class Diagnosis:
    """What the theory says about a model; lists by horizon 1, ..., H or by observed coordinate.

    Attributes:
        transport: Whether the method moves covariances by the Jacobian.
        faulty: Windows in which the free run or the filter became non-finite; the rest carries the means.
        pressure_open_loop, pressure_filter, pressure_one_step: Proposition 1, see `volume.pressure`, in nats.
        log_volume, trace_ratio: Mean contraction by an update, see `volume.assimilation`.
        kappa, kappa_worst: See `attenuation.series_attenuation`.
        dispersion, dispersion_se: Mean normalised innovation squared of every coordinate; 1 is calibrated.
        directions: The smallest and the largest eigenvalue of `contraction.dispersed_directions`.
        lemma, full: d NLL / ds of a step along J -> s J, as in lemma 1 and through the whole recursion.
        strengths: Mean smallest, mean and mean largest forcing strength, see `forcing.forcing_strengths`.
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
    pressure_open_loop: Numbers
    pressure_filter: Numbers
    pressure_one_step: Numbers
    log_volume: float
    trace_ratio: float
    kappa: Numbers
    kappa_worst: float
    dispersion: Numbers
    dispersion_se: Numbers
    directions: Numbers
    lemma: Estimate
    full: Estimate
    strengths: Numbers
    forcing_windows: int
    num_directions: int
    singular_jacobian: float
    singular_factor: float
    gain_share: float
    unfactored: float
    gradient_open_loop: Numbers
    gradient_filter: Numbers
    gradient_chain: Numbers

    def to_dict(self) -> dict[str, Any]:
        """JSON values; what is not finite becomes None."""
        plain = _plain(asdict(self))
        for name in ("lemma", "full"):
            plain[name] = dict(zip(Estimate._fields, plain[name], strict=True))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    found, forced = _measured(model, x, mask, recursion, burn_in)
    signal = series_attenuation(model, rows)
    each = [window_estimate(found["coordinates"][..., j]) for j in range(model.num_observed)]
    strengths = found["strengths"]
    return Diagnosis(
        columns=columns or tuple(f"x{j + 1}" for j in range(model.num_observed)),
        num_windows=found["faults"].shape[1],
        horizon=horizon,
        burn_in=burn_in,
        transport=recursion.transport,
        faulty=int((found["faults"] > 0).any(axis=0).sum()),
        pressure_open_loop=finite_mean(found["open_loop"], 1).tolist(),
        pressure_filter=finite_mean(found["through"], 1).tolist(),
        pressure_one_step=finite_mean(found["one_step"], 1).tolist(),
        log_volume=float(finite_mean(found["log_volume"])),
        trace_ratio=float(finite_mean(found["trace_ratio"])),
        kappa=signal.kappa.tolist(),
        kappa_worst=signal.worst,
        dispersion=[estimate.value for estimate in each],
        dispersion_se=[estimate.se for estimate in each],
        directions=_directions(found),
        lemma=window_estimate(found["lemma"]),
        full=window_estimate(found["full"]),
        strengths=[float(finite_mean(s)) for s in (strengths[..., 0], strengths, strengths[..., -1])],
        forcing_windows=forced["filter"].shape[1],
        num_directions=min(model.latent_dim, MAX_DIRECTIONS),
        singular_jacobian=float(finite_mean(forced["singular_jacobian"])),
        singular_factor=float(finite_mean(forced["singular_factor"])),
        gain_share=float(finite_mean(forced["gain_share"])),
        unfactored=float(np.nanmax(np.append(forced["unfactored"], 0.0))),
        gradient_open_loop=geometric_mean(forced["open_loop"], 1).tolist(),
        gradient_filter=geometric_mean(forced["filter"], 1).tolist(),
        gradient_chain=geometric_mean(forced["chain"], 1).tolist(),
    )


def _measured(
    model: StateSpaceModel, x: np.ndarray, mask: np.ndarray, recursion: Recursion, burn_in: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """`measure` in batches of windows that fit into memory, and `measure_forcing` on a few of them."""
    num_windows, M, horizon = len(x), model.latent_dim, x.shape[1] - 1 - burn_in
    num_batches = math.ceil(num_windows / max(MEMORY // (80 * horizon * M**2), 1))
    size = num_windows // num_batches  # all of one size, so that one program serves them; a remainder is left out
    few = int(np.clip(FORCING_BUDGET / (M**4 * horizon), 1, min(FORCING_WINDOWS, num_windows)))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, model)
        values, seen = jnp.asarray(np.where(mask, x, 0.0), jnp.float64), jnp.asarray(mask)
        parts = []
        for i in range(num_batches):
            batch = slice(i * size, (i + 1) * size)
            part = measure(wide, recursion, (values[batch], seen[batch]), burn_in)
            parts.append({name: np.asarray(value) for name, value in part.items()})
        spread = slice(None, few * (num_windows // few), num_windows // few)
        forced = measure_forcing(wide, recursion, (values[spread], seen[spread]), burn_in)
    found = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    return found, {name: np.asarray(value) for name, value in forced.items()}


def _directions(found: dict[str, np.ndarray]) -> Numbers:
    N = found["whitened"].shape[-1]
    y, mask = (found[name].reshape(-1, N) for name in ("whitened", "mask"))
    fine = np.isfinite(y).all(axis=1)
    with jax.enable_x64(True):
        eigenvalues = dispersed_directions(jnp.asarray(y[fine]), jnp.asarray(mask[fine]))
    return [float(eigenvalues[0]), float(eigenvalues[-1])]
