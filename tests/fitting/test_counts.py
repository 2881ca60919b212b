"""Counts through the whole pipeline: fit, save and load, filter, smooth, forecast, certificate; and what is refused."""

import numpy as np
import pytest

from kaffee.certification.forecasts import score_forecasts
from kaffee.certification.innovations import choose_starts, filter_pass, residual_checks
from kaffee.checkpoint.reconstruction import load
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.evaluation import Target, evaluate_free_runs
from kaffee.fitting.config import update
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings
from kaffee.inference.ensembles import forecast, simulate
from kaffee.inference.online import OnlineFilter
from kaffee.inference.recordings import filter_recordings, impute, smooth

ROWS = 400
SMALL = {
    "core": {"latent_dim": 4, "num_gates": 2},
    "pretraining": {"window": 20, "schedule": {"num_updates": 60}},
    "adaptation": {"scored": 10, "burn_in": 2, "climate": True, "schedule": {"num_updates": 20}},
    "readings": {"likelihood": "poisson"},
}


def make_counts(seed=0):
    """Counts of two neurons that follow a noisy oscillation; some are missing."""
    rng = np.random.default_rng(seed)
    phase = np.cumsum(0.2 + 0.05 * rng.standard_normal(ROWS))
    rates = np.exp(1.2 + np.stack([np.cos(phase), np.sin(phase)], axis=1))
    counts = rng.poisson(rates).astype(float)
    counts[rng.uniform(size=counts.shape) < 0.03] = np.nan
    return Series.from_arrays(counts, columns=["a", "b"]), rates


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    series, rates = make_counts()
    made = fit(series, update(FitSettings(), SMALL))
    assert np.isfinite(made.fitted.losses).all()
    stored = made.fitted.reconstruction.save(tmp_path_factory.mktemp("counts") / "model")
    return load(stored), series, rates, made


def test_a_stored_model_of_counts_is_the_same(fitted):
    model, _, _, made = fitted
    assert model.model.discrete.kind == model.scaler.likelihood == "poisson"
    np.testing.assert_array_equal(model.model.discrete.gain, made.fitted.model.discrete.gain)
    assert model.scaler == made.fitted.reconstruction.scaler


def test_rates_come_out_in_counts(fitted):
    model, series, rates, _ = fitted
    (filtered,) = filter_recordings(model, series)
    (smoothed,) = smooth(model, series)
    late = slice(50, None)
    climatology = np.abs(rates[late] - rates.mean(axis=0)).mean()
    for estimate in (filtered, smoothed):
        assert (estimate.mean > 0).all()
        assert np.abs(estimate.mean - rates)[late].mean() < climatology
        low, high = estimate.quantile(0.05), estimate.quantile(0.95)
        assert (low > 0).all()
        assert np.all((low < estimate.mean) & (estimate.mean < high))
    # The variance of a count is at least its rate; a log probability is never positive.
    assert np.all(filtered.predicted_std[1:] ** 2 > 0.99 * filtered.predicted_mean[1:])
    assert np.nanmax(filtered.log_likelihood) <= 0.0
    (filled,) = impute(model, series)
    assert np.isfinite(filled.values).all()


def test_forecasts_and_free_runs_are_counts(fitted):
    model, series, *_ = fitted
    (ahead,) = forecast(model, series, 5, members=50)
    assert np.array_equal(ahead.members, np.round(ahead.members))
    (signal,) = forecast(model, series, 5, members=50, observation_noise=False)
    assert not np.array_equal(signal.members, np.round(signal.members))
    (run,) = simulate(model, 20, transient=0)
    assert np.array_equal(run.values, np.round(run.values))
    rows = np.nan_to_num(series.recordings[0], nan=2.0)
    free = evaluate_free_runs(
        model.model, rows[:3], Target(rows), 100, transient=5, scaler=model.scaler, as_readings=True
    )
    assert np.array_equal(free.readings, np.round(free.readings))
    assert np.isfinite([each.d_stsp for each in free.distances]).all()


def test_the_certificate_scores_counts(fitted):
    model, series, _, _ = fitted
    run = filter_pass(model, series, choose_starts(series, 40, climate=True))
    residuals = residual_checks(run)
    assert residuals.nll > 0.0  # minus a log probability, with no change of units
    assert residuals.nll == pytest.approx(residuals.nll_standard)
    assert residuals.coverage["0.9"] == pytest.approx(0.9, abs=0.1)
    assert np.isnan(residuals.interval_score_standard)
    train = series.standardised(model.scaler).recordings
    scores = score_forecasts(run, None, train, (1, 4), members=20, seed=0)
    assert len(scores.spread) == len(scores.rank_histogram) == 2
    assert np.mean(scores.rank_histogram[0]) == pytest.approx(1.0)


def test_what_counts_cannot_do_is_said(fitted):
    model, series, _, _ = fitted
    with pytest.raises(ConfigError, match="not online yet"):
        OnlineFilter(model)
    with pytest.raises(ConfigError, match="no standard deviations"):
        filter_recordings(model, series, observation_std=Series.from_arrays(np.ones((ROWS, 2))))
    with pytest.raises(ConfigError, match="rung ="):
        update(FitSettings(), {**SMALL, "rung": "auto"})
    with pytest.raises(DataError, match="counts, whole numbers"):
        Scaler.fit(Series.from_arrays([0.5, 1.0, 2.0]), "poisson")
    with pytest.raises(DataError, match="0 or 1"):
        Scaler.fit(Series.from_arrays([0.0, 1.0, 2.0]), "bernoulli")


def test_binary_readings_are_encoded_and_come_back():
    series = Series.from_arrays(np.array([[0.0], [1.0], [1.0], [np.nan]]))
    scaler = Scaler.fit(series, "bernoulli")
    back = scaler.inverse(scaler.transform(series.recordings[0]))
    np.testing.assert_array_equal(back, series.recordings[0])
    assert Scaler.from_dict(scaler.to_dict()) == scaler
    mean, std = scaler.signal_moments(np.zeros((1, 1)), np.ones((1, 1)))
    assert 0.0 < mean[0, 0] < 1.0
    assert 0.0 < std[0, 0] < 0.5
    assert scaler.reading_moments(np.zeros((1, 1)), np.full((1, 1), 9.0))[1][0, 0] <= 0.5
