"""Training a randomly initialised core on a noisy series by either objective, and the result in data units."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.controls.objectives import Budget, ControlObjective
from kaffee.cores import Custom
from kaffee.cores.core import Core
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.shell import Shell
from kaffee.ssm import StateSpaceModel
from kaffee.systems import Simulation
from kaffee.training.adaptation import adapt
from kaffee.training.initialise import initialise_shell
from kaffee.training.loop import Trained, Watcher


class DataUnits(Core):
    """A core of standardised coordinates in data units: z -> m + s F((z - m) / s)."""

    inner: Core
    mean: Float[Array, " M"]
    scale: Float[Array, " M"]

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.mean + self.scale * self.inner((z - self.mean) / self.scale)


class Fit(NamedTuple):
    """A trained control.

    Attributes:
        trained: As the training loop left it, in standardised units.
        model: The same in data units, for free runs and Jacobians.
    """

    trained: Trained
    model: StateSpaceModel


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
    objective: ControlObjective,
    budget: Budget,
    *,
    seed: int,
    watcher: Watcher | None = None,
) -> Fit:
    """Train core and shell on the observations of a simulation.

    B = I: all coordinates are seen. The first shell splits the one-step residuals of the untrained core 90/10
    (appendix B.2). For the same core and seed it does not depend on the objective.
    """
    series = Series.from_arrays(simulation.observations)
    scaler = Scaler.fit(series)
    standard = series.standardised(scaler)
    model = StateSpaceModel.create(core, series.num_coordinates, key=jax.random.key(seed))
    model = initialise_shell(model, standard, residuals="every_step")
    trained = adapt(model, standard, objective.method, objective.settings(budget), seed=seed, watcher=watcher)
    return Fit(trained, data_units(trained.model, scaler, objective))


def data_units(model: StateSpaceModel, scaler: Scaler, objective: ControlObjective) -> StateSpaceModel:
    """The model in data units, its shell read as its objective means it.

    If observations are taken for states, x_{t+1} = F(x_t) + residual: all of Gamma + Lambda is noise of the state.
    """
    mean, scale = (jnp.asarray(a, model.dtype) for a in (scaler.mean, scaler.scale))
    Gamma, Lambda = model.shell.process_variance(), model.shell.observation_variance()
    process = Gamma if objective.horizon is None else Gamma + Lambda
    shell = Shell.from_std(scale * jnp.sqrt(process), scale * jnp.sqrt(Lambda), model.dtype)
    return model.replace(core=DataUnits(model.core, mean, scale), shell=shell)


def true_model(simulation: Simulation) -> StateSpaceModel:
    """The system and noise behind a simulation as a model: the truth runs through the same code as its surrogates."""
    system = simulation.system
    if simulation.reference_scale is None:
        raise ConfigError("The simulation has no process noise, so its shell is not defined. Give it some.")
    process = simulation.process_noise * system.dt**0.5 * simulation.reference_scale
    model = StateSpaceModel.create(Custom(system, system.dim), system.dim, key=jax.random.key(0))
    return model.replace(shell=Shell.from_std(process, simulation.observation_noise * simulation.observation_scale))
