"""Run the non-chaotic controls of appendix D.2: the noisy linear spiral and the noisy Van der Pol cycle.

Each cell trains one objective on one noisy series and compares what the core learned with the truth: the spectral
radius of the spiral (figures nochaos_exp1_*), the limit cycle of Van der Pol (figures nochaos_exp2_*).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.stats import spearmanr

from kaffee.filtering.rollout import free_run
from kaffee.model.core import Core
from kaffee.model.maps import Linear, Polynomial
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.objectives import Budget, Trace, fit_control, get_objective, true_model
from kaffee.records import jsonable
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import Simulation, simulate

# Significant digits of the numbers in cells.
_DIGITS = 5


def _pairs(eigenvalues: np.ndarray) -> np.ndarray:
    """Convert complex numbers to [real, imaginary]."""
    return np.stack([eigenvalues.real, eigenvalues.imag], axis=-1)


def _train(
    make_core: Callable[..., Core], data: Simulation, objective: str, seed: int, budget: Budget, trace: Trace
) -> tuple[StateSpaceModel, dict[str, Any], dict[str, Any]]:
    """Train a core; return the model in data units, what a cell keeps of the training, and its curves.

    All objectives of a seed start from the same core, the identity plus Gaussian entries, and the same shell.
    """
    core = make_core(2, key=jax.random.fold_in(jax.random.key(seed), 1))
    trained, model = fit_control(core, data, get_objective(objective), budget, seed=seed, watcher=trace)
    facts = {"skipped": trained.skipped, "completed": trained.completed}
    curves = {"updates": trace.updates, "losses": trace.losses}
    return model, {"final_loss": np.mean(trace.losses[-5:]), **facts}, curves


def _free_runs(
    model: StateSpaceModel, start: tuple[float, float], num_steps: int, num_noisy: int, seed: int
) -> tuple[Float[np.ndarray, "T 2"], Float[np.ndarray, "S 2"]]:
    """Run freely from a start in data units, with the shell off and on."""
    first = jnp.asarray([start], model.dtype)
    core = free_run(model, first, num_steps).states[0]
    noisy = free_run(model, first, num_noisy, key=jax.random.key(seed)).states[0]
    return np.asarray(core, np.float64), np.asarray(noisy, np.float64)


@dataclass(frozen=True)
class SpiralSettings:
    """The experiment with the spiral; the paper gives no numbers for it.

    The system is kaffee's `linear_spiral`: z' = rho R(theta) z with rho = 0.980 and 29.9 steps per turn. After the
    burn-in the states are stationary, so the process noise only sets their scale (a standard deviation of 0.32), and
    the observation noise, relative to it, sets kappa = 1 / (1 + sigma_obs^2), 0.8 for `main_noise`. Free runs `start`
    in data units.
    """

    num_steps: int = 2000
    burn_in: int = 200
    process_noise: float = 0.2
    noises: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
    main_noise: float = 0.5
    start: tuple[float, float] = (1.0, 0.0)
    shown_steps: int = 150
    budget: Budget = field(default_factory=lambda: Budget(num_updates=1000))


def _spiral_data(noise: float, seed: int, settings: SpiralSettings) -> Simulation:
    options: Any = {"process_noise": settings.process_noise, "observation_noise": noise, "burn_in": settings.burn_in}
    return simulate(get_system("linear_spiral"), settings.num_steps, seed=seed, **options)


def _spectral_radius(step: Any) -> float:
    """Compute the spectral radius of a linear system or core."""
    return float(np.abs(np.linalg.eigvals(np.asarray(step.jacobian(jnp.zeros(2)), np.float64))).max())


def _true_radius() -> float:
    return _spectral_radius(get_system("linear_spiral"))


def attenuated_radius(noise: float) -> float:
    """Compute kappa rho, to which the one-step noisy-state fit tends: both coordinates have one kappa (A.2).

    >>> round(attenuated_radius(0.5), 3)
    0.784
    """
    return _true_radius() / (1.0 + noise**2)


class _RadiusTrace(Trace):
    def __init__(self) -> None:
        super().__init__()
        self.radii: list[float] = []

    def visited(self, update: int, model: StateSpaceModel) -> None:
        if update:
            self.radii.append(_spectral_radius(model.core))


def spiral_cell(
    objective: str, noise: float, seed: int, settings: SpiralSettings | None = None, *, curves: bool = False
) -> dict[str, Any]:
    """Train one of `OBJECTIVES` on one series of the spiral and measure its eigenvalues; deterministic.

    With `curves`, also return what the main figure draws.
    """
    settings = settings or SpiralSettings()
    data, trace = _spiral_data(noise, seed, settings), _RadiusTrace()
    model, training, traced = _train(Linear.create, data, objective, seed, settings.budget, trace)
    cell = {"objective": objective, "noise": noise, "seed": seed, **_spiral_numbers(model), **training}
    if curves:
        cell["curves"] = {**traced, "radii": trace.radii, **_spiral_curves(model, seed, settings)}
    return jsonable(cell, digits=_DIGITS)


def spiral_truth(settings: SpiralSettings | None = None, *, seed: int = 0) -> dict[str, Any]:
    """Return the truth of the spiral in the form of a cell with curves."""
    settings = settings or SpiralSettings()
    model = true_model(_spiral_data(settings.main_noise, seed, settings))
    return jsonable({**_spiral_numbers(model), "curves": _spiral_curves(model, seed, settings)}, digits=_DIGITS)


def _spiral_numbers(model: StateSpaceModel) -> dict[str, Any]:
    rho, eigenvalues = _spectral_radius(model.core), np.linalg.eigvals(model.core.jacobian(jnp.zeros(2)))
    return {"spectral_radius": rho, "radius_error": abs(rho - _true_radius()), "eigenvalues": _pairs(eigenvalues)}


def _spiral_curves(model: StateSpaceModel, seed: int, settings: SpiralSettings) -> dict[str, Any]:
    core, noisy = _free_runs(model, settings.start, settings.shown_steps, settings.shown_steps, seed)
    return {"core": core, "stochastic": noisy}


# Half the range, in data units, below which a run is at rest; rounding in float32 leaves about 1e-6.
_REST = 1e-3
_LOG_FLOOR = 1e-12


class _LimitCycle(NamedTuple):
    """An oscillation of one coordinate: half its range, and the mean time between upward crossings of its middle.

    The amplitude is NaN for a run that is not finite, the period without two crossings.
    """

    amplitude: float
    period: float

    @property
    def at_rest(self) -> bool:
        return self.amplitude < _REST

    def returns_to(self, reference: "_LimitCycle") -> bool:
        """Tell whether amplitude and period are those of `reference` within 5 %."""
        return all(abs(mine - theirs) <= 0.05 * theirs for mine, theirs in zip(self, reference, strict=True))


def _measure_cycle(x: Float[np.ndarray, " T"], dt: float) -> _LimitCycle:
    """Measure the cycle of a coordinate after its transient; crossings are interpolated linearly.

    >>> t = 0.05 * np.arange(2000)
    >>> cycle = _measure_cycle(1.0 + 2.0 * np.sin(t), 0.05)
    >>> round(cycle.amplitude, 3), round(cycle.period, 3)
    (2.0, 6.283)
    """
    x = np.asarray(x, np.float64)
    if not np.isfinite(x).all():
        return _LimitCycle(float("nan"), float("nan"))
    amplitude = float(x.max() - x.min()) / 2
    above = x - (x.max() + x.min()) / 2
    (before,) = np.nonzero((above[:-1] < 0) & (above[1:] >= 0))
    if amplitude < _REST or len(before) < 2:
        return _LimitCycle(amplitude, float("nan"))
    crossings = before - above[before] / (above[before + 1] - above[before])
    return _LimitCycle(amplitude, float(np.diff(crossings).mean()) * dt)


def _covariance_gain(core: Core, starts: Float[np.ndarray, "S M"], num_steps: int) -> Float[np.ndarray, " S"]:
    """Compute the factor by which the trace of an isotropic covariance changes on the way from each start.

        tr(P Sigma_0 P') / tr(Sigma_0) = |P|_F^2 / M,    P = J(z_{H-1}) ... J(z_0),    Sigma_0 = s^2 I

    along the core's own free run z_{h+1} = F(z_h), without process noise: below 1, uncertainty shrinks.
    """
    return np.asarray(_gains(core, jnp.asarray(starts, jnp.float32), jnp.int32(num_steps)), np.float64)


@eqx.filter_jit
def _gains(core: Core, starts: Float[Array, "S M"], num_steps: Int[Array, ""]) -> Float[Array, " S"]:
    def step(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        z, product = carry
        return core(z), core.jacobian(z) @ product

    def gain(z: Float[Array, " M"]) -> Float[Array, ""]:
        start = (z, jnp.eye(len(z), dtype=z.dtype))
        return jnp.sum(jax.lax.fori_loop(0, num_steps, step, start)[1] ** 2) / len(z)

    return jax.vmap(gain)(starts)


@eqx.filter_jit
def _jacobians(core: Core, path: Float[Array, "T M"]) -> Float[Array, "T M M"]:
    return jax.vmap(core.jacobian)(path)


def _jacobian_eigenvalues(core: Core, path: Float[np.ndarray, "T M"]) -> np.ndarray:
    """Compute the eigenvalues (T, M) of J(z) at every state of a path that the core need not have made itself."""
    return np.linalg.eigvals(np.asarray(_jacobians(core, jnp.asarray(path, jnp.float32)), np.float64))


@dataclass(frozen=True)
class VanDerPolSettings:
    """The experiment with Van der Pol's oscillator. System, noise and core are the paper's, the rest it leaves open.

    Attributes:
        process_noise, observation_noise: sigma_proc and sigma_obs, in the units of appendix C.3: relative to the spread
            of the coordinates, and per square root of unit time.
        start: Where free runs start, in data units: inside the cycle.
        measured_steps: Length of the free run; amplitude and period are those of its second half.
        horizons, cloud_size, cloud_seed: Steps and states of the covariance maps, on another series.
    """

    num_steps: int = 4000
    process_noise: float = 0.035
    observation_noise: float = 0.25
    start: tuple[float, float] = (0.5, 0.0)
    measured_steps: int = 3000
    shown_steps: int = 600
    horizons: tuple[int, int] = (1, 20)
    cloud_size: int = 800
    cloud_seed: int = 1_000_000
    budget: Budget = field(default_factory=Budget)


def _van_der_pol_data(seed: int, settings: VanDerPolSettings) -> Simulation:
    """Simulate the training series, with the paper's mu = 1.6 and dt = 0.05."""
    options: Any = {"process_noise": settings.process_noise, "observation_noise": settings.observation_noise}
    return simulate(get_system("van_der_pol"), settings.num_steps, seed=seed, **options)


@lru_cache(maxsize=4)
def _cloud(settings: VanDerPolSettings) -> Float[np.ndarray, "S 2"]:
    """Choose the starts of covariance maps: noisy observations of a series that no seed is trained on."""
    x = _van_der_pol_data(settings.cloud_seed, settings).observations
    return x[np.linspace(0, len(x) - 1, settings.cloud_size).astype(int)]


def van_der_pol_cell(
    objective: str, seed: int, settings: VanDerPolSettings | None = None, *, curves: bool = False
) -> dict[str, Any]:
    """Train one of `OBJECTIVES` on one series of Van der Pol and compare free run and Jacobians with the truth.

    With `curves`, also return what the figures draw.
    """
    settings = settings or VanDerPolSettings()
    truth, data = _true_portrait(settings), _van_der_pol_data(seed, settings)
    model, training, traced = _train(Polynomial.create, data, objective, seed, settings.budget, Trace())
    portrait = _measure_portrait(model, truth.orbit, seed, settings)
    cell = {"objective": objective, "seed": seed, **_compare_portraits(portrait, truth), **training}
    if curves:
        cell["curves"] = {**traced, **portrait.curves}
    return jsonable(cell, digits=_DIGITS)


def van_der_pol_truth(settings: VanDerPolSettings | None = None) -> dict[str, Any]:
    """Return the truth of Van der Pol in the form of a cell with curves."""
    settings = settings or VanDerPolSettings()
    truth = _true_portrait(settings)
    cycle = {**truth.cycle._asdict(), "at_rest": truth.cycle.at_rest}
    return jsonable({**cycle, "cloud": _cloud(settings), "curves": truth.curves}, digits=_DIGITS)


class _Portrait(NamedTuple):
    """Limit cycle, last turn or given orbit, mean of log |det J| along it, and what the figures draw."""

    cycle: _LimitCycle
    last_state: Float[np.ndarray, " 2"]
    orbit: Float[np.ndarray, "P 2"]
    mean_log_det: float
    curves: dict[str, Any]


def _measure_portrait(
    model: StateSpaceModel, orbit: Float[np.ndarray, "P 2"] | None, seed: int, settings: VanDerPolSettings
) -> _Portrait:
    """Measure free runs, Jacobians and covariance maps of a model; without an orbit, along its own last turn."""
    run, noisy = _free_runs(model, settings.start, settings.measured_steps, settings.shown_steps, seed)
    dt = get_system("van_der_pol").dt
    cycle = _measure_cycle(run[len(run) // 2 :, 0], dt)
    if orbit is None:
        orbit = run[-round(cycle.period / dt) :]
    eigenvalues = _jacobian_eigenvalues(model.core, orbit)
    curves = {
        "core": run[: settings.shown_steps],
        "stochastic": noisy,
        "eigenvalues": _pairs(eigenvalues),
        "gains": {horizon: _covariance_gain(model.core, _cloud(settings), horizon) for horizon in settings.horizons},
    }
    return _Portrait(cycle, run[-1], orbit, float(np.log(np.abs(eigenvalues)).sum(axis=1).mean()), curves)


def _compare_portraits(mine: _Portrait, truth: _Portrait) -> dict[str, Any]:
    """Compute errors of the free run, of the Jacobians along the true orbit, and of the covariance maps."""
    numbers = {
        **mine.cycle._asdict(),
        "at_rest": mine.cycle.at_rest,
        "amplitude_error": mine.cycle.amplitude / truth.cycle.amplitude - 1.0,
        "period_error": mine.cycle.period / truth.cycle.period - 1.0,
        "returns": mine.cycle.returns_to(truth.cycle),
        "last_state": mine.last_state,
        "mean_log_det": mine.mean_log_det,
        "mean_log_det_error": mine.mean_log_det - truth.mean_log_det,
    }
    for horizon, gain in mine.curves["gains"].items():
        ours, theirs = (np.log10(np.maximum(g, _LOG_FLOOR)) for g in (gain, truth.curves["gains"][horizon]))
        finite = np.isfinite(ours)
        numbers[f"gain_{horizon}_median_log10_ratio"] = np.median(np.where(finite, ours, np.inf) - theirs)
        numbers[f"gain_{horizon}_rank_correlation"] = spearmanr(ours[finite], theirs[finite])[0]
    return numbers


@lru_cache(maxsize=4)
def _true_portrait(settings: VanDerPolSettings) -> _Portrait:
    return _measure_portrait(true_model(_van_der_pol_data(0, settings)), None, 0, settings)
