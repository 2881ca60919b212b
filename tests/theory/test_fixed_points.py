"""Fixed points and cycles: planted ones are found exactly, known maps give their known ones."""

import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.model.alrnn import ALRNN
from kaffee.model.maps import Linear
from kaffee.model.wrappers import Confined, as_core
from kaffee.theory.fixed_points import Cycle, _Regions, find_cycles, solve_cycle

M, P = 6, 3


def relu(z, gates):
    return np.concatenate([z[..., : z.shape[-1] - gates], np.maximum(z[..., z.shape[-1] - gates :], 0.0)], axis=-1)


def planted(orbit, gates=P, seed=0, scale=0.3):
    """An AL-RNN that maps each state of `orbit` to the next one, and the last to the first."""
    k, dim = orbit.shape
    rng = np.random.default_rng(seed)
    A, W, h = scale * rng.standard_normal(dim), scale * rng.standard_normal((dim, dim)), rng.standard_normal(dim)
    inputs = np.concatenate([relu(orbit, gates), np.ones((k, 1))], axis=1)
    miss = np.roll(orbit, -1, axis=0) - A * orbit - inputs @ np.column_stack([W, h]).T
    change = np.linalg.lstsq(inputs, miss, rcond=None)[0].T
    return ALRNN(jnp.asarray(A), jnp.asarray(W + change[:, :dim]), jnp.asarray(h + change[:, dim]), gates)


def states(order, seed=1, dim=M):
    return 2.0 * np.random.default_rng(seed).standard_normal((order, dim))


def nearest(cycles, orbit):
    """The smallest distance of a cycle to the planted one, whichever state is its first."""
    return min(
        np.abs(np.roll(cycle.states, i, axis=0) - orbit).max() for cycle in cycles for i in range(len(cycle.states))
    )


@pytest.mark.parametrize("max_gates", [14, 0])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_planted_cycles_are_found_exactly_by_all_regions_and_by_the_search(x64, order, max_gates):
    orbit = states(order)
    core = planted(orbit)
    found = find_cycles(core, states(20, seed=2), order=order, max_gates=max_gates)
    assert (found.method, found.complete) == ("regions", order * P <= max_gates)
    assert nearest(found.cycles, orbit) < 1e-10
    cycle = min(found.cycles, key=lambda each: nearest([each], orbit))
    product = np.eye(M)
    for z in cycle.states:
        product = np.asarray(core.jacobian(jnp.asarray(z))) @ product
    expected = np.linalg.eigvals(product)
    assert np.abs(cycle.eigenvalues) == pytest.approx(np.sort(np.abs(expected))[::-1], abs=1e-9)
    assert cycle.residual < 1e-12


@pytest.mark.parametrize("order", [1, 2])
def test_planted_cycles_of_a_core_with_many_gates_are_found_by_the_search(x64, order):
    orbit = states(order, dim=24)
    core = planted(orbit, gates=20, scale=0.15)
    found = find_cycles(core, states(50, seed=2, dim=24), order=order)
    assert not found.complete
    assert nearest(found.cycles, orbit) < 1e-10


def test_all_fixed_points_are_found_and_no_virtual_one(x64):
    # One gate: z' = 0.5 z + 2.5 max(z, 0) - 1 rests at 1/2, where its slope is 3, and at -2, where it is 1/2.
    core = ALRNN(jnp.array([0.5]), jnp.array([[2.5]]), jnp.array([-1.0]), num_gates=1)
    found = find_cycles(core, np.zeros((1, 1)))
    assert [(float(c.states[0, 0]), c.stability) for c in found.cycles] == [(-2.0, "stable"), (0.5, "unstable")]
    # Both regions have the solution -1, which lies in one of them.
    none = ALRNN(jnp.array([2.0]), jnp.array([[0.0]]), jnp.array([1.0]), num_gates=1)
    assert [float(c.states[0, 0]) for c in find_cycles(none, np.zeros((1, 1))).cycles] == [-1.0]


def test_the_tent_map_has_the_cycles_that_combinatorics_count(x64):
    # z' = 2 z - 4 max(z - 1/2, 0) with the kink at 0: y = z - 1/2, y' = 2 y - 4 max(y, 0) + 1/2.
    core = ALRNN(jnp.array([2.0]), jnp.array([[-4.0]]), jnp.array([0.5]), num_gates=1)
    counts = [len(find_cycles(core, np.zeros((1, 1)), order=k).cycles) for k in range(1, 7)]
    assert counts == [2, 1, 2, 3, 6, 9]


def test_a_fixed_point_on_a_border_is_found_once(x64):
    orbit = states(1)
    orbit[0, -1] = 0.0
    found = find_cycles(planted(orbit), states(3))
    assert nearest(found.cycles, orbit) < 1e-10
    assert sum(np.abs(cycle.states - orbit).max() < 1e-6 for cycle in found.cycles) == 1


def test_a_singular_region_is_passed_over(x64):
    # Closed gate: z' = z + 1 has no fixed point, and the matrix is singular.
    core = ALRNN(jnp.array([1.0]), jnp.array([[-1.0]]), jnp.array([1.0]), num_gates=1)
    assert [float(c.states[0, 0]) for c in find_cycles(core, np.zeros((1, 1))).cycles] == [1.0]


