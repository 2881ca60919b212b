"""The first shell: residual scales of the prior under teacher forcing, split 90/10 (appendix B.2)."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.shell import split_residuals
from kaffee.ssm import StateSpaceModel
from kaffee.training.forcing import Forcing, run_forced
from kaffee.training.sampling import padded

ResidualKind = Literal["every_step", "sparse"]

PIECE = 10


@eqx.filter_jit
def _residual_std(
    model: StateSpaceModel, x: Float[Array, "R T N"], mask: Bool[Array, "R T N"], forcing: Forcing
) -> Float[Array, " N"]:
    run, observations = run_forced(model, x, mask, forcing)
    error = jnp.where(observations.mask, run.predictions - observations.x, 0.0)
    count = jnp.maximum(jnp.sum(observations.mask, axis=(0, 1)), 1).astype(error.dtype)
    mean = jnp.sum(error, axis=(0, 1)) / count
    centred = jnp.where(observations.mask, error - mean, 0.0)
    return jnp.sqrt(jnp.sum(centred**2, axis=(0, 1)) / count)


def residual_std(model: StateSpaceModel, series: Series, forcing: Forcing) -> Float[Array, " N"]:
    """r_j, the standard deviation of one-step residuals on a standardised series under `forcing`.

    Forcing overwrites observed coordinates only. The hidden ones of a core whose hidden part does not contract grow
    without bound along a whole recording; where that ends in non-finite numbers, the residuals are those of pieces of
    `PIECE` rows, each of which starts from the embedding of its first row.
    """
    std = _residual_std(model.exact(), *padded(series, model.dtype), forcing)
    if not bool(jnp.isfinite(std).all()):
        std = _residual_std(model.exact(), *padded(series.pieces(PIECE), model.dtype), forcing)
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
    """The model with Lambda_0 and Gamma_0 from its residuals on a standardised series.

    Args:
        residuals: "every_step" overwrites the observed coordinates at each step; "sparse" at the interval of
            pretraining, which gives larger scales and keeps open-loop objectives finite (see docs/decisions.md).
        forcing: The forcing of pretraining, used by "sparse".
    """
    if residuals not in ("every_step", "sparse"):
        raise ConfigError(f"residuals is 'every_step' or 'sparse', not '{residuals}'.")
    chosen = Forcing(interval=1) if residuals == "every_step" else forcing or Forcing()
    std = residual_std(model, series, chosen)
    return model.replace(shell=split_residuals(std, model.latent_dim, alpha))
