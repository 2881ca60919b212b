"""A forecaster for sktime: point, interval, quantile and variance forecasts, gaps, several variables, inputs, updates.

    from kaffee.adapters import SurrogateForecaster
    SurrogateForecaster("zero_shot").fit(y, fh=[1, 2, 3]).predict_interval(coverage=0.9)

Needs sktime (`pip install 'kaffee[sktime]'`), which nothing else of kaffee imports.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from scipy.special import ndtri

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.frames import read_inputs
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError, KaffeeError, unknown
from kaffee.inference.online import OnlineFilter
from kaffee.inference.results import Estimate
from kaffee.model.statespace import Climate, StateSpaceModel
from kaffee.surrogate.estimator import Surrogate
from kaffee.surrogate.untrained import zero_shot
from kaffee.training.autoregression import Structure, fit_autoregression
from kaffee.training.linear import build_state_space

try:
    from sktime.forecasting.base import BaseForecaster, ForecastingHorizon
except ModuleNotFoundError as error:  # pragma: no cover
    raise KaffeeError("A forecaster for sktime needs sktime. Install it: pip install 'kaffee[sktime]'") from error

Strategy = Literal["fit", "zero_shot", "autoregression"]
_SHORTEST_HORIZON = 8
_RIDGE = 1e-4


class SurrogateForecaster(BaseForecaster):
    """Forecast a series by a probabilistic surrogate of the system behind it, from the filtered belief at its end.

    Points are means of an ensemble and quantiles those of its members, observation noise included; in sample they are
    the one-step predictions of the filter. Gaps, as missing values or as missing rows of a regular index, are filtered
    over. `update(y, update_params=False)` costs a filter step for each new row; with `update_params` the model is made
    again of all rows. Exogenous X are known inputs of the model (docs/inputs.md): forecasts take those of the rows to
    come, and steps whose X is missing keep that of the step before.

    Args:
        strategy: "fit" trains as `kaffee.Surrogate` does; "zero_shot" reads the rows as `kaffee.zero_shot` does, in
            seconds, and leaves X aside; "autoregression" is a vector autoregression by ridge regression, in
            milliseconds.
        settings: Of the fit, such as {"core.latent_dim": 30}, for the strategy "fit".
        order: Lags of the strategy "autoregression", fewer if there are too few rows for them.
        members: Size of the ensemble.
        seed: Of training and of the ensemble.

    Attributes:
        reconstruction_: The model, for all functions of kaffee.

    >>> import numpy as np, pandas as pd
    >>> from kaffee.adapters import SurrogateForecaster
    >>> angle = 0.3 * np.arange(63)
    >>> y = pd.DataFrame({"sine": np.sin(angle), "cosine": np.cos(angle)})
    >>> forecaster = SurrogateForecaster("autoregression", order=1).fit(y[:60], fh=[1, 2, 3])
    >>> bool((forecaster.predict() - y[60:]).abs().max().max() < 0.02)
    True
    """

    _tags = {  # noqa: RUF012
        "authors": ["kaffee"],
        "maintainers": ["kaffee"],
        "python_dependencies": None,
        "y_inner_mtype": "pd.DataFrame",
        "X_inner_mtype": "pd.DataFrame",
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:missing_values": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:insample": True,
        "capability:update": True,
        "requires-fh-in-fit": False,
    }
    _config = {"remember_data": False}  # the rows are kept here, completed  # noqa: RUF012
    reconstruction_: Reconstruction

    def __init__(
        self,
        strategy: Strategy = "fit",
        *,
        settings: Mapping[str, Any] | None = None,
        order: int = 2,
        members: int = 500,
        seed: int = 0,
    ) -> None:
        self.strategy, self.settings, self.order, self.members, self.seed = strategy, settings, order, members, seed
        super().__init__()
        self._y = self._X = None  # sktime's own memory, off unless it is configured
        if strategy == "zero_shot":
            self.set_tags(**{"capability:exogenous": False})

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None = None, fh: Any = None) -> "SurrogateForecaster":
        self._rows = _complete(y)
        self._inputs = _align(X, self._rows.index)
        self.reconstruction_ = self._make()
        return self._restart()

    def _update(
        self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True
    ) -> "SurrogateForecaster":
        last = self._rows.index[-1]
        # Rows that were there already stay as they were; what is new may begin after a gap.
        rows = _complete(pd.concat([self._rows, y[y.index > last]]))
        known = len(self._rows)
        new, self._rows = rows.iloc[known:], rows
        if self._inputs is not None:
            self._inputs = _align(self._inputs if X is None else self._inputs.combine_first(X), rows.index)
        if update_params:
            self.reconstruction_ = self._make()
            return self._restart()
        return self._append(new, None if self._inputs is None else self._inputs.iloc[known:]) if len(new) else self

    def _make(self) -> Reconstruction:
        """Make a model of all rows, driven by X where there is one."""
        if self.strategy not in get_args(Strategy):
            raise ConfigError(unknown("strategy", self.strategy, get_args(Strategy)))
        if self.settings is not None and self.strategy != "fit":
            raise ConfigError(f"settings are those of the strategy 'fit', not of '{self.strategy}'. Leave them out.")
        values = self._rows.to_numpy(np.float64)
        inputs = None if self._inputs is None else self._inputs.to_numpy(np.float64)
        if self.strategy == "fit":
            return Surrogate(seed=self.seed, settings=self.settings).fit(values, inputs=inputs).reconstruction_
        if self.strategy == "zero_shot":
            return zero_shot(values).reconstruction_
        return regress_rows(Series.from_arrays(values), self.order, read_inputs(inputs))

    def _restart(self) -> "SurrogateForecaster":
        """Filter all rows."""
        self._filter = OnlineFilter(self.reconstruction_)
        self._past = np.zeros((2, 0, len(self._rows.columns)))
        return self._append(self._rows, self._inputs)

    def _append(self, rows: pd.DataFrame, inputs: pd.DataFrame | None) -> "SurrogateForecaster":
        """Filter rows that follow."""
        filtered = self._filter.run(rows.to_numpy(np.float64), None if inputs is None else inputs.to_numpy(np.float64))
        predicted = np.stack([filtered.predicted_mean, filtered.predicted_std])
        self._past = np.concatenate([self._past, predicted], axis=1)
        return self

    def _predict(self, fh: Any, X: pd.DataFrame | None = None) -> pd.DataFrame:
        found = self._collect(fh, X, lambda future: [future.mean], lambda mean, std: [mean])
        return pd.DataFrame(found[0], index=fh.to_absolute_index(self.cutoff), columns=self._rows.columns)

    def _predict_quantiles(self, fh: Any, X: pd.DataFrame | None, alpha: Sequence[float]) -> pd.DataFrame:
        found = self._collect(
            fh,
            X,
            lambda future: [future.quantile(level) for level in alpha],
            lambda mean, std: [mean + ndtri(level) * std for level in alpha],
        )
        columns = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        values = np.moveaxis(found, 0, 2).reshape(found.shape[1], -1)
        return pd.DataFrame(values, index=fh.to_absolute_index(self.cutoff), columns=columns)

    def _predict_var(self, fh: Any, X: pd.DataFrame | None = None, cov: bool = False) -> pd.DataFrame:
        if cov:
            raise NotImplementedError("Covariances between steps are not returned; OnlineFilter.forecast has members.")
        found = self._collect(fh, X, lambda future: [future.std**2], lambda mean, std: [std**2])
        return pd.DataFrame(found[0], index=fh.to_absolute_index(self.cutoff), columns=self._get_varnames())

    def _collect(self, fh: Any, X: pd.DataFrame | None, ahead: Any, behind: Any) -> np.ndarray:
        """Collect arrays (K, H, N) of what holds at the steps of a horizon, out of sample and in it.

        Args:
            ahead: Makes K arrays (steps, N) of a forecast.
            behind: Makes K arrays of means and standard deviations of one-step predictions.
        """
        steps = np.asarray(fh.to_relative(self.cutoff).to_numpy(), np.int64)
        rows = self._past.shape[1] - 1 + steps  # in sample, 0 is the last row
        inside, beyond = (steps <= 0) & (rows >= 0), steps > 0
        past = np.stack(behind(*self._past[:, rows[inside]]))
        found = np.full((len(past), len(steps), past.shape[2]), np.nan)
        found[:, inside] = past
        if beyond.any():
            found[:, beyond] = np.stack(ahead(self._run_ahead(int(steps.max()), X)))[:, steps[beyond] - 1]
        return found

    def _run_ahead(self, num_steps: int, X: pd.DataFrame | None) -> Estimate:
        """Forecast at least so many steps."""
        # Powers of two, since every other number of steps is another program to compile.
        longer = max(_SHORTEST_HORIZON, 2 ** (num_steps - 1).bit_length())
        how: dict[str, Any] = {"members": self.members, "seed": self.seed}
        inputs = np.full((longer, len(self.reconstruction_.inputs)), np.nan)
        if self._inputs is not None and X is not None:
            steps = ForecastingHorizon(np.arange(1, num_steps + 1), is_relative=True)
            known = X.reindex(steps.to_absolute_index(self.cutoff))
            inputs[:num_steps] = known[self._inputs.columns].to_numpy(np.float64)
        try:
            return self._filter.forecast(longer, inputs=inputs, **how)
        except DataError:  # no member is left at a step that nobody asked for
            return self._filter.forecast(num_steps, inputs=inputs[:num_steps], **how)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return settings for sktime's tests, which make hundreds of models of random numbers."""
        return [{"strategy": "autoregression", "order": order, "members": 10} for order in (1, 2)]


