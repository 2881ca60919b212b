"""Pretraining by teacher forcing (appendix C.1), and the first shell from its residuals (appendix B.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kaffee.data.series import Series
from kaffee.data.windows import WindowBatch, padded, training_windows
from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import Score
from kaffee.model.statespace import StateSpaceModel, split_residuals
from kaffee.training.forcing import Forcing, forced_errors, forcing_loss
from kaffee.training.guard import ScoreGuard
from kaffee.training.loop import Schedule, Trained, Watcher, train
from kaffee.training.optimiser import Optimiser

PAPER_OPTIMISER = Optimiser("radam", learning_rate=1e-3, final_learning_rate=1e-5)
ResidualKind = Literal["every_step", "sparse"]
_PIECE = 10
# Looks at held-back rows; and how much of a change in their error counts: one of 10 % is what a guard lets pass.
NUM_LOOKS, GUARDED = 20, 0.4


@dataclass(frozen=True)
class Pretraining:
    """The settings of a deterministic prior; the defaults are the paper's for Lorenz-96 (2000 epochs of 50 batches).

    `window` is L_BPTT, predicted steps per window, which has one more row.
    """

    window: int = 50
    forcing: Forcing = Forcing()
    optimiser: Optimiser = PAPER_OPTIMISER
    schedule: Schedule = Schedule(num_updates=100_000, report_every=500, save_every=10_000)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"The window of pretraining has at least 1 step, not {self.window}.")


class ForcingObjective(eqx.Module):
    """L_ITF with the signature of the training loop."""

    forcing: Forcing = eqx.field(static=True)

    def __call__(self, model: StateSpaceModel, batch: WindowBatch, /) -> Score:
        loss = forcing_loss(model, batch.observations, batch.mask, self.forcing)
        return Score(loss, jnp.zeros((0, 0), jnp.int32))


def pretrain(
    model: StateSpaceModel,
    series: Series,
    settings: Pretraining,
    *,
    seed: int,
    held_back: Series | None = None,
    watcher: Watcher | None = None,
    save: Callable[..., Any] | None = None,
    **resume: Any,
) -> Trained:
    """Train core and embedding on a standardised series; the shell is not used.

    Gates are hard here, as in the AL-RNN literature; the straight-through surrogate belongs to KAFFEE. Updates after
    which held-back rows are predicted worse are rolled back.
    """
    return train(
        model.exact(),
        ForcingObjective(settings.forcing),
        training_windows(series, settings.window + 1, model.dtype),
        parts=("core", "embedding"),
        optimiser=settings.optimiser,
        schedule=settings.schedule,
        seed=seed,
        watcher=watcher,
        guard=build_guard(held_back, settings, model.dtype),
        save=save,
        **resume,
    )


def build_guard(held_back: Series | None, settings: Pretraining, dtype: Any = jnp.float32) -> ScoreGuard | None:
    """Build the guard of pretraining, by the logarithm of the forced error of held-back rows; None without any."""
    if held_back is None:
        return None
    x, mask = padded(held_back, dtype)

    def score(model: StateSpaceModel) -> float:
        # A margin of nats is then a share of the error, half of it since errors count in squares.
        return GUARDED * 0.5 * float(jnp.log(_forcing_loss(model, x, mask, settings.forcing)))

    return ScoreGuard(max(settings.schedule.num_updates // NUM_LOOKS, 1), score)


_forcing_loss = eqx.filter_jit(forcing_loss)


@eqx.filter_jit
def _residual_std(
    model: StateSpaceModel, x: Float[Array, "R T N"], mask: Bool[Array, "R T N"], forcing: Forcing
) -> Float[Array, " N"]:
    error, present = forced_errors(model, x, mask, forcing)
    count = jnp.maximum(jnp.sum(present, axis=(0, 1)), 1).astype(error.dtype)
    mean = jnp.sum(error, axis=(0, 1)) / count
    centred = jnp.where(present, error - mean, 0.0)
    return jnp.sqrt(jnp.sum(centred**2, axis=(0, 1)) / count)


def residual_std(model: StateSpaceModel, series: Series, forcing: Forcing) -> Float[Array, " N"]:
    """Compute r_j, the standard deviation of one-step residuals on a standardised series under `forcing`."""
    std = _residual_std(model.exact(), *padded(series, model.dtype), forcing)
    if not bool(jnp.isfinite(std).all()):
        # Forcing overwrites observed coordinates only; hidden ones that do not contract overflow along a recording
        # (DynaMix on one context of 260). Pieces of 50 rows and more would already give residuals of 3 to 12.
        std = _residual_std(model.exact(), *padded(series.pieces(_PIECE), model.dtype), forcing)
    if not bool(jnp.all(jnp.isfinite(std) & (std > 0))):
        raise ConfigError(
            f"The prior's teacher-forced residuals are {std}: it does not follow the data. Train it longer, or "
            "with a smaller forcing interval, before making it probabilistic."
        )
    return std


def initialise_shell(
    model: StateSpaceModel,
    series: Series,
    *,
    residuals: ResidualKind = "sparse",
    forcing: Forcing | None = None,
    alpha: float = 0.9,
) -> StateSpaceModel:
    """Set Lambda_0 and Gamma_0 from the prior's residuals on a standardised series.

    Args:
        residuals: "every_step" overwrites the observed coordinates at each step; "sparse" at the interval of
            pretraining. The former are so small that open-loop objectives with tied transport explode on Lorenz-96.
        forcing: The forcing of pretraining, used by "sparse".
    """
    if residuals not in ("every_step", "sparse"):
        raise ConfigError(f"residuals is 'every_step' or 'sparse', not '{residuals}'.")
    chosen = Forcing(interval=1) if residuals == "every_step" else forcing or Forcing()
    std = residual_std(model, series, chosen)
    return model.replace(shell=split_residuals(std, model.latent_dim, alpha))
