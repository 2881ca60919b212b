"""Optimisers: the learning rate decays as promised, gradients are clipped, the same settings are the same object."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from kaffee.errors import ConfigError
from kaffee.training.optimiser import Optimiser


@pytest.fixture(autouse=True)
def standard_promotion():
    """Optax multiplies integer counts by floats, as the training loop allows it to."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def steps(optimiser, gradients, num_updates):
    """The moves that an optimiser makes of a list of gradients."""
    transformation, parameters = optimiser.build(num_updates), jnp.zeros(len(gradients[0]))
    state, moves = transformation.init(parameters), []
    for gradient in gradients:
        move, state = transformation.update(jnp.asarray(gradient, jnp.float32), state, parameters)
        moves.append(np.asarray(move))
    return np.array(moves)


def test_the_learning_rate_decays_exponentially_to_its_final_value():
    optimiser = Optimiser("sgd", learning_rate=1e-1, final_learning_rate=1e-3)
    moves = steps(optimiser, [[1.0]] * 11, num_updates=10)[:, 0]
    np.testing.assert_allclose(-moves, 0.1 * 0.01 ** (np.arange(11) / 10), rtol=1e-5)


def test_without_a_final_rate_it_is_constant():
    moves = steps(Optimiser("sgd", learning_rate=0.5), [[2.0]] * 3, num_updates=3)
    np.testing.assert_array_equal(moves, [[-1.0]] * 3)


def test_the_global_norm_is_clipped_and_the_direction_kept():
    optimiser = Optimiser("sgd", learning_rate=1.0, clip_norm=2.0)
    moves = steps(optimiser, [[30.0, -40.0], [0.3, 0.4]], num_updates=2)
    np.testing.assert_allclose(moves, [[-1.2, 1.6], [-0.3, -0.4]], rtol=1e-6)


@pytest.mark.parametrize("name", ["adam", "radam"])
def test_the_algorithms_are_those_of_optax(name):
    gradients = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    reference = getattr(optax, name)(5e-3)
    state, parameters = reference.init(jnp.zeros(3)), jnp.zeros(3)
    for gradient, move in zip(gradients, steps(Optimiser(name), gradients, 4), strict=True):
        expected, state = reference.update(jnp.asarray(gradient), state, parameters)
        np.testing.assert_array_equal(move, expected)


def test_equal_settings_build_the_same_object_so_that_nothing_compiles_twice():
    assert Optimiser("adam", 0.1).build(10) is Optimiser("adam", 0.1).build(10)
    assert Optimiser("adam", 0.1).build(10) is not Optimiser("adam", 0.2).build(10)


def test_no_updates_are_no_division_by_zero():
    assert Optimiser(final_learning_rate=1e-5).build(0).init(jnp.zeros(1)) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "adamm"}, "Unknown optimiser 'adamm'. Did you mean 'adam'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, not nan"),
        ({"learning_rate": float("inf")}, "learning_rate must be positive and finite, not inf"),
        ({"final_learning_rate": -1e-5}, "final_learning_rate must be positive"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
    ],
)
def test_absurd_optimisers_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Optimiser(**options)
