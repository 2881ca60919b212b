"""The figures of a surrogate, as a notebook shows them."""

import numpy as np
import pytest
from small import gappy_fit, gappy_series

from kaffee.data.frames import read_data
from kaffee.errors import ConfigError
from kaffee.surrogate.estimator import Surrogate


@pytest.fixture(scope="module")
def surrogate():
    """As after a fit to several recordings with gaps."""
    made, found = Surrogate(), gappy_fit()
    made.fit_, made.settings_, made.prior_ = found, found.settings, found.prior.reconstruction
    made.reconstruction_ = found.fitted.reconstruction
    made._data = read_data(gappy_series())
    return made


def test_a_forecast_goes_on_from_the_last_reading(surrogate):
    figure = surrogate.plot_forecast(20, history=10)
    shown = {trace.name: trace for trace in figure.data if trace.visible}
    assert list(shown) == ["90 % band, low", "90 % band", "50 % band, low", "50 % band", "median", "history"]
    assert len(shown["median"].x) == 20
    assert len(shown["history"].x) == 10
    step = surrogate.reconstruction_.dt
    assert shown["median"].x[0] - shown["history"].x[-1] == pytest.approx(step)
    last = gappy_series().recordings[-1][-10:, 0]
    np.testing.assert_allclose(shown["history"].y, last, rtol=1e-6)
    assert [button.label for button in figure.layout.updatemenus[0].buttons] == ["left", "right"]


def test_free_runs_are_shown_beside_the_data(surrogate):
    figure = surrogate.plot_attractor(100)
    assert [trace.name for trace in figure.data] == ["data", "kaffee core", "kaffee with noise"]
    assert len(figure.data[1].x) == 100
    stored = Surrogate()
    stored.reconstruction_, stored.fit_ = surrogate.reconstruction_, None
    assert [trace.name for trace in stored.plot_attractor(50).data] == ["kaffee core", "kaffee with noise"]
    with pytest.raises(ConfigError, match="Pass X"):
        stored.plot_calibration()
    with pytest.raises(ConfigError, match="Pass X"):
        stored.plot_forecast(5)


def test_calibration_is_shown_on_held_out_or_other_data(surrogate):
    own = surrogate.plot_calibration(gappy_series())
    assert own.layout.annotations[0].text == "Coverage of bands"
    assert own.data[1].y.shape == (19,)
    assert "<div" in own.to_html(include_plotlyjs=False)
