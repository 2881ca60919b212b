"""The controls as cells of the benchmark: which fit a cell asks for, what it keeps, what is drawn from it."""

import pytest

from kaffee.errors import ConfigError, KaffeeError
from kaffee.paper import measurements as bench_controls
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.controls import SpiralSettings, VanDerPolSettings
from kaffee.paper.figures.control_panels import control_drawings
from kaffee.paper.measurements import _measure_control, spiral_noise
from kaffee.paper.recipe import load_recipe
from kaffee.paper.summary import summarise


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
        measured = _measure_control(store, Cell("noisy_state_5", seed, system))
        assert measured.metrics == {"spectral_radius": 0.5}
        assert measured.training == {"skipped": 0, "completed": True, "final_loss": 1.0}
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
