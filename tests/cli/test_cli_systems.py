"""`kaffee systems` and `kaffee simulate`."""

import json

import numpy as np
import pytest

from kaffee.data.reading import read_series
from kaffee.systems.catalogue import system_names


def test_all_systems_are_listed(kaffee):
    text = kaffee("systems").stdout
    for name in system_names():
        assert name in text


def test_one_system_is_shown(kaffee):
    text = kaffee("systems", "Lorenz-63").stdout
    assert "rho = 28" in text
    assert "Kaplan-Yorke" in text


@pytest.mark.parametrize("name", [[], ["lorenz63"]])
def test_systems_speak_json(kaffee, name):
    found = json.loads(kaffee("systems", *name, "--json").stdout)
    assert set(found) == (set(name) or set(system_names()))
    assert found["lorenz63"]["exponents"][0] == pytest.approx(0.9, abs=0.05)


def test_exponents_can_be_measured_now(kaffee):
    result = kaffee("systems", "linear_spiral", "--measure", "--steps", "200", "--json")
    exponents = json.loads(result.stdout)["linear_spiral"]["exponents"]
    assert len(exponents) == 2
    assert max(exponents) < 0


def test_absurd_measurements_are_clear_errors(refused):
    assert "num_steps" in refused("systems", "lorenz63", "--measure", "--steps", "-5")


def test_an_unknown_system_gets_a_suggestion(refused):
    assert "Did you mean 'lorenz96'" in refused("systems", "lorenz69")
    assert "Did you mean 'lorenz96'" in refused("simulate", "lorenz69", "-o", "x.csv")


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_a_simulation_is_written_and_read_back(kaffee, tmp_path, suffix):
    path, states = tmp_path / f"x.{suffix}", tmp_path / "z.csv"
    result = kaffee(
        "simulate", "lorenz63", "-o", path, "--steps", 40, "--observation-noise", 0.1, "--states", states, "--json"
    )
    written = json.loads(result.stdout)
    series, clean = read_series(path), read_series(states)
    assert written[str(path)] == {"steps": 40, "coordinates": 3, "fingerprint": series.fingerprint}
    assert series.lengths == clean.lengths == (40,)
    assert series.time_step == pytest.approx(0.02)
    assert 0.05 < np.std(series.recordings[0] - clean.recordings[0]) / np.std(clean.recordings[0]) < 0.2


def test_the_seed_decides(kaffee, tmp_path):
    def fingerprint(seed):
        path = tmp_path / "x.csv"
        kaffee("simulate", "lorenz63", "-o", path, "--steps", 40, "--observation-noise", 0.1, "--seed", seed)
        return read_series(path).fingerprint

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "0"], "num_steps = 0"),
        (["--process-noise", "-1"], "process_noise = -1"),
        (["--param", "rho"], "not of the form key=value"),
        (["--param", "rho=high"], "'rho' needs a number"),
        (["--param", "rho=true"], "'rho' needs a number"),
        (["--param", "sigm=3"], "Did you mean 'sigma'"),
        (["-o", "x.doc"], "cannot write '.doc'"),
        (["-o", "no/such/folder/x.csv"], "there is no folder"),
    ],
)
def test_absurd_simulations_are_clear_errors(refused, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("simulate", "lorenz63", "-o", "x.csv", "--steps", "40", *options)


def test_a_negative_seed_is_a_usage_error(kaffee, tmp_path):
    assert kaffee("simulate", "lorenz63", "-o", tmp_path / "x.csv", "--seed", "-1").exit_code == 2
