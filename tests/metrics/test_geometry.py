"""D_stsp against plain NumPy, closed forms and hostile trajectories."""

import itertools

import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.metrics.geometry import d_stsp_histogram, d_stsp_mixture

BOTH = [d_stsp_histogram, d_stsp_mixture]


def cloud(num=400, dim=2, *, shift=0.0, scale=1.0, seed=0):
    return shift + scale * np.random.default_rng(seed).standard_normal((num, dim))


def histogram_by_loops(p_points, q_points, num_bins, smoothing):
    """The same estimate one point and one bin at a time."""
    margin = 0.1 * p_points.std(axis=0)
    low, high = p_points.min(axis=0) - margin, p_points.max(axis=0) + margin

    def density(points):
        counts = dict.fromkeys(itertools.product(range(num_bins), repeat=points.shape[1]), 0)
        for point in points:
            if ((point >= low) & (point <= high)).all():
                cell = np.minimum(((point - low) / (high - low) * num_bins).astype(int), num_bins - 1)
                counts[tuple(cell.tolist())] += 1
        total = sum(counts.values()) + smoothing * len(counts)
        return {cell: (count + smoothing) / total for cell, count in counts.items()}

    p, q = density(p_points), density(q_points)
    return sum(p[cell] * np.log(p[cell] / q[cell]) for cell in p)


def mixture_by_loops(p_points, q_points, variance, num_samples, seed):
    """The same Monte Carlo estimate with the same samples, one at a time."""
    rng = np.random.default_rng(seed)
    centres = p_points[rng.integers(len(p_points), size=num_samples)]
    samples = centres + np.sqrt(variance) * rng.standard_normal(centres.shape)

    def log_density(x, points):
        exponents = [-0.5 * np.sum((x - c) ** 2) / variance for c in points]
        largest = max(exponents)
        return largest + np.log(np.mean(np.exp(np.array(exponents) - largest)))

    return np.mean([log_density(x, p_points) - log_density(x, q_points) for x in samples])


@pytest.mark.parametrize("divergence", BOTH)
@pytest.mark.parametrize("dim", [1, 3])
def test_identical_trajectories_have_no_divergence(divergence, dim):
    x = cloud(300, dim)
    assert divergence(x, x) == 0.0


@pytest.mark.parametrize("dim", [1, 2])
def test_the_histogram_agrees_with_loops(dim):
    p, q = cloud(200, dim), cloud(150, dim, shift=0.4, scale=1.3, seed=1)
    found = d_stsp_histogram(p, q, num_bins=7, smoothing=1e-3)
    assert found == pytest.approx(histogram_by_loops(p, q, 7, 1e-3), abs=1e-10)
    assert found > 0.0


def test_the_mixture_agrees_with_loops():
    p, q = cloud(60, 4), cloud(40, 4, shift=0.7, seed=1)
    found = d_stsp_mixture(p, q, variance=0.5, num_samples=50, seed=3)
    assert found == pytest.approx(mixture_by_loops(p, q, 0.5, 50, 3), abs=1e-8)


def test_the_mixture_agrees_with_the_closed_form_of_two_gaussian_clouds():
    """Clouds N(0, 1) and N(m, 1) smoothed by s^2 are N(., 1 + s^2): KL = |m|^2 / (2 (1 + s^2))."""
    m, variance = 1.0, 1.0
    p, q = cloud(8000, 2), cloud(8000, 2, shift=m, seed=1)
    expected = 2 * m**2 / (2 * (1 + variance))
    samples = [d_stsp_mixture(p, q, variance=variance, num_samples=500, seed=s) for s in range(8)]
    standard_error = np.std(samples, ddof=1) / np.sqrt(len(samples))
    assert abs(np.mean(samples) - expected) < 4 * standard_error + 0.03  # the clouds are finite themselves


def test_clouds_far_apart_stay_finite():
    """exp(-|x - c|^2 / 2) is zero in any precision here."""
    found = d_stsp_mixture(cloud(50), cloud(50, shift=1e3, seed=1))
    assert np.isfinite(found)
    assert found == pytest.approx(1e6, rel=0.05)


def test_a_run_that_left_all_bins_is_worse_than_any_other():
    """Smoothing alone would make it uniform, and so better than a run on the wrong half of the attractor."""
    assert d_stsp_histogram(cloud(), cloud(shift=1e6)) == np.inf
    assert d_stsp_histogram(cloud(), cloud(shift=3.0)) < np.inf


@pytest.mark.parametrize("divergence", BOTH)
def test_diverged_rows_are_left_out(divergence):
    p, q = cloud(), cloud(seed=1)
    diverged = np.concatenate([q, [[np.nan, 0.0], [np.inf, 1.0], [0.0, -np.inf]]])
    assert divergence(p, diverged) == divergence(p, q)
    assert divergence(p, np.full((5, 2), np.nan)) == np.inf


@pytest.mark.parametrize("divergence", BOTH)
def test_the_input_is_not_changed(divergence):
    p, q = cloud(), cloud(seed=1)
    copies = p.copy(), q.copy()
    divergence(p, q)
    np.testing.assert_array_equal(p, copies[0])
    np.testing.assert_array_equal(q, copies[1])


@pytest.mark.parametrize("divergence", BOTH)
@pytest.mark.parametrize(
    ("reference", "generated", "match"),
    [
        (np.array([[0.0, 1.0], [np.nan, 1.0]]), cloud(), "reference trajectory has non-finite values"),
        (np.array([[0.0, 1.0], [np.inf, 1.0]]), cloud(), "reference trajectory has non-finite values"),
        (cloud(), cloud(dim=3), r"same N are needed; got \(400, 2\) and \(400, 3\)"),
        (cloud()[:, 0], cloud()[:, 0], "Two trajectories"),
        (np.zeros((0, 2)), cloud(), "empty"),
    ],
)
def test_trajectories_that_cannot_be_compared_are_errors(divergence, reference, generated, match):
    with pytest.raises(ConfigError, match=match):
        divergence(reference, generated)


def test_a_constant_coordinate_has_no_bins():
    with pytest.raises(ConfigError, match="coordinate of the reference is constant"):
        d_stsp_histogram(np.ones((10, 1)), np.ones((10, 1)))
