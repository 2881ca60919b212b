"""`kaffee fit`, `resume` and `quickstart`: what they write, say and refuse, and that nothing is lost when they stop."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

import kaffee as library
from cli.conftest import SMALL, sets
from kaffee.cli import certify
from kaffee.cli import fit as fit_command
from kaffee.cli._conclusion import load_conclusion
from kaffee.data.writing import write_series
from kaffee.fitting.config import merge, parse_override, read_toml, update
from kaffee.fitting.run import Run
from kaffee.fitting.settings import FitSettings
from kaffee.records import jsonable
from kaffee.systems.catalogue import get_system


def contents(folder):
    """All that decides what the run is, by name: models, training states and checks."""
    paths = [*folder.rglob("*.safetensors"), *folder.rglob("training.json"), folder / "checks.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# --- what a run leaves behind ---


def test_a_run_leaves_models_checks_figures_and_a_report(run):
    names = ("run.json", "checks.json", "certificate.json", "report.html")
    for name in (*names, "filtering.png", "training.png"):
        assert (run / name).stat().st_size > 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('<figure class="plot">') == 10
    prior, fitted = library.load(run / "prior"), library.load(run / "kaffee")
    assert (prior.method, fitted.method) == ("prior", "kaffee")
    assert fitted.dt == get_system("lorenz63").dt
    assert not list(run.rglob(".*"))


def test_the_same_command_again_repeats_nothing_and_speaks_json(kaffee, run, small, monkeypatch):
    """Also where the folder is called like the system."""
    monkeypatch.chdir(run.parent)
    before = contents(run)
    result = kaffee("fit", "lorenz63", "-o", "lorenz63", "--json", *small)
    assert result.exit_code == 0, result.exception
    found = json.loads(result.stdout)
    stored = json.loads((run / "certificate.json").read_text())
    for part in ("axes", "purpose", "drift"):
        assert found.pop(part) == stored[part]
    checks = json.loads((run / "checks.json").read_text())
    assert {name: found[name] for name in checks} == checks
    assert found["rungs"]["sentence"]
    assert "compiling" not in result.stderr
    assert "Certifying" not in result.stderr
    assert "Done before, nothing is repeated. To draw the report again: kaffee report lorenz63" in result.stderr
    assert contents(run) == before
    words = kaffee("fit", "lorenz63", "-o", "lorenz63", *small).stdout
    for part in ("Held-out data and free runs", "Verdicts", stored["purpose"]["sentence"], "Report: lorenz63/report"):
        assert part in words
    assert stored["purpose"]["sentence"] in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("change", ["version", "certificate", "page", "model"])
def test_a_run_is_certified_again_if_anything_about_it_is_new(run, tmp_path, change):
    copy = shutil.copytree(run, tmp_path / "run")
    opened = Run.open(copy)
    known = load_conclusion(opened)
    assert jsonable(known.certificate.checks) == json.loads((run / "checks.json").read_text())
    certificate = copy / "certificate.json"
    if change == "version":
        text = certificate.read_text()
        certificate.write_text(text.replace(f'"kaffee": "{library.__version__}"', '"kaffee": "0.0.0"'))
        assert certificate.read_text() != text
    elif change == "certificate":
        certificate.write_text("{")
    elif change == "page":
        (copy / "report.html").unlink()
    else:
        fitted = library.load(copy / "kaffee")
        replace(fitted, scaler=library.data.Scaler(fitted.scaler.mean, 2.0 * fitted.scaler.scale)).save(copy / "kaffee")
    assert load_conclusion(opened) is None


def test_other_settings_in_the_same_folder_are_refused(refused, run, small):
    message = refused("fit", "lorenz63", "-o", run, "--seed", 1, *small)
    assert "holds another run (" in message
    assert "settings.seed: 0 before, 1 now" in message
    message = refused("fit", "lorenz63", "--param", "rho=30", "-o", run, *small)
    assert "data.source.parameters.rho: None before, 30 now" in message


# --- interruptions ---


def start(*arguments):
    # A shell that runs the tests in the background makes its children ignore interrupts; a terminal does not.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from shortening import shorten_fits; shorten_fits(); from kaffee.cli.main import run; run()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_killed_and_interrupted_ends_as_if_nothing_had_happened(kaffee, run, small, tmp_path):
    folder = tmp_path / "run"
    killed = start("fit", "lorenz63", "-o", folder, *small)
    limit = time.monotonic() + 120
    while not (folder / "prior" / "training.json").exists():
        assert killed.poll() is None, killed.communicate()
        assert time.monotonic() < limit
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (folder / "prior" / "model.json").exists()  # it was in the middle

    interrupted = start("resume", folder)
    for line in interrupted.stderr:
        if "updates, loss" in line:
            interrupted.send_signal(signal.SIGINT)
            break
    _, message = interrupted.communicate()
    assert interrupted.returncode == 130
    assert "interrupted; run the same command again to continue" in message
    assert "Traceback" not in message
    assert json.loads((folder / "prior" / "training.json").read_text())["num_losses"] % 100 == 0

    assert kaffee("fit", "lorenz63", "-o", folder, "-q", *small).exit_code == 0
    ours, theirs = contents(folder), contents(run)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_resume_needs_the_folder_only_and_quiet_json_is_json_and_nothing_else(kaffee, run):
    before = contents(run)
    result = kaffee("resume", run, "--json", "-q")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert set(found.pop("axes")) == {"1", "2", "3"}
    assert found.pop("purpose")["sentence"].endswith(".")
    assert found.pop("drift")["whole"] < 10
    checks = json.loads((run / "checks.json").read_text())
    assert {name: found[name] for name in checks} == checks
    assert found["rungs"]["sentence"]
    assert contents(run) == before


# --- refusals ---


NAN_COLUMN = "a,b\n" + "1,\n" * 100
CONSTANT = "a,b\n" + "".join(f"{np.sin(i)},7\n" for i in range(100))
SHORT = "a,b\n1,2\n3,4\n5,7\n"
TEXT = "a,b\n" + "1,2\n" * 50 + "oops,3\n" + "1,2\n" * 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SHORT, "too few for windows of 8 steps"),
        (TEXT, "'oops'"),
        (CONSTANT, "Leave it out: --columns a, or"),
        (NAN_COLUMN, "column 'b' without any observed value"),
        ("", "the file is empty"),
        ("a,b\n", "row"),
    ],
    ids=["short", "text", "constant", "nan", "empty", "header"],
)
def test_data_that_cannot_be_fitted_are_one_sentence(refused, tmp_path, tiny, content, message):
    path = tmp_path / "lab.csv"
    path.write_text(content)
    sentence = refused("fit", path, "-o", tmp_path / "run", *tiny)
    assert message in sentence
    assert "lab.csv" in sentence


def test_data_that_were_refused_can_be_mended_and_run_in_the_same_folder(
    refused, kaffee, values, tmp_path, tiny, monkeypatch
):
    path = tmp_path / "lab.csv"
    path.write_text(SHORT)
    refused("fit", path, "-o", tmp_path / "run", *tiny)
    write_series(values, path)
    seen = []
    monkeypatch.setattr(fit_command, "execute", lambda run, **how: seen.append(run.loaded.series))
    result = kaffee("fit", path, "-o", tmp_path / "run", "-q", *tiny)
    assert result.exit_code == 0, result.exception
    assert seen[0].num_steps == 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv"], "nothing.csv: no such file"),
        (["lorentz63"], "Did you mean 'lorenz63'"),
        ([], "Name the data: files or a system"),
        (["lorenz63", "--set", "sede=3"], "Unknown setting 'sede'. Did you mean 'seed'"),
        (["lorenz63", "--set", "seed"], "not of the form key=value"),
        (["lorenz63", "--set", "pretraining.schedule.num_updates=-1"], "num_updates lies between"),
        (["lorenz63", "--set", "pretraining.schedule.batch_size=0"], "batch_size must be at least 1"),
        (["lorenz63", "--set", "test_fraction=2"], "test_fraction lies between 0 and 1"),
        (["lorenz63", "--set", "core.latent_dim=2"], "smaller than the 3 observed"),
        (["lorenz63", "--set", "pretraining.window=5000"], "384 steps, but a window needs 5001"),
        (["lorenz63", "--set", "adaptation.scored=5000"], "384 steps, but a window needs 5003"),
        (["lorenz63", "--set", "simulation.num_steps=-3"], "num_steps = -3"),
        (["lorenz63", "--method", "kaffe"], "Unknown method 'kaffe'. Did you mean 'kaffee'"),
        (["lorenz63", "--seed", "99999999999"], "seed lies between"),
        (["lorenz63", "--config", "nothing.toml"], "There is no settings file at nothing.toml"),
        (["lorenz63", "--param", "rho=x"], "needs a number"),
        (["lorenz63", "--columns", "x,y"], "columns: for files only"),
    ],
)
def test_absurd_commands_are_one_sentence_and_write_no_folder(refused, tmp_path, monkeypatch, tiny, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("fit", *tiny, "-o", "run", *arguments)
    assert not (tmp_path / "run" / "prior").exists()


def test_bad_toml_is_one_sentence(refused, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = \n")
    assert "mine.toml is not a readable TOML file" in refused("fit", "lorenz63", "--config", path)
    path.write_text("[pretraining]\nwindw = 3\n")
    assert "Did you mean 'pretraining.window'" in refused("fit", "lorenz63", "--config", path)


def test_a_folder_of_something_else_is_refused_and_left_alone(refused, tmp_path, tiny):
    (tmp_path / "thesis.tex").write_text("...")
    assert "exists and is not a run of kaffee" in refused("fit", "lorenz63", "-o", tmp_path, *tiny)
    assert "exists and is not a run of kaffee" in refused("fit", "lorenz63", "-o", tmp_path / "thesis.tex", *tiny)
    assert "There is no run at" in refused("resume", tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    "damage", ["{", '{"format": "kaffee-run", "format_version": 1, "settings": {}, "data": {"fingerprint": 1}}']
)
def test_resuming_a_damaged_run_is_one_sentence(refused, tmp_path, damage):
    (tmp_path / "run.json").write_text(damage)
    assert "run" in refused("resume", tmp_path)


def test_a_damaged_model_is_one_sentence(refused, run, small, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    path = next((copy / "prior").glob("model-*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged, truncated or exchanged" in refused("resume", copy)


# --- settings on the way in and out ---


def test_printed_settings_can_be_read_again(kaffee, tmp_path):
    changes = sets("adaptation.optimiser.clip_norm=none", "core.latent_dim=7")
    result = kaffee("fit", "--print-config", "--method", "blind", *changes)
    path = tmp_path / "mine.toml"
    path.write_text(result.stdout)
    found = update(FitSettings(), read_toml(path))
    assert (found.method, found.core.latent_dim, found.adaptation.optimiser.clip_norm) == ("blind", 7, None)
    assert kaffee("fit", "--print-config", "--config", path).stdout == result.stdout


def test_the_command_line_wins_over_the_file(kaffee, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("seed = 1\ntest_fraction = 0.5\n")
    text = kaffee("fit", "--print-config", "--config", path, "--set", "seed=2", "--seed", "3").stdout
    assert "seed = 3" in text
    assert "test_fraction = 0.5" in text


def test_quickstart_is_a_fit_with_a_few_settings(kaffee, monkeypatch, run, tmp_path):
    monkeypatch.setattr(certify, "_QUICKSTART", reduce(merge, map(parse_override, SMALL)))
    seen = []
    monkeypatch.setattr(certify, "execute", lambda run, **how: seen.append((run, how)))
    result = kaffee("quickstart", "-o", tmp_path / "q", "--seed", 4, "--json", "-q")
    assert result.exit_code == 0, result.exception
    started, how = seen[0]
    assert started.settings.seed == 4
    assert started.settings.core.latent_dim == 5
    assert started.title == "kaffee quickstart: noisy Lorenz-63"
    assert how == {"quiet": True, "json": True}
    assert (tmp_path / "q" / "run.json").exists()


def test_the_settings_of_quickstart_exist():
    assert update(FitSettings(), certify._QUICKSTART).simulation.num_steps == 25_000
