"""`kaffee diagnose`: the theory on a run's own model and windows."""

import json
import shutil

import pytest


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def test_a_run_is_diagnosed_into_its_folder(kaffee, copy):
    result = kaffee("diagnose", copy, "--windows", 6)
    assert result.exit_code == 0, result.exception
    for part in ("volume pressure", "Attenuation", "Forcing", "diagnose.png"):
        assert part in result.stdout
    record = json.loads((copy / "diagnose.json").read_text())
    assert record["method"] == "kaffee"
    assert (record["num_windows"], record["horizon"], record["burn_in"]) == (6, 6, 2)
    assert record["columns"] == ["x1", "x2", "x3"]
    assert (copy / "diagnose.png").read_bytes().startswith(b"\x89PNG")
    printed = kaffee("diagnose", copy, "--windows", 6, "--horizon", 6, "--json")
    assert json.loads(printed.stdout) == record


def test_what_is_not_finished_or_too_long_is_refused_with_what_to_do(refused, copy):
    assert "a window needs" in refused("diagnose", copy, "--horizon", 5000)
    (copy / "kaffee" / "model.json").unlink()
    assert "kaffee resume" in refused("diagnose", copy)
