"""Shorter fits, here and in the processes that tests start."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kaffee.fitting import ladder
from kaffee.training import linear as linear_models
from kaffee.training import selection
from kaffee.training.guard import FreeRunGuard


def shorten_fits(put: Callable[[Any, str, Any], None] = setattr, *, linear: bool = True, looks: bool = True) -> None:
    """Leave linear models at least squares, without a map in context beside them; look at no free runs, score few rows.

    Compiling what is left out takes longer than everything else in a small fit.
    """
    if linear:
        schedule = replace(linear_models.SETTINGS.schedule, num_updates=0)
        put(linear_models, "SETTINGS", replace(linear_models.SETTINGS, schedule=schedule))
        put(selection, "EVALUATIONS", (4, 4))
        put(ladder, "CONTEXT_ROWS", 0)
    if looks:
        put(FreeRunGuard, "LEAST_ROWS", 1_000_000)
        put(selection, "MAX_STARTS", 64)
        put(selection, "MEMBERS", 16)
