"""Figures of a surrogate: forecast, attractor, calibration; interactive ones, as Jupyter shows them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.frames import Data
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.inference.ensembles import forecast, simulate
from kaffee.inference.matching import match_series, model_columns

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Plots:
    """What can be drawn of a fitted surrogate and the data that it knows."""

    reconstruction_: Reconstruction
    _data: Data | None
    _parts: tuple[Series, Series | None] | None

    def _fitted_data(self) -> tuple[Data, Reconstruction]:
        raise NotImplementedError

    def _matched(self, X: Any, times: Any, inputs: Any = None) -> tuple[Data, Reconstruction]:
        raise NotImplementedError

    def _held_out(self, series: Series | None) -> Series:
        raise NotImplementedError

    def plot_forecast(
        self,
        num_steps: int,
        X: Any = None,
        *,
        times: Any = None,
        recording: int = -1,
        history: int = 50,
        seed: int = 0,
        inputs: Any = None,
    ) -> "Figure":
        """Plot the forecast of one recording in X, or of those given to `fit`, after its last `history` readings."""
        from kaffee.report.figures import plot_forecast

        data, model = self._fitted_data() if X is None else self._matched(X, times)
        data, future = data.with_future(inputs, model.inputs)
        ahead = forecast(model, data.series, num_steps, seed=seed, inputs=future)[recording]
        before = data.series.recordings[recording][-history:]
        return plot_forecast(
            ahead.times,
            {level: ahead.quantile(level) for level in (0.05, 0.25, 0.5, 0.75, 0.95)},
            ahead.columns,
            history_times=ahead.times[0] - model.dt * np.arange(len(before), 0, -1),
            history=before,
        )

    def plot_attractor(self, num_steps: int = 3000, *, seed: int = 0) -> "Figure":
        """Plot free runs with and without noise, beside the data given to `fit`."""
        from kaffee.report.figures import plot_attractor

        runs = {} if self._data is None else {"data": max(self._data.series.recordings, key=len)[:num_steps]}
        for name, shell in (("kaffee core", False), ("kaffee with noise", True)):
            inputs = None if self._data is None else self._data.series.inputs
            free = simulate(self.reconstruction_, num_steps, shell=shell, seed=seed, inputs=inputs)
            runs[name] = free[0].values
        return plot_attractor(runs, model_columns(self.reconstruction_))

    def plot_calibration(self, X: Any = None, *, times: Any = None, inputs: Any = None) -> "Figure":
        """Plot coverage and probability integral transform of one-step predictions of X, or of the held-out part."""
        from kaffee.certification.innovations import choose_starts, filter_pass, residual_checks
        from kaffee.report.figures import plot_calibration

        if X is not None:
            data, model = self._matched(X, times, inputs)
            series = match_series(model, data.series)
        elif self._parts is not None:
            series, model = self._held_out(self._parts[1]), self.reconstruction_
        else:
            raise ConfigError("A stored model does not keep the data that it was fitted to. Pass X to check it on.")
        checked = residual_checks(
            filter_pass(model, series, choose_starts(series, 1, climate=model.model.climate is not None))
        )
        return plot_calibration(checked.curve_levels, checked.curve, checked.pit, checked.num_entries)
