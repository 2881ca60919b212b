"""`kaffee dpc`: logs definition 1 on a run's own prior, and says what to do where it cannot."""

import json
import shutil

import numpy as np
import pytest

from cli.conftest import TINY, sets
from kaffee.data.writing import write_series
from kaffee.fitting.run import Run
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate
from kaffee.training import adaptation


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def test_a_simulated_run_is_adapted_as_in_its_fit_and_certified_against_its_truth(kaffee, copy, monkeypatch):
    run, made, adapt = Run.open(copy), [], adaptation.adapt
    monkeypatch.setattr(adaptation, "adapt", lambda *given, **how: made.append(adapt(*given, **how)))
    result = kaffee("dpc", copy, "--every", 2, "--quiet", "--json", "--significance", 0)
    assert result.exit_code == 0, result.exception
    assert run.rows.num_steps == 384  # a fifth of the training rows is held back
    np.testing.assert_array_equal(made[0].losses, run.fitted.losses)
    assert str(made[0]) == run.fitted.report
    log = json.loads(result.stdout)
    assert [entry["update"] for entry in log["entries"]] == [0, 2, 4, 5]
    assert set(log["entries"][0]["losses"]) == {"d_stsp_core", "d_h_core", "d_stsp_stoch", "dh_core", "blindness"}
    assert json.loads((copy / "dpc-kaffee.json").read_text()) == log
    assert (copy / "dpc-kaffee.png").read_bytes().startswith(b"\x89PNG")
    for gap in log["gaps"]:
        assert gap["score_change"] < 0 < gap["loss_change"]


def test_a_recording_is_certified_against_itself_by_any_method(kaffee, tmp_path):
    data = tmp_path / "data.csv"
    write_series(simulate(get_system("lorenz63"), 600, observation_noise=0.1).observations, data)
    folder = tmp_path / "run"
    assert kaffee("fit", data, "-o", folder, "--quiet", *sets(*TINY, "rung=scratch")).exit_code == 0
    result = kaffee("dpc", folder, "--every", 5, "--quiet", "--method", "core_collapse", *sets("adaptation.scored=4"))
    assert result.exit_code == 0, result.exception
    log = json.loads((folder / "dpc-core_collapse.json").read_text())
    assert log["method"] == "core_collapse"
    assert set(log["entries"][0]["losses"]) == {"d_stsp_core", "d_h_core", "d_stsp_stoch"}
    assert "S_H" in result.stdout
    assert "dpc-core_collapse.png" in result.stdout


def test_a_run_without_a_prior_is_refused_with_what_to_do(refused, copy):
    (copy / "prior" / "model.json").unlink()
    assert "kaffee resume" in refused("dpc", copy)


def test_unknown_names_are_refused(refused, copy):
    assert "magic" in refused("dpc", copy, "--method", "magic")
