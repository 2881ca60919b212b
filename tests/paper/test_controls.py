"""The non-chaotic controls: cells, measures against known answers, the recipe and its figures."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.errors import ConfigError, KaffeeError
from kaffee.filtering.rollout import free_run
from kaffee.model.maps import Linear, Polynomial
from kaffee.paper import measurements as bench_controls
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.controls import (
    SpiralSettings,
    VanDerPolSettings,
    _covariance_gain,
    _jacobian_eigenvalues,
    _LimitCycle,
    _measure_cycle,
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
    _summarise_spirals,
    control_drawings,
)
from kaffee.paper.measurements import _measure_control, spiral_noise
from kaffee.paper.objectives import Budget, fit_control, get_objective, true_model
from kaffee.paper.objectives import _DataUnits as DataUnits
from kaffee.paper.recipe import load_recipe
from kaffee.paper.summary import summarise
from kaffee.systems.simulation import simulate

BUDGET = Budget(num_updates=20, scored_per_update=64, scored=8, burn_in=4, report_every=10)
SPIRAL = SpiralSettings(num_steps=200, burn_in=50, shown_steps=10, budget=BUDGET)
VAN_DER_POL = VanDerPolSettings(num_steps=400, measured_steps=600, shown_steps=20, cloud_size=30, budget=BUDGET)


# --- cells: functions of their arguments; objectives differ in nothing but the objective ---


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
    first, second = (fit_control(core, data, get_objective(n), untrained, seed=0)[0].model for n in COMPARED)
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


# --- cycles, covariance maps and summaries against known answers ---


DT = 0.05


@pytest.mark.parametrize(("amplitude", "period", "offset"), [(2.0, 7.2, 0.0), (0.3, 3.3, -5.0)])
def test_cycle_of_a_sine(amplitude, period, offset):
    t = DT * np.arange(3000)
    cycle = _measure_cycle(offset + amplitude * np.sin(2 * np.pi * t / period + 0.4), DT)
    # A peak is missed by at most half a step, a crossing by the curvature of the sine.
    assert cycle.amplitude == pytest.approx(amplitude, rel=(np.pi * DT / period) ** 2)
    assert cycle.period == pytest.approx(period, rel=1e-4)
    assert not cycle.at_rest


def test_cycle_of_what_does_not_oscillate():
    rest = _measure_cycle(1.5 + 1e-6 * np.random.default_rng(0).standard_normal(500), DT)
    assert rest.at_rest
    assert np.isnan(rest.period)
    assert np.isnan(_measure_cycle(np.arange(500.0), DT).period)
    assert np.isnan(_measure_cycle(np.array([0.0, np.inf]), DT).amplitude)


def test_returning_needs_amplitude_and_period():
    cycles = [(2.09, 6.7), (2.11, 7.0), (2.0, 7.4), (0.0, float("nan"))]
    returns = [_LimitCycle(*cycle).returns_to(_LimitCycle(2.0, 7.0)) for cycle in cycles]
    assert returns == [True, False, False, False]


def test_covariance_gain_of_a_linear_map():
    A = np.array([[0.9, -0.4], [0.1, 0.7]])
    core = Linear(jnp.asarray(A, jnp.float32), jnp.ones(2))
    starts = np.random.default_rng(0).standard_normal((4, 2))
    for horizon in (1, 20):
        power = np.linalg.matrix_power(A, horizon)
        expected = np.trace(power @ power.T) / 2
        np.testing.assert_allclose(_covariance_gain(core, starts, horizon), expected, rtol=1e-5)


def test_covariance_gain_follows_the_core_itself():
    """Two steps of a nonlinear map: the second Jacobian is that of the state after the first step."""
    core = Polynomial(0.5 * jnp.eye(2), 0.1 * jnp.ones((2, 7)), jnp.zeros(2))
    z = jnp.array([0.3, -0.8])
    product = np.asarray(core.jacobian(core(z))) @ np.asarray(core.jacobian(z))
    gain = _covariance_gain(core, np.asarray(z)[None], 2)
    np.testing.assert_allclose(gain, (product**2).sum() / 2, rtol=1e-5)


def test_eigenvalues_do_not_depend_on_units():
    inner = Linear(jnp.array([[0.9, -0.3], [0.3, 0.9]]), jnp.array([0.1, 0.2]))
    core = DataUnits(inner, jnp.array([5.0, -1.0]), jnp.array([2.0, 0.1]))
    found = _jacobian_eigenvalues(core, np.zeros((3, 2)))
    np.testing.assert_allclose(np.sort_complex(found[1]), [0.9 - 0.3j, 0.9 + 0.3j], rtol=1e-5)
    z = jnp.array([3.0, -0.9])
    u = jnp.array([-1.0, 1.0])
    np.testing.assert_allclose(core(z), jnp.array([5.0, -1.0]) + jnp.array([2.0, 0.1]) * inner(u), rtol=1e-5)


def test_summaries_are_means_over_all_seeds_with_confidence_intervals():
    values = np.arange(10.0)
    kaffee = {"objective": "kaffee", "noise": 0.5}
    cells = [{**kaffee, "seed": s, "spectral_radius": 0.9 + s, "radius_error": s} for s in values]
    mean, half = (frame.loc[("kaffee", 0.5)] for frame in _summarise_spirals(cells))
    assert mean["spectral_radius"] == pytest.approx(5.4)
    assert mean["radius_error"] == 4.5
    assert half["radius_error"] == pytest.approx(2.2621572 * values.std(ddof=1) / np.sqrt(10), rel=1e-6)
    assert np.isnan(_summarise_spirals(cells[:1])[1]).all(axis=None)


# --- cells of the recipe ---


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path, load_recipe("controls"))


@pytest.fixture
def asked(monkeypatch):
    """The arguments with which fits are asked for, none of which is done."""
    calls = []

    def fit(*arguments, **options):
        calls.append((*arguments, options))
        return {"spectral_radius": 0.5, "skipped": 0, "completed": True, "final_loss": 1.0}

    monkeypatch.setattr(bench_controls, "spiral_cell", fit)
    monkeypatch.setattr(bench_controls, "van_der_pol_cell", fit)
    return calls


def test_the_recipe_is_the_experiment(store):
    assert len(store.cells()) == 4 * 7 * 10
    noises = tuple(noise for name in store.recipe.systems if (noise := spiral_noise(name)) is not None)
    assert noises == SpiralSettings().noises
    assert store.recipe.settings.spiral == SpiralSettings()
    assert store.recipe.settings.van_der_pol == VanDerPolSettings()


def test_a_cell_asks_for_its_fit_and_keeps_curves_once(store, asked):
    for system, seed in (("spiral_0.5", 0), ("spiral_0.5", 1), ("spiral_2", 0), ("van_der_pol", 0), ("van_der_pol", 3)):
        metrics, training, *_ = _measure_control(store, Cell("noisy_state_5", seed, system))
        assert metrics == {"spectral_radius": 0.5}
        assert training == {"skipped": 0, "completed": True, "final_loss": 1.0}
    spiral, cycle = store.recipe.settings.spiral, store.recipe.settings.van_der_pol
    assert asked == [
        ("noisy_state_5", 0.5, 0, spiral, {"curves": True}),
        ("noisy_state_5", 0.5, 1, spiral, {"curves": False}),
        ("noisy_state_5", 2.0, 0, spiral, {"curves": False}),
        ("noisy_state_5", 0, cycle, {"curves": True}),
        ("noisy_state_5", 3, cycle, {"curves": False}),
    ]


def test_other_experiments_do_not_exist(store):
    with pytest.raises(ConfigError, match=r"no control 'duffing'; there are van_der_pol and spiral_<noise>"):
        _measure_control(store, Cell("kaffee", 0, "duffing"))


def test_other_settings_make_other_cells(store):
    smoke = ResultStore(store.root, load_recipe("controls", "smoke"))
    cell = Cell("kaffee", 0, "spiral_0.5")
    store.write(cell, {"error": None})
    smoke.cell_folder(cell).parent.mkdir(parents=True)
    store.cell_folder(cell).rename(smoke.cell_folder(cell))
    assert not smoke.is_done(cell)


def test_returns_are_counted(store):
    for seed, returns in enumerate((True, False, True)):
        store.write(Cell("kaffee", seed, "van_der_pol"), {"error": None, "returns": returns, "at_rest": False})
    found = summarise(store, ("returns", "at_rest"), "van_der_pol")["kaffee"]
    assert (found["returns"].count, found["returns"].n, found["returns"].diverged) == (2, 3, 0)
    assert found["at_rest"].count == 0


def test_figures_need_cells(store):
    drawings = control_drawings(store)
    assert list(drawings) == ["nochaos_exp1_main", "nochaos_exp1_sweep", "nochaos_exp2_rollout", "nochaos_exp2_var20"]
    with pytest.raises(KaffeeError, match=r"no finished cells of spiral_0\.5"):
        drawings["nochaos_exp1_main"]()
