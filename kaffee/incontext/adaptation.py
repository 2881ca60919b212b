"""The in-context protocol of appendix C.5: ten updates on windows of the context."""

import math
from dataclasses import replace
from typing import Any

from kaffee.data.context import MIN_FRAMES
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.methods import Method
from kaffee.ssm import StateSpaceModel
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.loop import Schedule, Trained
from kaffee.training.optimiser import Optimiser

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
