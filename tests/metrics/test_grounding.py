"""G_tan on cases with known answers."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from kaffee.errors import ConfigError
from kaffee.metrics.scores import correlate_growths, oracle_log_growth, spearman

RNG = np.random.default_rng(0)


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
