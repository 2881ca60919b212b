"""Amplitude and period of a limit cycle, measured on one coordinate of a free run."""

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
from kaffee.model.maps import Polynomial
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.controls.objectives import Budget, Trace, fit_control, get_objective, true_model
from kaffee.paper.controls.spiral import pairs, plain
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import Simulation, simulate

REST = 1e-3
"""Half the range, in data units, below which a run is at rest; rounding in float32 leaves about 1e-6."""


class Cycle(NamedTuple):
    """An oscillation.

    Attributes:
        amplitude: Half the distance between the largest and the smallest value; NaN for a run that is not finite.
        period: Mean time between two upward crossings of the level half way between them; NaN without two of them.
    """

    amplitude: float
    period: float

    @property
    def at_rest(self) -> bool:
        """Whether the run has come to a fixed point."""
        return self.amplitude < REST

    def returns_to(self, reference: "Cycle", tolerance: float = 0.05) -> bool:
        """Whether amplitude and period are those of `reference` within a relative tolerance."""
        pairs = zip(self, reference, strict=True)
        return all(abs(mine - theirs) <= tolerance * theirs for mine, theirs in pairs)


def measure_cycle(x: Float[np.ndarray, " T"], dt: float) -> Cycle:
    """The cycle of a coordinate after its transient; crossings are interpolated linearly.

    >>> t = 0.05 * np.arange(2000)
    >>> cycle = measure_cycle(1.0 + 2.0 * np.sin(t), 0.05)
    >>> round(cycle.amplitude, 3), round(cycle.period, 3)
    (2.0, 6.283)
    """
    x = np.asarray(x, np.float64)
    if not np.isfinite(x).all():
        return Cycle(float("nan"), float("nan"))
    amplitude = float(x.max() - x.min()) / 2
    if amplitude < REST:
        return Cycle(amplitude, float("nan"))
    above = x - (x.max() + x.min()) / 2
    (before,) = np.nonzero((above[:-1] < 0) & (above[1:] >= 0))
    if len(before) < 2:
        return Cycle(amplitude, float("nan"))
    crossings = before - above[before] / (above[before + 1] - above[before])
    return Cycle(amplitude, float(np.diff(crossings).mean()) * dt)


# Local transport: Jacobian spectra along a path, and where a reference covariance grows or shrinks (appendix D.2).


