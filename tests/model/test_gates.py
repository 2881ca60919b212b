"""The gates of the AL-RNN: values, slopes and curvatures of the three modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.model import gates

POINTS = np.array([-3.0, -1.1, -0.2, 0.3, 0.9, 4.0])


def central(function, z, h=1e-6):
    return (function(z + h) - function(z - h)) / (2 * h)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_smooth_gate(temperature, x64):
    z = jnp.asarray(POINTS)
    expected = POINTS / (1.0 + np.exp(-1.7 * POINTS / temperature))
    np.testing.assert_allclose(gates.value(z, "smooth", temperature), expected, rtol=1e-14)
    slope = central(lambda z: gates.value(z, "smooth", temperature), z)
    np.testing.assert_allclose(gates.slope(z, "smooth", temperature), slope, atol=1e-8)
    curvature = central(lambda z: gates.slope(z, "smooth", temperature), z)
    np.testing.assert_allclose(gates.curvature(z, "smooth", temperature), curvature, atol=1e-8)


def test_straight_through_is_hard_in_value_and_smooth_in_all_derivatives(x64):
    z = jnp.asarray(POINTS)
    np.testing.assert_allclose(gates.value(z, "straight_through", 1.0), np.maximum(POINTS, 0.0), atol=1e-15)
    for function in (gates.slope, gates.curvature):
        np.testing.assert_array_equal(function(z, "straight_through", 1.0), function(z, "smooth", 1.0))


def test_hard_gate(x64):
    z = jnp.asarray(POINTS)
    np.testing.assert_array_equal(gates.value(z, "hard", 1.0), np.maximum(POINTS, 0.0))
    np.testing.assert_array_equal(gates.slope(z, "hard", 1.0), POINTS > 0)
    np.testing.assert_array_equal(gates.curvature(z, "hard", 1.0), np.zeros_like(POINTS))


@pytest.mark.parametrize("mode", ["straight_through", "smooth", "hard"])
def test_autodiff_sees_the_slope_and_the_curvature(mode, x64):
    z = jnp.asarray(np.append(POINTS, 0.0))  # also at the kink, where a missing first row puts the state

    def each(function):
        return jax.vmap(jax.grad(lambda z: function(z, mode, 1.0)))(z)

    np.testing.assert_allclose(each(gates.value), gates.slope(z, mode, 1.0), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(each(gates.slope), gates.curvature(z, mode, 1.0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", ["straight_through", "smooth", "hard"])
def test_finite_far_away_in_float32(mode):
    z = jnp.asarray([-1e30, -1e3, 1e3, 1e30], jnp.float32)
    np.testing.assert_allclose(gates.value(z, mode, 1.0), [0.0, 0.0, 1e3, 1e30], rtol=1e-6)
    np.testing.assert_array_equal(gates.slope(z, mode, 1.0), [0.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(gates.curvature(z, mode, 1.0), np.zeros(4))


def test_unknown_mode():
    with pytest.raises(ConfigError, match=r"Unknown gate 'smoth'. Did you mean 'smooth'"):
        gates.check_mode("smoth")
