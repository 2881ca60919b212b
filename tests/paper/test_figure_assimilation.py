"""Panel g: the band is that of a textbook Kalman filter, and models are found, trained again or done without."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError
from kaffee.filtering.recursion import Recursion
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.context_card import AssimilationRun, filter_held_out
from kaffee.paper.figures import assimilation as models
from kaffee.paper.figures.assimilation import (
    LYAPUNOV_STEPS,
    _assimilated_steps,
    _prediction_panel,
    assimilate_test_data,
)
from kaffee.paper.figures.lorenz96 import _draw_results, _read_rows
from kaffee.paper.recipe import load_recipe

from .fake import LAMBDAS, fill

WARM_UP = 6
A = np.array([[1.02, 0.3, 0.0], [-0.3, 0.98, 0.1], [0.0, 0.1, 0.6]])
GAMMA, LAMBDA = np.array([0.1, 0.2, 0.3]) ** 2, np.array([0.5, 0.4]) ** 2
SCALER = Scaler(mean=[1.0, -2.0], scale=[3.0, 0.5])


@pytest.fixture
def reference():
    """Random rows, twice as many as are needed."""
    rng = np.random.default_rng(0)
    rows = 2 * (WARM_UP + 1 + len(_assimilated_steps()))
    states = SCALER.inverse(rng.standard_normal((rows, 2)))
    observations = states + 0.1 * rng.standard_normal((rows, 2))
    return SimpleNamespace(test_states=states, test_observations=observations, scaler=SCALER)


def linear_model():
    core = Linear(jnp.asarray(A), jnp.asarray(np.zeros(3)))
    shell = Shell.from_std(np.sqrt(GAMMA), np.sqrt(LAMBDA), np.float64)
    embedding = jnp.asarray(np.random.default_rng(3).standard_normal((3, 2)))
    return Reconstruction(StateSpaceModel(core, shell, Projection(2, 3), embedding), SCALER)


def kalman(x, seen, start, *, transport):
    """Predictive means and standard deviations of the observations, step by step."""
    z, P, B = start, np.diag(GAMMA), np.eye(2, 3)
    means, stds = [], []
    for row, use in zip(x, seen, strict=True):
        z, P = A @ z, (A @ P @ A.T if transport else P) + np.diag(GAMMA)
        S = B @ P @ B.T + np.diag(LAMBDA)
        means.append(B @ z)
        stds.append(np.sqrt(np.diag(S)))
        if use:
            K = P @ B.T @ np.linalg.inv(S)
            z, P = z + K @ (row - B @ z), (np.eye(3) - K @ B) @ P
    return np.array(means), np.array(stds)


def test_two_lyapunov_times_pass_between_stretches_of_observations():
    seen = _assimilated_steps()
    change = np.flatnonzero(np.diff(seen.astype(int)))
    assert np.diff(change).tolist() == [2 * LYAPUNOV_STEPS, LYAPUNOV_STEPS, 2 * LYAPUNOV_STEPS]
    assert seen[0]
    assert seen[-1]


def predict(reference, *, transport=True):
    """Filter by the linear model what panel g shows."""
    rows = len(reference.test_observations)
    seen = np.append(np.ones(WARM_UP + 1, bool), _assimilated_steps(rows - WARM_UP - 1))
    mask = np.stack([seen, seen], axis=1)
    recursion, model = Recursion(transport=transport), linear_model().model
    return filter_held_out(model, reference, recursion, mask, warm_up=WARM_UP, belief="predicted")


@pytest.mark.parametrize("transport", [True, False])
def test_the_band_is_that_of_a_textbook_filter(x64, reference, transport):
    band = predict(reference, transport=transport)
    seen = np.concatenate([np.ones(WARM_UP, bool), _assimilated_steps()])
    x = (reference.test_observations[: len(seen) + 1] - SCALER.mean) / SCALER.scale
    start = np.asarray(linear_model().model.embed(jnp.asarray(x[:1])))[0]
    means, stds = kalman(x[1:], seen, start, transport=transport)
    np.testing.assert_allclose(band.mean, means[WARM_UP:] * SCALER.scale + SCALER.mean, rtol=1e-9)
    np.testing.assert_allclose(band.std, stds[WARM_UP:] * SCALER.scale, rtol=1e-9)


def test_a_short_recording_is_shown_as_far_as_it_goes(x64, reference):
    short = SimpleNamespace(**vars(reference))
    for name in ("test_states", "test_observations"):
        setattr(short, name, getattr(reference, name)[: WARM_UP + 21])
    band = predict(short)
    np.testing.assert_allclose(band.std, predict(reference).std[:20], rtol=1e-9)
    assert len(band.truth) == 20


def test_the_panel_shows_truth_prediction_and_what_was_assimilated(tmp_path, reference):
    store = ResultStore(tmp_path, load_recipe("table1", "smoke"))
    fill(store)
    row = _read_rows(store)[0]
    seen = _assimilated_steps()
    shown = slice(WARM_UP + 1, WARM_UP + 1 + len(seen))
    truth, observed, times = reference.test_states[shown], reference.test_observations[shown], np.arange(len(seen)) / 15
    mean, std = np.sin(times)[:, None], 0.1 + times[:, None]
    axis = Figure().subplots()
    _prediction_panel(axis, row, AssimilationRun(truth, mean, std, observed, np.stack([seen, seen], axis=1), 1.0))
    drawn = {line.get_label(): line for line in axis.lines}
    np.testing.assert_array_equal(drawn["truth"].get_ydata(), truth[:, 0])
    np.testing.assert_array_equal(drawn["predictive mean"].get_ydata(), mean[:, 0])
    np.testing.assert_array_equal(drawn["assimilated observation"].get_ydata(), observed[seen, 0])
    (polygon,) = axis.collections
    edges = polygon.get_paths()[0].vertices
    last = edges[edges[:, 0] == times[-1], 1]
    np.testing.assert_allclose([last.min(), last.max()], [(mean - 2 * std)[-1, 0], (mean + 2 * std)[-1, 0]])
    gaps = [(patch.get_x() * LYAPUNOV_STEPS, patch.get_width() * LYAPUNOV_STEPS) for patch in axis.patches]
    np.testing.assert_allclose(gaps, [(14.5, 30.0), (59.5, 30.0)])


@pytest.fixture
def bench(tmp_path, reference, monkeypatch):
    """A store whose models are hand-made: KAFFEE's on disk, the blind one trained again."""
    recipe = load_recipe("table1", "smoke")
    rows = tuple(
        replace(row, settings=replace(row.settings, protocol=replace(row.settings.protocol, warm_up=WARM_UP)))
        for row in recipe.rows
    )
    store = ResultStore(tmp_path, replace(recipe, rows=rows))
    monkeypatch.setattr(models, "reference_for", lambda data, protocol: reference)
    monkeypatch.setattr(models, "stored_model", lambda store, cell: linear_model() if cell.row == "kaffee" else None)
    monkeypatch.setattr(models, "trained_model", lambda store, cell, reference: linear_model())
    return store


