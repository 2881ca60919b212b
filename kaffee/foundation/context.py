"""Conditioning a foundation model on a context of observations (section 5.2, appendix C.5)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import MIN_FRAMES, context_scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.model.core import Core
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.model.wrappers import as_core
from kaffee.training.adaptation import Adaptation
from kaffee.training.forcing import Forcing
from kaffee.training.loop import Schedule
from kaffee.training.optimiser import Optimiser
from kaffee.training.pretraining import ResidualKind, initialise_shell

_SHORTEST_WINDOW, _LONGEST_WINDOW = 24, 128

IN_CONTEXT = Adaptation(
    scored=_LONGEST_WINDOW,
    burn_in=8,
    optimiser=Optimiser("adam", learning_rate=5e-5, clip_norm=1.0),
    schedule=Schedule(num_updates=10, batch_size=16, report_every=5, save_every=10),
)
"""The paper's schedule; `scored` is set for every system by its Lyapunov time."""
CALIBRATED = replace(
    IN_CONTEXT,
    optimiser=replace(IN_CONTEXT.optimiser, shell_learning_rate=5e-2),
    schedule=replace(IN_CONTEXT.schedule, num_updates=50),
)
"""Fifty updates under which the shell moves as far as it must; with rows held out its bands are calibrated."""
HELD_OUT = 0.25


class ContextModel(Protocol):
    """Any foundation model that kaffee can adapt: it reads a context and becomes a core, as `DynaMix` does.

    The core is a `kaffee.Core`, or anything that `kaffee.as_core` accepts. Its first N coordinates are the observed.
    """

    def in_context(self, context: Float[Array, "T N"], /) -> Core | Callable[..., Any]:
        """Return the transition map conditioned on a standardised context."""
        ...

    def initial_state(self, x: Float[Array, "... N"], /) -> Float[Array, "... M"]:
        """Map an observation to a latent state, linearly."""
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
        The zero-shot surrogate, and the standardised rows to adapt on: the whole context, or what was held out.
    """
    scaler = context_scaler(observations)
    read, unread = split_context(scaler.transform(np.asarray(observations, np.float64)), held_out)
    standard = Series.from_arrays(unread)
    N = standard.num_coordinates
    given = model.in_context(jnp.asarray(read))
    floats = [leaf.dtype for leaf in jax.tree.leaves(given) if eqx.is_inexact_array(leaf)]
    embedding = jax.jacfwd(model.initial_state)(jnp.zeros(N, floats[0] if floats else jnp.float32))
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
    """Condition an adapted model on the whole standardised context, if its core can read; else leave it as it is."""
    read = getattr(model.core, "in_context", None)
    return model if read is None else model.replace(core=read(jnp.asarray(context)))


def split_context(whole: Float[np.ndarray, "T N"], held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows that the model reads and those that it is adapted on: the same ones if nothing is held out."""
    if held_out == 0:
        return whole, whole
    first = _num_read(len(whole), held_out)
    if not 0 < held_out < 1 or min(first, len(whole) - first) < MIN_FRAMES:
        raise ConfigError(
            f"held_out = {held_out} of {len(whole)} rows: a share between 0 and 1 that leaves {MIN_FRAMES} rows on "
            "both sides is needed."
        )
    return whole[:first], whole[first:]


def _num_read(num_rows: int, held_out: float) -> int:
    return round((1 - held_out) * num_rows)


def lyapunov_window(lyapunov_exponent: float | None, dt: float) -> int:
    """Compute round(tau_lambda / dt) clipped to 24..128: the scored steps of a window; 128 without an exponent.

    >>> lyapunov_window(0.902, 0.02), lyapunov_window(0.0, 0.02), lyapunov_window(2.0, 0.1)
    (55, 128, 24)
    """
    rate = 0.0 if lyapunov_exponent is None else lyapunov_exponent * dt
    if not math.isfinite(rate):
        raise ConfigError(
            f"A Lyapunov exponent is a finite number per unit of time; given {lyapunov_exponent} at a time step of "
            f"{dt:g}. Leave it out if it is not known: windows then have {_LONGEST_WINDOW} steps."
        )
    steps = _LONGEST_WINDOW if rate <= 0 else round(min(1.0 / rate, _LONGEST_WINDOW))
    return max(steps, _SHORTEST_WINDOW)


def fewest_rows(settings: Adaptation, held_out: float) -> int:
    """Count the rows of the shortest usable context: burn-in and one scored step must fit in what is held out.

    >>> fewest_rows(CALIBRATED, HELD_OUT), fewest_rows(IN_CONTEXT, 0.0)
    (38, 10)
    """
    rows = needed = max(settings.burn_in + 2, MIN_FRAMES)
    while held_out and (_num_read(rows, held_out) < MIN_FRAMES or rows - _num_read(rows, held_out) < needed):
        rows += 1
    return rows


def shorten_window(settings: Adaptation, num_rows: int, held_out: float) -> Adaptation:
    """Shorten the scored window to the rows of a context that can be adapted on; raise if not one step fits."""
    longest = num_rows - (_num_read(num_rows, held_out) if held_out else 0) - settings.burn_in - 1
    if longest < 1:
        where = f" within the last {held_out:.0%}, which are held out" if held_out else ""
        raise DataError(
            f"{num_rows} rows are too few to adapt on: a window has {settings.burn_in} steps of burn-in and "
            f"at least one that is scored{where}. Give at least {fewest_rows(settings, held_out)} rows."
        )
    return replace(settings, scored=min(settings.scored, longest))
