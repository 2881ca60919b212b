"""Scores and spread: closed forms, Monte Carlo, the same entries for everyone, and nothing faked where nothing is."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from certification.problems import SCALER, gappy_series, passed, train_series, wrong_dynamics
from kaffee.certification.forecasts import (
    Scores,
    _ensemble_forecast,
    _gaussian_forecast,
    _score_gaussian,
    block_mean,
    score_forecasts,
)
from kaffee.certification.forecasts import _Score as Score
from kaffee.certification.forecasts import _Skill as Skill
from kaffee.certification.innovations import Starts
from kaffee.certification.spread import _correlate_with_error, _spread_curve, spread_growth
from kaffee.certification.verdicts import _judge_skill, _judge_spread
from kaffee.errors import DataError
from kaffee.metrics.scores import gaussian_crps, gaussian_nll

HORIZONS = (1, 4)


@pytest.fixture(scope="module")
def scores():
    """The true model as its own linear baseline: it must tie with itself."""
    train = train_series().standardised(SCALER).recordings
    return score_forecasts(passed(), passed(), train, HORIZONS, members=200, seed=0)


def test_crps_and_nll_of_a_normal_distribution():
    y, mean, std = 0.7, 0.2, 1.3
    below, _ = quad(lambda x: norm.cdf(x, mean, std) ** 2, -20, y)
    above, _ = quad(lambda x: (1 - norm.cdf(x, mean, std)) ** 2, y, 20)
    arrays = [np.array(v) for v in (y, mean, std)]
    assert gaussian_crps(*arrays) == pytest.approx(below + above, abs=1e-6)
    assert gaussian_nll(*arrays) == pytest.approx(-norm.logpdf(y, mean, std))


def test_scores_in_data_units_by_hand():
    y, mean, std = np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]]), np.array([[2.0, 1.0]])
    mask = np.array([[True, False]])
    found = _score_gaussian(y, mean, std, mask, np.array([3.0, 40.0]))
    assert found.num_entries == 1
    assert found.rmse == pytest.approx(3.0)
    assert found.nll == pytest.approx(-norm.logpdf(3.0, 0.0, 6.0))
    assert found.nll_standard == pytest.approx(-norm.logpdf(1.0, 0.0, 2.0))
    assert found.crps == pytest.approx(3 * found.crps_standard)
    assert found.coverage_90 == 1.0
    nothing = _score_gaussian(y, mean, std, np.zeros((1, 2), bool), np.ones(2))
    assert nothing.num_entries == 0
    assert np.isnan(nothing.nll)
    lost = _score_gaussian(y, mean * np.nan, std, mask, np.ones(2))
    assert np.isnan(lost.nll)
    assert np.isnan(lost.coverage_90)


def test_ensembles_have_the_moments_of_the_exact_forecast():
    """Of a linear model, within the Monte Carlo error of 200 members."""
    run, members = passed(), 200
    exact = _gaussian_forecast(run, HORIZONS)
    sampled, diverged, _ = _ensemble_forecast(run, HORIZONS, members, seed=0)
    assert diverged == 0
    z, ratio = (sampled.mean - exact.mean) / exact.std, sampled.std / exact.std
    assert np.abs(z).max() < 5 / members**0.5
    assert np.abs(ratio - 1).max() < 5 / (2 * members) ** 0.5
    assert np.std(z) == pytest.approx(1 / members**0.5, rel=0.1)


def test_everyone_is_scored_on_the_same_entries(scores):
    assert set(scores.methods) == {"surrogate", "persistence", "climatology", "analogue", "linear"}
    counts = {name: [s.num_entries for s in found] for name, found in scores.methods.items()}
    assert counts["surrogate"] == counts["persistence"] == counts["climatology"] == counts["linear"]
    assert scores.times == (0.5, 2.0)
    assert scores.num_starts == 400


def test_a_model_ties_with_itself_and_beats_what_knows_less(scores):
    one, four = (scores.methods["surrogate"][i] for i in range(2))
    assert one.nll == pytest.approx(scores.methods["linear"][0].nll, abs=1e-4)
    # A sample of 200 costs about 1/200 nats.
    assert four.nll == pytest.approx(scores.methods["linear"][1].nll, abs=0.03)
    assert one.coverage_90 == pytest.approx(0.9, abs=4 * (0.09 / one.num_entries) ** 0.5)
    for other in ("persistence", "climatology"):
        assert one.nll_standard < scores.methods[other][0].nll_standard - 0.1
    assert scores.skill[0].baseline == "linear"
    assert _judge_skill(scores).status == "warn"  # no better than a linear model, and no worse


def test_skill_is_significant_where_it_should_be():
    train = train_series().standardised(SCALER).recordings
    alone = score_forecasts(passed(), None, train, HORIZONS, members=200, seed=0)
    assert _judge_skill(alone).status == "pass"
    assert alone.over_climatology[0].gain > 5 * alone.over_climatology[0].error > 0
    # Analogues know a linear system nearly as well as its own filter, which sees through the noise.
    assert alone.skill[0].baseline == "analogue"
    assert alone.skill[0].gain > 2 * alone.skill[0].error > 0
    worse = score_forecasts(passed(wrong_dynamics), passed(), train, HORIZONS, members=200, seed=0)
    assert _judge_skill(worse).status == "fail"
    assert worse.skill[0].gain < -5 * worse.skill[0].error


def test_gaps_and_ends_are_left_out():
    run = passed(series=gappy_series)
    train = train_series().standardised(SCALER).recordings
    found = score_forecasts(run, run, train, HORIZONS, members=200, seed=0)
    y = run.starts.ahead(run.standard, 4)
    assert found.methods["climatology"][1].num_entries == (~np.isnan(y)).sum()
    assert 0.7 < (~np.isnan(y)).mean() < 0.9
    assert np.isfinite(found.skill[1].gain)


def test_rows_ahead_end_with_their_recording():
    starts = Starts(np.array([0, 1, 0]), np.array([1, 0, 2]))
    recordings = (np.arange(6.0).reshape(3, 2), np.arange(10.0, 14.0).reshape(2, 2))
    np.testing.assert_array_equal(starts.ahead(recordings, 1), [[4.0, 5.0], [12.0, 13.0], [np.nan, np.nan]])


def test_block_standard_errors():
    rng = np.random.default_rng(0)
    values, mask = rng.standard_normal((2000, 2)) + 1.0, rng.uniform(size=(2000, 2)) < 0.5
    mean, error, blocks = block_mean(values, mask)
    assert (mean, blocks) == (pytest.approx(values[mask].mean()), 20)
    assert error == pytest.approx(1 / mask.sum() ** 0.5, rel=0.5)
    assert np.isnan(block_mean(values[:3], np.ones((3, 2), bool))[1])  # three blocks are no spread
    assert block_mean(values, np.zeros_like(mask))[2] == 0


def made_scores(*skills):
    blank = [Score(0, 0, 0, 0, 0, 0, 0, 1)] * len(skills)
    horizons = tuple(range(1, len(skills) + 1))
    return Scores(horizons, horizons, {"surrogate": blank}, [Skill("linear", *s) for s in skills], 9, 9, 0)


@pytest.mark.parametrize(
    ("skills", "status"),
    [
        ([(0.3, 0.02, 20), (0.1, 0.1, 20)], "pass"),
        ([(0.3, 0.02, 20), (-0.5, 0.1, 20)], "warn"),
        ([(0.3, 0.02, 20), (-0.3, 0.1, 20)], "pass"),  # three standard errors may be chance
        ([(0.3, 0.02, 20), (-0.015, 0.001, 20)], "pass"),  # so little is no loss
        ([(0.01, 0.02, 20)], "warn"),
        ([(0.01, 0.1, 20)], "unknown"),
        ([(-0.3, 0.02, 20)], "fail"),
        ([(np.nan, np.nan, 20)], "fail"),
        ([(0.3, np.nan, 2)], "unknown"),
    ],
)
def test_skill_verdicts(skills, status):
    assert _judge_skill(made_scores(*skills)).status == status


# --- spread ---


def test_calibrated_spreads_reach_their_ceiling():
    rng = np.random.default_rng(0)
    std = np.exp(0.5 * rng.standard_normal((4000, 2))) * [1.0, 5.0]
    mask = rng.uniform(size=std.shape) < 0.9
    error = std * rng.standard_normal(std.shape)
    found = _correlate_with_error(std, std, error, mask, rng, 20)
    assert found.within_ratio == pytest.approx(1.0, abs=0.15)
    assert found.pooled > found.within + 0.2  # the coordinates differ, which tells nothing about time
    curve = _spread_curve(std**2, error**2, mask)
    assert curve.slope == pytest.approx(1.0, abs=0.1)
    assert curve.slope_within == pytest.approx(1.0, abs=0.1)
    np.testing.assert_allclose(np.log(curve.squared_error), np.log(curve.variance), atol=0.35)


def test_shuffled_and_constant_spreads_say_nothing():
    rng = np.random.default_rng(1)
    std = np.exp(0.5 * rng.standard_normal((4000, 2)))
    mask = np.ones_like(std, bool)
    shuffled = _correlate_with_error(std, std, rng.permutation(std) * rng.standard_normal(std.shape), mask, rng, 20)
    assert abs(shuffled.within_ratio) < 0.15
    constant = np.ones_like(std) * [1.0, 2.0]
    found = _correlate_with_error(constant, constant, constant * rng.standard_normal(std.shape), mask, rng, 20)
    assert found.within == 0.0
    assert np.isnan(found.within_ratio)
    assert np.isnan(_spread_curve(constant**2, std**2, mask).slope_within)


def test_a_linear_model_has_a_spread_that_does_not_vary():
    found = spread_growth(passed(), HORIZONS, seed=0)
    assert [s.horizon for s in found.horizons] == [1, 4]
    assert found.horizons[0].ratio == pytest.approx(1.0, abs=0.2)
    verdict = _judge_spread(found, 4)
    assert verdict.status == "unknown"
    assert "hardly varies" in verdict.sentence


def test_too_few_withheld_readings_are_an_error():
    run = passed()
    few = Starts(np.zeros(400, int), np.full(400, len(run.standard[0]) - 1))  # nothing comes after the last row
    with pytest.raises(DataError, match="fewer than 100 withheld readings"):
        spread_growth(type(run)(**{**run.__dict__, "starts": few}), (1,), seed=0)
