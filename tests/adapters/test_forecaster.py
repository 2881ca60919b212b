"""The forecaster for sktime: sktime's own checks, and the numbers of the functions behind it."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from small import rotation, same_arrays

pytest.importorskip("sktime", reason="sktime is not installed: pip install 'kaffee[sktime]'")

import kaffee
from kaffee.adapters import SurrogateForecaster
from kaffee.errors import ConfigError
from kaffee.inference.ensembles import forecast

# sktime warns of its own plans and of statsmodels' absence.
pytestmark = pytest.mark.filterwarnings("ignore:::sktime", "ignore::FutureWarning", "ignore::DeprecationWarning")
T, H = 60, 5
MONTHS = pd.period_range("2020-01", periods=T, freq="M")


def table(num_rows=T):
    return pd.DataFrame(rotation(num_rows), index=MONTHS[:num_rows], columns=["left", "right"])


def make(**changes):
    return SurrogateForecaster(**{"strategy": "autoregression", "order": 1, "members": 40, **changes})


def series(values):
    return kaffee.Series.from_arrays(np.asarray(values))


@pytest.mark.filterwarnings("ignore")  # hundreds of models of random numbers
def test_the_checks_of_sktime_pass():
    from sktime.utils.estimator_checks import check_estimator

    results = check_estimator(SurrogateForecaster(**SurrogateForecaster.get_test_params()[0]), verbose=False)
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}
    assert len(results) > 300


@pytest.mark.parametrize("strategy", ["zero_shot", "fit"])
def test_the_model_is_that_of_the_function(strategy):
    y = table().iloc[:, 0]
    y.iloc[7] = np.nan
    settings = {"rung": "linear"} if strategy == "fit" else None
    forecaster = SurrogateForecaster(strategy, settings=settings, members=20).fit(y)
    values = y.to_numpy()[:, None]
    made = {"fit": kaffee.Surrogate(seed=0, settings=settings).fit, "zero_shot": kaffee.zero_shot}
    own = made[strategy](values)
    assert same_arrays(forecaster.reconstruction_.model, own.reconstruction_.model)
    assert np.isfinite(forecaster.predict_interval(fh=[1, 2])).all(axis=None)


def test_forecasts_are_those_of_the_ensemble():
    forecaster = make(seed=3).fit(table())
    expected = forecast(forecaster.reconstruction_, series(table()), 8, members=40, seed=3)[0]
    horizon = [1, 4]
    rows = np.array(horizon) - 1
    points = forecaster.predict(fh=horizon)
    np.testing.assert_allclose(points, expected.mean[rows], rtol=1e-4)
    assert list(points.index) == [MONTHS[-1] + 1, MONTHS[-1] + 4]
    quantiles = forecaster.predict_quantiles(alpha=[0.1, 0.9])
    for name, column in (("left", 0), ("right", 1)):
        for level in (0.1, 0.9):
            np.testing.assert_allclose(quantiles[name, level], expected.quantile(level)[rows, column], rtol=1e-4)
    np.testing.assert_allclose(forecaster.predict_var(), expected.std[rows] ** 2, rtol=1e-3)
    band = forecaster.predict_interval(coverage=0.8)
    np.testing.assert_allclose(band["left", 0.8, "upper"], quantiles["left", 0.9])
    with pytest.raises(NotImplementedError, match="members"):
        forecaster.predict_var(cov=True)


def test_in_sample_are_the_predictions_of_the_filter():
    forecaster = make().fit(table())
    filtered = kaffee.filter_recordings(forecaster.reconstruction_, series(table()))[0]
    found = forecaster.predict(fh=[-T + 1, -3, 0])
    np.testing.assert_allclose(found, filtered.predicted_mean[[0, -4, -1]], rtol=1e-4)
    spread = forecaster.predict_var(fh=[-3, 0])
    np.testing.assert_allclose(spread, filtered.predicted_std[[-4, -1]] ** 2, rtol=1e-3)


def test_missing_rows_are_missing_values():
    whole = table()
    whole.iloc[20:23] = np.nan
    gappy = whole.drop(whole.index[20:23])
    np.testing.assert_array_equal(make().fit(gappy).predict(fh=[1, 2]), make().fit(whole).predict(fh=[1, 2]))


def test_updating_filters_on_and_refits_only_if_asked():
    first, rest = table().iloc[:50], table().iloc[50:]
    forecaster = make().fit(first, fh=[1, 2, 3])
    before = forecaster.reconstruction_
    forecaster.update(rest, update_params=False)
    assert forecaster.reconstruction_ is before
    expected = forecast(before, series(table()), 8, members=40)[0].mean[:3]
    np.testing.assert_allclose(forecaster.predict(), expected, rtol=1e-4)
    forecaster.update(rest, update_params=True)
    np.testing.assert_allclose(forecaster.predict(), make().fit(table()).predict(fh=[1, 2, 3]), rtol=1e-6)


def driven(num_rows=T):
    """A decay pushed by a known input: y_t = 0.6 y_{t-1} + 2 u_t."""
    u = np.random.default_rng(0).normal(size=num_rows)
    y = np.zeros(num_rows)
    for t in range(1, num_rows):
        y[t] = 0.6 * y[t - 1] + 2.0 * u[t]
    return tuple(pd.Series(each, index=MONTHS[:num_rows], name=name) for each, name in ((y, "y"), (u, "u")))


def test_inputs_explain_what_they_drive():
    y, u = driven()
    X = pd.DataFrame({"u": u})
    known = make().fit(y[:-H], X[:-H])
    found = known.predict(fh=range(1, H + 1), X=X[-H:])
    np.testing.assert_allclose(found, y[-H:], atol=0.05)
    blind = make().fit(y[:-H]).predict(fh=range(1, H + 1))
    assert np.abs(blind - y[-H:]).mean() > 0.5
    # X of some steps only: the others keep that of the step before.
    some = known.predict(fh=[1, 3], X=X[-H:].iloc[[0, 2]])
    held = X[-H:].copy()
    held.iloc[1] = held.iloc[0]
    np.testing.assert_allclose(some, known.predict(fh=[1, 3], X=held), rtol=1e-6)
    for update_params in (False, True):
        again = make().fit(y[:30], X[:30]).update(y[30:-H], X[30:-H], update_params=update_params)
        np.testing.assert_allclose(again.predict(fh=range(1, H + 1), X=X[-H:]), y[-H:], atol=0.05)


def test_a_fit_takes_inputs_and_zero_shot_leaves_them():
    y, u = driven()
    X = pd.DataFrame({"u": u})
    forecaster = SurrogateForecaster("fit", settings={"rung": "linear"}, members=20).fit(y[:-H], X[:-H])
    assert forecaster.reconstruction_.inputs == ("u1",)
    np.testing.assert_allclose(forecaster.predict(fh=[1, 2], X=X[-H:]), y[-H:][:2], atol=0.1)
    assert not SurrogateForecaster("zero_shot").get_tag("capability:exogenous")


def test_copies_forecast_the_same():
    forecaster = make().fit(table(), fh=[1, 2])
    for again in (copy.deepcopy(forecaster), pickle.loads(pickle.dumps(forecaster))):
        pd.testing.assert_frame_equal(again.predict(), forecaster.predict())


def test_wrong_arguments_say_what_is_allowed():
    with pytest.raises(ConfigError, match=r"Unknown strategy 'zeroshot'. Did you mean 'zero_shot'"):
        make(strategy="zeroshot").fit(table())
    with pytest.raises(ConfigError, match="settings are those of the strategy 'fit'"):
        make(settings={"rung": "linear"}).fit(table())
    with pytest.warns(UserWarning, match="10 rows are too few for 5 lags of 2 coordinates; there are 3"):
        make(order=5).fit(table(10))
