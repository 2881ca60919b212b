"""Ensembles in xarray and ArviZ hold the numbers of the estimates."""

import numpy as np
import pandas as pd
import pytest
from small import DT, gappy_series, rotation, small_model

import kaffee
from kaffee.adapters import to_inference_data
from kaffee.errors import ConfigError, DataError
from kaffee.inference import draw_filtered, forecast

DATES = pd.date_range("2024-01-01", periods=30, freq="h").to_numpy()


@pytest.fixture(scope="module")
def model():
    scaler = kaffee.Scaler(mean=[10.0, 10.0], scale=[3.0, 3.0])
    return kaffee.Reconstruction(small_model(), scaler, ("left", "right"), DT, "kaffee")


def test_members_have_names_and_times(model):
    ahead = forecast(model, gappy_series(), 4, members=20)
    data = ahead.to_xarray()
    assert dict(data.sizes) == {"recording": 3, "member": 20, "time": 12, "variable": 2}
    for r, each in enumerate(ahead):
        part = data.isel(recording=r).sel(time=each.times)
        np.testing.assert_array_equal(part["members"], each.members)
        np.testing.assert_array_equal(part["mean"].sel(variable="right"), each.mean[:, 1])
    assert data.attrs["kind"] == "forecast"


def test_dates_stay_dates(model, tmp_path):
    table = pd.DataFrame(rotation(30), index=pd.Index(DATES, name="time"), columns=["left", "right"])
    table.to_csv(tmp_path / "dated.csv")
    series = kaffee.read_series(tmp_path / "dated.csv")
    filtered = kaffee.filter_recordings(model, series, any_step=True).to_xarray()
    np.testing.assert_array_equal(filtered["time"].to_numpy(), DATES)
    assert filtered["state_mean"].dims == ("time", "state")
    assert filtered["nis"].dims == ("time",)


def test_draws_have_the_moments_of_the_filter(model):
    series = gappy_series()
    drawn, filtered = draw_filtered(model, series, members=400), kaffee.filter_recordings(model, series)
    for draws, moments in zip(drawn, filtered, strict=True):
        assert draws.members.shape == (400, *moments.mean.shape)
        error = np.maximum(moments.std, 1e-6) / np.sqrt(400)
        assert (np.abs(draws.mean - moments.mean) < 5 * error).all()
        ratio = (draws.std / moments.std)[moments.std > 1e-3]
        assert (np.abs(ratio - 1.0) < 5 / np.sqrt(2 * 400)).all()
    with pytest.raises(ConfigError, match="use 2 or more"):
        draw_filtered(model, series, members=1)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning:arviz")
def test_arviz_reads_both(model):
    arviz = pytest.importorskip("arviz", reason="ArviZ is not installed: pip install 'kaffee[arviz]'")
    series = gappy_series()
    drawn, ahead = draw_filtered(model, series, members=20), forecast(model, series, 4, members=20)
    posterior = to_inference_data(drawn, observed=series)
    assert posterior["posterior"]["left"].dims == ("chain", "draw", "recording", "time")
    np.testing.assert_array_equal(posterior["posterior"]["left"][0, :, 1, :60], drawn[1].members[:, :60, 0])
    np.testing.assert_array_equal(posterior["observed_data"]["right"][0], series.recordings[0][:, 1])
    predictions = to_inference_data(ahead)["predictions"]
    assert predictions["right"].sizes["draw"] == 20
    assert arviz.__version__
    with pytest.raises(ConfigError, match="Estimates of the kind 'smoothed' have no members"):
        to_inference_data(kaffee.smooth(model, series))
    with pytest.raises(DataError, match="observed has the columns right, left"):
        to_inference_data(drawn, observed=series.select(["right", "left"]))