def regress_rows(series: Series, order: int, inputs: Series | None = None) -> Reconstruction:
    """Make a state-space model of a vector autoregression by ridge regression.

    x_t = sum_k A_k x_{t-k} + D u_t + c + e_t
    """
    series = replace(series, inputs=inputs)
    scaler = Scaler.fit(series)
    standard = series.standardised(scaler)
    most = (max(series.lengths) - 1) // (series.num_coordinates + 1)
    if order > most:
        warnings.warn(
            f"{max(series.lengths)} rows are too few for {order} lags of {series.num_coordinates} coordinates; there "
            f"are {most}.",
            UserWarning,
            stacklevel=2,
        )
    regression = fit_autoregression(standard, Structure(order=min(order, most), ridge=_RIDGE))
    model = build_state_space(regression, standard, share=1.0)
    names = () if inputs is None else inputs.columns
    return Reconstruction(
        _forget_states(model), scaler, series.columns, series.time_step or 1.0, "kaffee", inputs=names
    )


def _forget_states(model: StateSpaceModel) -> StateSpaceModel:
    """Keep one state of the climate: others are for cores in a box, and their number would be another program."""
    assert model.climate is not None
    return model.replace(climate=Climate(model.climate.mean, model.climate.factor, model.climate.mean[None]))


def _align(X: pd.DataFrame | None, index: pd.Index) -> pd.DataFrame | None:
    """Give every row its X; what is missing stays what it was, at the start what it is first."""
    return None if X is None else X.reindex(index).ffill().bfill()


def _complete(y: pd.DataFrame) -> pd.DataFrame:
    """Insert rows of missing values where a regular index leaves out steps."""
    index = y.index
    if isinstance(index, pd.PeriodIndex):
        full: pd.Index = pd.period_range(index[0], index[-1], freq=index.freq)
    elif isinstance(index, pd.DatetimeIndex):
        frequency = index.freq or (pd.infer_freq(index) if len(index) > 2 else None)
        if frequency is None:
            return y
        full = pd.date_range(index[0], index[-1], freq=frequency)
    else:
        full = pd.RangeIndex(index[0], index[-1] + 1)
    return y if len(full) == len(index) else y.reindex(full)
