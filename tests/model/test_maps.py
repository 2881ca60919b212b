"""Affine, polynomial and multilayer-perceptron cores: their equations, scales and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import finite_jacobian

from kaffee.errors import ConfigError
from kaffee.model.maps import Linear, Polynomial, ResidualMLP


def test_linear(x64):
    core = Linear(jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.asarray([0.5, -0.5]))
    np.testing.assert_array_equal(core(jnp.asarray([1.0, -1.0])), [-0.5, -1.5])
    np.testing.assert_array_equal(core.jacobian(jnp.zeros(2)), core.A)


def test_linear_starts_near_the_identity(x64):
    M = 60
    core = Linear.create(M, key=jax.random.key(0), scale=0.1, dtype=np.float64)
    noise = np.asarray(core.A) - np.eye(M)
    assert abs(noise.std() - 0.1) < 5 * 0.1 / np.sqrt(2 * M * M)
    assert (np.asarray(core.h) == 0.0).all()


def test_polynomial_features(x64):
    core = Polynomial.create(2, key=jax.random.key(0), dtype=np.float64)
    a, b = 2.0, 3.0
    np.testing.assert_allclose(
        core.features(jnp.asarray([a, b])), [a * a, a * b, b * b, a**3, a * a * b, a * b * b, b**3]
    )


def test_polynomial_is_van_der_pol(x64):
    """An Euler step of the Van der Pol oscillator is a cubic map, and this core can be it exactly."""
    dt, mu = 0.1, 1.5
    A = np.array([[1.0, dt], [-dt, 1.0 + dt * mu]])
    W = np.zeros((2, 7))
    W[1, 4] = -dt * mu  # z0^2 z1
    core = Polynomial(jnp.asarray(A), jnp.asarray(W), jnp.zeros(2))
    x, y = 0.7, -1.3
    expected = [x + dt * y, y + dt * (mu * (1 - x**2) * y - x)]
    np.testing.assert_allclose(core(jnp.asarray([x, y])), expected, rtol=1e-14)


def test_polynomial_derivatives_at_zero(x64):
    """Products with zero factors have derivatives, where a quotient rule would divide by zero."""
    core = Polynomial.create(2, key=jax.random.key(1), scale=1.0, dtype=np.float64)
    for z in (np.zeros(2), np.array([0.0, 1.5])):
        np.testing.assert_allclose(core.jacobian(jnp.asarray(z)), finite_jacobian(core, z), atol=1e-8)
        second = jax.jacfwd(core.jacobian)(jnp.asarray(z))
        expected = np.stack(
            [(core.jacobian(jnp.asarray(z + e)) - core.jacobian(jnp.asarray(z - e))) / 2e-6 for e in 1e-6 * np.eye(2)],
            axis=-1,
        )
        np.testing.assert_allclose(second, expected, atol=1e-7)


def test_polynomial_degree():
    with pytest.raises(ConfigError, match="degree >= 2, not 1; use Linear"):
        Polynomial.create(2, degree=1, key=jax.random.key(0))


def test_mlp_is_the_equation(x64):
    core = ResidualMLP.create(3, hidden_dim=4, depth=2, key=jax.random.key(0), dtype=np.float64)
    (W1, W2, W3), z = (np.asarray(W) for W in core.weights), np.array([0.3, -1.0, 2.0])
    assert (W1.shape, W2.shape, W3.shape) == ((4, 3), (4, 4), (3, 4))
    np.testing.assert_allclose(core(jnp.asarray(z)), z + W3 @ np.tanh(W2 @ np.tanh(W1 @ z)), rtol=1e-13)


def test_mlp_initial_scales():
    core = ResidualMLP.create(50, hidden_dim=200, depth=1, key=jax.random.key(0))
    for W, std in zip(core.weights, (50**-0.5, 0.1 * 200**-0.5), strict=True):
        assert abs(float(W.std()) - std) < 5 * std / np.sqrt(2 * W.size)


@pytest.mark.parametrize("sizes", [{"depth": 0}, {"hidden_dim": 0}])
def test_mlp_sizes(sizes):
    with pytest.raises(ConfigError, match="at least 1"):
        ResidualMLP.create(2, key=jax.random.key(0), **sizes)
