"""Defaults of a fit that follow from its data: what `kaffee fit` uses for settings that are not given.

The paper's settings are those of one system; these rules carry over to other time steps and numbers of coordinates.
Why these: docs/decisions.md. What they give on a recording: `python -m benchmarks.recording`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.validation import check_observed
from kaffee.errors import DataError
from kaffee.filtering.likelihood import get_method
from kaffee.fitting.config import merge, nested, update
from kaffee.fitting.settings import FitSettings

_SHORTEST_WINDOW = 8  # steps without which a window has nothing to learn dynamics from


class Suggested(NamedTuple):
    """A setting with the value that the data suggest, and the reason."""

    key: str
    value: Any
    reason: str


def suggest(series: Series, settings: FitSettings | None = None) -> list[Suggested]:
    """Suggest settings for the training part of a series, given those that are known, such as the type of the core."""
    settings = settings or FitSettings()
    train, _ = series.split(1.0 - settings.test_fraction)
    if settings.core.start is None:
        Scaler.fit(train)  # a column that is constant or never observed is an error now and not after the settings
    else:
        check_observed(train.recordings, train.columns, train.label)
    tau, N = train.decorrelation_time, train.num_coordinates
    longest = max(train.lengths)
    if longest < _SHORTEST_WINDOW + 2:
        raise DataError(
            f"{series.label}: the longest recording has {longest} rows for training, too few for windows of "
            f"{_SHORTEST_WINDOW} steps. Bring longer recordings, or lower test_fraction (now {settings.test_fraction})."
        )
    memory = f"the decorrelation time, {tau:.1f} steps"
    interval = round(min(max(0.5 * tau, 10.0), 50.0))
    window = _clip_window(5 * interval, 50, 200, longest)
    scored = _clip_window(3 * tau, 64, 128, longest - 8)
    suggested = [
        Suggested("pretraining.forcing.interval", interval, f"half of {memory}; 10 to 50"),
        Suggested("pretraining.window", window, "5 intervals; 50 to 200"),
        Suggested("pretraining.schedule.num_updates", 60_000, "about a minute"),
        Suggested("adaptation.scored", scored, f"3 times {memory}; 64 to 128"),
        Suggested("adaptation.burn_in", min(8, longest - 1 - scored), "8, if recordings are long enough"),
        Suggested("adaptation.schedule.num_updates", 10_000, "fine noise scales take long"),
        Suggested("adaptation.schedule.report_every", 50, "progress every few seconds"),
        Suggested("adaptation.schedule.save_every", 500, "what an interruption may cost"),
        Suggested("adaptation.optimiser.final_learning_rate", 2e-4, "the noise of the last updates dies out"),
        Suggested("adaptation.calibration", 300, "bands follow the final core"),
        Suggested("adaptation.climate", True, "beliefs start from what the first reading tells, and no more"),
    ]
    if get_method(settings.method).train_core:
        suggested.append(Suggested("adaptation.confine", 0.25, "free runs stay near the training data"))
        suggested.append(Suggested("adaptation.guard", 250, "a core whose free runs get worse goes back"))
    if settings.core.start is not None:
        suggested = [each for each in suggested if not each.key.startswith("pretraining.schedule")]
        suggested.insert(0, Suggested("pretraining.schedule.num_updates", 0, "the core is given"))
    elif settings.core.latent_dim is None:
        rule = "five for each, at least 20" if settings.core.type in ("alrnn", "mlp") else "one for each"
        suggested.insert(0, Suggested("core.latent_dim", settings.core.resolved_dim(N), f"{N} coordinates: {rule}"))
    return suggested


def _clip_window(wanted: float, low: int, high: int, longest: int) -> int:
    """Clip a window to `low` and `high` steps, and to what the longest recording has after its first row."""
    return int(min(max(math.ceil(wanted), low), high, longest - 1))


def apply_suggestions(suggested: Sequence[Suggested], given: Mapping[str, Any]) -> FitSettings:
    """Combine suggestions with the nested values that were given, which win."""
    values = reduce(merge, [nested(each.key, each.value) for each in suggested])
    return update(update(FitSettings(), values), given)


def settings_for(series: Series, given: Mapping[str, Any] | None = None) -> FitSettings:
    """Take what the data suggest, where the nested values of `given` do not say otherwise."""
    given = given or {}
    return apply_suggestions(suggest(series, update(FitSettings(), given)), given)