@eqx.filter_jit
def _gains(core: Core, starts: Float[Array, "S M"], num_steps: Int[Array, ""]) -> Float[Array, " S"]:
    def gain(z: Float[Array, " M"]) -> Float[Array, ""]:
        def step(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            z, product = carry
            return core(z), core.jacobian(z) @ product

        _, product = jax.lax.fori_loop(0, num_steps, step, (z, jnp.eye(z.shape[0], dtype=z.dtype)))
        return jnp.sum(product**2) / z.shape[0]

    return jax.vmap(gain)(starts)


@eqx.filter_jit
def _jacobians(core: Core, path: Float[Array, "T M"]) -> Float[Array, "T M M"]:
    return jax.vmap(core.jacobian)(path)


def covariance_gain(core: Core, starts: Float[np.ndarray, "S M"], num_steps: int) -> Float[np.ndarray, " S"]:
    """The factor by which the trace of an isotropic covariance changes on the way from each start.

        tr(P Sigma_0 P') / tr(Sigma_0) = |P|_F^2 / M,    P = J(z_{H-1}) ... J(z_0),    Sigma_0 = s^2 I

    along the core's own free run z_{h+1} = F(z_h), without process noise: below 1, uncertainty shrinks.
    """
    return np.asarray(_gains(core, jnp.asarray(starts, jnp.float32), jnp.int32(num_steps)), np.float64)


def jacobian_eigenvalues(core: Core, path: Float[np.ndarray, "T M"]) -> np.ndarray:
    """Eigenvalues (T, M) of J(z) at every state of a path that the core need not have made itself."""
    jacobians = _jacobians(core, jnp.asarray(path, jnp.float32))
    return np.linalg.eigvals(np.asarray(jacobians, np.float64))


# The noisy Van der Pol cycle with a cubic core: a spurious fixed point (appendix D.2, figures nochaos_exp2_*).


LOG_FLOOR = 1e-12


@dataclass(frozen=True)
class VanDerPolSettings:
    """The experiment. System, noise and core are the paper's; the other numbers it leaves open.

    Attributes:
        process_noise, observation_noise: sigma_proc and sigma_obs, in the units of appendix C.3: relative to the spread
            of the coordinates, and per square root of unit time.
        start: Where free runs start, in data units: inside the cycle.
        measured_steps: Length of the free run; amplitude and period are those of its second half.
        shown_steps: How much of it the figure shows.
        horizons: Steps of the covariance maps.
        cloud_size: States of the covariance maps, drawn from noisy observations of another series.
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


def van_der_pol_data(seed: int, settings: VanDerPolSettings) -> Simulation:
    """The training series, with the paper's mu = 1.6 and dt = 0.05."""
    return simulate(
        get_system("van_der_pol"),
        settings.num_steps,
        seed=seed,
        process_noise=settings.process_noise,
        observation_noise=settings.observation_noise,
    )


def van_der_pol_cell(
    objective: str, seed: int, settings: VanDerPolSettings | None = None, *, curves: bool = False
) -> dict[str, Any]:
    """Train one objective on one series and compare its free run and its Jacobians with the truth.

    All objectives of a seed start from the same core, the identity plus Gaussian coefficients, and the same shell.

    Args:
        objective: One of `kaffee.paper.controls.objectives.OBJECTIVES`.
        curves: Also return what the figures draw.
    """
    settings = settings or VanDerPolSettings()
    trace, truth = Trace(), _reference(settings)
    core = Polynomial.create(2, key=jax.random.fold_in(jax.random.key(seed), 1))
    data = van_der_pol_data(seed, settings)
    fit = fit_control(core, data, get_objective(objective), settings.budget, seed=seed, watcher=trace)
    seen = _look(fit.model, truth.orbit, seed, settings)
    cell = {
        "objective": objective,
        "seed": seed,
        **seen.scores(truth),
        "final_loss": plain(np.mean(trace.losses[-5:])),
        "skipped": fit.trained.skipped,
        "completed": fit.trained.completed,
    }
    if curves:
        cell["curves"] = {"updates": trace.updates, "losses": plain(trace.losses), **seen.curves(settings)}
    return cell


def van_der_pol_truth(settings: VanDerPolSettings | None = None) -> dict[str, Any]:
    """The truth in the form of a cell with curves."""
    settings = settings or VanDerPolSettings()
    truth = _reference(settings)
    return {**plain_cycle(truth.cycle), "cloud": plain(cloud(settings)), "curves": truth.curves(settings)}


def plain_cycle(cycle: Cycle) -> dict[str, Any]:
    """A cycle as JSON."""
    return {"amplitude": plain(cycle.amplitude), "period": plain(cycle.period), "at_rest": cycle.at_rest}


@lru_cache(maxsize=4)
def cloud(settings: VanDerPolSettings) -> Float[np.ndarray, "S 2"]:
    """The states at which covariance maps start: noisy observations of a series that no seed is trained on."""
    x = van_der_pol_data(settings.cloud_seed, settings).observations
    return x[np.linspace(0, len(x) - 1, settings.cloud_size).astype(int)]


@dataclass(frozen=True)
class _Look:
    """What is measured of a model, or of the truth."""

    run: Float[np.ndarray, "T 2"]
    stochastic: Float[np.ndarray, "T 2"]
    cycle: Cycle
    orbit: Float[np.ndarray, "P 2"]
    eigenvalues: np.ndarray
    gains: dict[int, Float[np.ndarray, " S"]]

    def scores(self, truth: "_Look") -> dict[str, Any]:
        """Errors of the free run, of the Jacobians along the true orbit, and of the covariance maps."""
        numbers = {
            **plain_cycle(self.cycle),
            "amplitude_error": plain(self.cycle.amplitude / truth.cycle.amplitude - 1.0),
            "period_error": plain(self.cycle.period / truth.cycle.period - 1.0),
            "returns": self.cycle.returns_to(truth.cycle),
            "last_state": plain(self.run[-1]),
            "mean_log_det": plain(_mean_log_det(self.eigenvalues)),
            "mean_log_det_error": plain(_mean_log_det(self.eigenvalues) - _mean_log_det(truth.eigenvalues)),
        }
        for horizon, gain in self.gains.items():
            mine, theirs = (np.log10(np.maximum(g, LOG_FLOOR)) for g in (gain, truth.gains[horizon]))
            finite = np.isfinite(mine)
            numbers[f"gain_{horizon}_median_log10_ratio"] = plain(np.median(np.where(finite, mine, np.inf) - theirs))
            numbers[f"gain_{horizon}_rank_correlation"] = plain(spearmanr(mine[finite], theirs[finite])[0])
        return numbers

    def curves(self, settings: VanDerPolSettings) -> dict[str, Any]:
        """What the figures draw."""
        return {
            "core": plain(self.run[: settings.shown_steps]),
            "stochastic": plain(self.stochastic),
            "eigenvalues": pairs(self.eigenvalues),
            "gains": {str(horizon): plain(gain) for horizon, gain in self.gains.items()},
        }


def _mean_log_det(eigenvalues: np.ndarray) -> float:
    """The mean over the orbit of log |det J|, the rate at which volumes shrink per step."""
    return float(np.log(np.abs(eigenvalues)).sum(axis=1).mean())


def _look(
    model: StateSpaceModel, orbit: Float[np.ndarray, "P 2"] | None, seed: int, settings: VanDerPolSettings
) -> _Look:
    start = jnp.asarray([settings.start], model.dtype)
    run = np.asarray(free_run(model, start, settings.measured_steps).states[0], np.float64)
    stochastic = free_run(model, start, settings.shown_steps, key=jax.random.key(seed)).states[0]
    dt = get_system("van_der_pol").dt
    cycle = measure_cycle(run[len(run) // 2 :, 0], dt)
    if orbit is None:
        orbit = run[-round(cycle.period / dt) :]
    gains = {horizon: covariance_gain(model.core, cloud(settings), horizon) for horizon in settings.horizons}
    eigenvalues = jacobian_eigenvalues(model.core, orbit)
    return _Look(run, np.asarray(stochastic, np.float64), cycle, orbit, eigenvalues, gains)


@lru_cache(maxsize=4)
def _reference(settings: VanDerPolSettings) -> _Look:
    return _look(true_model(van_der_pol_data(0, settings)), None, 0, settings)
