"""Innovations: white, calibrated and unbiased for the true model; each wrong model fails its own check."""

from dataclasses import replace

import numpy as np
import pytest
from models import matrix_of, textbook_filter
from scipy.stats import norm

from certification.problems import (
    LAMBDA,
    SCALER,
    A,
    biased,
    gappy_series,
    overconfident,
    passed,
    wrong_dynamics,
)
from kaffee.certification.innovations import _whiteness, residual_checks
from kaffee.certification.verdicts import _judge_calibration, _judge_whiteness
from kaffee.errors import DataError
from kaffee.metrics.calibration import ks_distance


@pytest.fixture(scope="module")
def right():
    return residual_checks(passed())


def test_whitened_innovations_are_those_of_the_textbook():
    """Gaps included: L^-1 v with the Cholesky factor of the seen block of Omega."""
    run = passed(series=gappy_series)
    model = run.reconstruction.model
    B, Gamma = matrix_of(model.observation), np.diag(np.asarray(model.shell.process_variance(), float))
    Lambda = np.diag(LAMBDA**2)
    x = run.standard[0][:60]
    seen = ~np.isnan(x)
    start = np.concatenate([x[0], [0.0]])
    nlls, means, covariances = textbook_filter(
        lambda z: A @ z, lambda z: A, B, Gamma, Lambda, start, Gamma, np.nan_to_num(x[1:]), seen[1:]
    )
    assert seen[1:].any(axis=1).sum() < 59  # a row without any reading is among them
    for t in range(1, 60):
        before = (start, Gamma) if t == 1 else (means[t - 2], covariances[t - 2])
        P = A @ before[1] @ A.T + Gamma
        H = B[seen[t]]
        factor = np.linalg.cholesky(H @ P @ H.T + Lambda[np.ix_(seen[t], seen[t])])
        expected = np.linalg.solve(factor, x[t, seen[t]] - H @ A @ before[0])
        np.testing.assert_allclose(run.whitened[0][t, seen[t]], expected, atol=2e-3)
        assert np.isnan(run.whitened[0][t, ~seen[t]]).all()
    np.testing.assert_allclose(run.rows[0].nll[1:60], nlls, atol=2e-3)


def test_the_true_model_is_calibrated_and_white(right):
    n = right.num_entries
    assert n == 2 * (2400 - 40)
    assert abs(right.nis - 1) < 4 * (2 / n) ** 0.5
    assert right.nis_band[0] < 1 < right.nis_band[1]
    for level, share in right.coverage.items():
        p = float(level)
        assert abs(share - p) < 4 * (p * (1 - p) / n) ** 0.5
    assert (np.abs(right.bias) < 4 * right.bias_errors).all()
    assert right.ks < 1.95 / n**0.5  # exceeded once in a thousand
    assert np.abs(right.pit - 1).max() < 5 * (20 / n) ** 0.5
    white = right.whiteness
    assert (np.abs(white.autocorrelations) < 1.2 * white.chance).all()
    assert 0.0 <= white.outside < 0.2
    assert (white.p_values > 1e-3).all()
    assert _judge_calibration(right).status == _judge_whiteness(right).status == "pass"


def test_nll_is_per_entry_in_both_units(right):
    run = passed()
    assert right.nll - right.nll_standard == pytest.approx(np.log(SCALER.scale).mean())
    total = sum(np.asarray(row.nll, float)[20:].sum() for row in run.rows)
    assert right.nll_standard == pytest.approx(total / right.num_entries, rel=1e-5)


def test_the_interval_score_of_the_true_model_is_that_of_gaussian_bands_and_the_least(right):
    """4 phi(z) / 0.1 times the mean predicted deviation, and the score of one reading deviates by 3.44 times it."""
    std = np.concatenate([np.asarray(row.reading_std, float)[20:] for row in passed().rows])
    expected, error = 40 * norm.pdf(norm.ppf(0.95)) * std.mean(), 3.44 * std.mean() / std.size**0.5
    assert abs(right.interval_score_standard - expected) < 4 * error
    assert residual_checks(passed(overconfident)).interval_score_standard > right.interval_score_standard + 4 * error


