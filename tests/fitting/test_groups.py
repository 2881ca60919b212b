"""Learned maps, groups that share a core, and transfer, on a small linear oscillator whose answer is known."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import kaffee
from kaffee.checkpoint.reconstruction import load
from kaffee.cli.main import app
from kaffee.data.series import Series
from kaffee.errors import ConfigError
from kaffee.fitting.config import nested, update
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.pipeline import fit
from kaffee.fitting.settings import FitSettings, ObservationSettings
from kaffee.training.components import subspace_angle

N, K, ROWS = 6, 2, 160
QUICK = {
    "rung": "scratch",
    "core.latent_dim": 4,
    "observation.components": K,
    "pretraining.window": 10,
    "pretraining.schedule.num_updates": 60,
    "adaptation.scored": 12,
    "adaptation.burn_in": 2,
    "adaptation.schedule.num_updates": 10,
    "adaptation.calibration": 5,
    "adaptation.guard": None,
    "adaptation.confine": None,
}


def oscillate(seed, rows=ROWS):
    """A limit cycle of two coordinates, seen through a matrix of one's own with noise; two harmonics break symmetry."""
    rng = np.random.default_rng(seed)
    phase = 0.3 * np.arange(rows) + seed
    states = np.stack([np.cos(phase) + 0.3 * np.cos(2 * phase), np.sin(phase)], axis=1)
    B = rng.standard_normal((N, K))
    return states @ B.T + 3.0 + 0.05 * rng.standard_normal((rows, N)), B


def surrogate(**changes):
    return kaffee.Surrogate(settings={**QUICK, **changes})


@pytest.fixture(scope="module")
def shared():
    """Two subjects of one core, fitted together."""
    recordings = [oscillate(seed)[0] for seed in (0, 1)]
    return surrogate().fit(recordings, dt=0.1, groups=["anna", "ben"]), recordings


def angle(model, B):
    return subspace_angle(model.scaler.scale[:, None] * np.asarray(model.model.observation.B), B)


def test_a_linear_model_of_components_is_lifted_to_the_channels():
    x, B = oscillate(3)
    given = {"rung": "linear", "observation": {"components": K}}
    model = fit(Series.from_arrays(x), update(FitSettings(), given), dt=0.1).fitted.reconstruction
    own = model.model.observation
    assert own.B.shape == (N, K)
    assert own.hidden == model.model.latent_dim - K
    assert angle(model, B) < 5.0
    assert kaffee.filter_recordings(model, Series.from_arrays(x)).facts["nll"] < -0.5


def test_every_map_has_the_span_of_its_group(shared):
    for name, seed in (("anna", 0), ("ben", 1)):
        model = shared[0].reconstruction_.group(name)
        assert model.model.observation.hidden == 2
        assert angle(model, oscillate(seed)[1]) < 5.0


def test_groups_share_the_core_and_nothing_else(shared):
    model = shared[0].reconstruction_
    one, other = (model.group(name) for name in ("anna", "ben"))
    assert model.groups == ("anna", "ben")
    same = jax.tree.map(lambda a, b: bool((a == b).all()), *(each.model.core for each in (one, other)))
    assert all(jax.tree.leaves(same))
    for part in (lambda m: m.model.observation.B, lambda m: m.model.shell.log_observation_std, lambda m: m.scaler.mean):
        assert not np.allclose(part(one), part(other))


def test_a_group_does_all_that_a_surrogate_does(shared):
    found, recordings = shared
    with pytest.raises(ConfigError, match=r"shared by 2 groups.*anna, ben"):
        found.filter(recordings[0])
    anna = found.group("anna")
    right, wrong = anna.score(recordings[0]), found.group("ben").score(recordings[0])
    assert right > wrong + 1.0
    assert anna.forecast(5).quantile(0.5).shape == (5, N)
    assert np.isfinite(anna.online().step(recordings[0][0]).mean).all()


