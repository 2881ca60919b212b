"""Arguments of an estimator as scikit-learn handles them: read, changed, copied, searched over; it is not imported.

GridSearchCV(Surrogate(), {"settings__core__latent_dim": [20, 30]}, cv=TimeSeriesSplit(5)).fit(X)
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Self

from kaffee.data.series import Series
from kaffee.errors import ConfigError, unknown
from kaffee.fitting.config import merge, nested, update
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.settings import FitSettings, ObservationSettings

_DEFAULTS: dict[str, Any] = {"method": None, "seed": None, "settings": None, "progress": False, "observation": None}
_NESTED = "settings__"


class Parameters:
    """The arguments of a fit as attributes, as they came."""

    method: str | None
    seed: int | None
    settings: FitSettings | Mapping[str, Any] | None
    progress: bool
    observation: str | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as they were given."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    def set_params(self, **parameters: Any) -> Self:
        """Change arguments of the constructor; the next `fit` uses them.

        `settings__core__latent_dim=30` changes one of the settings, core.latent_dim, and leaves the others.
        """
        # Whole settings first, so that single ones are changes of them in whatever order they come.
        for name, value in sorted(parameters.items(), key=lambda item: item[0].startswith(_NESTED)):
            if name.startswith(_NESTED):
                self.settings = self._changed(name.removeprefix(_NESTED).replace("__", "."), value)
            elif name not in _DEFAULTS:
                raise ConfigError(unknown("parameter", name, _DEFAULTS))
            else:
                setattr(self, name, value)
        return self

    def _changed(self, key: str, value: Any) -> FitSettings | Mapping[str, Any]:
        given = self.settings
        if isinstance(given, FitSettings):
            return update(given, nested(key, value))
        return merge(reduce(merge, _nest(given), {}), nested(key, value))

    def _resolved_settings(self, series: Series) -> FitSettings:
        """Take the settings that were given, and for the others what the data suggest."""
        given, map_ = self.settings, ObservationSettings.parse(self.observation)
        chosen: dict[str, Any] = {"method": self.method, "seed": self.seed, "observation": map_}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if isinstance(given, FitSettings):
            return update(given, chosen)
        return settings_for(series, reduce(merge, [*_nest(given), chosen]))

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn, which calls this: NaN is missing, there is no target."""
        from sklearn.utils import InputTags, Tags, TargetTags

        tags = Tags(estimator_type=None, target_tags=TargetTags(required=False))
        tags.input_tags = InputTags(two_d_array=True, one_d_array=True, three_d_array=True, allow_nan=True)
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return "reconstruction_" in vars(self)

    def __repr__(self) -> str:
        given = {name: value for name, value in self.get_params().items() if value is not _DEFAULTS[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _nest(given: Any) -> list[dict[str, Any]]:
    """Write a dictionary with keys such as "core.latent_dim" as one of dictionaries for each key."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(
            f"settings is {type(given).__name__}; give a FitSettings, or a dictionary such as "
            '{"core.latent_dim": 30}.'
        )
    return [nested(str(key), value) for key, value in (given or {}).items()]
