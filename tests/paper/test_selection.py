"""Recipes that borrow priors and search grids; what the plus arm is selected by; the metrics of a gap log."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kaffee.certification.fidelity import Protocol, simulate_reference
from kaffee.data.windows import training_windows
from kaffee.filtering.likelihood import BLIND, KAFFEE
from kaffee.filtering.rollout import free_run
from kaffee.filtering.sweep import run_filter
from kaffee.metrics.geometry import d_stsp_histogram
from kaffee.model.alrnn import ALRNN
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.measurements import KINDS, _gap_metrics, _selection_scores
from kaffee.paper.recipe import load_recipe
from kaffee.systems.catalogue import get_system
from kaffee.theory.dpc import Entry, Measured


def test_a_grid_makes_a_row_of_every_combination():
    recipe = load_recipe("table1_tuning")
    assert len(recipe.rows) == 5 * 2 * 2
    row = recipe.row("kaffee-core=0.002-shell=0.01")
    assert row.method == "kaffee"
    assert row.settings.adaptation.optimiser.learning_rate == 2e-3
    assert row.settings.adaptation.optimiser.shell_learning_rate == 1e-2
    assert row.settings.adaptation.optimiser.averaging == 0.98
    assert row.settings.adaptation.confine == 0.25
    assert len({row.training_hash for row in recipe.rows}) == len(recipe.rows)


@pytest.mark.parametrize("name", ["table1_tuning", "gap"])
def test_borrowed_priors_are_those_of_table_1(name, tmp_path):
    store = ResultStore(tmp_path, load_recipe(name))
    assert store.recipe.kind in KINDS
    cell = store.cells()[0]
    assert store.find_prior(cell) == Cell("prior", cell.seed)
    assert store.prior_store.cell_folder(Cell("prior", 3)) == tmp_path / "table1" / "prior" / "03"
    assert all(store.find_prior(c) is not None for c in store.cells())


def test_the_gap_recipe_sweeps_the_learning_rate_of_every_row():
    recipe = load_recipe("gap")
    rates = {(row.method, row.settings.adaptation.optimiser.learning_rate) for row in recipe.rows}
    methods = ("kaffee", "blind", "core_collapse", "noise_masking", "frozen_core")
    assert rates == {(method, rate) for method in methods for rate in (2e-4, 1e-3, 5e-3)}
    assert recipe.num_seeds >= 3


@pytest.fixture(scope="module")
def reference():
    protocol = Protocol(rollout_steps=300, transient=50, forecast_span=250, num_extra_starts=100)
    noise = {"process_noise": 0.02, "observation_noise": 0.1, "seed": 0}
    return simulate_reference(get_system("lorenz63"), num_train_steps=400, protocol=protocol, **noise)


@pytest.fixture(scope="module")
def model():
    return StateSpaceModel.create(ALRNN.create(6, 3, key=jax.random.key(0)), 3, key=jax.random.key(1))


def test_selection_sees_training_data_only(reference, model):
    scores = _selection_scores(model, reference, KAFFEE)
    data = reference.standard_train.recordings[0]
    run = free_run(model, model.embed(jnp.asarray(data[:1], model.dtype)), 400, key=jax.random.key(0), transient=1000)
    expected = d_stsp_histogram(data, np.asarray(run.observations[0], np.float64))
    assert scores["d_stsp_train"] == pytest.approx(expected, rel=1e-6)
    batch = training_windows(reference.standard_train, 101).sample(jax.random.key(0), 64)
    nll = run_filter(model.exact(), batch.observations, batch.mask).nll
    assert scores["nll_train"] == pytest.approx(float(nll[:, 40:].mean()) / 3, rel=1e-5)
    assert scores["diverged_train"] is False
    assert _selection_scores(model, reference, BLIND)["nll_train"] != scores["nll_train"]


def test_a_diverged_candidate_has_no_divergence_score(reference, model):
    wild = model.replace(core=ALRNN(jnp.full(6, 1.5), jnp.zeros((6, 6)), jnp.ones(6), 1, "hard"))
    scores = _selection_scores(wild, reference, KAFFEE)
    assert scores["d_stsp_train"] is None
    assert scores["diverged_train"] is True


def test_gap_metrics_compare_before_and_after():
    entries = [
        Entry(0, 1.5, {"d": Measured(0.2, 0.01)}),
        Entry(25, 1.0, {"d": Measured(0.9, 0.01)}),
        Entry(50, 1.2, {"d": Measured(math.inf)}),
    ]
    metrics = _gap_metrics(entries)
    assert (metrics["score_before"], metrics["score_after"]) == (1.5, 1.2)
    assert (metrics["d_before"], metrics["d_after"]) == (0.2, math.inf)
    assert metrics["gap"] == 1.0
    assert metrics["gap_steps"] == 1.0
    assert metrics["overall_gaps"] == ["d"]
    assert [entry["update"] for entry in metrics["entries"]] == [0, 25, 50]