def test_points_outside_the_box_of_a_confined_core_are_marked(x64):
    orbit = states(1)
    inside = Confined(planted(orbit), jnp.full(M, -10.0), jnp.full(M, 10.0))
    outside = Confined(planted(orbit), jnp.full(M, -0.1), jnp.full(M, 0.1))
    for core, expected in ((inside, True), (outside, False)):
        found = [c for c in find_cycles(core, states(3)).cycles if np.abs(c.states - orbit).max() < 1e-10]
        assert [cycle.inside for cycle in found] == [expected]


def test_a_straight_through_gate_is_taken_as_it_runs_and_a_smooth_one_by_newton(x64):
    orbit = states(1)
    core = planted(orbit)
    assert find_cycles(core.with_gate("straight_through"), states(3)).method == "regions"
    smooth = find_cycles(core.with_gate("smooth"), np.concatenate([orbit, states(20)]))
    assert smooth.method == "newton"
    assert smooth.cycles
    for cycle in smooth.cycles:
        assert cycle.residual < 1e-9


def henon(z):
    return jnp.stack([1.0 - 1.4 * z[0] ** 2 + z[1], 0.3 * z[0]])


def test_newton_finds_the_fixed_points_and_cycles_of_the_henon_map(x64):
    core, starts = as_core(henon, 2), 1.5 * np.random.default_rng(0).standard_normal((60, 2))
    roots = np.roots([1.4, 0.7, -1.0])
    found = find_cycles(core, starts)
    assert not found.complete
    assert sorted(c.states[0, 0] for c in found.cycles) == pytest.approx(sorted(roots), abs=1e-12)
    for cycle in found.cycles:
        x = cycle.states[0, 0]
        expected = np.linalg.eigvals([[-2.8 * x, 1.0], [0.3, 0.0]])
        assert np.sort(cycle.eigenvalues.real) == pytest.approx(np.sort(expected), abs=1e-12)
        assert (cycle.stability, cycle.num_unstable) == ("saddle", 1)
    # The 2-cycle: x^2 - (1 - b) x / a + ((1 - b)^2 - a) / a^2 = 0.
    two = find_cycles(core, starts, order=2).cycles
    assert len(two) == 1
    expected = np.roots([1.0, -0.7 / 1.4, (0.49 - 1.4) / 1.96])
    assert np.sort(two[0].states[:, 0]) == pytest.approx(np.sort(expected), abs=1e-10)
    assert find_cycles(core, starts, order=3).cycles == []


def test_a_linear_core_rests_where_algebra_says(x64):
    A, b = np.array([[0.5, 0.2], [-0.3, 0.8]]), np.array([1.0, 2.0])
    core = as_core(lambda z: jnp.asarray(A) @ z + jnp.asarray(b), 2)
    (cycle,) = find_cycles(core, np.zeros((2, 2))).cycles
    assert cycle.states[0] == pytest.approx(np.linalg.solve(np.eye(2) - A, b), abs=1e-12)
    assert cycle.stability == "stable"


def test_a_single_precision_core_is_solved_in_double_precision():
    orbit = states(1).astype(np.float32)
    rng = np.random.default_rng(0)
    A, W = (jnp.asarray(0.3 * rng.standard_normal(shape), jnp.float32) for shape in (M, (M, M)))
    core = ALRNN(A, W, jnp.asarray(orbit[0] - A * orbit[0] - W @ relu(orbit[0], P), jnp.float32), P)
    (cycle,) = [c for c in find_cycles(core, orbit).cycles if np.abs(c.states - orbit).max() < 1e-4]
    assert cycle.states.dtype == np.float64
    assert cycle.residual < 1e-12


def test_a_cycle_near_an_orbit_is_solved_for_whatever_its_order(x64):
    orbit = states(6)
    core = planted(orbit)
    cycle = solve_cycle(core, orbit + 1e-5)
    assert isinstance(cycle, Cycle)
    assert nearest([cycle], orbit) < 1e-10
    assert solve_cycle(core, np.concatenate([orbit, orbit])) is None  # twice around is not another cycle
    assert solve_cycle(core, states(5, seed=9)) is None
    two = np.roots([1.0, -0.7 / 1.4, (0.49 - 1.4) / 1.96])
    near = np.array([[two[0], 0.3 * two[1]], [two[1], 0.3 * two[0]]]) + 1e-4
    assert solve_cycle(as_core(henon, 2), near).residual < 1e-12


def test_many_states_are_solved_by_products(x64, monkeypatch):
    orbit = states(3)
    regions = _Regions.of(planted(orbit))
    together = regions.refine(orbit)
    monkeypatch.setattr("kaffee.theory.fixed_points._REFINED", 1)
    assert regions.refine(orbit) == pytest.approx(together, abs=1e-9)


def test_wrong_calls_say_what_to_do(x64):
    core = planted(states(1))
    with pytest.raises(ConfigError, match="at least 1; got 0"):
        find_cycles(core, states(1), order=0)
    with pytest.raises(ConfigError, match="rows of 6 latent"):
        find_cycles(core, np.zeros((2, 4)))
    assert _Regions.of(Linear(jnp.eye(2), jnp.zeros(2))) is None
