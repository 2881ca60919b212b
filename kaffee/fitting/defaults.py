"""Defaults of a fit that follow from its data: what `kaffee fit` uses for settings that are not given.

The paper's settings are those of one system; these rules carry over to other time steps and numbers of coordinates.
Why these: docs/decisions.md. What they give on a recording: `python -m benchmarks.recording`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.validation import check_observed
from kaffee.errors import ConfigError, DataError, unknown
from kaffee.filtering.likelihood import get_method
from kaffee.fitting.config import merge, nested, update
from kaffee.fitting.learned_maps import find_maps
from kaffee.fitting.settings import FEW_COORDINATES, FEW_GATES, IN_CONTEXT, FitSettings, ObservationSettings
from kaffee.training.selection import hold_back

# Latents for two lags of many coordinates; and coordinates beyond which an AL-RNN takes hours.
MOST_LAGGED, MOST_COORDINATES = 160, 40
# Floating-point operations of a stage: some minutes on two cores. Products of vectors are ten times as slow.
AFFORDABLE, LEAST_UPDATES = 4e12, 100
# Iterates are averaged over one in so many updates.
AVERAGED = 20
# Updates of a model in context, and steps of their windows: it begins where others end.
CONTEXT_UPDATES, CONTEXT_SCORED = 100, 32
PRESETS = ("quick", "paper")
"""Other defaults than those that the data suggest: a tenth of the training for a first look; the paper's."""
_SHORTEST_WINDOW = 8  # steps without which a window has nothing to learn dynamics from


class Suggested(NamedTuple):
    """A setting with the value that the data suggest, and the reason."""

    key: str
    value: Any
    reason: str


def check_preset(preset: str | None) -> str | None:
    """Return the preset; raise if there is none of this name."""
    if preset is not None and preset not in PRESETS:
        raise ConfigError(unknown("preset", preset, PRESETS))
    return preset


