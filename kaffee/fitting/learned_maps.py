"""Observation maps that are learned, one for all recordings or one for each group, and where their learning starts.

    x^g_t = C_g (z_1, ..., z_K)_t + b_g + noise_g,        z_{t+1} = F(z_t) + noise

Every group g has a scaler, C, b and noise of its own, the core F is that of all. Principal components start each C
(`kaffee.training.components`); a change of coordinates brings the groups together (`kaffee.training.alignment`). The
pipeline then trains a prior on the scores, which is all that a core is to explain, lifts it to the channels, and adapts
core, shells and maps on these. What is identified is the span of C_g and the core up to a change of coordinates of its
first K latents: C_g T with the core in the coordinates T^-1 z is as likely.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.fitting.settings import FitSettings
from kaffee.model.observation import LinearObservation
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.training.alignment import align_all, choose_lags
from kaffee.training.components import Components, count_components, principal_components


@dataclass(frozen=True, eq=False)
class Maps:
    """The start of maps that are learned.

    Attributes:
        names: Of the groups; empty if there are none, and one map.
        scalers, components: Of each group.
        rows: The standardised training rows of all channels.
        scores: The same rows as scores, in the coordinates that all groups share.
    """

    names: tuple[str, ...]
    scalers: tuple[Scaler, ...]
    components: tuple[Components, ...]
    rows: Series
    scores: Series

    @property
    def number(self) -> int:
        """Count the components K."""
        return self.components[0].number

    def lift(self, model: StateSpaceModel) -> StateSpaceModel:
        """Make a model of the channels of a model of the scores, for all groups."""
        members = [each.lift(model) for each in self.components]
        return StateSpaceModel.share(members) if self.names else members[0]

    def view(self, model: StateSpaceModel) -> StateSpaceModel:
        """Look at a model of the channels as one of the scores: through the inverse of the maps that it started from.

        Groups are averaged: what training does to the coordinates of the core, it does to all maps.
        """
        if not self.names:
            return self.components[0].view(model)
        views = [each.view(model.select(g)) for g, each in enumerate(self.components)]
        maps = [view.observation for view in views]
        assert isinstance(maps[0], LinearObservation)
        shells = [view.shell for view in views]
        return views[0].replace(
            observation=LinearObservation(
                jnp.mean(jnp.stack([each.B for each in maps]), axis=0),  # type: ignore[attr-defined]
                jnp.mean(jnp.stack([each.offset for each in maps]), axis=0),  # type: ignore[attr-defined]
                maps[0].hidden,
            ),
            shell=Shell(
                jnp.mean(jnp.stack([each.log_process_std for each in shells]), axis=0),
                jnp.mean(jnp.stack([each.log_observation_std for each in shells]), axis=0),
            ),
        )


def standardise_groups(series: Series, names: tuple[str, ...], scalers: tuple[Scaler, ...]) -> Series:
    """Convert every recording to the standard units of its group; of all, if there are no groups."""
    if not names:
        return series.standardised(scalers[0])
    own = [scalers[names.index(group)] for group in series.groups]
    return replace(series, recordings=tuple(s.transform(x) for s, x in zip(own, series.recordings, strict=True)))


def find_maps(settings: FitSettings, train: Series, *, aligned: bool = True) -> Maps | None:
    """Find where the learning of maps starts, from training rows; None if B is [I 0] and nothing is to be learned.

    Without alignment the scores of every group keep their own axes, which is enough to take settings from.
    """
    if settings.observation is None:
        if train.groups:
            raise ConfigError(
                "Groups share a core and have maps of their own, which are learned: choose --observation learned, or "
                "leave the groups out."
            )
        return None
    if train.inputs is not None:
        raise ConfigError(
            f"{train.label}: a learned map and known inputs ({', '.join(train.inputs.columns)}) do not go "
            "together yet. Leave out one of them."
        )
    names = train.group_names
    series = [train.of_group(name) for name in names] or [train]
    scalers = tuple(Scaler.fit(each) for each in series)
    standard = [each.standardised(scaler) for each, scaler in zip(series, scalers, strict=True)]
    number = settings.observation.components
    if number is None:
        number = int(np.median([count_components(each) for each in standard]))
    components = [principal_components(each, number) for each in standard]
    if names and aligned:
        scores = [each.scores(rows) for each, rows in zip(components, standard, strict=True)]
        lags = choose_lags(float(np.median([each.decorrelation_time for each in scores])))
        turns = align_all([each.recordings for each in scores], lags)
        components = [each.turned(*turn) for each, turn in zip(components, turns, strict=True)]
    rows = standardise_groups(train, names, scalers)
    owners = [names.index(group) for group in rows.groups] or [0] * rows.num_recordings
    projected = tuple(components[g].project(x) for g, x in zip(owners, rows.recordings, strict=True))
    columns = tuple(f"s{k + 1}" for k in range(number))
    return Maps(names, scalers, tuple(components), rows, replace(rows, recordings=projected, columns=columns))
