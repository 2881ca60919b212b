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
from kaffee.model.shell import Shell
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.figures import cycle as models
from kaffee.paper.figures.cycle import (
    LYAPUNOV_STEPS,
    Band,
    CycleData,
    assimilated_steps,
    cycle_data,
    cycle_panel,
    observed_cycle,
    predicted_band,
)
from kaffee.paper.figures.panels import results_figure
from kaffee.paper.figures.rows import rows_to_draw
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
    rows = 2 * (WARM_UP + 1 + len(assimilated_steps()))
    states = SCALER.inverse(rng.standard_normal((rows, 2)))
    return SimpleNamespace(test_states=states, test_observations=states + 0.1 * rng.standard_normal((rows, 2)))


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
    seen = assimilated_steps()
    change = np.flatnonzero(np.diff(seen.astype(int)))
    assert np.diff(change).tolist() == [2 * LYAPUNOV_STEPS, LYAPUNOV_STEPS, 2 * LYAPUNOV_STEPS]
    assert seen[0]
    assert seen[-1]


@pytest.mark.parametrize("transport", [True, False])
def test_the_band_is_that_of_a_textbook_filter(x64, reference, transport):
    model = linear_model()
    band = predicted_band(model, Recursion(transport=transport), reference, WARM_UP, coordinate=1)
    seen = np.concatenate([np.ones(WARM_UP, bool), assimilated_steps()])
    x = (reference.test_observations[: len(seen) + 1] - SCALER.mean) / SCALER.scale
    start = np.asarray(model.model.embed(jnp.asarray(x[:1])))[0]
    means, stds = kalman(x[1:], seen, start, transport=transport)
    np.testing.assert_allclose(band.mean, means[WARM_UP:, 1] * 0.5 - 2.0, rtol=1e-9)
    np.testing.assert_allclose(band.std, stds[WARM_UP:, 1] * 0.5, rtol=1e-9)


def test_a_short_recording_is_shown_as_far_as_it_goes(x64, reference):
    short = SimpleNamespace(**{name: rows[: WARM_UP + 21] for name, rows in vars(reference).items()})
    band = predicted_band(linear_model(), Recursion(), short, WARM_UP)
    whole = predicted_band(linear_model(), Recursion(), reference, WARM_UP)
    np.testing.assert_allclose(band.std, whole.std[:20], rtol=1e-9)
    assert len(observed_cycle(short, WARM_UP).truth) == 20


def test_the_panel_shows_truth_prediction_and_what_was_assimilated(tmp_path, reference):
    store = ResultStore(tmp_path, load_recipe("table1", "smoke"))
    fill(store)
    row = rows_to_draw(store)[0]
    cycle = observed_cycle(reference, WARM_UP, coordinate=1)
    seen = assimilated_steps()
    shown = slice(WARM_UP + 1, WARM_UP + 1 + len(seen))
    band = Band(np.sin(cycle.times), 0.1 + cycle.times)
    axis = Figure().subplots()
    cycle_panel(axis, row, cycle, band, label="x")
    drawn = {line.get_label(): line for line in axis.lines}
    np.testing.assert_array_equal(drawn["truth"].get_ydata(), reference.test_states[shown, 1])
    np.testing.assert_array_equal(drawn["predictive mean"].get_ydata(), band.mean)
    observed = reference.test_observations[shown, 1][seen]
    np.testing.assert_array_equal(drawn["assimilated observation"].get_ydata(), observed)
    (polygon,) = axis.collections
    edges = polygon.get_paths()[0].vertices
    last = edges[edges[:, 0] == cycle.times[-1], 1]
    np.testing.assert_allclose(
        [last.min(), last.max()], [band.mean[-1] - 2 * band.std[-1], band.mean[-1] + 2 * band.std[-1]]
    )
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
    rows = rows_to_draw(bench)
    found = cycle_data(bench, rows, said.append)
    assert found.seed == 1
    assert [row.method for row, _ in found.bands] == ["kaffee", "blind"]
    for (_, band), transport in zip(found.bands, (True, False), strict=True):
        expected = predicted_band(linear_model(), Recursion(transport=transport), reference, WARM_UP)
        np.testing.assert_array_equal(band.std, expected.std)
    assert len(said) == 1
    assert "blind/01" in said[0]
    assert "training it again" in said[0]
    figure = results_figure(rows, LAMBDAS, found)
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
    found = cycle_data(bench, rows_to_draw(bench), said.append)
    assert isinstance(found, CycleData)
    assert [row.method for row, _ in found.bands] == ["kaffee"]
    assert said[-1] == "Panel g is drawn without blind/00. There is no model at prior/00."


def test_without_trained_rows_there_is_no_panel(bench):
    fill(bench, rows=["prior", "core_collapse"])
    assert cycle_data(bench, rows_to_draw(bench), print) is None
