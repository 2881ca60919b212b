"""From an array of observations to a calibrated filter in one call."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint import Reconstruction
from kaffee.errors import DataError
from kaffee.incontext.adaptation import IN_CONTEXT, adapt_in_context, lyapunov_window
from kaffee.incontext.conditioning import ContextModel, condition
from kaffee.methods import get_method
from kaffee.training.adaptation import Adaptation


def adapt_foundation_model(
    model: ContextModel,
    observations: Float[np.ndarray, "T N"],
    *,
    method: str = "kaffee",
    dt: float = 1.0,
    lyapunov_exponent: float | None = None,
    columns: tuple[str, ...] = (),
    seed: int = 0,
    settings: Adaptation = IN_CONTEXT,
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
            many as the context has.
        options: For `kaffee.adapt`, such as `watcher`.

    Raises:
        DataError: For a context that cannot be used, or is too short for a window.
    """
    zero_shot, context = condition(model, observations, dt=dt, columns=columns)
    longest = len(context.recordings[0]) - settings.burn_in - 1
    scored = min(lyapunov_window(lyapunov_exponent, dt), longest)
    if scored < 1:
        raise DataError(
            f"A context of {len(context.recordings[0])} rows is too short to adapt on: a window has {settings.burn_in} "
            "steps of burn-in and at least one that is scored."
        )
    trained = adapt_in_context(
        zero_shot.model, context, get_method(method), seed=seed, scored=scored, settings=settings, **options
    )
    provenance = {"seed": seed, "method": method, "scored": scored, "fingerprint": context.fingerprint}
    return replace(zero_shot, model=trained.model, method=method, provenance=provenance)
