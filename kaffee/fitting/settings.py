"""The settings of a fit, from data to probabilistic surrogate."""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from kaffee.data.scaler import GAUSSIAN
from kaffee.errors import ConfigError, unknown
from kaffee.filtering.likelihood import get_method
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.maps import Linear, Polynomial, ResidualMLP
from kaffee.model.matrices import parse_structure
from kaffee.training.adaptation import Adaptation
from kaffee.training.loop import Schedule
from kaffee.training.pretraining import Pretraining, ResidualKind

RUNGS = ("auto", "linear", "incontext", "alrnn", "scratch")
UNTRAINED_RUNGS = ("linear", "incontext")
"""Rungs of which nothing is trained by gradients in windows."""
IN_CONTEXT = "incontext"
"""The start of a fit that reads the training rows in context (`kaffee.foundation.incontext`) and adapts the result."""
_CoreName = Literal["alrnn", "linear", "polynomial", "mlp"]

# Coordinates up to which each gets five latents; of more, most latents are lags and these are gates.
FEW_COORDINATES, FEW_GATES = 12, 16
# A covariance of this size takes 400 MB; more is a slip of the keyboard.
_MAX_LATENT_DIM = 10_000
_MAX_STEPS = 100_000_000
_MOST = {"hidden_dim": 100_000, "depth": 100, "degree": 20}
# JAX takes the lower 32 bits of a seed, so that larger ones would silently repeat.
_MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class CoreSettings:
    """Type and size of the transition map.

    Attributes:
        latent_dim: M; None: five per observed coordinate as in the paper, at least 20 (for linear and polynomial
            cores: N, the observed state itself).
        num_gates: P of an AL-RNN; None: half of the latent coordinates.
        hidden_dim, depth, degree: Of an MLP; of a polynomial.
        structure: Of an AL-RNN's W: "lowrank:16" for W = U V' of rank 16, or "banded:3" for three neighbours on either
            side, with which step and tangent are linear in M;
            None: a dense matrix, as in the paper.
        start: An existing surrogate to start from instead: the folder of a kaffee model or run, FILE.py:FUNCTION, a
            foundation model, or "incontext" (see `kaffee.fitting.initial_core`); the other settings of the core are
            then ignored.
    """

    type: _CoreName = "alrnn"
    latent_dim: int | None = None
    num_gates: int | None = None
    hidden_dim: int = 64
    depth: int = 1
    degree: int = 3
    start: str | None = None
    # Left out where unset, so that runs of older versions state the same settings.
    structure: str | None = field(default=None, metadata={"unset": True})

    def __post_init__(self) -> None:
        if parse_structure(self.structure) is not None and self.type != "alrnn":
            raise ConfigError(f"core.structure = {self.structure} is for core.type = alrnn, not {self.type}.")
        if self.latent_dim is not None and not 1 <= self.latent_dim <= _MAX_LATENT_DIM:
            raise ConfigError(f"core.latent_dim lies between 1 and {_MAX_LATENT_DIM}, not {self.latent_dim}.")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise ConfigError(f"core.{name} is at most {most}, not {getattr(self, name)}.")

    def resolved_dim(self, num_observed: int) -> int:
        """Return M for data with N coordinates."""
        size = self.latent_dim
        if size is None:
            return max(20, 5 * num_observed) if self.type in ("alrnn", "mlp") else num_observed
        if size < num_observed:
            raise ConfigError(f"core.latent_dim = {size} is smaller than the {num_observed} observed coordinates.")
        return size

    def create(self, num_observed: int, *, key: Key[Array, ""], dtype: Any = jnp.float32) -> Core:
        """Draw a core with random weights."""
        M, random = self.resolved_dim(num_observed), {"key": key, "dtype": dtype}
        match self.type:
            case "alrnn":
                gates = M // 2 if self.num_gates is None else self.num_gates
                return ALRNN.create(M, gates, **random, structure=self.structure)
            case "linear":
                return Linear.create(M, **random)
            case "polynomial":
                return Polynomial.create(M, degree=self.degree, **random)
            case "mlp":
                return ResidualMLP.create(M, hidden_dim=self.hidden_dim, depth=self.depth, **random)


@dataclass(frozen=True)
class ShellSettings:
    """The first shell (appendix B.2)."""

    residuals: ResidualKind = "sparse"
    alpha: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise ConfigError(f"shell.alpha lies between 0 and 1, not {self.alpha}.")


@dataclass(frozen=True)
class FoundationSettings:
    """A foundation model that reads the training rows as its context (appendix C.5).

    Attributes:
        model: A name or path for `kaffee.from_pretrained`.
        tangent, train_gate: See `kaffee.model.dynamix.DynaMix`.
        held_out: The last part of the context, which the model is adapted on and does not read before; None: it is
            adapted on the context that it has read, as in the paper.
    """

    model: str = "dynamix-3d-alrnn-v1.0"
    tangent: Literal["mixture", "full"] = "mixture"
    train_gate: bool = False
    held_out: float | None = None


@dataclass(frozen=True)
class ReadingSettings:
    """What readings are: counts ("poisson") or zeros and ones ("bernoulli"), see `kaffee.model.discrete`."""

    likelihood: Literal["poisson", "bernoulli"] = "poisson"