def suggest(series: Series, settings: FitSettings | None = None, preset: str | None = None) -> list[Suggested]:
    """Suggest settings for the training part of a series, given those that are known, such as the type of the core.

    Args:
        preset: "quick": a tenth of the updates of both stages, and few looks of the guard, for a first look at a
            recording; "paper": nothing, so that the defaults of `FitSettings` hold.
    """
    if check_preset(preset) == "paper":
        return []
    settings = settings or FitSettings()
    if series.groups and settings.observation is None:
        learned = Suggested("observation.type", "learned", "groups share a core and have maps of their own")
        return [learned, *suggest(series, replace(settings, observation=ObservationSettings()), preset)]
    train, _ = series.split(1.0 - settings.test_fraction)
    maps = find_maps(settings, train, aligned=False)
    if maps is not None:
        train = maps.scores  # which is what a core is to explain
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
    rung, why = "scratch", ""
    plain = settings.core.type == "alrnn" and settings.core.start is None and settings.foundation is None
    plain = plain and settings.readings is None and settings.core.structure is None
    if plain and settings.method == "kaffee":  # the other methods are controls, to be seen as they are
        rung, why = "auto", "linear model first; held-back rows choose"
        if N > MOST_COORDINATES and settings.core.latent_dim is None:
            rung, why = "linear", f"{N} coordinates: an AL-RNN takes hours; rung=auto tries it"
    # A fifth of the rows is held back for choosing; their recordings are shorter.
    part = hold_back(train).part if rung != "scratch" or settings.core.start == IN_CONTEXT else train
    longest, rows = max(part.lengths), part.num_steps
    if rung == "auto" and longest < 2 * _SHORTEST_WINDOW:
        rung, why = "linear", f"{longest} rows are too few for windows of an AL-RNN"
    M = settings.core.latent_dim or suggest_latent_dim(N, settings)
    memory = f"the decorrelation time, {tau:.1f} steps"
    interval = round(min(max(0.5 * tau, 10.0), 50.0))
    window = _clip_window(5 * interval, 50, 200, longest)
    scored = _clip_window(3 * tau, 64, 128, longest - 8)
    burn_in = max(min(8, longest - 1 - scored), 0)
    forcing = _count_updates(20 * rows, 60_000 if rung == "scratch" else 20_000, 16 * window * M**2 * 60)
    filtering = _count_updates(3 * rows, 10_000, 16 * (scored + burn_in) * M**3 * 12)
    follow, looks = "as many as the rows are worth and time allows", 20
    if preset == "quick":
        forcing, filtering = (max(each // 10, LEAST_UPDATES) for each in (forcing, filtering))
        follow, looks = "quick: a tenth of what the rows are worth", 3
    suggested = [
        Suggested("rung", rung, why),
        Suggested("pretraining.forcing.interval", interval, f"half of {memory}; 10 to 50"),
        Suggested("pretraining.window", window, "5 intervals; 50 to 200"),
        Suggested("pretraining.schedule.num_updates", forcing, follow),
        Suggested("pretraining.optimiser.clip_norm", 0.5, "a start that is linear may be near its edge"),
        Suggested("adaptation.scored", scored, f"3 times {memory}; 64 to 128"),
        Suggested("adaptation.burn_in", burn_in, "8, if recordings are long enough"),
        Suggested("adaptation.schedule.num_updates", filtering, follow),
        Suggested("adaptation.schedule.report_every", min(50, max(filtering // 10, 1)), "progress every few seconds"),
        Suggested("adaptation.schedule.save_every", 500, "what an interruption may cost"),
        Suggested("adaptation.optimiser.final_learning_rate", 2e-4, "the noise of the last updates dies out"),
        Suggested("adaptation.calibration", min(300, filtering), "bands follow the final core"),
        Suggested("adaptation.climate", True, "the first rows of a recording know what they do not know"),
    ]
    if rung == "scratch":
        suggested = [each for each in suggested if each.key not in ("rung", "pretraining.optimiser.clip_norm")]
    else:
        # Single iterates jump about while steps are large, and the guard would send most of them back.
        averaging = round(1.0 - AVERAGED / filtering, 6)
        suggested.append(Suggested("adaptation.optimiser.averaging", averaging, "over a twentieth of the updates"))
    if get_method(settings.method).train_core:
        suggested.append(Suggested("adaptation.confine", 0.25, "free runs stay near the training data"))
        look = min(500, max(filtering // looks, 10))
        suggested.append(Suggested("adaptation.guard", look, "a core whose free runs or forecasts get worse goes back"))
    if maps is not None and settings.core.start is None:
        suggested.insert(0, Suggested("observation.components", N, "as many as make held-back rows most likely"))
    if settings.core.start is not None:
        suggested = [each for each in suggested if not each.key.startswith("pretraining.schedule")]
        suggested.insert(0, Suggested("pretraining.schedule.num_updates", 0, "the core is given"))
        if settings.core.start == IN_CONTEXT:
            suggested = _adapt_gently(suggested, preset)
    elif settings.core.latent_dim is None:
        suggested.insert(0, Suggested("core.latent_dim", M, f"{N} coordinates, their lags, and gates"))
    return suggested


def _adapt_gently(suggested: list[Suggested], preset: str | None) -> list[Suggested]:
    """Take few and small updates: the map is that of a regression already, the shell that of a likelihood."""
    updates, scored = (CONTEXT_UPDATES // (10 if preset == "quick" else 1), CONTEXT_SCORED)
    own = {
        "adaptation.scored": min(scored, next(each.value for each in suggested if each.key == "adaptation.scored")),
        "adaptation.schedule.num_updates": updates,
        "adaptation.schedule.report_every": max(updates // 10, 1),
        "adaptation.optimiser.learning_rate": 2e-5,
        "adaptation.optimiser.final_learning_rate": 2e-6,
        "adaptation.optimiser.shell_learning_rate": 2e-2,
        "adaptation.calibration": min(50, updates),
        "adaptation.guard": max(updates // 2, 1),
    }
    why = "few: the model in context begins where others end"
    others = [each for each in suggested if each.key not in own]
    return [*others, *(Suggested(key, value, why) for key, value in own.items())]


def suggest_latent_dim(num_observed: int, settings: FitSettings) -> int:
    """Suggest M: five for each coordinate as in the paper, at least 20; of many coordinates two or one, and gates."""
    N = num_observed
    if settings.core.type != "alrnn" or N <= FEW_COORDINATES:
        return settings.core.resolved_dim(N)
    return (2 * N if 2 * N <= MOST_LAGGED else N) + FEW_GATES


def _count_updates(wanted: float, most: int, operations: float) -> int:
    """Count updates that follow the rows, at least 100, as far as their operations are affordable."""
    return int(max(min(wanted, most, AFFORDABLE / operations), LEAST_UPDATES))


def _clip_window(wanted: float, low: int, high: int, longest: int) -> int:
    """Clip a window to `low` and `high` steps, and to what the longest recording has after its first row."""
    return int(max(min(max(math.ceil(wanted), low), high, longest - 1), 1))


def apply_suggestions(suggested: Sequence[Suggested], given: Mapping[str, Any]) -> FitSettings:
    """Combine suggestions with the nested values that were given, which win."""
    values: Mapping[str, Any] = reduce(merge, [nested(each.key, each.value) for each in suggested], {})
    return update(update(FitSettings(), values), given)


def settings_for(series: Series, given: Mapping[str, Any] | None = None, *, preset: str | None = None) -> FitSettings:
    """Take what the data suggest, where the nested values of `given` do not say otherwise."""
    given = given or {}
    return apply_suggestions(suggest(series, update(FitSettings(), given), preset), given)
