"""The one problem that every implementation solves: an AL-RNN filtered along windows of Lorenz-96."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.model.alrnn import ALRNN
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

PARAMETERS = ("A", "W", "h", "log_process_std", "log_observation_std")


@dataclass(frozen=True)
class Size:
    """How large the problem is; the defaults are those of the paper for Lorenz-96.

    Attributes:
        latent: M.
        observed: N.
        windows: Windows in a batch.
        steps: Filtered steps per window, after the one row that anchors it; all of them are scored, because not
            every peer can leave out a burn-in.
    """

    latent: int = 100
    observed: int = 20
    windows: int = 16
    steps: int = 40

    @property
    def gates(self) -> int:
        """P, half of the coordinates."""
        return self.latent // 2


@dataclass(frozen=True, eq=False)
class Problem:
    """Weights and data as float32 NumPy arrays, and the same as a kaffee model.

    Attributes:
        parameters: Arrays by the names of `PARAMETERS`; gradients are with respect to these.
        start: First latent means, one per window.
        x: Windows with the anchoring row first.
    """

    size: Size
    model: StateSpaceModel
    series: Series
    parameters: dict[str, Float[np.ndarray, "..."]]
    start: Float[np.ndarray, "W M"]
    x: Float[np.ndarray, "W L N"]

    @property
    def mask(self) -> Bool[np.ndarray, "W L N"]:
        """Nothing is missing."""
        return np.ones(self.x.shape, bool)


def lorenz96(num_observed: int, num_steps: int, *, seed: int) -> Series:
    """Standardised Lorenz-96 with 10 % observation noise."""
    system = get_system("lorenz96", N=num_observed)
    simulation = simulate(system, num_steps, seed=seed, observation_noise=0.1)
    series = Series.from_arrays(simulation.observations)
    scaler = Scaler.fit(series)
    return Series.from_arrays(scaler.transform(simulation.observations))


def make_problem(size: Size, *, seed: int = 0, gate: str = "straight_through", coupling: float = 0.5) -> Problem:
    """A random core, a shell of 0.1 to 0.3 standard deviations, windows at random places of the series.

    Args:
        coupling: Spectral radius of W. The default is held by the data in a filter but may leave in a free run.
    """
    M, N = size.latent, size.observed
    rng = np.random.default_rng(seed)
    parameters = {
        "A": rng.uniform(0.3, 0.7, M),
        "W": rng.normal(0.0, coupling / M**0.5, (M, M)),
        "h": rng.normal(0.0, 0.1, M),
        "log_process_std": np.log(rng.uniform(0.1, 0.3, M)),
        "log_observation_std": np.log(rng.uniform(0.1, 0.3, N)),
    }
    parameters = {name: value.astype(np.float32) for name, value in parameters.items()}
    jax_parameters = {name: jax.numpy.asarray(value) for name, value in parameters.items()}
    core = ALRNN(*(jax_parameters[name] for name in ("A", "W", "h")), num_gates=size.gates, gate=gate)
    shell = Shell(jax_parameters["log_process_std"], jax_parameters["log_observation_std"])
    model = StateSpaceModel.create(core, N, key=jax.random.key(seed)).replace(shell=shell)
    series = lorenz96(N, 2000, seed=seed)
    rows = series.concatenated().astype(np.float32)
    starts = rng.integers(0, len(rows) - size.steps - 1, size.windows)
    x = np.stack([rows[s : s + size.steps + 1] for s in starts])
    return Problem(size, model, series, parameters, np.asarray(model.embed(jax.numpy.asarray(x[:, 0]))), x)