@dataclass(frozen=True)
class ObservationSettings:
    """An observation map that is learned, x = C (z_1, ..., z_K) + b + noise (`kaffee.fitting.learned_maps`).

    Attributes:
        components: K; None: as many as make held-back rows most likely. There may be fewer than channels.
    """

    type: Literal["learned"] = "learned"
    components: int | None = None

    def __post_init__(self) -> None:
        if self.components is not None and self.components < 1:
            raise ConfigError(f"observation.components is at least 1, not {self.components}.")

    @classmethod
    def parse(cls, text: str | None) -> dict[str, Any] | None:
        """Read what was typed, "learned" or "learned:3", as nested values; None for the fixed map.

        >>> ObservationSettings.parse("learned:3")
        {'type': 'learned', 'components': 3}
        """
        name, _, number = (text or "fixed").partition(":")
        if name == "fixed" and not number:
            return None
        if name != "learned" or (number and not number.isdecimal()):
            raise ConfigError(f"observation = {text}: 'fixed', 'learned' or, with 3 components, 'learned:3'.")
        return {"type": name, **({"components": int(number)} if number else {})}


@dataclass(frozen=True)
class SimulationSettings:
    """The data when a named system is fitted instead of a file; noise in units of the attractor's spread."""

    num_steps: int = 20_000
    process_noise: float = 0.02
    observation_noise: float = 0.1

    def __post_init__(self) -> None:
        if self.num_steps > _MAX_STEPS:
            raise ConfigError(f"simulation.num_steps is at most {_MAX_STEPS}, not {self.num_steps}.")


@dataclass(frozen=True)
class FitSettings:
    """Everything that decides the result of `kaffee fit`, but for the data.

    Attributes:
        seed: Seed of initialisation, batches and simulated data.
        method: A row of the paper: kaffee, blind, core_collapse, noise_masking or frozen_core; case and hyphens do
            not matter.
        test_fraction: The last part of every recording, held out from training.
        rung: "auto" fits a linear model, reads the rows in context, trains an AL-RNN that starts from the linear model,
            and keeps the one that forecasts rows best that are held back from the training part; "linear", "incontext"
            and "alrnn" keep that one. "scratch" is the paper's: a core of random weights, trained on all rows of the
            training part, with no other model beside it.
        foundation: Adapt this model in the context of the training rows (`kaffee adapt`); `core` then does not count.
        readings: Counts or binary readings; None: numbers with Gaussian noise.
        observation: A map that is learned; None: B = [I 0], the first latents are the channels.
    """

    seed: int = 0
    method: str = "kaffee"
    test_fraction: float = 0.2
    rung: Literal["auto", "linear", "incontext", "alrnn", "scratch"] = "scratch"
    core: CoreSettings = CoreSettings()
    pretraining: Pretraining = Pretraining(schedule=Schedule(num_updates=20_000, report_every=500, save_every=2_000))
    shell: ShellSettings = ShellSettings()
    adaptation: Adaptation = Adaptation()
    simulation: SimulationSettings = SimulationSettings()
    foundation: FoundationSettings | None = None
    readings: ReadingSettings | None = None
    observation: ObservationSettings | None = None

    @property
    def likelihood(self) -> str:
        """The likelihood of readings, by name."""
        return GAUSSIAN if self.readings is None else self.readings.likelihood

    def __post_init__(self) -> None:
        if self.readings is not None and (self.core.start or self.foundation or self.rung != "scratch"):
            raise ConfigError(
                f"Counts and binary readings (likelihood = {self.likelihood}) take a core from nothing and rung = "
                "scratch; models that start from another one, read a context or begin with a linear model are Gaussian."
            )
        if self.readings is not None and self.observation is not None:
            raise ConfigError("Maps are learned of numbers: counts and binary readings keep the map B = [I 0].")
        if not 0 <= self.seed <= _MAX_SEED:
            raise ConfigError(f"seed lies between 0 and {_MAX_SEED}, not {self.seed}.")
        if not 0.0 < self.test_fraction < 1.0:
            raise ConfigError(f"test_fraction lies between 0 and 1, not {self.test_fraction}.")
        get_method(self.method)
        object.__setattr__(self, "method", self.method.lower().replace("-", "_"))
        if self.rung not in RUNGS:
            raise ConfigError(unknown("rung", self.rung, RUNGS))
        if self.rung != "scratch" and (self.core.type != "alrnn" or self.core.start or self.foundation):
            raise ConfigError(f"rung = {self.rung} is for AL-RNNs from nothing; with another core it is 'scratch'.")
        if self.rung != "scratch" and self.core.structure:
            raise ConfigError(
                f"rung = {self.rung} starts from a linear model, whose W is dense; with core.structure = "
                f"{self.core.structure} it is 'scratch'."
            )
        if self.rung != "scratch" and self.method != "kaffee":
            raise ConfigError(
                f"rung = {self.rung} chooses by forecasts of method = kaffee; {self.method} is a control, which is "
                "seen as it is with rung = scratch (--rung scratch, or leave it out)."
            )

        if self.observation is not None and self.foundation is not None:
            raise ConfigError("A foundation model reads channels as they are; leave out observation = learned.")
        if self.observation is not None and self.core.start and self.method != "frozen_core":
            raise ConfigError(
                f"With a core that is given and a map that is learned, only the map is fitted (transfer): method is "
                f"frozen_core, not {self.method}."
            )

    def num_explained(self, num_observed: int) -> int:
        """Count the coordinates that the core is to explain: components of a map that is learned, else all channels."""
        number = None if self.observation is None else self.observation.components
        return num_observed if number is None else number

    def keys(self) -> dict[str, Key[Array, ""]]:
        """Split the seed into independent keys."""
        names = ("core", "embedding", "free_run")
        return dict(zip(names, jax.random.split(jax.random.key(self.seed), len(names)), strict=True))
