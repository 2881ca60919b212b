"""Forecasts and free runs in data units."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from models import matrix_of

from inference.problems import (
    COLUMNS,
    DT,
    SCALER,
    expanding_reconstruction,
    linear_model,
    reconstruct,
    recordings,
    textbook_smoother,
)
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError, KaffeeError
from kaffee.filtering.rollout import free_run
from kaffee.inference.ensembles import forecast, simulate
from kaffee.model.maps import Linear

HORIZON, MEMBERS = 6, 4000


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(linear_model(dtype=np.float32))


@pytest.fixture(scope="module")
def futures(reconstruction):
    """With observation noise and without."""
    return {
        noise: forecast(reconstruction, recordings(), HORIZON, members=MEMBERS, observation_noise=noise)
        for noise in (True, False)
    }


def exact_moments(reconstruction, estimate_mean, covariance):
    """Means and variances of B z for the steps ahead of a belief."""
    model = reconstruction.model
    A, h, B = np.asarray(model.core.A), np.asarray(model.core.h), matrix_of(model.observation)
    Gamma = np.diag(np.asarray(model.shell.process_variance()))
    z, P, means, variances = estimate_mean, covariance, [], []
    for _ in range(HORIZON):
        z, P = A @ z + h, A @ P @ A.T + Gamma
        means.append(B @ z)
        variances.append(np.diag(B @ P @ B.T))
    return np.array(means), np.array(variances)


def test_ensembles_have_the_moments_of_the_prediction(reconstruction, futures):
    """A linear model's forecast is Gaussian with known moments; four standard errors of the ensemble."""
    Lambda = np.asarray(reconstruction.model.shell.observation_variance())
    for r, values in enumerate(recordings().standardised(SCALER).recordings):
        means, _, filtered = textbook_smoother(reconstruction.model, values)
        mean, signal = exact_moments(reconstruction, means[-1], filtered[-1])
        for noise, found in futures.items():
            variance = signal + Lambda * noise
            off = (SCALER.transform(found[r].mean) - mean) / np.sqrt(variance / MEMBERS)
            assert np.abs(off).max() < 4.5
            ratio = (found[r].std / SCALER.scale) ** 2 / variance
            assert np.abs(ratio - 1).max() < 4.5 * np.sqrt(2 / MEMBERS)
            low = (SCALER.transform(found[r].quantile(0.05)) - mean) / np.sqrt(variance)
            np.testing.assert_allclose(low, -1.645, atol=0.15)


def test_forecasts_go_on_in_time_from_the_end_of_each_recording(futures):
    found, series = futures[True], recordings()
    for r in range(3):
        np.testing.assert_allclose(found[r].times, series.times[r][-1] + DT * np.arange(1, HORIZON + 1))
    table = found.to_series([0.05, 0.5])
    assert table.columns == tuple(f"{name}_{kind}" for name in COLUMNS for kind in ("mean", "std", "q05", "q50"))
    assert table.lengths == (HORIZON,) * 3
    assert found.describe()["recordings"] == [0, 1, 2]


def test_seeds_repeat_and_a_given_time_is_the_end_of_what_was_cut_there(reconstruction, futures):
    again = forecast(reconstruction, recordings(), HORIZON, members=MEMBERS)
    for one, other in zip(again, futures[True], strict=True):
        np.testing.assert_array_equal(one.members, other.members)
    series = recordings()
    row = 11
    cut = Series((series.recordings[1][: row + 1],), COLUMNS, (series.times[1][: row + 1],))
    whole = forecast(reconstruction, series, HORIZON, at=float(series.times[1][row]) + 0.4 * DT, members=50, seed=1)
    assert whole.describe()["recordings"] == [1]  # the others lie elsewhere in time
    expected = forecast(reconstruction, cut, HORIZON, members=50, seed=1)
    np.testing.assert_allclose(whole[0].members, expected[0].members, rtol=1e-5)
    np.testing.assert_allclose(whole[0].times, expected[0].times)
    with pytest.raises(DataError, match="no recording covers the time 5000; they span 0 to 4, 100 to"):
        forecast(reconstruction, series, HORIZON, at=5000.0)


def test_members_that_leave_are_left_out_or_refused():
    reconstruction = expanding_reconstruction(expansion=40.0)
    series = Series.from_arrays(SCALER.inverse(np.full((12, 2), 0.5)), columns=COLUMNS)
    with pytest.raises(DataError, match="left the attractor"):
        forecast(reconstruction, series, HORIZON, members=50)
    with pytest.raises(ConfigError, match="num_steps = 0"):
        forecast(reconstruction, series, 0)


