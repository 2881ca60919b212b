"""`kaffee.zero_shot`: a surrogate of any kind of data without training; DynaMix behind the same name."""

import jax
import numpy as np
import pandas as pd
import pytest

import kaffee
from kaffee.errors import ConfigError
from kaffee.model.kernel import KernelMap
from kaffee.surrogate.estimator import ZERO_SHOT, Surrogate

ROWS = 240


@pytest.fixture(scope="module")
def data():
    return kaffee.simulate(kaffee.get_system("lorenz63"), ROWS + 40, observation_noise=0.05, seed=2)


@pytest.fixture(scope="module")
def surrogate(data):
    return kaffee.zero_shot(data.observations[:ROWS], dt=data.dt)


def test_it_is_a_fitted_surrogate_that_forecasts_new_rows(surrogate, data):
    model = surrogate.reconstruction_
    assert isinstance(model.model.core, KernelMap)
    assert (model.method, model.dt) == (ZERO_SHOT, data.dt)
    assert surrogate.fit_ is surrogate.prior_ is surrogate.settings_ is None
    forecast = surrogate.forecast(8)
    truth = data.observations[ROWS : ROWS + 8]
    inside = (forecast.quantile(0.05) <= truth) & (truth <= forecast.quantile(0.95))
    assert inside.mean() > 0.6
    assert (forecast.std[0] < 0.5 * data.observations.std(axis=0)).all()


def test_all_that_a_model_can_do_works(surrogate, data, tmp_path):
    rows = data.observations[:50].copy()
    rows[10:12, 0] = np.nan
    assert surrogate.filter(rows).mean.shape == surrogate.smooth(rows).mean.shape == (50, 3)
    assert np.isfinite(surrogate.impute(rows)).all()
    assert np.isfinite(surrogate.simulate(200, transient=10)).all()
    assert np.isfinite(surrogate.score(rows))
    online = surrogate.online()
    assert np.isfinite(online.step(rows[0]).mean).all()
    surrogate.save(tmp_path / "model")
    again = Surrogate.load(tmp_path / "model")
    expected = surrogate.forecast(3, data.observations[:ROWS]).mean
    np.testing.assert_allclose(again.forecast(3, data.observations[:ROWS]).mean, expected, rtol=1e-5)


def test_same_kind_in_same_kind_out(data):
    index = pd.date_range("2024-01-01", periods=120, freq="h")
    table = pd.DataFrame(data.observations[:120], columns=list("abc"), index=index)
    forecast = kaffee.zero_shot(table, 3, members=20, quantiles=(0.1,))
    assert list(forecast.columns) == [f"{name}_{what}" for name in "abc" for what in ("mean", "std", "q10")]
    assert forecast.index[0] == index[-1] + pd.Timedelta("1h")
    halves = [data.observations[:120], data.observations[120:240]]
    assert [each.mean.shape for each in kaffee.zero_shot(halves, 3, members=20)] == [(3, 3), (3, 3)]
    series = kaffee.Series.from_arrays(data.observations[:120], columns=("x", "y", "z"))
    assert kaffee.zero_shot(series, 2, members=20).columns[:2] == ("x_mean", "x_std")


def test_a_certificate_needs_rows_that_were_not_read(surrogate, data):
    with pytest.raises(ConfigError, match=r"held_out=0\.2"):
        surrogate.certify()
    held = kaffee.zero_shot(data.observations, dt=data.dt, held_out=0.2)
    assert held._parts[0].num_steps == round(0.8 * len(data.observations))
    assert held._parts[1].num_steps + held._parts[0].num_steps == len(data.observations)
    size = {"num_starts": 20, "members": 10, "divergence_runs": 2, "divergence_steps": 200}
    settings = kaffee.certification.CertificationSettings(**size)
    found = held.certify(settings=settings)
    assert found.about["method"] == ZERO_SHOT
    assert found.about["test"]["steps"] == held._parts[1].num_steps
    assert "analogue" in found.scores.methods


def test_dynamix_is_behind_the_same_name():
    model = kaffee.DynaMix.create(8, num_observed=3, key=jax.random.key(0))
    wave = np.sin(np.arange(200) / 10)
    expected = kaffee.foundation.zero_shot(model, wave, 5).values
    np.testing.assert_array_equal(kaffee.zero_shot(model, wave, 5).values, expected)
    np.testing.assert_array_equal(kaffee.zero_shot(model, wave, num_steps=5).values, expected)
    np.testing.assert_array_equal(kaffee.zero_shot(model=model, context=wave, num_steps=5, delay=12).values, expected)
    with pytest.raises(ConfigError, match="need a DynaMix"):
        kaffee.zero_shot(np.eye(3), wave, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"held_out": 1.0}, "held_out"), ({"members": 5}, "num_steps"), ({"dt": 1.0, "times": np.arange(9.0)}, "times")],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        kaffee.zero_shot(np.zeros((9, 1)), **options)
