"""The catalogue: vector fields at points worked out by hand, names, parameters."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.systems.catalogue import get_system, system_names
from kaffee.systems.simulation import simulate

BENCHMARK = [n for n in system_names() if get_system(n).lambda_1 is not None]

# f(1, 2, 3) with the paper's parameters, by hand
BY_HAND = {
    "aizawa": [2.3 - 7.0, 3.5 + 4.6, 0.6 + 2.85 - 9 - 5 * 1.75 + 0.3],
    "burke_shaw": [-30, -2 - 30, 20 + 4.272],
    "chen": [35, -7 - 3 + 56, 2 - 9],
    "chua": [15.6 * (2 - 1 + 0.714 + 0.429), 2, -56],
    "dadras": [2 - 3 + 16.2, 3.4 - 3 + 3, 4 - 27],
    "genesio_tesi": [2, 3, -1 - 2.2 - 1.32 + 1],
    "hadley": [-4 - 9 - 0.2 + 1.6, 2 - 12 - 2 + 1, 8 + 3 - 3],
    "halvorsen": [-1.89 - 8 - 12 - 4, -3.78 - 12 - 4 - 9, -5.67 - 4 - 8 - 1],
    "lorenz63": [10, 25 - 2, 2 - 8],
    "nose_hoover": [2, -1 + 6, 1.5 - 4],
    "qi_chen": [38 + 6, 80 + 2 - 3, 2 - 8],
    "rabinovich_fabrikant": [6 + 0.87, 9 + 1.74, -6 * 3.1],
    "sprott_b": [6, -1, -1],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_vector_field_by_hand(name, x64):
    f = jax.jit(get_system(name).vector_field)(jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(f, BY_HAND[name], rtol=1e-13)


def test_vector_fields_of_other_dimensions_by_hand(x64):
    # N = 5, z = 1..5: (z_{i+1} - z_{i-2}) z_{i-1} - z_i + 8
    z = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0])
    by_hand = [(2 - 4) * 5 + 7, (3 - 5) * 1 + 6, (4 - 1) * 2 + 5, (5 - 2) * 3 + 4, (1 - 3) * 4 + 3]
    np.testing.assert_allclose(get_system("lorenz96", N=5).vector_field(z), by_hand)
    np.testing.assert_allclose(get_system("van_der_pol").vector_field(z[1:3]), [3, 1.6 * -3 * 3 - 2])
    np.testing.assert_allclose(get_system("linear_spiral").vector_field(z[:2]), [-0.2 - 4.2, 2.1 - 0.4])


def test_linear_spiral_as_documented(x64):
    eigenvalue = np.linalg.eigvals(jax.jit(get_system("linear_spiral").jacobian)(jnp.zeros(2)))[0]
    assert abs(eigenvalue) == pytest.approx(0.98, abs=5e-4)
    assert 2 * math.pi / abs(np.angle(eigenvalue)) == pytest.approx(30, abs=0.1)


def test_catalogue_is_the_papers():
    assert len(BENCHMARK) == 13
    assert len(system_names()) == 16
    assert {n for n in BENCHMARK if get_system(n).dim == 3} == set(BY_HAND)
    lorenz96 = get_system("lorenz96")
    assert (lorenz96.dim, lorenz96.dt, lorenz96.parameters) == (20, 0.04, {"N": 20, "F": 8.0})


@pytest.mark.parametrize("name", [*BENCHMARK, "lorenz96", "van_der_pol"])
def test_stays_on_a_bounded_attractor(name):
    states = simulate(get_system(name), 10_000).states
    early, late = states[:5000].std(axis=0), states[5000:].std(axis=0)
    assert np.abs(states).max() < 200
    assert (late > 0.3 * early).all()  # neither comes to rest nor grows
    assert (early > 0.3 * late).all()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Lorenz-96", "lorenz96"),
        ("lorenz_63", "lorenz63"),
        ("VAN DER POL", "van_der_pol"),
        ("Sprott B", "sprott_b"),
        ("Burke--Shaw", "burke_shaw"),
    ],
)
def test_names_are_forgiving(given, name):
    assert get_system(given).name == name


def test_everything_can_be_replaced():
    system = get_system("lorenz63", rho=35, dt=0.01, burn_in=7, initial_state=[1, 2, 3])
    assert system.parameters == {"sigma": 10.0, "rho": 35.0, "beta": 8 / 3}
    assert (system.dt, system.burn_in, system.initial_state) == (0.01, 7, (1.0, 2.0, 3.0))
    assert system.lambda_1 is None  # the paper's value is for rho = 28
    assert get_system("lorenz63").parameters["rho"] == 28.0
    again = get_system("lorenz96", **get_system("lorenz96", N=7, F=5).parameters)
    assert (again.dim, again.parameters["F"]) == (7, 5.0)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("lorenz69", {}, "Unknown system 'lorenz69'. Did you mean 'lorenz96'. See: kaffee systems"),
        ("lorenz63", {"rh": 1.0}, "Unknown parameter of lorenz63 'rh'. Did you mean 'rho'"),
        ("sprott_b", {"a": 1.0}, "Unknown parameter of sprott_b 'a'. Allowed: dt, burn_in, initial_state"),
        ("lorenz63", {"rho": "high"}, "must be a number, not 'high'"),
        ("lorenz63", {"rho": math.inf}, "must be a finite number"),
        ("lorenz96", {"N": 3}, "must be an integer >= 4, not 3"),
        ("lorenz96", {"N": 5.5}, "must be an integer >= 4"),
        ("lorenz96", {"initial_state": [1.0] * 5}, "has 5 coordinates, the system has 20"),
    ],
)
def test_errors_say_what_is_allowed(name, arguments, words):
    with pytest.raises(ConfigError, match=words):
        get_system(name, **arguments)
