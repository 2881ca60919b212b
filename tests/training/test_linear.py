"""Linear state-space models: as good as regressions, seasons whose phase a filter finds, gates that are silent."""

import jax
import numpy as np
import pytest
from training.test_autoregression import autoregressive

from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.rollout import free_run
from kaffee.training import linear
from kaffee.training.autoregression import ForecastScore, Structure, fit_autoregression
from kaffee.training.selection import Judge, hold_back

FULL_LOOKS = True  # ensembles as large as in a fit


def standard(values):
    values = np.asarray(values, float)
    return Series.from_arrays((values - values.mean(axis=0)) / values.std(axis=0))


def radius(model):
    return np.abs(np.linalg.eigvals(np.asarray(model.core.A, float))).max()


@pytest.mark.parametrize(
    "structure",
    [
        Structure(3),
        Structure(2, differenced=True),
        Structure(1, reach=4, rank=1),
        Structure(2, period=12.0, harmonics=2),
        Structure(0, period=12.0, harmonics=1),
    ],
    ids=str,
)
def test_a_filter_without_observation_noise_forecasts_as_the_regression(structure):
    t = np.arange(700)
    x = np.hstack([autoregressive([1.5, -0.7], 700, seed=k) for k in range(2)])
    x = x + np.sin(2 * np.pi * t / 12)[:, None] * [1.0, 0.5]
    series = standard(x)
    held = hold_back(series)
    judge = Judge(held)
    regression = fit_autoregression(held.part, structure)
    by_regression = ForecastScore(held, judge.horizons)(regression)
    by_filter = judge.score(linear.build_state_space(regression, held.part, 1.0))
    np.testing.assert_allclose(
        np.nanmean(by_filter.nll, axis=0), np.nanmean(by_regression.nll, axis=0), atol=0.05
    )  # a phase that is found and not known costs a little


def test_a_coordinate_that_repeats_another_is_predicted_to_a_thousandth():
    x = autoregressive([1.8, -0.95], 1504)
    series = standard(np.hstack([x[4:], x[:-4]]))
    found = linear.fit_linear(series)
    assert np.nanmean(found.scored.nll[:, 0]) < -2.0
    assert radius(found.model) < 1.0
    first = found.model.climate.mean[None]
    run = free_run(found.model, first, 2000, key=jax.random.key(0))
    assert not run.diverged_at.any()
    assert 0.5 < np.asarray(run.observations).std() < 2


def test_few_rows_of_many_coordinates_do_no_harm():
    """12 rows of 6 coordinates, gaps: no crash, nothing explodes, and hardly worse than the climate."""
    train = np.random.default_rng(0).standard_normal((12, 6))
    train[3, 2] = train[5] = np.nan
    found = linear.fit_linear(Series.from_arrays(train))
    assert radius(found.model) <= linear.STABLE + 1e-6
    assert found.scored.mean < 0.5 * np.log(2 * np.pi * np.e) + 1.0


def test_too_few_rows_are_refused():
    with pytest.raises(DataError, match="needs a training recording of 8 rows; the longest has 5"):
        linear.fit_linear(Series.from_arrays(np.zeros((5, 2))))


def test_noise_is_calibrated_on_rows_that_were_held_back():
    """A regression of many coefficients on few rows is sure of itself; its bands are not."""
    rng = np.random.default_rng(0)
    found = linear.fit_linear(Series.from_arrays(rng.standard_normal((120, 12))))
    assert found.scored.coverage[0] > 0.8


def test_gates_begin_silent():
    series = standard(autoregressive([1.2, -0.5], 600))
    base = linear.build_state_space(fit_autoregression(series, Structure(2)), series, 0.5)
    gated = linear.with_gates(base, 6, key=jax.random.key(0))
    assert gated.core.num_gates == 6
    assert gated.latent_dim == base.latent_dim + 6
    judge = Judge(hold_back(series))
    np.testing.assert_allclose(judge.score(gated).mean, judge.score(base).mean, atol=0.02)  # an ensemble beside moments
    z = np.asarray(gated.climate.moments()[0]) + 0.3
    np.testing.assert_allclose(gated.core(z)[: base.latent_dim], base.core(z[: base.latent_dim]), atol=1e-5)
    # They do open and close along the data.
    states = np.asarray(free_run(gated, gated.climate.mean[None], 500, key=jax.random.key(1)).states)[0, :, -6:]
    assert ((states > 0).mean(axis=0) < 1).any()
    assert ((states > 0).mean(axis=0) > 0).any()
