"""What scikit-learn expects of an estimator beside its methods: arguments that are kept, and found again."""

from collections.abc import Mapping
from typing import Any, Self

from kaffee.checkpoint import Reconstruction
from kaffee.config import merge, nested, update
from kaffee.data.series import Series
from kaffee.errors import ConfigError, KaffeeError, unknown
from kaffee.fitting import Fit
from kaffee.inference.matching import model_columns
from kaffee.settings import FitSettings
from kaffee.suggestion import settings_for

DEFAULTS: dict[str, Any] = {"method": None, "seed": None, "settings": None, "progress": False}
_FITTED = ("reconstruction_", "prior_", "settings_", "fit_")


class NotFittedError(KaffeeError, AttributeError):
    """What only a fitted surrogate has was asked of one that is not."""


class Parameters:
    """The arguments of a surrogate as they were given; what a fit found ends in an underscore."""

    reconstruction_: Reconstruction
    prior_: Reconstruction | None
    settings_: FitSettings | None
    fit_: Fit | None

    def __init__(
        self,
        method: str | None = None,
        *,
        seed: int | None = None,
        settings: FitSettings | Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> None:
        # As they came and unchecked, so that a copy made of `get_params` is the same; `fit` looks at them.
        self.method, self.seed, self.settings, self.progress = method, seed, settings, progress

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as they were given."""
        return {name: getattr(self, name) for name in DEFAULTS}

    def set_params(self, **parameters: Any) -> Self:
        """Change arguments of the constructor; the next `fit` uses them."""
        for name, value in parameters.items():
            if name not in DEFAULTS:
                raise ConfigError(unknown("parameter", name, DEFAULTS))
            setattr(self, name, value)
        return self

    def _resolved_settings(self, series: Series) -> FitSettings:
        """The settings of a fit to this series: what the data suggest, where nothing else was said."""
        given, chosen = self.settings, {"method": self.method, "seed": self.seed}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        if isinstance(given, FitSettings):
            return update(given, chosen)
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(
                f"settings is {type(given).__name__}; give a FitSettings, or a dictionary such as "
                '{"core.latent_dim": 30}.'
            )
        values: dict[str, Any] = {}
        for key, value in (given or {}).items():
            values = merge(values, nested(str(key), value))
        return settings_for(series, merge(values, chosen))

    def __getattr__(self, name: str) -> Any:
        if name in _FITTED:
            raise NotFittedError("This surrogate is not fitted yet. Call fit(X) first, or Surrogate.load(path).")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __repr__(self) -> str:
        given = {name: value for name, value in self.get_params().items() if value is not DEFAULTS[name]}
        text = f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        if "reconstruction_" not in vars(self):
            return text
        names = model_columns(self.reconstruction_)
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        return f"{text}, fitted to {shown} at steps of {self.reconstruction_.dt:.6g}"
