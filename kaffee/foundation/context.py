"""From a context to a state-space model around a context-conditioned core."""

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
from kaffee.filtering.likelihood import Method, get_method
from kaffee.foundation.weights import terms_of
from kaffee.model.core import Core
from kaffee.model.observation import Projection
from kaffee.model.shell import Shell
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import as_core
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.forcing import Forcing
from kaffee.training.loop import Schedule, Trained
from kaffee.training.optimiser import Optimiser
from kaffee.training.pretraining import ResidualKind, initialise_shell


class ContextModel(Protocol):
    """Any foundation model that kaffee can adapt: it reads a context and becomes a core.

    `DynaMix` is one. Your own needs these two methods; the core that `in_context` returns is a `kaffee.Core`, or
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


# The in-context protocol of appendix C.5: ten updates on windows of the context.


SHORTEST_WINDOW, LONGEST_WINDOW = 24, 128

IN_CONTEXT = Adaptation(
    scored=LONGEST_WINDOW,
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


def lyapunov_window(lyapunov_exponent: float | None, dt: float) -> int:
    """round(tau_lambda / dt) clipped to 24..128: the scored steps of a window; the longest without an exponent.

    >>> lyapunov_window(0.902, 0.02), lyapunov_window(0.0, 0.02), lyapunov_window(2.0, 0.1)
    (55, 128, 24)
    """
    rate = 0.0 if lyapunov_exponent is None else lyapunov_exponent * dt
    if not math.isfinite(rate):
        raise ConfigError(
            f"A Lyapunov exponent is a finite number per unit of time; given {lyapunov_exponent} at a time step of "
            f"{dt:g}. Leave it out if it is not known: windows then have {LONGEST_WINDOW} steps."
        )
    steps = LONGEST_WINDOW if rate <= 0 else round(min(1.0 / rate, LONGEST_WINDOW))
    return max(steps, SHORTEST_WINDOW)


def fewest_rows(settings: Adaptation, held_out: float) -> int:
    """The shortest context that can be adapted on: a window of burn-in and one scored step fits in what is held out.

    Args:
        held_out: 0, or a share between 0 and 1.

    >>> fewest_rows(CALIBRATED, HELD_OUT), fewest_rows(IN_CONTEXT, 0.0)
    (38, 10)
    """
    needed = max(settings.burn_in + 2, MIN_FRAMES)
    if held_out == 0:
        return needed
    rows = needed + MIN_FRAMES
    while min(rows - num_read(rows, held_out) - needed, num_read(rows, held_out) - MIN_FRAMES) < 0:
        rows += 1
    return rows


def num_read(num_rows: int, held_out: float) -> int:
    """How many rows of a context the model reads while it is adapted on the others."""
    return round((1 - held_out) * num_rows)


def adapt_in_context(
    model: StateSpaceModel,
    context: Series,
    method: Method,
    *,
    seed: int,
    scored: int = LONGEST_WINDOW,
    settings: Adaptation = IN_CONTEXT,
    **options: Any,
) -> Trained:
    """Adapt a conditioned model on windows of its own standardised context, and on nothing else."""
    return adapt(model, context, method, replace(settings, scored=scored), seed=seed, **options)


# From an array of observations to a calibrated filter in one call.


def adapt_foundation_model(
    model: ContextModel,
    observations: Float[np.ndarray, "T N"],
    *,
    method: str = "kaffee",
    dt: float = 1.0,
    lyapunov_exponent: float | None = None,
    columns: tuple[str, ...] = (),
    seed: int = 0,
    settings: Adaptation = CALIBRATED,
    held_out: float = HELD_OUT,
    **options: Any,
) -> Reconstruction:
    """Condition a foundation model on noisy observations and make it a filter by a few updates on them (appendix C.5).

        surrogate = adapt_foundation_model(kaffee.from_pretrained(), observations, dt=0.02)

    Args:
        model: `kaffee.from_pretrained()`, or your own `ContextModel`.
        observations: The context in data units, without gaps.
        method: A row of the paper: "kaffee", "frozen_core" for the shell alone, or one of the controls.
        dt: Time of one row.
        lyapunov_exponent: Per unit of time, if known: windows are then one Lyapunov time long, else 128 steps or as
            many as there are.
        settings, held_out: By default the last quarter of the rows is kept from the model while it is adapted on them,
            and the shell moves fast: its bands then hold for what comes next. `IN_CONTEXT` and 0 are the paper's,
            whose bands are too narrow (docs/reproduction.md). In the end the model reads all rows.
        options: For `kaffee.adapt`, such as `watcher`.

    Raises:
        DataError: For a context that cannot be used, or is too short for a window.
    """
    window = lyapunov_window(lyapunov_exponent, dt)
    zero_shot, context = condition(model, observations, dt=dt, columns=columns, held_out=held_out)
    longest = len(context.recordings[0]) - settings.burn_in - 1
    scored = min(window, longest)
    if scored < 1:
        where = f" within the last {held_out:.0%}, which are held out" if held_out else ""
        raise DataError(
            f"{len(observations)} rows are too few to adapt on: a window has {settings.burn_in} steps of burn-in and "
            f"at least one that is scored{where}. Give at least {fewest_rows(settings, held_out)} rows."
        )
    trained = adapt_in_context(
        zero_shot.model, context, get_method(method), seed=seed, scored=scored, settings=settings, **options
    )
    adapted = trained.model
    if held_out:
        adapted = read_all(adapted, zero_shot.scaler.transform(np.asarray(observations, np.float64)))
    provenance = {
        "seed": seed,
        "method": method,
        "scored": scored,
        "held_out": held_out,
        "num_updates": settings.schedule.num_updates,
        "fingerprint": context.fingerprint,
        **terms_of(str(getattr(model, "origin", ""))),
    }
    return replace(zero_shot, model=adapted, method=method, provenance=provenance)
