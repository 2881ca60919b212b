"""One cell is a function of its arguments, and objectives differ in nothing but the objective."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.filtering.rollout import free_run
from kaffee.model.maps import Linear
from kaffee.paper.controls import (
    _spiral_data,
    _true_radius,
    attenuated_radius,
    spiral_cell,
    spiral_truth,
    van_der_pol_cell,
    van_der_pol_truth,
)
from kaffee.paper.figures.control_panels import (
    _draw_cycle,
    _draw_gains,
    _draw_spiral,
    _draw_sweep,
)
from kaffee.paper.objectives import fit_control, get_objective, true_model
from kaffee.systems.simulation import simulate

from .small_controls import SPIRAL, VAN_DER_POL

COMPARED = ("kaffee", "noisy_state_1")


@pytest.fixture(scope="module")
def spiral():
    return {name: spiral_cell(name, 0.5, 0, SPIRAL, curves=True) for name in COMPARED}


@pytest.fixture(scope="module")
def van_der_pol():
    """Trained by one objective only, under both names: the other takes ten seconds to compile."""
    cell = van_der_pol_cell("noisy_state_1", 0, VAN_DER_POL, curves=True)
    return {name: {**cell, "objective": name} for name in COMPARED}


def test_same_seed_same_result(spiral):
    again = spiral_cell("kaffee", 0.5, 0, SPIRAL, curves=True)
    assert json.dumps(again) == json.dumps(spiral["kaffee"])
    other = spiral_cell("kaffee", 0.5, 1, SPIRAL)
    assert other["spectral_radius"] != again["spectral_radius"]


def test_objectives_start_from_the_same_model():
    data, core = _spiral_data(0.5, 0, SPIRAL), Linear.create(2, key=jax.random.key(0))
    untrained = replace(SPIRAL.budget, num_updates=0)
    first, second = (fit_control(core, data, get_objective(n), untrained, seed=0).trained.model for n in COMPARED)
    assert eqx.tree_equal(first, second)


def test_cells_are_json_of_the_promised_length(spiral, van_der_pol):
    for cell in (*spiral.values(), *van_der_pol.values()):
        assert json.loads(json.dumps(cell, allow_nan=False)) == cell
        assert cell["curves"]["updates"] == [10, 20]
        assert len(cell["curves"]["losses"]) == 2
    assert len(spiral["kaffee"]["curves"]["core"]) == SPIRAL.shown_steps
    assert len(van_der_pol["kaffee"]["curves"]["gains"]["20"]) == VAN_DER_POL.cloud_size
    assert "curves" not in spiral_cell("noisy_state_1", 0.5, 0, SPIRAL)


def test_the_truth_is_the_simulated_system():
    data = _spiral_data(0.5, 0, SPIRAL)
    run = free_run(true_model(data), jnp.array([[1.0, 0.0]]), 20)
    expected = simulate(data.system, 21, initial_state=(1.0, 0.0)).states[1:]
    np.testing.assert_allclose(run.states[0], expected, atol=1e-5)
    residual = data.states[1:] - np.asarray(data.states[:-1]) @ np.asarray(data.system.jacobian(jnp.zeros(2))).T
    std = np.sqrt(np.asarray(true_model(data).shell.process_variance()))
    np.testing.assert_allclose(residual.std(axis=0), std, rtol=3 / np.sqrt(2 * len(residual)))
    with pytest.raises(ConfigError, match="no process noise"):
        true_model(simulate(data.system, 10))


def test_true_numbers():
    assert _true_radius() == pytest.approx(np.exp(-0.02), rel=1e-5)
    assert attenuated_radius(2.0) == pytest.approx(np.exp(-0.02) / 5, rel=1e-5)
    truth = van_der_pol_truth(VAN_DER_POL)
    # Van der Pol's cycle has amplitude close to 2 for every mu; its period at mu = 1.6 by a fine integration.
    assert truth["amplitude"] == pytest.approx(2.0, rel=0.01)
    assert truth["period"] == pytest.approx(7.197, rel=0.01)


def test_figures_are_labelled_and_draw_the_cells(spiral, van_der_pol):
    truth, orbit = spiral_truth(SPIRAL), van_der_pol_truth(VAN_DER_POL)
    sweep = [{**spiral[name], "noise": noise, "seed": s} for name in COMPARED for noise in (0.1, 0.5) for s in (0, 1)]
    figures = {
        "main": (_draw_spiral(truth, spiral, SPIRAL.start), 5),
        "sweep": (_draw_sweep(truth, sweep), 2),
        "rollout": (_draw_cycle(orbit, van_der_pol, VAN_DER_POL.start), 4),
        "maps": (_draw_gains(orbit, van_der_pol), 8),
    }
    for figure, num_axes in figures.values():
        figure.canvas.draw()
        assert len(figure.axes) == num_axes
        assert all(axis.get_ylabel() or axis.get_xlabel() or axis.get_title("left") for axis in figure.axes)
    radii = figures["main"][0].axes[1].lines[0].get_ydata()
    np.testing.assert_array_equal(radii, spiral["noisy_state_1"]["curves"]["radii"])
    core = figures["rollout"][0].axes[2].lines[2].get_xydata()
    np.testing.assert_array_equal(core, [VAN_DER_POL.start, *van_der_pol["kaffee"]["curves"]["core"]])


def test_figures_say_what_is_missing(spiral):
    with pytest.raises(ConfigError, match=r"needs the cell of 'kaffee' with its curves"):
        _draw_spiral(spiral_truth(SPIRAL), {"noisy_state_1": spiral["noisy_state_1"]}, SPIRAL.start)
