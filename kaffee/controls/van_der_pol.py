"""The noisy Van der Pol cycle with a cubic core: a spurious fixed point (appendix D.2, figures nochaos_exp2_*)."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr

from kaffee.controls.cycle import Cycle, measure_cycle
from kaffee.controls.fitting import Trace, fit_control, true_model
from kaffee.controls.objectives import Budget, get_objective
from kaffee.controls.plain import pairs, plain
from kaffee.controls.transport import covariance_gain, jacobian_eigenvalues
from kaffee.cores import Polynomial
from kaffee.rollout import free_run
from kaffee.ssm import StateSpaceModel
from kaffee.systems import Simulation, get_system, simulate

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
        objective: One of `kaffee.controls.objectives.OBJECTIVES`.
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
