"""`kaffee publish` and `kaffee export`: a folder for a model hub, programs, and the way back."""

import json
import re
import shutil
from dataclasses import replace
from math import nan
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from small import LATENT, OBSERVED, rotation, same_arrays, small_model

import kaffee as library
from kaffee.adapters import publish, pull
from kaffee.certification.groups import GroupedCertificate
from kaffee.errors import CheckpointError, ConfigError
from kaffee.model.inputs import Driven
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import write_json


def front_matter(folder):
    """The lines between the two rules at the top of a card, as keys and values."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    block = re.match(r"---\n(.*?)\n---\n", text, flags=re.DOTALL)
    return dict(line.split(": ", 1) for line in block[1].splitlines() if ": " in line), text


def test_a_run_is_published_with_its_certificate(kaffee, run, tmp_path):
    folder = tmp_path / "lorenz"
    result = kaffee("publish", run, "-o", folder, "--licence", "cc-by-4.0", "--name", "A *name* | of mine")
    assert result.exit_code == 0, result.exception
    assert "hf upload OWNER/NAME" in result.stdout
    keys, text = front_matter(folder)
    assert keys == {"library_name": "kaffee", "license": "cc-by-4.0", "pipeline_tag": "time-series-forecasting"}
    assert "# A \\*name\\* \\| of mine" in text
    for verdict in json.loads((run / "certificate.json").read_text())["verdicts"]:
        assert f"| {verdict['status']} |" in text
    assert {path.suffix for path in folder.iterdir()} == {".md", ".json", ".safetensors"}
    assert str(tmp_path) not in text
    config = json.loads((folder / "config.json").read_text())
    assert (config["columns"], config["num_observed"]) == (["x1", "x2", "x3"], 3)
    original = library.load(run)
    for back in (library.load(folder), pull(folder), library.Surrogate.load(folder).reconstruction_):
        assert same_arrays(back.model, original.model)
        assert back.scaler == original.scaler
    publish(folder, folder)  # again over itself
    assert same_arrays(pull(folder).model, original.model)


def test_a_model_is_pulled_from_the_cache_of_the_hub(tmp_path, monkeypatch):
    scaler = library.Scaler(mean=[0.0, 1.0], scale=[1.0, 2.0])
    model = library.Reconstruction(small_model(), scaler, ("left", "right"), 0.5, "kaffee")
    folder = publish(model.save(tmp_path / "model"), tmp_path / "published")
    text = front_matter(folder)[1]
    assert "published without one" in text
    assert "license: other" in text
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CheckpointError, match="Fetch it first, as in: hf download"):
        pull("someone/lorenz")
    shutil.copytree(folder, tmp_path / "cache" / "models--someone--lorenz" / "snapshots" / "1a2b")
    assert same_arrays(pull("someone/lorenz").model, model.model)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and holds no published model"):
        publish(folder, tmp_path / "other")


def judged(nll, shell):
    """What a certificate of groups reads of a group's own."""
    checks = SimpleNamespace(nll=nll, coverage_90=0.9, d_stsp_core=nan, d_h_core=0.125)
    return SimpleNamespace(checks={"kaffee": checks}, axes={1: "pass", 2: shell, 3: "unknown"})


def test_a_run_of_groups_is_published_with_the_certificate_of_each_and_of_all(tmp_path):
    one, names = small_model(B=np.eye(OBSERVED, LATENT)), ("anna", "b|en", "carl")
    scalers = (library.Scaler(mean=[0.0] * OBSERVED, scale=[1.0] * OBSERVED),) * len(names)
    model = StateSpaceModel.share([one] * len(names))
    shared = library.Reconstruction(model, scalers[0], method="kaffee", groups=names, scalers=scalers)
    run = shared.save(tmp_path / "run")
    assert "published without one" in front_matter(publish(run, tmp_path / "published"))[1]
    own = {"anna": judged(1.0, "pass"), "b|en": judged(2.5, "warn")}
    made = GroupedCertificate(own, "kaffee", {"anna": 200, "b|en": 100}, ("carl",))
    write_json(run / "groups.json", made.to_dict())
    text = front_matter(publish(run, tmp_path / "published"))[1]
    assert "| anna | 1 | 0.9 | – | 0.125 | pass | pass | unknown |" in text
    assert "| b\\|en | 2.5 | 0.9 | – | 0.125 | pass | warn | unknown |" in text
    assert "| **all** | 1.5 | 0.9 | – | 0.125 | pass | warn | unknown |" in text
    assert "not judged: carl." in text
    write_json(run / "groups.json", {"groups": {"anna": {}}})
    with pytest.raises(CheckpointError, match=r"groups.json is damaged.*--again"):
        publish(run, tmp_path / "published")


def test_a_model_in_context_says_that_it_holds_rows(tmp_path):
    stored = library.zero_shot(rotation(60)).save(tmp_path / "model")
    text = front_matter(publish(stored, tmp_path / "published"))[1]
    assert "contains rows of the recording" in text


def test_the_card_of_a_driven_model_names_its_inputs(tmp_path):
    plain = small_model()
    scaler = library.Scaler(mean=[0.0, 1.0], scale=[1.0, 2.0], inputs=library.Scaler(mean=[0.0], scale=[1.0]))
    model = replace(plain, core=Driven(plain.core, jnp.ones((plain.latent_dim, 1))))
    driven = library.Reconstruction(model, scaler, ("left", "right"), 0.5, "kaffee", inputs=("stim",))
    folder = publish(driven.save(tmp_path / "model"), tmp_path / "published")
    text = front_matter(folder)[1]
    assert "| inputs | 1 (stim) |" in text
    assert "| core | alrnn |" in text
    assert "YOUR_CORE" not in text
    assert "surrogate.forecast(100, X, inputs=V)" in text
    assert pull(folder).inputs == ("stim",)


def test_programs_are_exported(kaffee, run, refused, tmp_path):
    pytest.importorskip("flatbuffers", reason="flatbuffers is not installed: pip install 'kaffee[export]'")
    result = kaffee("export", run, "-o", tmp_path / "programs", "--platforms", "cpu")
    assert result.exit_code == 0, result.exception
    assert "step, start and filter of x1, x2, x3" in result.stdout
    about = json.loads((tmp_path / "programs" / "programs.json").read_text())
    assert about["platforms"] == ["cpu"]
    assert "Unknown platform 'gpu'" in refused("export", run, "-o", tmp_path / "no", "--platforms", "gpu")
    own = library.Surrogate.load(run).export(tmp_path / "own")
    assert (own / "filter.jaxexport").exists()