def test_models_of_the_first_common_seed_are_filtered_each_by_its_own_recursion(x64, bench, reference):
    fill(bench)
    bench.forget(Cell("blind", 0))
    said = []
    rows = _read_rows(bench)
    runs, seed = found = assimilate_test_data(bench, rows, said.append)
    assert seed == 1
    assert [row.method for row, _ in runs] == ["kaffee", "blind"]
    for (_, band), transport in zip(runs, (True, False), strict=True):
        expected = predict(reference, transport=transport)
        np.testing.assert_array_equal(band.std, expected.std)
    assert len(said) == 1
    assert "blind/01" in said[0]
    assert "training it again" in said[0]
    figure = _draw_results(rows, LAMBDAS, found)
    assert len(figure.axes) == 8
    assert [axis.texts[0].get_text() for axis in figure.axes[-2:]] == ["KAFFEE", "No transport"]


def test_a_model_without_its_prior_is_left_out(x64, bench, monkeypatch):
    def only_kaffee(store, cell, reference):
        if cell.row != "kaffee":
            raise CheckpointError("There is no model at prior/00.")
        return linear_model()

    fill(bench)
    monkeypatch.setattr(models, "trained_model", only_kaffee)
    said = []
    runs, _ = assimilate_test_data(bench, _read_rows(bench), said.append)
    assert [row.method for row, _ in runs] == ["kaffee"]
    assert said[-1] == "Panel g is drawn without blind/00. There is no model at prior/00."


def test_without_trained_rows_there_is_no_panel(bench):
    fill(bench, rows=["prior", "core_collapse"])
    assert assimilate_test_data(bench, _read_rows(bench), print) is None
