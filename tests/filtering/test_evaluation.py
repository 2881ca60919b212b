"""The one evaluation of free runs, on a plane where every run is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.data.scaler import Scaler
from kaffee.filtering.evaluation import Target, evaluate_free_runs
from kaffee.metrics.attractors import measure_distances
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Climate, Shell, StateSpaceModel
from kaffee.model.wrappers import Confined

ANGLE = 0.3


def circle(num_steps, radius=1.0):
    angles = ANGLE * np.arange(num_steps)
    return radius * np.stack([np.sin(angles), np.cos(angles)], axis=1)


def spiral(growth):
    """Turns by ANGLE and grows by a factor in each step."""
    turn = growth * np.array([[np.cos(ANGLE), np.sin(ANGLE)], [-np.sin(ANGLE), np.cos(ANGLE)]])
    core = Linear(jnp.asarray(turn, jnp.float32), jnp.zeros(2, jnp.float32))
    return StateSpaceModel(core, Shell.from_std(np.full(2, 0.1), np.full(2, 0.1)), Projection(2, 2), jnp.eye(2))


def test_runs_start_at_observations_and_are_compared_in_the_units_of_the_target():
    scaler = Scaler([5.0, 5.0], [2.0, 2.0])
    rows = scaler.inverse(circle(300))
    runs = evaluate_free_runs(spiral(1.0), rows[[0, 10]], Target(rows), 300, transient=7, scaler=scaler)
    np.testing.assert_allclose(runs.observations[0], scaler.inverse(circle(308))[8:], atol=1e-3)
    assert runs.observations.shape == (2, 300, 2)
    assert runs.num_diverged == 0
    assert runs.distances == measure_distances(rows, runs.observations)
    assert runs.distances[0].estimator == "histogram"
    assert not runs.trapped.any()  # without an extent of the data nothing is


def test_a_key_turns_the_shell_on():
    def run(key):
        return evaluate_free_runs(spiral(0.9), circle(1), Target(circle(50)), 50, transient=0, key=key).observations

    assert np.std(run(None)[0, 30:]) < 0.05 < np.std(run(jax.random.key(0))[0, 30:])


def test_runs_that_diverge_are_counted_and_left_out():
    """The fixed point of an expanding map stays where it is."""
    starts = np.array([[0.0, 0.0], [1.0, 0.0]])
    runs = evaluate_free_runs(spiral(1.5), starts, Target(circle(50)), 20, transient=5)
    assert (runs.num_diverged, runs.diverged_at.tolist()) == (1, [0, int(np.ceil(np.log(1e3) / np.log(1.5)))])
    assert len(runs.observations) == len(runs.states) == len(runs.distances) == 1
    assert evaluate_free_runs(spiral(1.5), starts[1:], Target(circle(50)), 20, transient=5).distances == []


def test_a_run_at_rest_is_trapped():
    target = Target(circle(400), "kernel", spectra=False)
    target = target.with_extent([circle(400)], 200)
    trapped = [evaluate_free_runs(spiral(g), circle(1), target, 200, transient=500).trapped for g in (1.0, 0.9)]
    assert [each.tolist() for each in trapped] == [[False], [True]]


def test_a_run_that_is_sent_home_again_and_again_lives_at_the_wall():
    """It leaves every 23 steps; at a wall it would stay outside."""
    start, box = circle(1), (jnp.full(2, -1.25), jnp.full(2, 1.25))
    model = spiral(1.01).replace(core=Confined(spiral(1.01).core, *box))
    home = model.replace(climate=Climate.from_moments(np.zeros(2), np.eye(2), states=circle(200)))
    held, sent = (evaluate_free_runs(each, start, Target(circle(50)), 2000, transient=0) for each in (model, home))
    assert held.at_wall.all()
    assert held.clipped[0] > 0.3
    assert 0.03 < sent.clipped[0] < 0.07
    assert sent.at_wall.all()
    seldom = home.replace(core=Confined(spiral(1.001).core, *box))
    rare = evaluate_free_runs(seldom, start, Target(circle(50)), 2000, transient=0)
    assert 0 < rare.clipped[0] < 0.01
    assert not rare.at_wall.any()


def test_only_some_columns_and_steps_may_be_compared():
    rows = circle(300)
    target = Target(rows, columns=np.array([True, False]), length=250)
    (run,) = evaluate_free_runs(spiral(1.0), rows[:1], target, 300, transient=0).observations
    assert target.measure([run]) == measure_distances(rows[:, :1], [run[:250, :1]])


@pytest.mark.parametrize("growth", [0.9, 1.001])
def test_exponents_are_the_logarithms_of_growth(growth):
    runs = evaluate_free_runs(spiral(growth), circle(3), Target(circle(50)), 400, transient=0)
    spectra = runs.measure_exponents(5, dt=0.5, max_runs=2, max_steps=300)
    assert len(spectra) == 2
    for spectrum in spectra:
        np.testing.assert_allclose(spectrum.exponents, np.log(growth) / 0.5, atol=1e-4)
