"""Deterministic pretraining by teacher forcing (appendix C.1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from kaffee.data.series import Series
from kaffee.data.windows import WindowBatch, WindowSampler
from kaffee.errors import ConfigError
from kaffee.objectives import Score
from kaffee.ssm import StateSpaceModel
from kaffee.training.forcing import Forcing, forcing_loss
from kaffee.training.loop import Schedule, Trained, Watcher, train
from kaffee.training.optimiser import Optimiser
from kaffee.training.sampling import training_windows

PAPER_OPTIMISER = Optimiser("radam", learning_rate=1e-3, final_learning_rate=1e-5)


@dataclass(frozen=True)
class Pretraining:
    """The settings of a deterministic prior; the defaults are the paper's for Lorenz-96.

    Attributes:
        window: L_BPTT, predicted steps per window (the window has one more row).
        forcing: Sparse identity forcing every 20 steps.
        schedule: 2000 epochs of 50 batches of 16 windows.
    """

    window: int = 50
    forcing: Forcing = Forcing()
    optimiser: Optimiser = PAPER_OPTIMISER
    schedule: Schedule = Schedule(num_updates=100_000, report_every=500, save_every=10_000)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"The window of pretraining has at least 1 step, not {self.window}.")


class ForcingObjective(eqx.Module):
    """L_ITF as the training loop wants it."""

    forcing: Forcing = eqx.field(static=True)

    def __call__(self, model: StateSpaceModel, batch: WindowBatch, /) -> Score:
        loss = forcing_loss(model, batch.observations, batch.mask, self.forcing)
        return Score(loss, jnp.zeros((0, 0), jnp.int32))


def pretraining_sampler(series: Series, settings: Pretraining, dtype: Any = jnp.float32) -> WindowSampler:
    """The windows that pretraining draws from."""
    return training_windows(series, settings.window + 1, dtype)


def pretrain(
    model: StateSpaceModel,
    series: Series,
    settings: Pretraining,
    *,
    seed: int,
    watcher: Watcher | None = None,
    save: Callable[..., Any] | None = None,
    **resume: Any,
) -> Trained:
    """Train core and embedding on a standardised series; the shell does not enter.

    The gates are the hard ones here, as in the AL-RNN literature; the straight-through surrogate belongs to KAFFEE.
    """
    return train(
        model.exact(),
        ForcingObjective(settings.forcing),
        pretraining_sampler(series, settings, model.dtype),
        parts=("core", "embedding"),
        optimiser=settings.optimiser,
        schedule=settings.schedule,
        seed=seed,
        watcher=watcher,
        save=save,
        **resume,
    )