def test_gaps_change_nothing_for_the_true_model():
    found = residual_checks(passed(series=gappy_series))
    assert abs(found.nis - 1) < 4 * (2 / found.num_entries) ** 0.5
    assert (np.abs(found.whiteness.autocorrelations) < 1.2 * found.whiteness.chance).all()
    assert _judge_calibration(found).status == "pass"


def test_an_overconfident_model_fails_calibration_alone():
    found = residual_checks(passed(overconfident))
    assert found.nis == pytest.approx(4.0, rel=0.1)
    verdict = _judge_calibration(found)
    assert verdict.status == "fail"
    assert "too narrow" in verdict.sentence
    assert "bias" not in verdict.sentence
    assert _judge_whiteness(found).status == "pass"  # the gain is right


def test_a_biased_model_is_called_biased():
    found = residual_checks(passed(biased))
    assert abs(found.bias[0]) > 0.3
    verdict = _judge_calibration(found)
    assert verdict.status == "fail"
    assert "bias" in verdict.sentence


def test_wrong_dynamics_leave_innovations_coloured():
    found = residual_checks(passed(wrong_dynamics))
    verdict = _judge_whiteness(found)
    assert verdict.status == "fail"
    assert "lag 1" in verdict.sentence
    assert _judge_calibration(found).status != "fail"  # the width is about right


def test_too_few_readings_are_an_error_that_says_so():
    with pytest.raises(DataError, match="20 readings can be scored after 1990 rows of warm-up; at least 50"):
        residual_checks(replace(passed(), warm_up=1990))


def test_autocorrelations_against_numpy_and_over_gaps():
    y = np.random.default_rng(0).standard_normal((300, 1))
    c = y[:, 0] - y.mean()
    found = _whiteness([y])
    assert found.autocorrelations[2, 0] == pytest.approx((c[3:] @ c[:-3] / 297) / (c @ c / 300))
    assert found.bands[2, 0] == pytest.approx(norm.ppf(0.975) / 297**0.5)
    y[100:110] = np.nan
    assert _whiteness([y]).bands[2, 0] == pytest.approx(norm.ppf(0.975) / (297 - 13) ** 0.5)
    assert np.isfinite(_whiteness([y[:25]]).autocorrelations[:, 0]).sum() == 5  # at larger lags too few pairs


def test_whiteness_of_a_first_order_process_is_its_coefficient():
    rng = np.random.default_rng(1)
    y = np.zeros((4000, 1))
    for t in range(1, 4000):
        y[t] = 0.4 * y[t - 1] + rng.standard_normal()
    found = _whiteness([y])
    assert (found.largest_lag, found.largest_coordinate) == (1, 0)
    assert found.largest == pytest.approx(0.4, abs=4 / 4000**0.5)
    assert found.p_values[0] < 1e-10
    assert _whiteness([y[:10]]) is None
    assert _whiteness([np.ones((100, 1))]) is None  # a constant has no autocorrelation


def test_a_small_sample_passes_by_chance_not_by_size():
    """60 white values have autocorrelations far above 0.1, and are white all the same."""
    found = _whiteness([np.random.default_rng(2).standard_normal((60, 3))])
    assert found.largest > 0.1
    assert (np.abs(found.autocorrelations) <= found.chance).all()


def first_order(num_steps, coefficient, seed):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(num_steps)
    for t in range(1, num_steps):
        y[t] += coefficient * y[t - 1]
    return y


def test_a_coordinate_that_is_hardly_read_does_not_excuse_another(right):
    """With 26 pairs a lag is uncertain by 0.2, with 600 by 0.04."""
    rng = np.random.default_rng(3)
    rare = np.where(rng.uniform(size=600) < 0.21, rng.standard_normal(600), np.nan)
    found = _whiteness([np.stack([first_order(600, 0.5, 4), rare], axis=1)])
    assert found.chance[0, 1] > 0.55 > 0.5 > found.largest > 0.3 > found.chance[0, 0]
    verdict = _judge_whiteness(replace(right, whiteness=found))
    assert verdict.status == "fail"
    assert "(left, lag 1; limit ±0.1" in verdict.sentence


