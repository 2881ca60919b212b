"""Coverage and normalised innovations on numbers that can be counted by hand, and on draws that are calibrated."""

import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.metrics.calibration import coverage, normalised_nis


def test_coverage_counts_residuals_inside_the_band():
    residuals, std = np.array([[0.0, 1.9], [-2.1, 4.1]]), np.array([[1.0, 1.0], [1.0, 2.0]])
    assert coverage(residuals, std, 0.95) == 0.5  # 4.1 is beyond 1.96 * 2
    assert coverage(residuals, std, 0.95, np.array([[True, True], [False, False]])) == 1.0


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
def test_gaussian_draws_are_covered_as_often_as_promised(level):
    rng = np.random.default_rng(0)
    std = rng.uniform(0.1, 3.0, 100_000)
    error = 3 * np.sqrt(level * (1 - level) / std.size)
    assert coverage(std * rng.standard_normal(std.size), std, level) == pytest.approx(level, abs=error)


def test_nothing_observed_has_no_coverage():
    assert np.isnan(coverage(np.ones(2), np.ones(2), 0.9, np.zeros(2, bool)))
    assert np.isnan(normalised_nis(np.zeros(3), 0))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 95])
def test_a_band_has_a_probability(level):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        coverage(np.ones(2), np.ones(2), level)


def test_nis_per_observed_entry():
    assert normalised_nis(np.array([3.0, 1.0, 0.0]), np.array([2, 1, 1])) == 1.0
