"""The estimator with scikit-learn's conventions: fit, then filter, smooth, impute, forecast, simulate, score."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kaffee.checkpoint.reconstruction import Reconstruction, save
from kaffee.data.frames import ArrayFrame, Data, read_data, read_inputs
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError, KaffeeError
from kaffee.fitting.config import update
from kaffee.fitting.parameters import Parameters
from kaffee.fitting.pipeline import fit
from kaffee.fitting.run import Run, short_recordings
from kaffee.fitting.settings import FitSettings
from kaffee.fitting.stages import Fit
from kaffee.foundation.incontext import extend_context
from kaffee.inference.ensembles import forecast, simulate
from kaffee.inference.matching import adopt_columns, model_columns
from kaffee.inference.online import OnlineFilter
from kaffee.inference.recordings import filter_recordings, impute, smooth
from kaffee.inference.results import BAND, FORECAST_LEVELS, Estimates
from kaffee.surrogate.plots import Plots

if TYPE_CHECKING:
    from kaffee.certification.certificate import Certificate, CertificationSettings
    from kaffee.certification.groups import GroupedCertificate

_FITTED = ("reconstruction_", "prior_", "settings_", "fit_")
ZERO_SHOT = "zero_shot"
"""The method of a model that read its data and was not trained on them."""


class NotFittedError(KaffeeError, AttributeError):
    """Error for asking of a surrogate what only a fitted one has."""


class Surrogate(Parameters, Plots):
    """A probabilistic surrogate of the system behind a recording.

        surrogate = kaffee.Surrogate(seed=1).fit(X)
        surrogate.forecast(200)          # from the end of X
        surrogate.filter(new)            # and smooth, impute, score, online, simulate, save

    Same kind in, same kind out: NumPy arrays give NumPy arrays, tables of pandas give tables with columns `x_mean`,
    `x_std`, `x_q05`, ... and the dates going on, labelled arrays of xarray give Datasets of the variables `mean`,
    `std`, `q05`, ...; several recordings in a list give a list. NaN is missing everywhere; see docs/surrogate.md.

    Args:
        method: A row of the paper, such as "kaffee" or "blind"; None: what the settings say ("kaffee").
        seed: Of everything random in the fit; None: what the settings say (0).
        settings: What should differ from the settings that the data suggest, such as {"core.latent_dim": 30}; or a
            complete `FitSettings`.
        progress: Show the progress of training.
        observation: "learned" or, with 3 components, "learned:3": a map from few latents to many channels that is
            learned with the core (docs/subjects.md); None: what the settings say ("fixed").

    Attributes:
        reconstruction_: The fitted model, for all functions of kaffee.
        prior_: The deterministic model before it; None if it was not stored.
        settings_: The settings of the fit, complete; None for a stored model that does not tell.
        fit_: Losses, train and test part (the last 20 % of every recording are held out for checks); None after `load`
            and `zero_shot`.
    """

    reconstruction_: Reconstruction
    prior_: Reconstruction | None
    settings_: FitSettings | None
    fit_: Fit | None
    _data: Data | None = None
    _parts: tuple[Series, Series | None] | None = None  # what the model was made of, and what was held out

    def __init__(
        self,
        method: str | None = None,
        *,
        seed: int | None = None,
        settings: FitSettings | Mapping[str, Any] | None = None,
        progress: bool = False,
        observation: str | None = None,
    ) -> None:
        # As they came and unchecked, so that a copy made of `get_params` is the same; `fit` looks at them.
        self.method, self.seed, self.settings, self.progress = method, seed, settings, progress
        self.observation = observation

    def __getattr__(self, name: str) -> Any:
        if name in _FITTED:
            raise NotFittedError("This surrogate is not fitted yet. Call fit(X) first, or Surrogate.load(path).")
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __repr__(self) -> str:
        text = super().__repr__()
        if not self.__sklearn_is_fitted__():
            return text
        names = model_columns(self.reconstruction_)
        shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        return f"{text}, fitted to {shown} at steps of {self.reconstruction_.dt:.6g}"

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        times: Any = None,
        dt: float | None = None,
        inputs: Any = None,
        groups: Sequence[str] | None = None,
    ) -> Self:
        """Fit to one or several recordings, from scratch.

        Args:
            X: (T,), (T, N), (R, T, N) or a list of (T_i, N); a DataFrame, a Series, a DataArray, a Dataset, or a list
                of one of them; a `kaffee.Series`.
            y: For scikit-learn's pipelines; not used.
            times: Of the rows, for arrays; tables have them as their index.
            dt: Time between rows, for data without times; 1 by default.
            inputs: Known inputs that act on the system: names of columns of X, or data of any kind with its rows. All
                other methods then take `inputs` as well, unless they are columns of X (docs/inputs.md).
            groups: A name for each recording (subject, site, session). Groups share the core; each has its own map,
                noise and units, and `group(name)` is the surrogate of one of them.
        """
        from rich.console import Console

        from kaffee.progress import TrainingProgress

        data = read_all(X, times, dt, inputs)
        if groups is not None:
            data = replace(data, series=replace(data.series, groups=tuple(groups)))
        settings = self._resolved_settings(data.series)
        for note in short_recordings(data.series, settings):
            warnings.warn(note, UserWarning, stacklevel=2)
        with TrainingProgress(Console(stderr=True), quiet=not self.progress) as shown:
            self.fit_ = fit(data.series, settings, dt=dt, watcher=shown.watcher)
        if not self.fit_.fitted.completed:
            warnings.warn(self.fit_.fitted.report, RuntimeWarning, stacklevel=2)
        self._data, self.settings_, self.prior_ = data, settings, self.fit_.prior.reconstruction
        self._parts = self.fit_.train, self.fit_.test
        self.reconstruction_ = with_calendar(self.fit_.fitted.reconstruction, data)
        return self

    def group(self, name: str) -> Self:
        """Return the surrogate of one group: its own map, noise and units around the core that all groups share.

        It keeps the group's part of the data given to `fit`, and does all that a surrogate does.
        """
        own = copy(self)
        own.reconstruction_, own.fit_ = self.reconstruction_.group(name), None
        own.prior_ = None if self.prior_ is None else self.prior_.group(name)
        if self._data is not None:
            chosen = [r for r, group in enumerate(self._data.series.groups) if group == name]
            frames = tuple(self._data.frames[r] for r in chosen)
            join: Any = (lambda made: made[0]) if len(chosen) == 1 else list
            own._data = replace(self._data, series=self._data.series.of_group(name), frames=frames, join=join)
        if self._parts is not None and self._parts[1] is not None:
            own._parts = self._parts[0].of_group(name), self._parts[1].of_group(name)
        return own

    def filter(
        self,
        X: Any,
        *,
        times: Any = None,
        quantiles: Sequence[float] = BAND,
        gate: float | None = None,
        patience: int = 10,
        any_step: bool = False,
        inputs: Any = None,
    ) -> Any:
        """Estimate every row from all rows up to it; see `kaffee.filter_recordings`."""
        data, model = self._matched(X, times, inputs)
        estimates = filter_recordings(model, data.series, gate=gate, patience=patience, any_step=any_step)
        return _as_given(data, estimates, quantiles)

    def smooth(
        self,
        X: Any,
        *,
        times: Any = None,
        quantiles: Sequence[float] = BAND,
        any_step: bool = False,
        inputs: Any = None,
    ) -> Any:
        """Estimate every row from all rows, before and after it; see `kaffee.smooth`."""
        data, model = self._matched(X, times, inputs)
        return _as_given(data, smooth(model, data.series, any_step=any_step), quantiles)

    def impute(
        self, X: Any, *, times: Any = None, return_std: bool = False, any_step: bool = False, inputs: Any = None
    ) -> Any:
        """Fill the gaps of X; with `return_std` return also the standard deviation of what was filled in, 0 elsewhere.

        Times that leave out whole steps are gaps as well, and the result has a row for each step.
        """
        data, model = self._matched(X, times, inputs)
        estimates = impute(model, data.series, any_step=any_step)

        def fill(name: str) -> Any:
            pairs = zip(data.frames, estimates, strict=True)
            return data.join([frame.values(getattr(each, name), each.times) for frame, each in pairs])

        return (fill("values"), fill("std")) if return_std else fill("values")

    def forecast(
        self,
        num_steps: int,
        X: Any = None,
        *,
        times: Any = None,
        members: int = 500,
        quantiles: Sequence[float] = FORECAST_LEVELS,
        seed: int = 0,
        observation_noise: bool = True,
        any_step: bool = False,
        inputs: Any = None,
        point: bool = False,
    ) -> Any:
        """Forecast the recordings in X from their last row; those given to `fit`, if there is no X.

        Args:
            members: Size of the ensemble, for each recording.
            quantiles: Of tables and labelled arrays; results for arrays have all members, and any quantile.
            observation_noise: Forecast readings; without it the signal behind them.
            any_step: Accept a time step that is not the model's.
            inputs: Of a driven model, those of the forecast rows; a row for each step. If X comes without its own, the
                rows of X come first: those of X, then those of the forecast.
            point: Add the most likely trajectory, the one from the last belief's mean without any noise.
        """
        data, model = self._fitted_data() if X is None else self._matched(X, times)
        data, future = data.with_future(inputs, model.inputs)
        options: dict[str, Any] = {"observation_noise": observation_noise, "any_step": any_step, "inputs": future}
        options["point"] = point
        estimates = forecast(model, data.series, num_steps, members=members, seed=seed, **options)
        if diverged := estimates.facts["diverged"]:
            note = f"{diverged} of {members * len(estimates)} members left the attractor; they are left out from there"
            warnings.warn(note, RuntimeWarning, stacklevel=2)
        parts = zip(data.frames, estimates, data.series.lengths, strict=True)
        return data.join([frame.ahead(future, quantiles, num_rows) for frame, future, num_rows in parts])

    def simulate(
        self,
        num_steps: int,
        *,
        shell: bool = True,
        start: Any = None,
        runs: int | None = None,
        transient: int = 1000,
        seed: int = 0,
        inputs: Any = None,
    ) -> Any:
        """Let the surrogate run on its own; in the form of the data it was fitted to, by the time that passed.

        Args:
            shell: With process and observation noise; without it the bare core runs.
            start: An observation to start from, or one row for each run; by default drawn from the data's moments.
            runs: How many; a list comes back if this, or `start`, says so.
            transient: Steps before the first that is kept.
            inputs: Of a driven model; by default those given to `fit`. When they end they begin again.
        """
        known = read_inputs(inputs)
        if known is None and self._data is not None:
            known = self._data.series.inputs
        options: dict[str, Any] = {"shell": shell, "start": start, "runs": 1 if runs is None else runs}
        estimates = simulate(self.reconstruction_, num_steps, transient=transient, seed=seed, inputs=known, **options)
        if any(estimates.facts["diverged_at"]):
            warnings.warn(estimates.facts["divergence"], RuntimeWarning, stacklevel=2)
        frame = ArrayFrame() if self._data is None else self._data.frames[0]
        made = [frame.free(each.values, np.asarray(each.times)) for each in estimates]
        return made[0] if runs is None and np.ndim(start) < 2 else made

    def score(self, X: Any, y: None = None, *, times: Any = None, any_step: bool = False, inputs: Any = None) -> float:
        """Compute the mean log-likelihood of an entry given all rows before it, in data units; higher is better."""
        data, model = self._matched(X, times, inputs)
        score = filter_recordings(model, data.series, any_step=any_step).facts["log_likelihood_per_entry"]
        if score is None:
            raise DataError("X: nothing to score, since the first row of a recording is not predicted. Give more rows.")
        return float(score)

    def online(self, *, gate: float | None = None, patience: int = 10) -> OnlineFilter:
        """Start a filter for readings as they arrive."""
        return OnlineFilter(self.reconstruction_, gate=gate, patience=patience)

    def extend(self, X: Any, *, times: Any = None) -> Self:
        """Let new rows join the context that `zero_shot` read, and return the surrogate: its memory grows.

        Rows follow those that were read, or are other recordings of the same system; they change the map, not its
        units, delays and noise (`kaffee.foundation.incontext`). Filters that run online go on with the grown map by
        `OnlineFilter.adopt(surrogate.reconstruction_)`. Forecasts without X still begin at the rows given first.
        """
        data, model = self._matched(X, times)
        self.reconstruction_ = extend_context(model, data.series)
        return self

    def certify(
        self,
        X: Any = None,
        *,
        times: Any = None,
        settings: "CertificationSettings | None" = None,
        any_step: bool = False,
        inputs: Any = None,
    ) -> "Certificate | GroupedCertificate":
        """Certify the surrogate on data that it was not fitted to, by default the part that `fit` held out.

        A surrogate of groups is certified for each of them, and overall.

        `kaffee.zero_shot` holds out nothing unless it is told to: give new rows in X, or make it by
        `zero_shot(X, held_out=0.2)`. Rows that the model has read would flatter it.
        """
        from kaffee.certification.certificate import certify

        model = self.reconstruction_
        if self._parts is None:
            raise ConfigError(
                "A certificate compares with the training data, which a stored model does not keep. Call fit(X), or "
                "kaffee.certification.certify(surrogate.reconstruction_, train, test)."
            )
        train, held_out = self._parts
        if model.groups:
            from kaffee.certification.groups import certify_groups

            if X is not None:
                raise ConfigError("Of a surrogate of groups name the one that X is of: group(name).certify(X).")
            own: dict[str, Any] = {"prior": self.prior_, "settings": settings, "any_step": any_step}
            return certify_groups(model, train, self._held_out(held_out), **own)
        test = self._held_out(held_out) if X is None else self._matched(X, times, inputs)[0].series
        return certify(model, train, test, prior=self.prior_, settings=settings, any_step=any_step)

    def _held_out(self, series: Series | None) -> Series:
        if series is None:
            raise ConfigError(
                "Nothing was held out: the model has read all rows. Pass X with rows that it has not read, or hold "
                "some out: kaffee.zero_shot(X, held_out=0.2)."
            )
        return series

    def save(self, path: str | Path) -> Path:
        """Write the model to a folder, its prior beside it; returns the folder."""
        folder = save(self.reconstruction_, path)
        if self.prior_ is not None:
            save(self.prior_, folder / "prior")
        return folder

    def export(self, path: str | Path) -> Path:
        """Write step and filter as StableHLO programs that run without kaffee; see `kaffee.inference.stablehlo`."""
        from kaffee.inference.stablehlo import export_programs

        return export_programs(self.reconstruction_, path)

    @classmethod
    def load(cls, path: str | Path, *, core: Any = None) -> Self:
        """Load the surrogate from a folder that `save`, `kaffee.save` or `kaffee fit` wrote.

        Args:
            core: For a core of one's own class; see `kaffee.load`.
        """
        run = Run.open(path, core=core)
        model, settings = run.model, None
        values = model.provenance.get("settings")
        if isinstance(values, dict):
            with suppress(ConfigError):  # another version had other settings
                settings = update(FitSettings(), values)
        surrogate = cls(settings=settings)
        surrogate.reconstruction_, surrogate.prior_ = model, run.prior_model
        surrogate.settings_, surrogate.fit_ = settings, None
        return surrogate

    def _fitted_data(self) -> tuple[Data, Reconstruction]:
        model = self.reconstruction_.group(None)
        if self._data is None:
            raise ConfigError("A stored model does not keep the data it was fitted to. Pass X, which to go on from.")
        return self._data, model

    def _matched(self, X: Any, times: Any, inputs: Any = None) -> tuple[Data, Reconstruction]:
        """Read data, and let the model take their names where it has none of its own."""
        model = self.reconstruction_.group(None)
        beside = model.inputs or None if inputs is None else inputs
        data = read_data(X, times, model_columns(model), model.provenance.get("frequency"), inputs=beside)
        return data, adopt_columns(model, data.series)


def read_all(X: Any, times: Any, dt: float | None, inputs: Any = None) -> Data:
    """Read data to make a model of."""
    data = read_data(X, times, fitting=True, inputs=inputs)
    if dt is not None and data.series.times is not None:
        raise ConfigError(f"dt={dt:g} beside times, which tell it. Leave out the one or the other.")
    return data


def with_calendar(model: Reconstruction, data: Data) -> Reconstruction:
    """Keep the calendar with the model, so that a stored one knows it, too."""
    calendar = {} if data.frequency is None else {"frequency": data.frequency}
    return replace(model, provenance={**model.provenance, **calendar})


def _as_given(data: Data, estimates: Estimates, quantiles: Sequence[float]) -> Any:
    """Give the estimates of every recording the form in which it came."""
    return data.join([frame.rows(each, quantiles) for frame, each in zip(data.frames, estimates, strict=True)])
