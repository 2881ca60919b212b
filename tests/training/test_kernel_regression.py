"""Left-out residuals against regressions without the rows, and what is chosen by them."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from kaffee.model.kernel import KERNELS
from kaffee.training.kernel_regression import _fit_linear, regress


def noisy_sine(rows=60, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, (rows, 1)), axis=0)
    return x, np.sin(x) + noise * rng.standard_normal(x.shape)


@pytest.mark.parametrize("block", [1, 4])
def test_left_out_residuals_are_those_of_regressions_without_the_block(block):
    x, y = noisy_sine(noise=0.1)
    found = regress(x, y, lengths=(1.0,), ridges=(1e-2,), block=block)
    rest = y - found.offset - x @ found.linear.T
    larger = _fit_linear(x, y)[2]
    assert 1.0 <= larger < 1.2
    K = KERNELS[found.kernel].profile(cdist(x, x) / found.length, np)
    for first in range(0, 60, block):
        out = np.arange(first, first + block)
        kept = np.setdiff1d(np.arange(60), out)
        weights = np.linalg.solve(K[np.ix_(kept, kept)] + found.ridge * np.eye(len(kept)), rest[kept])
        np.testing.assert_allclose(found.left_out[out] / larger, rest[out] - K[np.ix_(out, kept)] @ weights, atol=1e-7)


def test_the_jacobian_is_that_of_the_prediction():
    x, y = noisy_sine()
    found, at, step = regress(x, y), np.array([[0.3], [1.1]]), 1e-6
    slopes = (found(at + step) - found(at - step)) / (2 * step)
    np.testing.assert_allclose(found.jacobian(at)[:, 0], slopes, atol=1e-5)
    np.testing.assert_allclose(slopes, np.cos(at), atol=1e-2)


def test_noise_asks_for_a_larger_ridge():
    clean, noisy = (regress(*noisy_sine(200, noise)) for noise in (0.0, 0.3))
    assert noisy.ridge > 10 * clean.ridge
    assert np.sqrt(np.mean(noisy.left_out**2)) == pytest.approx(0.3, rel=0.2)
    assert np.sqrt(np.mean(clean.left_out**2)) < 1e-3


def test_few_centres_do_for_many_rows():
    x, y = noisy_sine(3000, 0.1)
    found = regress(x, y, max_centres=50, max_trial=30)
    assert found.centres.shape == (50, 1)
    np.testing.assert_allclose(found(np.array([[0.5], [-2.0]])), np.sin([[0.5], [-2.0]]), atol=0.05)


def test_more_coordinates_than_rows_are_shrunk_to_the_mean():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 100)), rng.standard_normal((60, 2))
    found = regress(x, y)
    assert np.sqrt(np.mean(found(rng.standard_normal((50, 100))) ** 2)) < 0.5
    assert np.sqrt(np.mean(found.left_out**2)) > 0.8
