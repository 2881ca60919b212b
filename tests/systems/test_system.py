"""Systems: flows and Jacobians against oracles, user functions, errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from kaffee.errors import ConfigError
from kaffee.systems.catalogue import get_system, system_names
from kaffee.systems.system import System, rk4_step


def rotor(z):
    return jnp.stack([z[1], -z[0]])


@pytest.mark.parametrize("name", system_names())
def test_jacobian_is_finite_difference_of_flow(name, x64):
    system = get_system(name)
    h = 1e-5

    @jax.jit
    def both(z):
        steps = h * jnp.concatenate([jnp.eye(system.dim), -jnp.eye(system.dim)])
        forward, backward = jnp.split(jax.vmap(system)(z + steps), 2)
        return system.jacobian(z), (forward - backward).T / (2 * h)

    J, differences = both(jnp.array(system.initial_state))
    np.testing.assert_allclose(J, differences, rtol=0, atol=1e-6 * np.abs(J).max())


def test_rk4_has_order_four(x64):
    # halving the step divides the global error by 2^4
    A = jnp.array([[-0.3, -2.0], [1.5, -0.1]])
    exact = scipy.linalg.expm(np.asarray(A)) @ np.array([1.0, 0.5])

    def error(steps):
        z = jnp.array([1.0, 0.5])
        for _ in range(steps):
            z = rk4_step(lambda z: A @ z, z, 1 / steps)
        return np.linalg.norm(z - exact)

    order = np.log2(error(16) / error(32))
    assert order == pytest.approx(4, abs=0.1)


def test_user_function_becomes_a_system():
    system = System(rotor, initial_state=[1.0, 0.0], dt=0.1)
    assert (system.name, system.title, system.dim, system.burn_in) == ("rotor", "rotor", 2, 1000)
    z = jnp.array([1.0, 0.0])
    np.testing.assert_allclose(system(z), [np.cos(0.1), -np.sin(0.1)], atol=1e-6)
    assert jnp.array_equal(system(z), system.flow(z))
    assert System(lambda z: -z, [1.0], 0.1).name == "system"


def test_parameters_and_modules_as_vector_fields(x64):
    class Field(eqx.Module):
        rate: jax.Array

        def __call__(self, z, gain):
            return -gain * self.rate * z

    system = System(Field(jnp.array([1.0, 2.0])), [1.0, 1.0], 0.1, parameters={"gain": 2.0})
    assert system.name == "Field"
    np.testing.assert_allclose(system.vector_field(jnp.ones(2)), [-2.0, -4.0])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
@pytest.mark.parametrize("name", system_names())
def test_dtype_of_the_state_is_kept(name, dtype, x64):
    system = get_system(name)
    z = jnp.array(system.initial_state, dtype)
    for method in (system.vector_field, system.flow, system.jacobian):
        assert jax.eval_shape(method, z).dtype == dtype


def test_works_inside_jit_and_vmap():
    system = get_system("lorenz96", N=6)
    zs = jnp.arange(18.0).reshape(3, 6) / 10
    out = jax.jit(jax.vmap(system))(zs)
    np.testing.assert_allclose(out[1], system.flow(zs[1]), rtol=1e-5)
    assert jax.jit(jax.vmap(system.jacobian))(zs).shape == (3, 6, 6)
    np.testing.assert_allclose(jax.jit(system)(zs[1]), out[1], rtol=1e-5)
    np.testing.assert_allclose(eqx.filter_jit(system.flow)(zs[1]), out[1], rtol=1e-5)


def test_systems_are_values():
    system = get_system("lorenz63")
    assert system == get_system("lorenz63")
    assert hash(system) == hash(get_system("lorenz63"))
    assert system != get_system("lorenz63", rho=35)
    system.parameters["rho"] = 0.0  # a copy
    assert system.parameters["rho"] == 28.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dt": 0.0}, "dt = 0.0. The step must be a positive number"),
        ({"dt": float("nan")}, "must be a positive number"),
        ({"initial_state": [1.0, float("inf")]}, "not finite"),
        ({"initial_state": []}, "is empty"),
        ({"initial_state": 1.0}, "must be a vector of numbers"),
        ({"initial_state": [[1.0, 0.0]]}, "must be a vector of numbers"),
        ({"initial_state": [1.0, 0.0, 0.0]}, r"shape \(2,\) for a state of shape \(3,\)"),
        ({"function": lambda z: (z[1], -z[0])}, "returned a tuple"),
        ({"function": lambda z: z.sum()}, r"shape \(\)"),
        ({"burn_in": -1}, "integer >= 0"),
        ({"reference_scale": [1.0]}, "has 1 coordinates, the system has 2"),
        ({"reference_scale": [1.0, 0.0]}, "must be > 0"),
    ],
)
def test_errors_say_what_is_wrong(arguments, words):
    with pytest.raises(ConfigError, match=words):
        System(**{"function": rotor, "initial_state": [1.0, 0.0], "dt": 0.1} | arguments)
