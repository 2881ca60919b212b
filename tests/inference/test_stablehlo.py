"""Programs in StableHLO: another process without kaffee gets the numbers of the model."""

import subprocess
import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from small import OBSERVED, rotation, small_model

import kaffee
from kaffee.errors import ConfigError
from kaffee.inference.stablehlo import export_programs
from kaffee.model.inputs import Driven
from kaffee.records import read_json

pytest.importorskip("flatbuffers", reason="flatbuffers is not installed: pip install 'kaffee[export]'")

# What a reader of docs/ecosystem.md would write; nothing of kaffee, nor what only kaffee needs, can be imported.
READER = """
import json, sys
for name in ("kaffee", "equinox", "optax", "jaxtyping"):
    sys.modules[name] = None
import numpy as np
from jax import export, numpy as jnp

jnp.linalg.cholesky(jnp.eye(2))  # before 0.10, JAX binds LAPACK at its first use, and programs do not
folder, rows, out = sys.argv[1:]
programs = {}
for name in json.load(open(f"{folder}/programs.json"))["programs"]:
    with open(f"{folder}/{name}.jaxexport", "rb") as file:
        programs[name] = export.deserialize(bytearray(file.read()))
state = list(programs["start"].call())
found = []
for x in np.load(rows):
    *state, mean, std, predicted_mean, predicted_std, log_likelihood = programs["filter"].call(*state, x)
    found.append(np.concatenate([mean, std, predicted_mean, predicted_std, [log_likelihood]]))
z = np.arange(12.0, dtype=np.float32).reshape(3, 4)
moved, x = programs["step"].call(z)
np.savez(out, rows=np.stack(found), z=z, moved=moved, x=x)
"""


def model(filter_name="ekf", mean=(10.0, 11.0)):
    scaler = kaffee.Scaler(mean=list(mean), scale=[3.0, 2.0])
    return kaffee.Reconstruction(small_model(), scaler, ("left", "right"), 0.25, "kaffee").with_filter(filter_name)


def readings():
    x = rotation(12).astype(np.float32)
    x[[3, 5], [0, 1]] = np.nan
    x[7] = np.nan
    return x


def test_another_process_without_kaffee_gets_the_same_numbers(tmp_path):
    given, rows, out = model(), tmp_path / "rows.npy", tmp_path / "found.npz"
    folder = export_programs(given, tmp_path / "programs")
    np.save(rows, readings())
    command = [sys.executable, "-c", READER, str(folder), str(rows), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(out) as stored:
        found = dict(stored)
    own = kaffee.OnlineFilter(given).run(readings())
    names = ("mean", "std", "predicted_mean", "predicted_std")
    expected = np.concatenate([*(getattr(own, name) for name in names), own.log_likelihood[:, None]], axis=1)
    np.testing.assert_allclose(found["rows"], expected, rtol=2e-5, atol=2e-5)
    assert np.isnan(expected[0, 2 * OBSERVED :]).all()  # without a climate, the first row is not predicted
    moved = given.model.exact().core.predict_mean(jnp.asarray(found["z"]))
    np.testing.assert_allclose(found["moved"], moved, rtol=1e-6)
    np.testing.assert_allclose(found["x"], given.scaler.inverse(np.asarray(moved)[:, :OBSERVED]), rtol=1e-6)


def test_the_contents_are_described(tmp_path):
    about = read_json(export_programs(model("lowrank:2"), tmp_path) / "programs.json", "programs")
    assert (about["columns"], about["dt"], about["filter"]) == (["left", "right"], 0.25, "lowrank:2")
    assert about["programs"]["step"]["arguments"] == [{"name": "z", "shape": ["b", 4], "dtype": "float32"}]
    assert about["programs"]["filter"]["arguments"][-1] == {"name": "x", "shape": [2], "dtype": "float32"}
    assert [each["name"] for each in about["programs"]["filter"]["results"]][-5:] == [
        "mean", "std", "predicted_mean", "predicted_std", "log_likelihood",
    ]  # fmt: skip
    for name in about["programs"]:
        assert (tmp_path / f"{name}.stablehlo").read_bytes()[:4] == b"ML\xefR"  # MLIR's own magic number


def test_what_float32_cannot_hold_is_said(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="Readings of 'right' are more than 10000 standard deviations from zero"):
        export_programs(model(mean=(0.0, 1e6)), tmp_path)
    with pytest.raises(ConfigError, match="Unknown platform 'gpu'"):
        export_programs(model(), tmp_path, platforms=("gpu",))
    monkeypatch.setattr("kaffee.inference.stablehlo.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kaffee\[export\]'"):
        export_programs(model(), tmp_path)


def test_models_that_programs_cannot_run_are_refused(tmp_path):
    plain, driving = model(), kaffee.Scaler(mean=[0.0], scale=[1.0])
    core = Driven(plain.model.core, jnp.ones((plain.model.latent_dim, 1)))
    scaler = replace(plain.scaler, inputs=driving)
    driven = replace(plain, model=replace(plain.model, core=core), scaler=scaler, inputs=("stim",))
    with pytest.raises(ConfigError, match="driven by stim, and programs take no inputs yet"):
        export_programs(driven, tmp_path)
    with pytest.raises(ConfigError, match="shared by 1 groups"):
        export_programs(replace(plain, groups=("anna",), scalers=(plain.scaler,)), tmp_path)
    assert not list(tmp_path.iterdir())
