"""Define and train the objectives of the non-chaotic controls: score innovations, or take observations for states.

The noisy-state predictive objective of appendices A.2, A.3 and D.2 ("naive maximum likelihood") is

    L_H = sum_{h=1}^{H} -log N(x_{t+h}; F^h(x_t), V_h)

In the one recursion it is an open loop without covariance transport whose windows start at N(x_t, 0), without burn-in,
so that V_h = h Gamma + Lambda. For H = 1 this is the paper's family; for H > 1 the paper lets every V_h be free.
Either way V_h does not depend on the core, so that no volume pressure enters, and proposition 2 (ii) holds for both: in
the scalar case E(x_{t+h} - a^h x_t)^2 falls in a up to kappa^(1/h) a* and rises beyond it, so that any positive weights
of the H summands put the minimiser between kappa a* and kappa^(1/H) a*.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, unknown
from kaffee.fitting.pipeline import UNTRAINED, adapt_prior, train_prior
from kaffee.fitting.settings import ShellSettings
from kaffee.fitting.stages import Stage
from kaffee.model.core import Core
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import Custom
from kaffee.systems.simulation import Simulation
from kaffee.training.adaptation import Adaptation
from kaffee.training.loop import Schedule, Watcher
from kaffee.training.optimiser import Optimiser


@dataclass(frozen=True)
class Budget:
    """The optimisation, the same for every objective.

    The paper gives none for these controls. With these updates the losses are flat at the end, up to a slow last
    decline of KAFFEE's on Van der Pol; clipping is that of appendix B.2. The burn-in is longer than the paper's 8,
    because a window starts at N(x, Gamma) as if x had no noise, and a filter with little process noise forgets that
    slowly. `scored_per_update` counts the scored steps of a batch, `scored` and `burn_in` those of KAFFEE's windows.
    """

    num_updates: int = 2000
    learning_rate: float = 1e-2
    final_learning_rate: float = 1e-4
    clip_norm: float = 2.0
    scored_per_update: int = 1024
    scored: int = 32
    burn_in: int = 32
    report_every: int = 20


@dataclass(frozen=True)
class _ControlObjective:
    """An objective of the controls: the noisy-state predictive one over H = `horizon` steps, or KAFFEE's if None."""

    name: str
    horizon: int | None = None

    @property
    def row(self) -> str:
        """The row of the paper whose recursion it uses."""
        return "kaffee" if self.horizon is None else "noise_masking"

    def settings(self, budget: Budget) -> Adaptation:
        """Return the settings of its training."""
        filtered, scored = self.horizon is None, self.horizon or budget.scored
        if scored > budget.scored_per_update:
            raise ConfigError(
                f"Windows of {scored} scored steps do not fit {budget.scored_per_update} steps per update."
            )
        return Adaptation(
            scored=scored,
            burn_in=budget.burn_in if filtered else 0,
            start="embedding" if filtered else "observed",
            optimiser=Optimiser(
                "adam", budget.learning_rate, final_learning_rate=budget.final_learning_rate, clip_norm=budget.clip_norm
            ),
            schedule=Schedule(budget.num_updates, budget.scored_per_update // scored, budget.report_every),
        )


def noisy_state(horizon: int) -> _ControlObjective:
    """Return the noisy-state predictive objective over `horizon` steps."""
    return _ControlObjective(f"noisy_state_{horizon}", horizon)


OBJECTIVES = {each.name: each for each in (_ControlObjective("kaffee"), *map(noisy_state, (1, 5, 20)))}


def get_objective(name: str) -> _ControlObjective:
    """Return the objective of that name."""
    if name not in OBJECTIVES:
        raise ConfigError(unknown("objective of the controls", name, OBJECTIVES))
    return OBJECTIVES[name]


class _DataUnits(Core):
    """A core of standardised coordinates in data units: z -> m + s F((z - m) / s)."""

    inner: Core
    mean: Float[Array, " M"]
    scale: Float[Array, " M"]

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.mean + self.scale * self.inner((z - self.mean) / self.scale)


class Trace(Watcher):
    """The mean loss of every chunk of updates."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.losses: list[float] = []

    def advanced(self, update: int, loss: float, skipped: int) -> None:
        self.updates.append(update)
        self.losses.append(loss)


def fit_control(
    core: Core,
    simulation: Simulation,
    objective: _ControlObjective,
    budget: Budget,
    *,
    seed: int,
    watcher: Watcher | None = None,
) -> tuple[Stage, StateSpaceModel]:
    """Train core and shell on the observations of a simulation: the pipeline of `kaffee fit` without pretraining.

    B = I: all coordinates are seen. The first shell splits the one-step residuals of the untrained core 90/10
    (appendix B.2). For the same core and seed it does not depend on the objective.

    Returns:
        What was trained, in standardised units, and its model in data units, for free runs and Jacobians.
    """
    series = Series.from_arrays(simulation.observations)
    scaler = Scaler.fit(series)
    standard = series.standardised(scaler)
    start = Reconstruction(StateSpaceModel.create(core, series.num_coordinates, key=jax.random.key(seed)), scaler)
    prior = train_prior(start, standard, UNTRAINED, ShellSettings(residuals="every_step"), seed=seed).reconstruction
    adaptation = objective.settings(budget)
    trained = adapt_prior(prior, standard, objective.row, adaptation, seed=seed, watcher=watcher)
    model = trained.model
    mean, scale = (jnp.asarray(a, model.dtype) for a in (scaler.mean, scaler.scale))
    Gamma, Lambda = model.shell.process_variance(), model.shell.observation_variance()
    # If observations are taken for states, x_{t+1} = F(x_t) + residual: all of Gamma + Lambda is noise of the state.
    process = Gamma if objective.horizon is None else Gamma + Lambda
    shell = Shell.from_std(scale * jnp.sqrt(process), scale * jnp.sqrt(Lambda), model.dtype)
    return trained, model.replace(core=_DataUnits(model.core, mean, scale), shell=shell)


def true_model(simulation: Simulation) -> StateSpaceModel:
    """Make a model of the system and noise behind a simulation, so that the truth runs through the same code."""
    system = simulation.system
    if simulation.reference_scale is None:
        raise ConfigError("The simulation has no process noise, so its shell is not defined. Give it some.")
    process = simulation.process_noise * system.dt**0.5 * simulation.reference_scale
    model = StateSpaceModel.create(Custom(system, system.dim), system.dim, key=jax.random.key(0))
    return model.replace(shell=Shell.from_std(process, simulation.observation_noise * simulation.observation_scale))