def test_a_stored_model_of_groups_is_the_same(shared, tmp_path):
    found, recordings = shared
    folder = found.save(tmp_path / "model")
    assert sorted(p.suffix for p in folder.iterdir() if p.is_file()) == [".json", ".safetensors"]
    again = kaffee.Surrogate.load(folder)
    assert again.group("ben").score(recordings[1]) == found.group("ben").score(recordings[1])
    meta = json.loads((folder / "model.json").read_text())
    assert meta["groups"] == ["anna", "ben"]


def test_every_group_has_a_certificate_and_all_have_the_worst_verdict(shared, monkeypatch):
    """What `certify` says of one model is tested where it is; here it is told apart by the group's own test rows."""
    seen = {}

    def certify(model, train, test, *, prior, **_):
        name = model.provenance["group"]
        seen[name] = (test.num_recordings, train.groups, prior.provenance["group"])
        nll = 1.0 if name == "anna" else 3.0
        values = {"nll": nll, "coverage_90": 0.9, "d_stsp_core": nll, "d_h_core": 0.1}
        status = {1: "pass", 2: "warn" if name == "ben" else "pass", 3: "pass"}
        return SimpleNamespace(checks={"kaffee": SimpleNamespace(**values)}, axes=status)

    monkeypatch.setattr("kaffee.certification.groups.certify", certify)
    made = shared[0].certify()
    assert seen == {"anna": (1, (), "anna"), "ben": (1, (), "ben")}
    assert made.overall["nll"] == pytest.approx(2.0)  # both have as many held-out readings
    assert made.axes == {1: "pass", 2: "warn", 3: "pass"}
    assert made.to_dict()["groups"]["ben"]["nll"] == 3.0


def test_transfer_leaves_the_core_bit_identical_and_fits_the_map(shared, tmp_path):
    folder = shared[0].save(tmp_path / "known")
    x, B = oscillate(7)
    series = Series.from_arrays(x)
    values = {**QUICK, "core.start": str(folder), "method": "frozen_core", "observation.type": "learned"}
    del values["observation.components"], values["core.latent_dim"]
    settings = FitSettings()
    for key, value in sorted(values.items(), key=lambda pair: pair[0] != "method"):
        settings = update(settings, nested(key, value))
    found = fit(series, settings, dt=0.1).fitted.reconstruction
    known = load(folder).model.core
    for a, b in zip(jax.tree.leaves(found.model.core), jax.tree.leaves(known), strict=True):
        np.testing.assert_array_equal(a, b)
    assert jax.tree.structure(found.model.core) == jax.tree.structure(known)
    assert angle(found, B) < 5.0


def test_groups_on_the_command_line(shared, tmp_path):
    found, recordings = shared
    folder, file = found.save(tmp_path / "model"), tmp_path / "anna.csv"
    kaffee.write_series(Series.from_arrays(recordings[0]), file)
    run = CliRunner().invoke
    args = [str(folder), str(file), "-o", str(tmp_path / "out.csv"), "--any-step"]
    assert "shared by 2 groups" in str(run(app, ["filter", *args]).exception)
    assert run(app, ["filter", *args, "--group", "anna"]).exit_code == 0


def test_groups_are_read_from_a_column_or_from_files(tmp_path):
    whole = tmp_path / "all.csv"
    whole.write_text("subject,x\na,1\na,2\nb,3\nb,5\n")
    assert kaffee.read_series(whole, group="subject").groups == ("a", "b")
    files = [tmp_path / f"{name}.csv" for name in "pq"]
    for file in files:
        file.write_text("x\n1\n2\n3\n")
    series = kaffee.read_series(files, group="file")
    assert series.groups == ("p", "q")
    assert series.of_group("q").num_recordings == 1
    assert series.split(0.7)[1].groups == ("p", "q")


def test_settings_of_maps():
    assert ObservationSettings.parse("fixed") is None
    with pytest.raises(ConfigError, match="learned:3"):
        ObservationSettings.parse("learned:x")
    x = np.concatenate([oscillate(5)[0], np.random.default_rng(0).standard_normal((ROWS, 1))], axis=1)
    chosen = settings_for(Series((x[:, :N], x[:, :N]), groups=("a", "b")))
    assert chosen.observation == ObservationSettings(components=K)
