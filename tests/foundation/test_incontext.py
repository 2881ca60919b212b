"""The in-context core: its smoother against the Kalman smoother, and surrogates of recordings without training."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.checkpoint.reconstruction import load
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.rollout import free_run
from kaffee.foundation.denoising import make_pairs, smooth_context
from kaffee.foundation.dispersion import FACTORS, choose_factor
from kaffee.foundation.embedding import choose_lags, forget_time
from kaffee.foundation.incontext import ContextSettings, denoise, extend_context, read_context
from kaffee.inference.ensembles import forecast
from kaffee.inference.online import OnlineFilter
from kaffee.inference.recordings import filter_recordings, impute
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training.kernel_regression import regress


@pytest.fixture(scope="module")
def lorenz():
    found = simulate(get_system("lorenz63", dt=0.03), 700, seed=3, observation_noise=0.1)
    return found.observations[:500], found.states[:500], found.states[500:], found.observations[500:]


@pytest.fixture(scope="module")
def model(lorenz):
    return read_context(Series.from_arrays(lorenz[0]))


def test_smoothing_reduces_noise_and_finds_its_level(lorenz, model):
    readings, states, _, _ = lorenz
    noise = np.sqrt(np.asarray(model.model.shell.observation_variance())) * model.scaler.scale / states.std(axis=0)
    np.testing.assert_allclose(noise, 0.1, rtol=0.35)
    series = Series.from_arrays(readings)
    z = [np.asarray(series.standardised(model.scaler).recordings[0], np.float64)]
    pairs = make_pairs(z, (0,), [np.ones(500, bool)])
    found = smooth_context(z, z, (0,), regress(pairs.features, pairs.targets), pairs)
    truth = model.scaler.transform(states)
    before, after = (np.sqrt(np.mean((values - truth) ** 2)) for values in (z[0], found.mean[0]))
    assert after < 0.6 * before


def test_forecasts_know_their_error(lorenz, model):
    readings, states, future, _ = lorenz
    ahead = forecast(model, Series.from_arrays(readings), 40, members=100, observation_noise=False)[0]
    error = np.abs(ahead.mean - future[:40]) / states.std(axis=0)
    assert error[:10].mean() < 0.15
    inside = (ahead.quantile(0.05) <= future[:40]) & (future[:40] <= ahead.quantile(0.95))
    assert inside.mean() > 0.6


def test_the_filter_goes_on_after_the_context(lorenz, model):
    later = lorenz[3]
    found = filter_recordings(model, Series.from_arrays(later))
    assert found.facts["nll"] < -0.4  # 10 % of noise alone would be -0.9, the climate 1.4
    assert found.facts["restarts"] == 0


def test_free_runs_stay(lorenz, model):
    start = jnp.asarray(model.scaler.transform(lorenz[0][:5]), jnp.float32)
    run = free_run(model.model, start, 20_000)
    assert not run.diverged_at.any()
    assert np.asarray(run.states[:, -5000:]).std() > 0.5
    thrown = free_run(model.model, 1e2 * start, 100)
    assert float(jnp.abs(thrown.states[:, -1]).max()) < 5.0


def test_gaps_and_several_recordings(lorenz):
    readings, states, _, _ = lorenz
    holes = readings.copy()
    holes[100:110] = np.nan
    holes[np.random.default_rng(0).uniform(size=holes.shape) < 0.05] = np.nan
    series = Series.from_arrays([holes[:260], holes[260:]])
    found = read_context(series)
    filled = impute(found, series)
    missing = np.isnan(holes[:260])
    missing[100:110] = False
    error = (filled[0].values - states[:260])[missing] / np.broadcast_to(states.std(axis=0), (260, 3))[missing]
    assert np.sqrt(np.mean(error**2)) < 0.2


def test_one_coordinate_is_read_with_delays(lorenz):
    found = simulate(get_system("lorenz63", dt=0.05), 700, seed=1)
    x = found.states[:, :1]
    series = Series.from_arrays(x[:600])
    model = read_context(series)
    assert len(model.model.core.lags) > 2
    ahead = forecast(model, series, 20, members=20)[0]
    assert np.abs(ahead.mean - x[600:620]).max() < 0.2 * x.std()


@pytest.mark.parametrize("which", ["context", "later"])
def test_the_point_forecast_is_the_map_from_the_last_belief(lorenz, model, which):
    series = Series.from_arrays(lorenz[0] if which == "context" else lorenz[3])
    ahead = forecast(model, series, 40, members=100, observation_noise=False, point=True)[0]
    last = filter_recordings(model, series)[0].state_mean[-1]
    if which == "context":  # whose states were estimated with the map
        last, filtered = model.provenance["context"]["ends"][0][0], last
        truth = model.scaler.transform(lorenz[1][-1:])[0]
        assert np.linalg.norm(last - truth) < np.linalg.norm(filtered - truth) + 0.05
    run = free_run(model.model, jnp.asarray(last, jnp.float32)[None], 40)
    np.testing.assert_allclose(ahead.point, model.scaler.inverse(np.asarray(run.observations[0])), rtol=1e-3, atol=1e-2)
    assert "x1_point" in ahead.table() or "0_point" in ahead.table()


def test_a_forecast_from_an_earlier_row_is_filtered(lorenz, model):
    series = Series.from_arrays(lorenz[0])
    early = forecast(model, series, 10, at=399.0, members=50, point=True)[0]
    alone = forecast(model, Series.from_arrays(lorenz[0][:400]), 10, members=50, point=True)[0]
    np.testing.assert_allclose(early.point, alone.point, rtol=1e-4, atol=1e-3)


def test_readings_that_are_no_states_get_delays():
    # The reading knows the cosine of the phase that drives it, not the phase.
    phase, x = 0.4 * np.arange(150), np.zeros((150, 2))
    for t in range(149):
        x[t + 1] = [np.sin(2.0 * x[t, 1]) + 0.5 * np.sin(phase[t]), 0.6 * x[t, 0] + 0.3]
    *_, alone = denoise(Series.from_arrays(np.column_stack([x, np.cos(phase)])), ContextSettings(passes=0))
    assert len(alone.lags) > 1
    henon = np.zeros((150, 3))
    for t in range(149):
        a, b, c = henon[t]
        henon[t + 1] = [1.0 - 1.4 * a**2 + b, 0.3 * a, 0.5 * c + 0.2 * a * b]
    *_, whole = denoise(Series.from_arrays(henon), ContextSettings(passes=0))
    assert whole.lags == (0,)


def test_noise_is_scaled_until_left_out_forecasts_are_covered(lorenz):
    *_, reading = denoise(Series.from_arrays(lorenz[1][:200]), ContextSettings(lags=(0,)))
    variances = [np.zeros_like(x) for x in reading.states]

    def factor(process):
        return choose_factor(reading.learn_without, reading.pairs, reading.states, variances, process)

    process = np.full(3, 1e-3)
    found = factor(process)
    assert FACTORS[0] < found < FACTORS[-1]
    # All that counts is the product.
    assert factor(process / 2) == pytest.approx(2 * found, rel=0.2)


def test_new_rows_join_the_context(lorenz):
    readings, _, future, later = lorenz
    few = read_context(Series.from_arrays(readings[:150]), ContextSettings(lags=(0,), process=1.5))
    grown = extend_context(few, Series.from_arrays(readings[150:]))
    assert grown.model.core.centres.shape[0] == 149 + 349
    assert grown.provenance["context"]["rows"] == 500
    truth = jnp.asarray(few.scaler.transform(future), jnp.float32)
    errors = [np.sqrt(np.mean((each.model.core.predict_mean(truth[:-1]) - truth[1:]) ** 2)) for each in (few, grown)]
    assert errors[1] < 0.9 * errors[0]
    online = OnlineFilter(few)
    before = online.run(readings[-20:]).mean[-1]
    online.adopt(grown)
    assert online.num_steps == 20
    after = online.step(later[0])
    assert np.abs(after.mean - before).max() < np.abs(readings).max()
    alone = OnlineFilter(grown)
    assert np.abs(alone.step(later[0]).std).max() > after.std.max()  # the belief was kept
    with pytest.raises(ConfigError, match="zero_shot"):
        extend_context(replace(grown, provenance={}), Series.from_arrays(later))
    with pytest.raises(DataError, match="complete"):
        extend_context(few, Series.from_arrays(np.full((1, 3), 1.0)))


def test_saved_and_loaded(lorenz, model, tmp_path):
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.provenance["context"]["passes"] == 1
    for rows in (lorenz[0][-50:], lorenz[0]):
        ours, theirs = (forecast(each, Series.from_arrays(rows), 5, members=10)[0].mean for each in (model, again))
        np.testing.assert_array_equal(ours, theirs)


def test_forgetting_time_and_delays_of_a_sine():
    t = np.arange(400)
    x = np.sin(2 * np.pi * t / 40)[:, None]
    assert forget_time(x) == pytest.approx(40 * np.arccos(np.exp(-1)) / (2 * np.pi), abs=1.5)
    assert choose_lags([x], block=5)[0] == 0
    assert choose_lags([np.random.default_rng(0).standard_normal((500, 3))], block=5)[-1] >= 0


def test_too_little_to_read():
    with pytest.raises(DataError, match="complete pairs"):
        read_context(Series.from_arrays(np.random.default_rng(0).standard_normal((6, 2))))
    with pytest.raises(ConfigError, match="passes"):
        ContextSettings(passes=-1)
