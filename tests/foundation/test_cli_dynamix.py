"""`kaffee models`, `kaffee zeroshot` and `kaffee adapt`."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from small import same_arrays
from typer.testing import CliRunner

import kaffee as library
from kaffee.certification.certificate import Certificate, CertificationSettings, certify
from kaffee.cli.main import app
from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.data.writing import write_series
from kaffee.errors import CheckpointError, KaffeeError
from kaffee.foundation.context import CALIBRATED
from kaffee.foundation.weights import DEFAULT, KNOWN

from .conftest import make_core, publish, write_release

T = np.arange(120.0)
WAVES = np.stack([np.sin(T / 5), np.cos(T / 3)], axis=1)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFFEE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(home, monkeypatch):
    """A small model for two dimensions in place of the published one."""
    release = home / "release"
    release.mkdir()
    write_release(release, DEFAULT)
    publish(monkeypatch, release)
    return release


def kaffee(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments):
    result = kaffee(*arguments)
    assert isinstance(result.exception, KaffeeError), (result.exception, result.output)
    assert result.stdout == ""
    return str(result.exception)


def test_models_are_listed_with_their_terms(folder):
    text = kaffee("models", "list").stdout
    assert DEFAULT in text
    assert "not on this machine; fetch it: kaffee models pull" in text
    assert "CC-BY-4.0: C. Hemmer and D. Durstewitz" in text
    assert json.loads(kaffee("models", "list", "--json").stdout)[0]["path"] is None
    result = kaffee("models", "pull", "--from", folder)
    assert result.exit_code == 0, result.exception
    assert "CC-BY-4.0" in result.stdout
    [row] = json.loads(kaffee("models", "list", "--json").stdout)
    assert row["path"].endswith(KNOWN[DEFAULT].weights)
    assert row["path"] in kaffee("models", "list").stdout


def test_a_model_is_shown(folder):
    facts = json.loads(kaffee("models", "show", folder, "--json").stdout)
    core = make_core(np.float32, num_frames=0)
    assert facts["num_parameters"] == core.num_parameters
    assert facts["latent_dim"] == 5
    assert facts["tensors"]["experts.*.W"] == [5, 5]
    assert facts["sigma"] == pytest.approx(np.asarray(core.gating.sigma).tolist())
    assert facts["attention_temperature"] == pytest.approx(0.3)
    assert len(facts["sha256"]) == 64
    assert facts["licence"] == "CC-BY-4.0"
    kaffee("models", "pull", "--from", folder)
    text = kaffee("models", "show").stdout
    assert "experts.*.W" in text
    assert "5 x 5" in text


def test_models_that_cannot_be_shown_or_fetched_are_clear_errors(folder):
    assert "kaffee models pull" in refused("models", "show")
    assert "Did you mean" in refused("models", "show", "dynamix-3d")
    assert "There is no weight file or folder" in refused("models", "pull", "--from", "no/such/folder")
    (folder / KNOWN[DEFAULT].weights).write_bytes(b"{}")
    assert "is not a safetensors file" in refused("models", "pull", "--from", folder)


def test_a_file_is_continued(folder):
    write_series(WAVES, "waves.csv", columns=["a", "b"], times=0.5 * T)
    result = kaffee("zeroshot", "waves.csv", "-o", "out.csv", "--steps", 30, "--model", folder, "--json")
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert facts["context"] == 120
    assert facts["embedding"] == "direct"
    assert facts["diverged_at"] == 0
    assert facts["model"].startswith(DEFAULT)
    out = read_series("out.csv")
    assert out.columns == ("a", "b")
    assert out.lengths == (30,)
    assert out.times[0][0] == pytest.approx(60.0)
    assert out.time_step == pytest.approx(0.5)


def test_the_seed_decides(folder):
    write_series(WAVES, "waves.csv")

    def forecast(*options):
        result = kaffee("zeroshot", "waves.csv", "-o", "out.csv", "--steps", 10, "--model", folder, *options)
        assert result.exit_code == 0, result.exception
        assert "out.csv: 10 x 2 from a context of" in result.stdout
        return read_series("out.csv").fingerprint

    assert forecast() == forecast("--seed", 0)
    assert len({forecast(*options) for options in ((), ("--seed", 1), ("--no-noise",), ("--context", 50))}) == 4


def test_one_column_is_embedded(folder):
    write_series(WAVES, "waves.csv", columns=["a", "b"])
    options = ("-o", "out.npy", "--steps", 10, "--model", folder, "--columns", "b", "--json")
    facts = json.loads(kaffee("zeroshot", "waves.csv", *options, "--delay", 4).stdout)
    assert (facts["coordinates"], facts["delays"]) == (1, [4])
    facts = json.loads(kaffee("zeroshot", "waves.csv", *options, "--embedding", "positional").stdout)
    assert facts["periods"] == [19.0]
    assert np.load("out.npy").shape == (10, 1)


def test_a_system_is_simulated_and_continued(folder):
    result = kaffee("zeroshot", "van_der_pol", "-o", "out.csv", "--steps", 5, "--model", folder, "--context", 100)
    assert result.exit_code == 0, result.exception
    assert "5 x 2 from a context of 100" in result.stdout


def test_divergence_is_reported_and_written_as_missing(folder, monkeypatch):
    from kaffee.foundation import continuation

    write_series(WAVES, "waves.csv")
    monkeypatch.setattr(continuation, "DIVERGENCE_BOUND", 2.2)
    result = kaffee("zeroshot", "waves.csv", "-o", "out.csv", "--steps", 50, "--model", folder, "--json")
    left = json.loads(result.stdout)["diverged_at"]
    assert left > 1
    assert result.exit_code == 3
    values = read_series("out.csv").recordings[0]
    assert np.isnan(values[left - 1 :]).all()
    assert not np.isnan(values[: left - 1]).any()
    monkeypatch.setattr(continuation, "DIVERGENCE_BOUND", 1e-9)
    assert "diverged in its first step" in refused("zeroshot", "waves.csv", "-o", "out.csv", "--model", folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["waves.csv", "-o", "x.doc"], "cannot write '.doc'"),
        (["missing.csv", "-o", "x.csv"], "missing.csv"),
        (["lorenz69", "-o", "x.csv"], "Did you mean 'lorenz96'"),
        (["waves.csv", "-o", "x.csv", "--context", "500"], "has 120 rows only"),
        (["waves.csv", "-o", "x.csv", "--recording", "2"], "There is no recording 2"),
        (["waves.csv", "-o", "x.csv", "--columns", "x9"], "x9"),
        (["gappy.csv", "-o", "x.csv"], "1 missing or infinite values"),
        (["waves.csv", "-o", "x.csv", "--columns", "x1", "--embedding", "dely"], "Did you mean 'delay'"),
        (["waves.csv", "-o", "x.csv", "--model", "nothing/here"], "There is no weight file or folder"),
    ],
)
def test_what_cannot_be_forecast_is_a_clear_error(folder, arguments, message):
    write_series(WAVES, "waves.csv")
    write_series(np.where(T[:, None] == 7, [np.nan, 1.0], WAVES), "gappy.csv")
    options = [] if "--model" in arguments else ["--model", folder]
    assert message in refused("zeroshot", *arguments, *options)


def test_without_weights_the_command_says_how_to_get_them():
    write_series(WAVES, "waves.csv")
    assert "kaffee models pull" in refused("zeroshot", "waves.csv", "-o", "x.csv", "--model", "dynamix")


# --- adapt ---


def write_waves(home, rows=slice(None)):
    path = home / "waves.csv"
    values = WAVES + 0.05 * np.random.default_rng(0).standard_normal(WAVES.shape)
    write_series(Series.from_arrays(values[rows], columns=("a", "b"), times=0.5 * T[rows]), path)
    return path


def test_an_adapted_model_is_certified_like_any_fit(home, folder, monkeypatch):
    few = CertificationSettings(num_starts=20, members=8, horizons=(1,), divergence_runs=2, divergence_steps=50)
    monkeypatch.setattr("kaffee.certification.certificate.certify", partial(certify, settings=few))
    options = ("--model", folder, "--updates", 1, "--json")
    result = kaffee("adapt", write_waves(home), "-o", "run", *options)
    assert result.exit_code == 0, result.exception
    checks = json.loads(result.stdout)["checks"]
    assert sorted(checks) == ["kaffee", "prior"]
    certificate, _ = Certificate.load(home / "run")
    assert certificate.checks["kaffee"].nll == pytest.approx(checks["kaffee"]["nll"])
    assert (home / "run" / "report.html").exists()


def test_adapt_makes_a_model_that_loads_and_filters(home, folder):
    path = write_waves(home)
    result = kaffee("adapt", path, "-o", "run", "--model", folder, "--updates", 2, "--json", "--no-certify")
    assert result.exit_code == 0, result.exception
    facts = json.loads(result.stdout)
    assert (facts["context"], facts["updates"], facts["method"]) == (96, 2, "kaffee")
    assert np.isfinite(facts["check"]["nll"])
    model = library.load(home / "run")
    assert (model.dt, model.columns, model.method) == (0.5, ("a", "b"), "kaffee")
    assert facts["check"]["protocol"]["core_seed"] == 0
    assert facts["truth_against_truth"] is None
    assert model.provenance["licence"] == "CC-BY-4.0"
    assert model.provenance["attribution"].startswith("C. Hemmer and D. Durstewitz")
    assert model.provenance["foundation_model"].startswith(f"{DEFAULT} sha256:")
    np.testing.assert_allclose(model.scaler.mean, read_series(path).recordings[0][:96].mean(axis=0), rtol=1e-6)
    assert "not empty" in str(kaffee("adapt", path, "-o", "run", "--model", folder).exception)
    core = library.from_pretrained(folder)
    few = replace(CALIBRATED, schedule=replace(CALIBRATED.schedule, num_updates=2))
    values = read_series(path).recordings[0][:96]
    alone = library.adapt_foundation_model(core, values, dt=0.5, columns=("a", "b"), settings=few)
    assert same_arrays(alone.model, model.model)


def test_an_adapted_model_is_a_run_like_any_other(home, folder):
    kaffee("adapt", write_waves(home), "-o", "run", "--model", folder, "--updates", 2, "--no-certify")
    run = library.Run.open("run")
    assert run.settings.foundation.held_out == 0.25
    assert (run.fit.train.num_steps, run.fit.test.num_steps, run.rows.num_steps) == (96, 24, 24)
    assert run.prior.model.core.context.frames.shape[1] == 71
    assert run.fitted.model.core.context.frames.shape[1] == 95
    assert run.fitted.model.core.tangent == run.prior.model.core.tangent == "mixture"
    result = kaffee("diagnose", "run", "--windows", 2)
    assert result.exit_code == 0, result.exception
    resumed = run.train()  # from what is stored
    assert same_arrays(resumed.fitted.model, run.fitted.model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--context", 500), "has 120 rows only"),
        (("--context", 120), "rows after the context check the result"),
        (("--tangent", "half"), "Unknown tangent 'half'"),
        (("--method", "kafee"), "Did you mean 'kaffee'"),
        (("--columns", "a"), r"shape (T, 2)"),
        (("--lyapunov", "nan"), "finite number per unit of time; given nan"),
        (("--lyapunov", "inf"), "finite number per unit of time; given inf"),
        (("--context", 12), "has 120 rows, of which 12 are the context: too few to adapt on, which needs at least 38"),
    ],
)
def test_adapt_refuses_what_does_not_fit(home, folder, options, words):
    result = kaffee("adapt", write_waves(home), "-o", "run", "--model", folder, *options)
    assert isinstance(result.exception, KaffeeError)
    assert words in str(result.exception)
    assert not (home / "run").exists()


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (
            10,
            (),
            "has 10 rows, of which 8 are the context: too few to adapt on, which needs at least 38; with --paper 10",
        ),
        (3, ("--paper",), "has 3 rows, of which 2 are the context: too few to adapt on, which needs at least 10. Give"),
    ],
)
def test_short_files_are_refused_in_the_numbers_of_the_user(home, folder, rows, options, words):
    assert words in refused("adapt", write_waves(home, slice(rows)), "-o", "run", "--model", folder, *options)


@pytest.mark.parametrize("output", ["taken", "taken/run"])
def test_a_file_in_the_place_of_the_folder_is_a_clear_error(home, folder, output):
    (home / "taken").write_text("mine")
    message = refused("adapt", write_waves(home), "-o", output, "--model", folder)
    assert "taken is a file; the adapted model needs a folder" in message
    assert (home / "taken").read_text() == "mine"


def test_a_system_is_adapted_to_whatever_the_case_of_its_name(folder, monkeypatch):
    """Its truth is known, so that D_stsp stands beside what the truth itself has."""
    monkeypatch.setattr("kaffee.cli.pretrained.CHECKED_ROWS", 20)
    monkeypatch.setattr("kaffee.cli.pretrained.SYSTEM_CONTEXT", 60)
    monkeypatch.setattr("kaffee.fitting.run._TRUTH_STEPS", 1500)
    result = kaffee("adapt", "Van_der_Pol", "-o", "run", "--model", folder, "--updates", 1, "--no-certify")
    assert result.exit_code == 0, result.exception
    assert "on a context of 60 rows" in result.stdout
    assert "held out (20 rows): NLL" in result.stdout
    assert "free run of the core against 1500 true states: D_stsp" in result.stdout
    assert "(truth against truth" in result.stdout
    assert "D_H" in result.stdout


def test_altered_weights_are_a_warning_and_do_not_replace_good_ones(folder):
    assert kaffee("models", "pull", "--from", folder).stderr == ""
    weights = folder / KNOWN[DEFAULT].weights
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    assert "nothing was replaced" in refused("models", "pull", "--from", folder)
    write_series(WAVES, "waves.csv")
    for call in (
        ("models", "show", folder, "--json"),
        ("zeroshot", "waves.csv", "-o", "out.csv", "--steps", 5, "--model", folder, "--json"),
        ("models", "pull", "--from", folder, "--force"),
    ):
        result = kaffee(*call)
        assert result.exit_code == 0, result.exception
        assert "not the file kaffee was measured with" in result.stderr
        assert "warning" not in result.stdout


@pytest.mark.parametrize("command", ["zeroshot", "adapt"])
def test_weights_are_fetched_if_asked(home, monkeypatch, command):
    asked = []

    def pull(name):
        asked.append(name)
        raise CheckpointError("no network in this test")

    monkeypatch.setattr("kaffee.foundation.hub.pull", pull)
    call = (command, write_waves(home), "-o", "out.csv", "--model", DEFAULT)
    assert "are not on this machine" in refused(*call)
    assert "no network in this test" in refused(*call, "--download")
    assert asked == [DEFAULT]
