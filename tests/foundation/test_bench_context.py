"""The in-context table end to end at small sizes, with a small random model under the published name."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from kaffee.cli.main import app
from kaffee.foundation.weights import DEFAULT
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.figures.drawing import make_figures
from kaffee.paper.measurements import _pretrained, _tangent_errors, run_cell
from kaffee.paper.recipe import load_recipe
from kaffee.paper.summary import summarise
from kaffee.records import versions

from .conftest import make_core, publish, write_release


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """All cells of the tiny preset."""
    root = tmp_path_factory.mktemp("context")
    models = root / "home" / "models"
    models.mkdir(parents=True)
    write_release(models, DEFAULT, num_observed=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFFEE_HOME", str(root / "home"))
        patch.setenv("HF_HUB_CACHE", str(root / "hub"))
        publish(patch, models)
        _pretrained.cache_clear()
        store = ResultStore(root / "results", load_recipe("table2", "tiny"))
        for cell in store.cells():
            run_cell(str(store.root), "table2", "tiny", cell.row, cell.seed, cell.system)
        yield store
    _pretrained.cache_clear()


def record(store, row):
    found = store.read(Cell(row, 0, "lorenz63"))
    assert found is not None
    assert found["error"] is None, found
    return found


def test_every_cell_is_done_and_says_how(store):
    assert all(store.is_done(cell) for cell in store.cells())
    for row in ("frozen_core", "kaffee"):
        found = record(store, row)
        assert found["system"] == "lorenz63"
        assert found["training"]["completed"]
        assert found["versions"] == versions()  # with the commit, in a checkout
        for metric in ("nll", "nll_standard", "rmse", "g_tan", "d_stsp_core", "d_h_core", "coverage_95", "nis"):
            assert np.isfinite(found[metric]), metric
        assert np.isfinite(found["extra"]["sparse_coverage_95"])


def test_the_base_has_a_core_and_nothing_else(store):
    base = record(store, "base")
    assert base["d_stsp_ratio"] == 1.0
    assert base["nll"] is base["g_tan"] is base["coverage_95"] is None


def test_a_frozen_core_is_the_base(store):
    base, frozen, kaffee = (record(store, row) for row in ("base", "frozen_core", "kaffee"))
    assert (frozen["d_stsp_core"], frozen["d_h_core"]) == (base["d_stsp_core"], base["d_h_core"])
    assert frozen["d_stsp_ratio"] == 1.0
    assert kaffee["d_stsp_ratio"] == pytest.approx(kaffee["d_stsp_core"] / base["d_stsp_core"])


def test_tables_over_and_by_systems(store):
    found = summarise(store)
    assert found["kaffee"]["nll_standard"].median == record(store, "kaffee")["nll_standard"]
    assert found["kaffee"]["nll_standard"].paper == 0.806
    options = ["table2", "--preset", "tiny", "--results", str(store.root)]
    by_system = ["--by-system", "--columns", "nll_standard", "--markdown"]
    result = CliRunner().invoke(app, ["bench", "table", *options, *by_system])
    assert result.exit_code == 0, result.exception
    assert "| lorenz63 |" in result.stdout
    data = json.loads(CliRunner().invoke(app, ["bench", "table", *options, "--by-system", "--json"]).stdout)
    assert data["systems"]["lorenz63"]["rows"]["kaffee"]["nll_standard"]["n"] == 1
    beside = CliRunner().invoke(app, ["bench", "table", *options, "--against", "paper"]).stdout
    assert "(the paper's rows, 12 numbers)" in beside


def test_one_system_has_no_table_by_system(tmp_path):
    result = CliRunner().invoke(app, ["bench", "table", "table1", "--by-system", "--results", str(tmp_path)])
    assert "one system only" in str(result.exception)


def test_the_figure_is_drawn(store, tmp_path):
    said = []
    (path,) = make_figures(store, tmp_path, say=said.append)
    assert path.name == "dynamix_context_adaptation.svg"
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert len(text) > 20_000


def test_tangent_errors_are_relative_frobenius_norms(x64):
    core = make_core()
    states = jnp.asarray(np.random.default_rng(0).standard_normal((3, core.latent_dim)))
    mixture = core.with_tangent("mixture")
    found = _tangent_errors(mixture, states)
    for state, error in zip(states, found, strict=True):
        exact = np.asarray(jax.jacfwd(lambda z: core.with_tangent("full")(z))(state))
        expected = np.linalg.norm(np.asarray(mixture.jacobian(state)) - exact) / np.linalg.norm(exact)
        assert float(error) == pytest.approx(expected, abs=1e-8)
    assert float(jnp.max(_tangent_errors(core.with_tangent("full"), states))) < 1e-12
    assert eqx.tree_equal(core, make_core())
