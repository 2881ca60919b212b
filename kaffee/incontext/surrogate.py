"""From an array of observations to a calibrated filter in one call."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kaffee.checkpoint import Reconstruction
from kaffee.dynamix.releases import terms_of
from kaffee.errors import DataError
from kaffee.incontext.adaptation import CALIBRATED, HELD_OUT, adapt_in_context, fewest_rows, lyapunov_window
from kaffee.incontext.conditioning import ContextModel, condition, read_all
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
