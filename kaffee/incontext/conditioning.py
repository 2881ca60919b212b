"""From a context to a state-space model around a context-conditioned core."""

from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.checkpoint import Reconstruction
from kaffee.cores.core import Core
from kaffee.cores.custom import as_core
from kaffee.data.context import MIN_FRAMES, context_scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.incontext.adaptation import num_read
from kaffee.observation import Projection
from kaffee.shell import Shell
from kaffee.ssm import StateSpaceModel
from kaffee.training.forcing import Forcing
from kaffee.training.initialise import ResidualKind, initialise_shell


class ContextModel(Protocol):
    """Any foundation model that kaffee can adapt: it reads a context and becomes a core.

    `DynaMix` is one. Your own needs these two methods; the core that `in_context` returns is a `kaffee.cores.Core`, or
    anything that `kaffee.as_core` accepts. Its first N latent coordinates are the observed ones.
    """

    def in_context(self, context: Float[Array, "T N"], /) -> Core | Callable[..., Any]:
        """The transition map conditioned on a standardised context."""
        ...

    def initial_state(self, x: Float[Array, "... N"], /) -> Float[Array, "... M"]:
        """The latent state of an observation; a linear map."""
        ...


def condition(
    model: ContextModel,
    observations: Float[np.ndarray, "T N"],
    *,
    dt: float = 1.0,
    columns: tuple[str, ...] = (),
    residuals: ResidualKind = "every_step",
    forcing: Forcing | None = None,
    alpha: float = 0.9,
    held_out: float = 0.0,
) -> tuple[Reconstruction, Series]:
    """Standardise a context, condition the model on it and give it its first shell (90/10 of its residuals).

    Args:
        held_out: The share of the rows, the last ones, that the model does not read. What it reads it predicts better
            than what comes after: a shell that is calibrated on rows it has read is too narrow. See `read_all`.

    Returns:
        The zero-shot surrogate with an untrained shell, and the standardised rows to adapt on: the whole context, or
        what was held out.
    """
    scaler = context_scaler(observations)
    whole = scaler.transform(np.asarray(observations, np.float64))
    read, unread = _split(whole, held_out)
    standard = Series.from_arrays(unread)
    N = standard.num_coordinates
    given = model.in_context(jnp.asarray(read))
    embedding = jax.jacfwd(model.initial_state)(jnp.zeros(N, _dtype(given)))
    core = as_core(given, latent_dim=embedding.shape[0])
    ssm = StateSpaceModel(
        core=core,
        shell=Shell.from_std(jnp.full(core.latent_dim, 0.1), jnp.full(N, 0.1), embedding.dtype),
        observation=Projection(N, core.latent_dim),
        embedding=embedding,
    )
    ssm = initialise_shell(ssm, standard, residuals=residuals, forcing=forcing, alpha=alpha)
    return Reconstruction(ssm, scaler, columns, dt), standard


def read_all(model: StateSpaceModel, context: Float[np.ndarray, "T N"]) -> StateSpaceModel:
    """The adapted model conditioned on the whole standardised context, if its core can read; else as it is."""
    read = getattr(model.core, "in_context", None)
    return model if read is None else model.replace(core=read(jnp.asarray(context)))


def _split(whole: Float[np.ndarray, "T N"], held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """What the model reads, and what it is adapted on."""
    if held_out == 0:
        return whole, whole
    first = num_read(len(whole), held_out)
    if not 0 < held_out < 1 or min(first, len(whole) - first) < MIN_FRAMES:
        raise ConfigError(
            f"held_out = {held_out} of {len(whole)} rows: a share between 0 and 1 that leaves {MIN_FRAMES} rows on "
            "both sides is needed."
        )
    return whole[:first], whole[first:]


def _dtype(core: Any) -> jnp.dtype:
    floats = [leaf.dtype for leaf in jax.tree.leaves(core) if eqx.is_inexact_array(leaf)]
    return floats[0] if floats else jnp.dtype(jnp.float32)
