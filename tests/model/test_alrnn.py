"""The almost-linear RNN: its equation, the paper's initialisation; value, slope and curvature of its gates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import GATES, LATENT, make_core

from kaffee.errors import ConfigError
from kaffee.model.alrnn import ALRNN, _gate_curvature, _gate_slope, _gate_value, _rectified_moments

POINTS = np.array([-3.0, -1.1, -0.2, 0.3, 0.9, 4.0])


def test_step_is_the_equation(x64):
    core = make_core("hard")
    A, W, h = (np.asarray(a) for a in (core.A, core.W, core.h))
    for z in np.random.default_rng(0).standard_normal((4, LATENT)):
        phi = z.copy()
        phi[LATENT - GATES :] = np.maximum(phi[LATENT - GATES :], 0.0)
        np.testing.assert_allclose(core(jnp.asarray(z)), A * z + W @ phi + h, rtol=1e-13)
        D = np.diag(np.append(np.ones(LATENT - GATES), z[LATENT - GATES :] > 0))
        np.testing.assert_allclose(core.jacobian(jnp.asarray(z)), np.diag(A) + W @ D, rtol=1e-13)


def test_straight_through_core(x64):
    """Hard value; smooth Jacobian for transport, for backpropagation, and for how the transport itself changes."""
    core = make_core("straight_through")
    hard, smooth = core.with_gate("hard"), core.with_gate("smooth")
    z = jnp.asarray(np.random.default_rng(3).standard_normal(LATENT))
    np.testing.assert_allclose(core(z), hard(z), rtol=1e-14, atol=1e-15)
    assert np.abs(core(z) - smooth(z)).max() > 1e-3
    np.testing.assert_allclose(core.jacobian(z), smooth.jacobian(z), rtol=1e-14)
    np.testing.assert_allclose(jax.jacfwd(core)(z), smooth.jacobian(z), rtol=1e-13)
    np.testing.assert_allclose(jax.jacfwd(core.jacobian)(z), jax.jacfwd(smooth.jacobian)(z), rtol=1e-13, atol=1e-14)
    # the weights see the hard activation of the mean
    np.testing.assert_allclose(jax.jacrev(lambda c: c(z)[0])(core).W[0], hard.activation(z), atol=1e-15)


def test_initialisation_of_the_paper():
    core = ALRNN.create(100, 50, key=jax.random.key(0))
    assert (np.asarray(core.h) == 0.0).all()
    W, n = np.asarray(core.W), 100 * 100
    assert abs(W.mean()) < 5 * 0.01 / np.sqrt(n)
    assert abs(W.std() - 0.01) < 5 * 0.01 / np.sqrt(2 * n)
    # diag(R'R/M + I) is about 2 and its largest eigenvalue about 1 + 4 (Marchenko-Pastur): 0.4, a little more for
    # finite M, where the edge lies lower
    means = [float(ALRNN.create(100, 50, key=jax.random.key(k)).A.mean()) for k in range(5)]
    assert np.mean(means) == pytest.approx(0.41, abs=0.01)
    assert core.num_gates == 50
    assert core.gate == "hard"


def test_initial_linear_part_is_as_defined(x64):
    M = 6
    core = ALRNN.create(M, 3, key=jax.random.key(4), dtype=np.float64)
    R = np.asarray(jax.random.normal(jax.random.split(jax.random.key(4))[0], (M, M), np.float64))
    positive = R.T @ R / M + np.eye(M)
    np.testing.assert_allclose(core.A, np.diag(positive) / np.linalg.eigvalsh(positive)[-1], rtol=1e-12)
    assert (np.asarray(core.A) <= 1.0).all()


def test_exact_and_surrogate_gates(x64):
    core = make_core("hard")
    assert core.surrogate().gate == "straight_through"
    assert core.surrogate().exact().gate == "hard"
    assert core.exact() is core
    smooth = core.with_gate("smooth")
    assert smooth.exact() is smooth
    assert smooth.surrogate() is smooth
    np.testing.assert_array_equal(smooth.W, core.W)
    warm = ALRNN(core.A, core.W, core.h, GATES, "hard", temperature=2.5)
    assert warm.surrogate().temperature == 2.5


@pytest.mark.parametrize("num_gates", [0, 3])
def test_no_gates_and_only_gates(num_gates, x64):
    core = ALRNN(jnp.ones(3), jnp.eye(3), jnp.zeros(3), num_gates, "hard")
    z = jnp.asarray([-1.0, 2.0, -3.0])
    expected = z + z if num_gates == 0 else z + jnp.maximum(z, 0.0)
    np.testing.assert_array_equal(core(z), expected)
    assert core.curvatures(z).shape == (3,)


@pytest.mark.parametrize("num_gates", [-1, 5])
def test_number_of_gates_must_fit(num_gates):
    with pytest.raises(ConfigError, match=f"between 0 and latent_dim = 4, not {num_gates}"):
        ALRNN.create(4, num_gates, key=jax.random.key(0))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ConfigError, match="temperature must be positive"):
        ALRNN(jnp.ones(2), jnp.eye(2), jnp.zeros(2), 1, "hard", temperature)


def test_gate_must_exist():
    with pytest.raises(ConfigError, match=r"Unknown gate 'smoth'. Did you mean 'smooth'"):
        ALRNN(jnp.ones(2), jnp.eye(2), jnp.zeros(2), 1, "smoth")


def central(function, z, h=1e-6):
    return (function(z + h) - function(z - h)) / (2 * h)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_smooth_gate(temperature, x64):
    z = jnp.asarray(POINTS)
    expected = POINTS / (1.0 + np.exp(-1.7 * POINTS / temperature))
    np.testing.assert_allclose(_gate_value(z, "smooth", temperature), expected, rtol=1e-14)
    slope = central(lambda z: _gate_value(z, "smooth", temperature), z)
    np.testing.assert_allclose(_gate_slope(z, "smooth", temperature), slope, atol=1e-8)
    curvature = central(lambda z: _gate_slope(z, "smooth", temperature), z)
    np.testing.assert_allclose(_gate_curvature(z, "smooth", temperature), curvature, atol=1e-8)


def test_straight_through_is_hard_in_value_and_smooth_in_all_derivatives(x64):
    z = jnp.asarray(POINTS)
    np.testing.assert_allclose(_gate_value(z, "straight_through", 1.0), np.maximum(POINTS, 0.0), atol=1e-15)
    for function in (_gate_slope, _gate_curvature):
        np.testing.assert_array_equal(function(z, "straight_through", 1.0), function(z, "smooth", 1.0))


def test_hard_gate(x64):
    z = jnp.asarray(POINTS)
    np.testing.assert_array_equal(_gate_value(z, "hard", 1.0), np.maximum(POINTS, 0.0))
    np.testing.assert_array_equal(_gate_slope(z, "hard", 1.0), POINTS > 0)
    np.testing.assert_array_equal(_gate_curvature(z, "hard", 1.0), np.zeros_like(POINTS))


@pytest.mark.parametrize("mode", ["straight_through", "smooth", "hard"])
def test_autodiff_sees_the_slope_and_the_curvature(mode, x64):
    z = jnp.asarray(np.append(POINTS, 0.0))  # also at the kink, where a missing first row puts the state

    def each(function):
        return jax.vmap(jax.grad(lambda z: function(z, mode, 1.0)))(z)

    np.testing.assert_allclose(each(_gate_value), _gate_slope(z, mode, 1.0), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(each(_gate_slope), _gate_curvature(z, mode, 1.0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", ["straight_through", "smooth", "hard"])
def test_finite_far_away_in_float32(mode):
    z = jnp.asarray([-1e30, -1e3, 1e3, 1e30], jnp.float32)
    np.testing.assert_allclose(_gate_value(z, mode, 1.0), [0.0, 0.0, 1e3, 1e30], rtol=1e-6)
    np.testing.assert_array_equal(_gate_slope(z, mode, 1.0), [0.0, 0.0, 1.0, 1.0])
    np.testing.assert_array_equal(_gate_curvature(z, mode, 1.0), np.zeros(4))


@pytest.mark.parametrize("correlation", [-0.5, 0.2, 0.5])
@pytest.mark.parametrize("means", [(0.0, 0.0), (1.0, -0.5), (2.0, 0.7)])
def test_moments_of_rectified_gaussians(means, correlation, x64):
    """Against quadrature of the joint density; a kink is integrated to about 1e-4 by 2000 points in each direction."""
    m, s = np.array(means), np.array([0.8, 1.5])
    P = np.array([[s[0] ** 2, correlation * s.prod()], [correlation * s.prod(), s[1] ** 2]])
    u = np.linspace(-8.0, 8.0, 2001)
    weight = np.exp(-(u**2) / 2)
    weight = np.outer(weight, weight) / np.outer(weight, weight).sum()
    first = m[0] + s[0] * u[:, None] + 0.0 * u
    second = m[1] + s[1] * (correlation * u[:, None] + np.sqrt(1 - correlation**2) * u)
    g = np.stack([np.maximum(first, 0.0), np.maximum(second, 0.0)])
    expected_mean = np.einsum("kij,ij->k", g, weight)
    away = g - expected_mean[:, None, None]
    expected = np.einsum("kij,lij,ij->kl", away, away, weight)
    mean, slopes, covariance = (
        np.asarray(a[0]) for a in _rectified_moments(jnp.asarray(m)[None], jnp.asarray(P)[None])
    )
    np.testing.assert_allclose(mean, expected_mean, atol=1e-4)
    np.testing.assert_allclose(
        slopes, [(first > 0)[:, 0] @ weight.sum(axis=1), (weight * (second > 0)).sum()], atol=5e-3
    )
    np.testing.assert_allclose(np.diag(covariance), np.diag(expected), atol=3e-4)
    assert abs(covariance[0, 1] - expected[0, 1]) < 2e-3 * np.sqrt(expected[0, 0] * expected[1, 1])


@pytest.mark.parametrize("mean", [-3.0, 0.5, 30.0])
def test_rectified_variances_of_nearly_certain_states_survive_single_precision(mean):
    """Far from the kink the variance is that of z or 0, however small beside the mean."""
    moments = _rectified_moments(jnp.full((1, 1), mean, jnp.float32), jnp.full((1, 1, 1), 1e-10, jnp.float32))
    np.testing.assert_allclose(moments[2], 1e-10 * (mean > 0), rtol=1e-5, atol=1e-20)