def test_a_rare_coordinate_that_is_white_by_chance_passes(right):
    rng = np.random.default_rng(5)
    rare = np.where(rng.uniform(size=600) < 0.21, rng.standard_normal(600), np.nan)
    found = _whiteness([np.stack([rng.standard_normal(600), rare], axis=1)])
    assert found.largest > 0.2 > found.chance[0, 0]
    assert _judge_whiteness(replace(right, whiteness=found)).status == "pass"


def test_a_bias_is_judged_by_its_own_error(right):
    n = int(right.counts[0])
    unread = replace(
        right,
        counts=np.array([n, 0]),
        bias=np.array([0.25, np.nan]),
        bias_errors=np.array([n**-0.5, np.nan]),
        nis_each=np.array([1.0, np.nan]),
    )
    verdict = _judge_calibration(unread)
    assert verdict.status == "warn"
    assert "bias +0.25 standard deviations of left (limit ±0.1)" in verdict.sentence
    assert verdict.sentence.endswith("Without readings to score, and not judged: right.")
    few = replace(right, counts=np.array([n, 20]), bias=np.array([0.01, 0.4]), bias_errors=np.array([0.01, 20**-0.5]))
    assert _judge_calibration(few).status == "pass"


def test_coordinates_without_readings_have_no_numbers():
    run = passed()
    hidden = [row._replace(accepted=np.asarray(row.accepted) & [True, False]) for row in run.rows]
    found = residual_checks(replace(run, rows=tuple(hidden)))
    assert found.counts.tolist() == [2400 - 40, 0]
    for numbers in (found.bias, found.bias_errors, found.nis_each, found.coverage_each, found.ks_each):
        assert np.isnan(numbers).tolist() == [False, True]


def test_too_wide_and_too_narrow_bands_do_not_make_up_for_each_other():
    run = passed()
    lopsided = [row._replace(reading_std=np.asarray(row.reading_std) * [1.5, 0.72]) for row in run.rows]
    found = residual_checks(replace(run, rows=tuple(lopsided)))
    assert abs(found.coverage["0.9"] - 0.9) < 0.04
    assert found.coverage_each[0] > 0.97 > 0.8 > found.coverage_each[1]
    assert found.nis_each == pytest.approx([1.5**-2, 0.72**-2], rel=0.15)
    verdict = _judge_calibration(found)
    assert verdict.status == "fail"
    assert f"coverage of 90 % bands {found.coverage_each[1]:.3f} of right (limit 0.87, bands too narrow)" in (
        verdict.sentence
    )
    assert "of left (limit 0.8, bands too wide)" in verdict.sentence


def test_readings_of_one_row_count_once_at_least(right):
    assert right.num_independent == pytest.approx(right.num_entries / 2)


def test_every_sentence_holds_the_limits_that_were_applied(right):
    assert _judge_calibration(right).sentence.count("(limit ") == 4
    assert "by chance" not in _judge_calibration(right).sentence
    few = replace(right, num_entries=60, num_independent=30.0, counts=np.array([30, 30]), bias_errors=np.full(2, 0.18))
    assert _judge_calibration(few).sentence.count(", by chance)") == 4
    short = _whiteness([np.random.default_rng(2).standard_normal((60, 2))])
    verdict = _judge_whiteness(replace(right, whiteness=short))
    assert verdict.status == "pass"
    assert verdict.value > 0.1
    assert ", by chance)" in verdict.sentence


def test_ks_distance_of_quantiles():
    u = (np.arange(100) + 0.5) / 100
    assert ks_distance(u) == pytest.approx(0.005)
    assert ks_distance(u**2) == pytest.approx(0.25, abs=0.01)
    assert np.isnan(ks_distance(np.zeros(0)))
