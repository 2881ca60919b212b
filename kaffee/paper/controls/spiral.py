"""Arrays as short JSON: lists of rounded numbers, None where not finite."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float
from scipy.stats import t as student

from kaffee.filtering.rollout import free_run
from kaffee.model.maps import Linear
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.controls.objectives import Budget, Trace, fit_control, get_objective, true_model
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import Simulation, simulate

DIGITS = 5


def plain(value: Any) -> Any:
    """A number or an array of any shape as JSON, with five significant digits.

    >>> plain(np.array([[1.0 / 3.0, float("nan")]]))
    [[0.33333, None]]
    """
    if (isinstance(value, np.ndarray) and value.ndim) or isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if math.isfinite(number) else None


def pairs(eigenvalues: np.ndarray) -> Any:
    """Complex numbers as [real, imaginary]."""
    return plain(np.stack([eigenvalues.real, eigenvalues.imag], axis=-1))


# Cells of several seeds as the numbers that the controls are judged by.


Cell = Mapping[str, Any]


class Interval(NamedTuple):
    """A mean over seeds with half the width of its 95 % confidence interval (Student's t)."""

    mean: float
    half_width: float


def confidence(values: Iterable[float]) -> Interval:
    """Mean and 95 % interval; the interval of a single value is not known.

    >>> interval = confidence([1.0, 2.0, 3.0])
    >>> round(interval.mean, 3), round(interval.half_width, 3)
    (2.0, 2.484)
    """
    array = np.array(list(values), np.float64)
    if len(array) < 2:
        return Interval(float(array.mean()), float("nan"))
    error = array.std(ddof=1) / np.sqrt(len(array))
    return Interval(float(array.mean()), float(student.ppf(0.975, len(array) - 1) * error))


def spiral_summary(cells: Iterable[Cell]) -> dict[str, dict[float, dict[str, Any]]]:
    """By objective and noise level: spectral radius and its absolute error, as means with intervals, and seeds."""
    groups: dict[tuple[str, float], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell["objective"], cell["noise"]].append(cell)
    summary: dict[str, dict[float, dict[str, Any]]] = defaultdict(dict)
    for (objective, noise), group in sorted(groups.items()):
        summary[objective][noise] = {
            "spectral_radius": confidence(cell["spectral_radius"] for cell in group),
            "radius_error": confidence(cell["radius_error"] for cell in group),
            "num_seeds": len(group),
        }
    return dict(summary)


# The stable linear spiral under noise: attenuation of the spectral radius (appendix D.2, figures nochaos_exp1_*).


@dataclass(frozen=True)
class SpiralSettings:
    """The experiment; the paper gives no numbers for it.

    The system is kaffee's `linear_spiral`: z' = rho R(theta) z with rho = 0.980 and 29.9 steps per turn. After the
    burn-in the states are stationary, so the process noise only sets their scale (a standard deviation of 0.32), and
    the observation noise, relative to it, sets kappa = 1 / (1 + sigma_obs^2).

    Attributes:
        num_steps: Rows of the training series.
        noises: sigma_obs of the sweep, relative to the standard deviation of the states.
        main_noise: The one of the main figure; kappa = 0.8.
        start: Where the shown free runs start, in data units.
    """

    num_steps: int = 2000
    burn_in: int = 200
    process_noise: float = 0.2
    noises: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
    main_noise: float = 0.5
    start: tuple[float, float] = (1.0, 0.0)
    shown_steps: int = 150
    budget: Budget = field(default_factory=lambda: Budget(num_updates=1000))


def spiral_data(noise: float, seed: int, settings: SpiralSettings) -> Simulation:
    """The training series."""
    return simulate(
        get_system("linear_spiral"),
        settings.num_steps,
        seed=seed,
        process_noise=settings.process_noise,
        observation_noise=noise,
        burn_in=settings.burn_in,
    )


def spectral_radius(A: Float[ArrayLike, "M M"]) -> float:
    """The largest modulus of an eigenvalue."""
    return float(np.abs(np.linalg.eigvals(np.asarray(A, np.float64))).max())


def attenuated_radius(noise: float) -> float:
    """kappa rho, which the one-step noisy-state fit tends to (appendix A.2): both coordinates have the same kappa.

    >>> round(attenuated_radius(0.5), 3)
    0.784
    """
    return true_radius() / (1.0 + noise**2)


def true_radius() -> float:
    """rho of the spiral."""
    return spectral_radius(get_system("linear_spiral").jacobian(jnp.zeros(2)))


class RadiusTrace(Trace):
    """Losses and spectral radii along the optimisation."""

    def __init__(self) -> None:
        super().__init__()
        self.radii: list[float] = []

    def visited(self, update: int, model: StateSpaceModel) -> None:
        if update:
            self.radii.append(spectral_radius(model.core.jacobian(jnp.zeros(2))))


def spiral_cell(
    objective: str, noise: float, seed: int, settings: SpiralSettings | None = None, *, curves: bool = False
) -> dict[str, Any]:
    """Train one objective on one series and measure what it learned; deterministic in its arguments.

    All objectives of a seed start from the same core, the identity plus Gaussian entries, and the same shell.

    Args:
        objective: One of `kaffee.paper.controls.objectives.OBJECTIVES`.
        curves: Also return what the main figure draws.
    """
    settings = settings or SpiralSettings()
    chosen, trace = get_objective(objective), RadiusTrace()
    core = Linear.create(2, key=jax.random.fold_in(jax.random.key(seed), 1))
    fit = fit_control(core, spiral_data(noise, seed, settings), chosen, settings.budget, seed=seed, watcher=trace)
    A = np.asarray(fit.model.core.jacobian(jnp.zeros(2)))
    rho, truth = spectral_radius(A), true_radius()
    cell = {
        "objective": objective,
        "noise": noise,
        "seed": seed,
        "spectral_radius": plain(rho),
        "radius_error": plain(abs(rho - truth)),
        "eigenvalues": pairs(np.linalg.eigvals(A)),
        "final_loss": plain(np.mean(trace.losses[-5:])),
        "skipped": fit.trained.skipped,
        "completed": fit.trained.completed,
    }
    if curves:
        cell["curves"] = {
            "updates": trace.updates,
            "losses": plain(trace.losses),
            "radii": plain(trace.radii),
            **_runs(fit.model, seed, settings),
        }
    return cell


def spiral_truth(settings: SpiralSettings | None = None, *, seed: int = 0) -> dict[str, Any]:
    """The truth in the form of a cell with curves."""
    settings = settings or SpiralSettings()
    model = true_model(spiral_data(settings.main_noise, seed, settings))
    eigenvalues = np.linalg.eigvals(np.asarray(model.core.jacobian(jnp.zeros(2))))
    return {
        "spectral_radius": plain(true_radius()),
        "eigenvalues": pairs(eigenvalues),
        "attenuated": {str(noise): plain(attenuated_radius(noise)) for noise in settings.noises},
        "curves": _runs(model, seed, settings),
    }


def _runs(model: StateSpaceModel, seed: int, settings: SpiralSettings) -> dict[str, Any]:
    """Free runs with the shell off and on, from the same start, with the same draws of noise."""
    start = jnp.asarray([settings.start], model.dtype)
    core = free_run(model, start, settings.shown_steps)
    noisy = free_run(model, start, settings.shown_steps, key=jax.random.key(seed))
    return {"core": plain(np.asarray(core.states[0])), "stochastic": plain(np.asarray(noisy.states[0]))}