def test_a_free_run_is_the_surrogates_own_in_data_units(reconstruction):
    found = simulate(reconstruction, 20, shell=False, start=SCALER.mean + SCALER.scale, transient=5)
    model = reconstruction.model
    expected = free_run(model, model.embed(jnp.ones((1, 2))), 20, transient=5)
    np.testing.assert_allclose(found[0].values, SCALER.inverse(np.asarray(expected.observations[0])), rtol=1e-5)
    assert found.to_series() == found.filled
    assert found[0].columns == found.to_series().columns == COLUMNS
    np.testing.assert_allclose(found[0].times, DT * np.arange(1, 21))
    assert found.describe()["divergence"] == "none of 1 rollouts diverged"
    assert found[0].states.shape == (20, 5)


def test_the_shell_makes_runs_differ_and_a_seed_repeats_them(reconstruction):
    runs = [simulate(reconstruction, 20, runs=2, transient=5, seed=seed).to_series() for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert not np.array_equal(runs[0].recordings[0], runs[0].recordings[1])


def test_a_run_that_leaves_is_missing_from_there(reconstruction):
    core = Linear(3.0 * jnp.eye(5), jnp.zeros(5))
    wild = replace(reconstruction, model=reconstruction.model.replace(core=core))
    found = simulate(wild, 20, shell=False, start=SCALER.mean + SCALER.scale, transient=5)
    step = found.describe()["diverged_at"][0]
    assert 5 < step < 20
    assert np.isfinite(found[0].values[: step - 6]).all()
    assert np.isnan(found[0].values[step - 6 :]).all()
    with pytest.raises(KaffeeError, match="before the first that is kept"):
        simulate(wild, 20, shell=False, start=SCALER.mean + 500 * SCALER.scale, transient=5)
    with pytest.raises(DataError, match=r"must be \(2,\)"):
        simulate(wild, 20, start=np.ones(3))


def moved(reconstruction, by):
    """The same model in data that lie elsewhere: its forecasts are shifted."""
    core = reconstruction.model.core
    return replace(reconstruction, model=reconstruction.model.replace(core=replace(core, h=core.h + by)))


def test_a_forecast_of_several_models_contains_the_spread_between_them(reconstruction):
    pair, how = [reconstruction, moved(reconstruction, 2.0)], {"members": MEMBERS, "observation_noise": False}
    one, two = (forecast(model, recordings(), HORIZON, **how) for model in pair)
    both = forecast(pair, recordings(), HORIZON, **how)
    assert both.facts["models"] == 2
    assert both[0].members.shape == one[0].members.shape
    for r in range(3):
        expected = 0.5 * (one[r].mean + two[r].mean)
        # Between two halves of equal weight the variance is that of the halves and of their means.
        variance = 0.5 * (one[r].std ** 2 + two[r].std ** 2) + 0.25 * (one[r].mean - two[r].mean) ** 2
        assert np.abs(both[r].mean - expected).max() < 4.5 * np.sqrt(variance.max() * 2 / MEMBERS)
        np.testing.assert_allclose(both[r].std ** 2, variance, rtol=0.15)
        assert (both[r].std > 1.1 * one[r].std).any()


def test_a_list_of_one_model_is_the_model_and_members_are_shared_evenly(reconstruction):
    alone, listed = (forecast(model, recordings(), 2, members=7) for model in (reconstruction, [reconstruction]))
    np.testing.assert_array_equal(alone[0].members, listed[0].members)
    assert alone.facts == listed.facts
    far = forecast([reconstruction, moved(reconstruction, 50.0)], recordings(), 1, members=7, observation_noise=False)
    values = far[0].members[:, 0, 0]
    assert (np.abs(values - np.median(values)) > 0.5 * np.ptp(values)).sum() == 3


def test_models_without_a_forecast_in_common_are_refused(reconstruction):
    with pytest.raises(DataError, match="the list is empty"):
        forecast([], recordings(), 2)
    other = replace(reconstruction, columns=tuple(f"other {name}" for name in COLUMNS))
    with pytest.raises(DataError, match="have no forecast in common"):
        forecast([reconstruction, other], recordings(), 2)
    with pytest.raises(ConfigError, match="members"):
        forecast([reconstruction] * 3, recordings(), 2, members=2)
