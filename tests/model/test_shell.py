"""The stochastic shell: variances from log standard deviations, bounds, the first split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import PROPERTY

from kaffee.errors import ConfigError
from kaffee.model.shell import LOG_STD_BOUND, Shell, split_residuals


def test_variances_are_squares(x64):
    shell = Shell.from_std([0.1, 2.0], [0.5], np.float64)
    np.testing.assert_allclose(shell.process_variance(), [0.01, 4.0], rtol=1e-14)
    np.testing.assert_allclose(shell.observation_variance(), [0.25], rtol=1e-14)


@PROPERTY
@given(log_std=st.floats(allow_nan=False, width=32))
def test_variances_are_positive_and_finite_in_float32(log_std):
    shell = Shell(jnp.full(2, log_std, jnp.float32), jnp.full(1, log_std, jnp.float32))
    for variance in (shell.process_variance(), shell.observation_variance()):
        assert np.isfinite(variance).all()
        assert (np.asarray(variance) > 0).all()
        # and so are their inverses and squares, which a likelihood needs
        assert np.isfinite(1.0 / np.asarray(variance) ** 2).all()


def test_gradient_is_finite_everywhere_and_zero_beyond_the_bound(x64):
    gradient = jax.grad(lambda g: jnp.sum(Shell(g, g).process_variance()))
    g = jnp.asarray([-100.0, -3.0, 0.0, 2.0, 100.0])
    np.testing.assert_allclose(gradient(g), [0.0, 2 * np.exp(-6.0), 2.0, 2 * np.exp(4.0), 0.0], rtol=1e-14)
    assert LOG_STD_BOUND == 10.0


def test_split_of_the_paper(x64):
    r = np.array([0.2, 0.5, 1.1])
    shell = split_residuals(jnp.asarray(r), latent_dim=5)
    np.testing.assert_allclose(shell.observation_variance(), 0.9 * r**2, rtol=1e-12)
    q = np.mean(np.sqrt(0.1) * r)
    np.testing.assert_allclose(shell.process_variance(), np.full(5, q**2), rtol=1e-12)
    assert shell.log_process_std.dtype == np.float64


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5])
def test_share_lies_between_nothing_and_all(alpha):
    with pytest.raises(ConfigError, match=r"lies in \(0, 1\)"):
        split_residuals(jnp.ones(2), 3, alpha)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_standard_deviations_must_be_positive_and_finite(bad):
    with pytest.raises(ConfigError, match="Every observation standard deviation must be positive and finite"):
        Shell.from_std([1.0], [1.0, bad])
    with pytest.raises(ConfigError, match="Every process standard deviation"):
        Shell.from_std([bad], [1.0])
