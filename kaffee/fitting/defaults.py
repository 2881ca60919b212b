"""Settings of a fit that follow from its data: what `kaffee fit` uses where nobody said otherwise.

The paper's settings are those of one system. Windows in steps, latent sizes and the time between forced steps do not
carry over to a recording with another step and another number of coordinates; these rules do. What they were chosen
by is in docs/decisions.md, what they give on a recording `python -m benchmarks.recording` measures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.validation import check_observed
from kaffee.errors import DataError
from kaffee.filtering.likelihood import get_method
from kaffee.fitting.config import merge, nested, update
from kaffee.fitting.settings import FitSettings

SHORTEST_WINDOW = 8
"""Steps without which a window has nothing to learn dynamics from."""


@dataclass(frozen=True)
class Suggested:
    """One setting with the value that the data suggest, and why."""

    key: str
    value: Any
    reason: str


def suggest(series: Series, settings: FitSettings | None = None) -> list[Suggested]:
    """What the training part of a series suggests.

    Args:
        settings: What else is known, such as the type of the core.
    """
    settings = settings or FitSettings()
    train, _ = series.split(1.0 - settings.test_fraction)
    if settings.core.start is None:
        Scaler.fit(train)  # a column that is constant or never observed is an error now and not after the settings
    else:
        check_observed(train.recordings, train.columns, train.label)
    tau, N = train.decorrelation_time, train.num_coordinates
    longest = max(train.lengths)
    if longest < SHORTEST_WINDOW + 2:
        raise DataError(
            f"{series.label}: the longest recording has {longest} rows for training, too few for windows of "
            f"{SHORTEST_WINDOW} steps. Bring longer recordings, or lower test_fraction (now {settings.test_fraction})."
        )
    memory = f"the decorrelation time, {tau:.1f} steps"
    interval = round(min(max(0.5 * tau, 10.0), 50.0))
    window = _fitting(5 * interval, 50, 200, longest)
    scored = _fitting(3 * tau, 64, 128, longest - 8)
    found = [
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
    ]
    if get_method(settings.method).train_core:
        found.append(Suggested("adaptation.confine", 0.25, "free runs stay near the training data"))
        found.append(Suggested("adaptation.guard", 250, "a core whose free runs get worse goes back"))
    if settings.core.start is not None:
        found = [each for each in found if not each.key.startswith("pretraining.schedule")]
        found.insert(0, Suggested("pretraining.schedule.num_updates", 0, "the core is given"))
    elif settings.core.latent_dim is None:
        size = settings.core.resolved_dim(N)
        found.insert(0, Suggested("core.latent_dim", size, f"{N} coordinates: {_size_rule(settings)}"))
    return found


def _size_rule(settings: FitSettings) -> str:
    return "five for each, at least 20" if settings.core.type in ("alrnn", "mlp") else "one for each"


def _fitting(wanted: float, low: int, high: int, longest: int) -> int:
    """A window of `wanted` steps between `low` and `high` that fits in the longest recording with its first row."""
    return int(min(max(math.ceil(wanted), low), high, longest - 1))


def with_suggestions(settings: FitSettings, suggested: Sequence[Suggested]) -> FitSettings:
    """The settings with all suggestions."""
    values: dict[str, Any] = {}
    for each in suggested:
        values = merge(values, nested(each.key, each.value))
    return update(settings, values)


def settings_for(series: Series, given: Mapping[str, Any] | None = None) -> FitSettings:
    """What the data suggest, where the nested values of `given` do not say otherwise."""
    given = given or {}
    return update(with_suggestions(FitSettings(), suggest(series, update(FitSettings(), given))), given)
