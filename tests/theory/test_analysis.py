"""The analysis as a whole: known maps and flows, data units, basins, refits, tables and the page."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

import kaffee
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.errors import ConfigError
from kaffee.metrics.lyapunov import LyapunovSpectrum
from kaffee.model.observation import Projection
from kaffee.model.statespace import Climate, Shell, StateSpaceModel
from kaffee.model.wrappers import Confined, as_core
from kaffee.report import portrait
from kaffee.systems.catalogue import get_system
from kaffee.theory.analysis import analyse, compare_analyses
from kaffee.theory.basins import DIVERGED, MOVING, OUTSIDE, _find_period, follow, label_ends, make_grid
from kaffee.theory.fixed_points import find_cycles


def around(core, dim, **more):
    """A state-space model all of whose coordinates are observed."""
    shell = Shell(jnp.full(dim, -2.0), jnp.full(dim, -2.0))
    return StateSpaceModel(as_core(core, dim), shell, Projection(dim, dim), jnp.eye(dim), **more)


def two_wells(z):
    """Rests at x = -1 and 1, which attract, and at 0; runs from |x| > sqrt(5) diverge."""
    return jnp.stack([1.5 * z[0] - 0.5 * z[0] ** 3, 0.5 * z[1]])


@pytest.fixture(scope="module")
def wells():
    return analyse(around(two_wells, 2), max_order=2, num_steps=1000, num_starts=40, grid=13)


def test_the_true_flow_of_lorenz_63_has_its_three_fixed_points_and_exponents(x64):
    system = get_system("lorenz63")
    found = analyse(replace_dt(around(system, 3), system.dt), max_order=1, num_steps=12_000, num_starts=30, grid=None)
    wing, top = np.sqrt(8 / 3 * 27), 27.0
    places = np.array([found.observe(cycle.states[0]) for cycle in found.fixed_points])
    expected = np.array([[0.0, 0.0, 0.0], [-wing, -wing, top], [wing, wing, top]])
    assert places == pytest.approx(expected, abs=1e-8)
    assert [cycle.num_unstable for cycle in found.fixed_points] == [1, 2, 2]
    # At 0 the flow grows by (-11 + sqrt(1201)) / 2; a Runge-Kutta step keeps that to its order.
    assert np.log(found.fixed_points[0].radius) / system.dt == pytest.approx((np.sqrt(1201) - 11) / 2, abs=0.01)
    spectrum = found.spectrum
    assert found.ends == {MOVING: 1.0}
    assert spectrum.maximal == pytest.approx(0.906, abs=4 * spectrum.standard_errors[0])
    assert spectrum.exponents.sum() == pytest.approx(-(10 + 1 + 8 / 3), abs=0.01)
    by_hand = 2 + (spectrum.exponents[0] + spectrum.exponents[1]) / abs(spectrum.exponents[2])
    assert spectrum.kaplan_yorke_dimension == pytest.approx(by_hand, abs=1e-12)
    assert by_hand == pytest.approx(2.06, abs=0.03)


def replace_dt(model, dt):
    return Reconstruction(model, Scaler.identity(model.num_observed), dt=dt)


def test_basins_are_those_of_the_map(wells):
    basins = wells.basins
    assert basins.names == ("fixed point 1", "fixed point 2", "fixed point 3", DIVERGED)
    for i, x in enumerate(basins.x):
        end = x
        for _ in range(200):
            end = np.clip(1.5 * end - 0.5 * end**3, -1e3, 1e3)
        places = {"fixed point 1": -1.0, "fixed point 2": 1.0, "fixed point 3": 0.0}  # the last is the border itself
        expected = DIVERGED if abs(end) > 10 else min(places, key=lambda name: abs(places[name] - end))
        assert {basins.names[label] for label in basins.labels[:, i]} == {expected}
    assert sum(basins.shares().values()) == pytest.approx(1.0)
    assert [cycle.stability for cycle in wells.fixed_points] == ["stable", "stable", "saddle"]
    assert sorted(float(cycle.states[0, 0].round(9)) for cycle in wells.fixed_points) == [-1.0, 0.0, 1.0]


def test_a_cycle_that_runs_reach_is_added_whatever_its_order():
    logistic = around(lambda z: 3.83 * z * (1.0 - z), 1)
    climate = Climate.from_moments([0.5], [[0.1]], states=np.linspace(0.05, 0.95, 12)[:, None])
    found = analyse(logistic.replace(climate=climate), max_order=1, num_steps=2000, num_starts=12)
    (cycle,) = [each for each in found.cycles if each.order > 1]
    assert cycle.order == 3
    assert cycle.stability == "stable"
    assert found.names[-1] == "3-cycle 1"
    assert found.ends == {"3-cycle 1": 1.0}
    assert found.basins is None  # one coordinate has no slice
    expected = np.log(np.abs(np.prod(3.83 * (1 - 2 * cycle.states)))) / 3
    assert found.spectrum.maximal == pytest.approx(expected, abs=1e-3)
    assert found.spectrum.kaplan_yorke_dimension == 0.0
    assert portrait.plot_portrait(found).layout.xaxis.title.text == "x1"
    assert "contracting" in portrait.describe_analysis(found)[2]


def test_points_are_given_in_data_units(wells):
    scaler = Scaler(np.array([10.0, -5.0]), np.array([2.0, 3.0]))
    model = Reconstruction(around(two_wells, 2), scaler, columns=("a", "b"), dt=0.5)
    found = analyse(model, max_order=1, num_steps=500, num_starts=20, plane=("b", "a"), grid=4)
    places = sorted(found.observe(cycle.states[0]).round(6).tolist() for cycle in found.fixed_points)
    assert places == [[8.0, -5.0], [10.0, -5.0], [12.0, -5.0]]
    assert found.basins.plane == ("b", "a")
    assert found.basins.x[[0, -1]].tolist() == [-14.0, 4.0]
    assert found.basins.y[[0, -1]].tolist() == [4.0, 16.0]
    # The largest eigenvalue where runs end is 1/2 in y, or 0 in x: per unit of time twice log(1/2).
    assert found.spectrum.maximal == pytest.approx(2 * np.log(0.5), abs=1e-6)


def test_a_run_at_the_wall_of_a_box_is_outside():
    growing = Confined(as_core(lambda z: 1.5 * z, 2), -jnp.ones(2), jnp.ones(2))
    ends = follow(growing, np.array([[0.5, 0.2], [0.0, 0.0]]), 200)
    found = find_cycles(growing, np.zeros((1, 2)))
    assert label_ends(ends, found.cycles, ["origin"]) == [OUTSIDE, "origin"]
    assert _find_period(ends.tails[1]) == 1
    assert label_ends(follow(growing.inner, np.ones((1, 2)), 200), [], []) == [DIVERGED]


def test_a_grid_covers_the_training_states():
    model = small_model()
    states = np.random.default_rng(0).standard_normal((50, 4))
    grid = make_grid(model.replace(climate=Climate.from_moments(np.zeros(4), np.eye(4), states=states)), (0, 1), 3)
    low, high = states[:, 0].min(), states[:, 0].max()
    assert grid.x[[0, -1]] == pytest.approx([low - 0.25 * (high - low), high + 0.25 * (high - low)], rel=1e-5)
    assert grid.states.shape == (9, 4)
    assert grid.states[5, :2] == pytest.approx([grid.x[2], grid.y[1]], rel=1e-5)


def test_refits_are_matched_by_place(wells):
    def shifted(by):
        return around(lambda z: two_wells(z - by) + by, 2)

    options = {"max_order": 1, "num_steps": 500, "num_starts": 20, "grid": None}
    several = analyse(shifted(0.0), refits=[shifted(0.1), shifted(-0.1)], **options)
    spread = compare_analyses([several, *several.refits])
    assert spread.num_fixed_points == (3, 3, 3)
    assert spread.num_stable == (2, 2, 2)
    assert [point.found for point in spread.points] == [3, 3, 3]
    assert sorted(point.mean[0].round(6) for point in spread.points) == [-1.0, 0.0, 1.0]
    for point in spread.points:
        assert point.std == pytest.approx([0.1, 0.1], abs=1e-6)
        assert len(set(point.unstable)) == 1
    # A point that is far from all others is one of its own.
    apart = compare_analyses([several, analyse(shifted(20.0), **options)])
    assert [point.found for point in apart.points] == [1] * len(apart.points)
    fits, points = portrait.tabulate_spread(spread, several.columns)
    assert [row[0] for row in fits.rows] == ["fit 1", "fit 2", "fit 3", "mean", "standard deviation"]
    assert [row[1] for row in points.rows] == ["3 of 3"] * 3
    page = portrait.build_portrait_page(several, "title", {}).to_html()
    assert "Fixed points over refits" in page
    record = several.to_record()
    assert len(record["refits"]) == 2
    assert record["spread"]["num_fixed_points"] == [3, 3, 3]
    other = replace(several.refits[0], columns=("p", "q"))
    with pytest.raises(ConfigError, match="other columns"):
        compare_analyses([several, other])


def test_the_record_holds_plain_numbers_and_the_page_draws_them(wells):
    record = json.loads(json.dumps(wells.to_record(), allow_nan=False))
    assert [each["stability"] for each in record["cycles"]] == ["stable", "stable", "saddle", "saddle"]
    # f(x) = -x at x = sqrt(5)
    assert np.abs(record["cycles"][3]["latent"]) == pytest.approx(np.sqrt(5) * np.array([[1, 0], [1, 0]]))
    assert record["cycles"][2]["eigenvalue_moduli"] == pytest.approx([1.5, 0.5])
    assert record["complete"] == {"1": False, "2": False}
    assert record["basins"]["shares"] == pytest.approx(wells.basins.shares())
    page = portrait.build_portrait_page(wells, "What <this> is", {"seed": 0}).to_html()
    for part in ("Phase portrait", "Basins on a slice", "fixed point, stable", "What &lt;this&gt; is"):
        assert part in page
    assert "http" not in page.split("<script>")[0].replace("http-equiv", "")
    assert portrait.describe_analysis(wells)[0].startswith("3 fixed points and 1 cycle")


def test_cores_of_many_gates_are_searched_and_the_table_says_so():
    found = analyse(small_model(), max_order=2, num_steps=300, num_starts=10, grid=3)
    assert found.method == "regions"
    assert "all regions tried for order 1, 2" in portrait.tabulate_cycles(found).note
    assert found.core == "ALRNN"


def test_runs_that_diverge_have_no_exponents():
    found = analyse(around(lambda z: 2.0 * z, 2), max_order=1, num_steps=300, num_starts=5, grid=3)
    assert found.spectrum is None
    assert found.ends == {DIVERGED: 1.0}
    assert "diverge" in portrait.describe_analysis(found)[-1]
    assert "Phase portrait" in portrait.build_portrait_page(found, "", {}).to_html()
    json.dumps(found.to_record(), allow_nan=False)


def test_a_surrogate_and_a_folder_are_analysed_like_their_model(tmp_path):
    model = Reconstruction(small_model(), Scaler.identity(2))
    surrogate = kaffee.Surrogate()
    surrogate.reconstruction_ = model
    few = {"max_order": 1, "num_steps": 300, "num_starts": 10, "grid": None}
    first, *others = (kaffee.analyse(each, **few) for each in (model, surrogate, model.save(tmp_path / "model")))
    for other in others:
        assert other.to_record() == first.to_record()


def test_exponents_are_those_of_runs_that_stay_even_if_most_diverge():
    wide = Climate.from_moments(np.zeros(2), np.eye(2), states=[[1.0, 0.0], [3.0, 0.0], [4.0, 0.0], [5.0, 0.0]])
    found = analyse(around(two_wells, 2, climate=wide), max_order=1, num_steps=400, num_starts=4, grid=None)
    assert found.ends == {DIVERGED: 0.75, "fixed point 1": 0.25}
    assert found.measured == "fixed point 1"
    assert found.spectrum.maximal == pytest.approx(np.log(0.5), abs=1e-6)


def test_the_dimension_by_hand():
    spectrum = LyapunovSpectrum(np.array([0.5, 0.0, -2.0]), np.zeros(3), np.zeros((0, 3)), 1, 1.0, 3)
    assert spectrum.kaplan_yorke_dimension == 2.25


def test_wrong_calls_say_what_to_do():
    model = around(two_wells, 2)
    with pytest.raises(ConfigError, match="A dict cannot be analysed"):
        kaffee.analyse({})
    with pytest.raises(ConfigError, match="coordinate 'x9'"):
        analyse(model, plane=("x1", "x9"))
    with pytest.raises(ConfigError, match="two different coordinates"):
        analyse(model, plane=("x1", "x1"))
    with pytest.raises(ConfigError, match="at least 2"):
        analyse(model, grid=1)
