"""`kaffee fit --seeds`, `--preset` and `--rung`, and forecasts averaged over refits."""

import json
from functools import partial

import numpy as np
import pytest

import kaffee as library
from cli.conftest import TINY, sets
from kaffee.certification import certificate
from kaffee.cli import fit as fit_command
from kaffee.data.writing import write_series
from kaffee.fitting.refits import count_refits
from kaffee.fitting.run import Run

FEW = {"num_starts": 40, "members": 20, "divergence_runs": 2, "divergence_steps": 100}
SCRATCH = sets(*TINY, "rung=scratch", "adaptation.guard=none", "adaptation.confine=none", "adaptation.climate=false")


@pytest.fixture(scope="module")
def refitted(kaffee, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refits") / "run"
    with pytest.MonkeyPatch.context() as patch:  # how much is computed is tested elsewhere
        patch.setattr(certificate, "CertificationSettings", partial(certificate.CertificationSettings, **FEW))
        result = kaffee("fit", "lorenz63", "-o", folder, "--seeds", 2, *SCRATCH)
    assert result.exit_code == 0, result.exception
    return folder, result


def test_a_run_with_seeds_shows_their_spread_and_is_a_run_like_others(refitted):
    folder, result = refitted
    assert "Seed 1: Pretraining" in result.stderr
    assert "Refits" in result.stdout
    assert "standard deviation" in result.stdout
    assert "The same recording fitted with several seeds" in (folder / "report.html").read_text(encoding="utf-8")
    stored = json.loads((folder / "certificate.json").read_text())["refits"]
    assert [refit["seed"] for refit in stored["refits"]] == [0, 1]
    chosen = min(stored["refits"], key=lambda refit: refit["validation"])["seed"]
    assert stored["chosen"] == library.load(folder).provenance["seed"] == chosen
    assert not (folder / "refits" / "seed-0" / "certificate.json").exists()


@pytest.mark.parametrize("again", [["--seeds", 2], []])
def test_the_same_command_again_repeats_nothing(kaffee, refitted, again):
    result = kaffee("fit", "lorenz63", "-o", refitted[0], "--json", *again, *SCRATCH)
    assert "Done before, nothing is repeated" in result.stderr
    assert json.loads(result.stdout)["refits"]["refits"][1]["seed"] == 1


def test_resume_and_report_know_the_refits(kaffee, refitted):
    assert "Done before" in kaffee("resume", refitted[0], "--jobs", 2).stderr
    assert "Refits" in kaffee("report", refitted[0]).stdout
    assert count_refits(refitted[0]) == 2


def test_more_seeds_are_more_fits_and_another_certificate(kaffee, refitted, monkeypatch):
    seen = []
    monkeypatch.setattr("kaffee.fitting.refits.fit_refits", lambda run, seeds, **how: seen.append(seeds) or [])
    monkeypatch.setattr("kaffee.cli._conclusion.conclude", lambda *_, refits, **__: seen.append(refits))
    monkeypatch.setattr("kaffee.cli._conclusion.show", lambda *_, **__: None)
    assert kaffee("fit", "lorenz63", "-o", refitted[0], "--seeds", 3, *SCRATCH).exit_code == 0
    assert seen == [3, []]


def test_forecasts_are_averaged_over_refits(kaffee, refused, refitted, values, tmp_path):
    write_series(values[:100], tmp_path / "x.csv")
    outputs = [tmp_path / "alone.csv", tmp_path / "pooled.csv"]
    for output, how in zip(outputs, ([], ["--refits"]), strict=True):
        result = kaffee("forecast", refitted[0], tmp_path / "x.csv", "-o", output, "--steps", 3, "--any-step", *how)
        assert result.exit_code in (0, 3), result.exception
    assert "500 members of 2 refits from 1 recording" in result.stdout
    alone, pooled = (library.read_series(output) for output in outputs)
    assert alone.columns == pooled.columns
    assert not np.allclose(alone.recordings[0], pooled.recordings[0])
    one = refitted[0] / "refits" / "seed-0"
    message = refused("forecast", one, tmp_path / "x.csv", "-o", outputs[0], "--any-step", "--refits")
    assert "has no refits" in message


def test_presets_and_rungs_are_shown_among_the_settings(kaffee, refused, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(fit_command, "execute", lambda run, **how: seen.append((Run.open(run.path).settings, how)))
    size = sets("simulation.num_steps=4000")
    result = kaffee("fit", "lorenz63", "-o", tmp_path / "a", "--preset", "quick", "--seeds", 3, "--jobs", 2, *size)
    assert result.exit_code == 0, result.exception
    assert "quick: a tenth of what the rows are worth" in result.stderr
    usual = kaffee("fit", "lorenz63", "-o", tmp_path / "b", "--rung", "linear", *size)
    assert "rung = linear  (given, instead of auto)" in usual.stderr
    (quick, how), (linear, _) = seen
    assert (how["seeds"], how["jobs"]) == (3, 2)
    assert quick.pretraining.schedule.num_updates == linear.pretraining.schedule.num_updates // 10
    assert (quick.rung, linear.rung) == ("auto", "linear")
    texts = [kaffee("fit", "lorenz63", "--print-config", *how).stdout for how in (["--paper"], ["--preset", "paper"])]
    assert texts[0] == texts[1]
    assert "Unknown preset 'fast'" in refused("fit", "lorenz63", "-o", tmp_path / "c", "--preset", "fast")
    control = refused("fit", "lorenz63", "-o", tmp_path / "c", "--rung", "auto", "--method", "frozen_core", *size)
    assert "frozen_core is a control" in control
    assert "rung = 'linaer' does not fit" in refused("fit", "lorenz63", "-o", tmp_path / "c", "--rung", "linaer")


def test_a_linear_model_by_request_says_so_and_has_its_table(kaffee, tmp_path):
    small = sets("simulation.num_steps=300")
    result = kaffee("fit", "lorenz63", "-o", tmp_path / "run", "--rung", "linear", "--no-certify", *small)
    assert result.exit_code == 0, result.exception
    assert "A linear model was asked for (" in result.stderr
    rungs = library.load(tmp_path / "run").provenance["rungs"]
    assert rungs["chosen"] == "linear"
    assert len(rungs["linear"]["nll"]) == len(rungs["horizons"])
