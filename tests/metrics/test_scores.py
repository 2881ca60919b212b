"""Scores against loops that follow the equations and closed forms, and G_tan on cases with known answers."""

import numpy as np
import pytest
from scipy.stats import norm, spearmanr

from kaffee.errors import ConfigError
from kaffee.metrics.scores import (
    correlate_growths,
    ensemble_crps,
    ensemble_nll,
    ensemble_rmse,
    gaussian_interval_score,
    oracle_log_growth,
    spearman,
)

RNG = np.random.default_rng(0)
MEMBERS, REFERENCE = RNG.standard_normal((7, 4, 3)), RNG.standard_normal((4, 3))


def test_nll_is_the_equation():
    total = 0.0
    for h in range(4):
        for j in range(3):
            values = MEMBERS[:, h, j]
            s2 = sum((v - values.mean()) ** 2 for v in values) / 6
            total += 0.5 * (np.log(2 * np.pi * s2) + (REFERENCE[h, j] - values.mean()) ** 2 / s2)
    assert ensemble_nll(MEMBERS, REFERENCE) == pytest.approx(total / 12, rel=1e-12)


def test_the_floor_keeps_a_collapsed_ensemble_finite():
    same = np.zeros((5, 2))
    expected = 0.5 * np.log(2 * np.pi * 1e-6)
    assert ensemble_nll(same, np.zeros(2)) == pytest.approx(expected, rel=1e-12)


def test_crps_is_the_double_sum():
    total = 0.0
    for h in range(4):
        for j in range(3):
            x, y = MEMBERS[:, h, j], REFERENCE[h, j]
            pairs = sum(abs(a - b) for a in x for b in x)
            total += np.mean(np.abs(x - y)) - pairs / (2 * 7**2)
    assert ensemble_crps(MEMBERS, REFERENCE) == pytest.approx(total / 12, rel=1e-12)


def test_crps_of_a_point_is_its_distance():
    assert ensemble_crps(np.full((3, 1), 2.0), np.array([5.0])) == 3.0


def test_crps_of_a_large_gaussian_ensemble_is_the_closed_form():
    """E CRPS of N(0, 1) at y = 0 is (sqrt 2 - 1) / sqrt pi; within five standard errors of the mean."""
    members = np.random.default_rng(1).standard_normal((2000, 50))
    assert ensemble_crps(members, np.zeros(50)) == pytest.approx(
        (np.sqrt(2) - 1) / np.sqrt(np.pi), abs=5 * 0.02 / 50**0.5
    )


def test_the_interval_score_is_the_equation():
    mean, std = MEMBERS[0], np.exp(MEMBERS[1])
    lower, upper = norm.interval(0.8, mean, std)
    expected = [
        (high - low) + (10 * (low - y) if y < low else 0.0) + (10 * (y - high) if y > high else 0.0)
        for low, high, y in zip(lower.flat, upper.flat, REFERENCE.flat, strict=True)
    ]
    assert ((lower > REFERENCE) | (upper < REFERENCE)).any()
    np.testing.assert_allclose(gaussian_interval_score(REFERENCE, mean, std, 0.8).ravel(), expected, rtol=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_the_interval_score_of_gaussian_draws_is_the_closed_form_and_least_at_the_true_width(level):
    """E S = 4 std phi(z) / (1 - level), z the upper limit of the band of N(0, 1); within four standard errors."""
    draws = np.random.default_rng(2).standard_normal(100_000)
    narrow, right, wide = (gaussian_interval_score(2 * draws, 0.0, std, level) for std in (1.5, 2.0, 2.5))
    expected = 8 * norm.pdf(norm.ppf(0.5 + level / 2)) / (1 - level)
    assert right.mean() == pytest.approx(expected, abs=4 * right.std() / draws.size**0.5)
    assert right.mean() < min(narrow.mean(), wide.mean())


def test_rmse_is_the_mean_over_starts_of_each_root():
    expected = np.mean([np.sqrt(np.mean((MEMBERS.mean(0)[s] - REFERENCE[s]) ** 2)) for s in range(4)])
    assert ensemble_rmse(MEMBERS, REFERENCE) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("members", [np.zeros((1, 3)), np.zeros((4, 2)), np.zeros(3)])
def test_shapes_that_do_not_fit_are_refused(members):
    with pytest.raises(ConfigError, match="at least two members"):
        ensemble_nll(members, np.zeros(3))


def test_spearman_is_scipys():
    a, b = RNG.integers(0, 9, 50).astype(float), RNG.standard_normal(50)
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


def test_a_constant_argument_gives_zero_and_a_nan_gives_nan():
    assert spearman(np.ones(5), np.arange(5.0)) == 0.0
    assert np.isnan(spearman(np.array([1.0, np.nan, 2.0]), np.arange(3.0)))


def test_unequal_lengths_are_refused():
    with pytest.raises(ConfigError, match="equally long"):
        spearman(np.arange(3.0), np.arange(4.0))


def test_oracle_growth_is_the_equation():
    J, root = RNG.standard_normal((6, 3, 3)), RNG.standard_normal((6, 3, 3))
    covariance = root @ root.transpose(0, 2, 1)
    growth = oracle_log_growth(covariance, J)
    for t in range(6):
        pushed = J[t] @ covariance[t] @ J[t].T
        expected = np.log(np.diag(pushed)) - np.log(np.diag(covariance[t]))
        np.testing.assert_allclose(growth[t], expected, rtol=1e-12)


def test_a_model_with_the_true_growth_is_perfectly_grounded():
    growth = RNG.standard_normal((40, 3))
    assert correlate_growths(growth, growth).pooled == pytest.approx(1.0)


def test_offsets_between_coordinates_change_only_the_pooled_number():
    growth = RNG.standard_normal((200, 2))
    shifted = correlate_growths(growth + np.array([0.0, 50.0]), growth)
    assert shifted.within == pytest.approx(1.0)
    assert shifted.pooled < 0.9
