"""`kaffee analyse`: what a run has learned, into its folder; refits beside it; several runs."""

import json
import shutil

import pytest

import kaffee as library
from cli.conftest import TINY, sets
from kaffee.fitting.refits import count_refits

FEW = ("--cycles", 2, "--steps", 400, "--starts", 20, "--grid", 5)
SCRATCH = sets(*TINY, "rung=scratch", "adaptation.guard=none", "adaptation.confine=none", "adaptation.climate=false")


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def test_a_run_is_analysed_into_its_folder(kaffee, copy):
    result = kaffee("analyse", copy, *FEW)
    assert result.exit_code == 0, result.exception
    for part in ("Fixed points and cycles", "Lyapunov exponents", "Where runs end", "analysis.html"):
        assert part in result.stdout
    assert "Refits" not in result.stdout
    record = json.loads((copy / "analysis.json").read_text())
    assert record["method"] == "regions"
    assert record["complete"] == {"1": True, "2": True}
    assert record["columns"] == ["x1", "x2", "x3"]
    assert len(record["basins"]["labels"]) == 5
    assert "Phase portrait" in (copy / "analysis.html").read_text(encoding="utf-8")
    printed = kaffee("analyse", copy, *FEW, "--json")
    assert json.loads(printed.stdout) == record
    found = library.analyse(library.load(copy), max_order=2, num_steps=400, num_starts=20, grid=None)
    assert [list(map(float, cycle.states[0])) for cycle in found.cycles] == [
        each["latent"][0] for each in record["cycles"]
    ]


def test_a_slice_is_chosen_and_a_wrong_one_refused(kaffee, refused, copy):
    result = kaffee("analyse", copy, *FEW, "--slice", "x3, x1", "--json")
    assert json.loads(result.stdout)["basins"]["plane"] == ["x3", "x1"]
    assert json.loads(kaffee("analyse", copy, *FEW, "--grid", 0, "--json").stdout)["basins"] is None
    assert "coordinate 'x7'" in refused("analyse", copy, "--slice", "x1,x7")


@pytest.fixture(scope="module")
def plain(kaffee, tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyse") / "run"
    result = kaffee("fit", "lorenz63", "-o", folder, "--quiet", "--no-certify", *SCRATCH)
    assert result.exit_code == 0, result.exception
    return folder


def test_refits_are_made_beside_the_run_which_stays_as_it_is(kaffee, plain):
    before = {path: path.read_bytes() for path in plain.rglob("model*")}
    result = kaffee("analyse", plain, "--refits", 2, *FEW, "--quiet")
    assert result.exit_code == 0, result.exception
    assert "Fixed points over refits" in result.stdout
    assert {path: path.read_bytes() for path in before} == before
    assert count_refits(plain) == 0
    record = json.loads((plain / "analysis.json").read_text())
    assert len(record["refits"]) == 1
    assert len(record["spread"]["leading"]) == 2
    # The first of them is the run itself, not fitted again.
    folders = plain / "kaffee", plain / "analysis" / "refits" / "seed-0" / "kaffee"
    weights = [next(folder.glob("model-*")).read_bytes() for folder in folders]
    assert weights[0] == weights[1]


def test_runs_and_folders_of_runs_are_compared(kaffee, refused, plain, copy):
    kaffee("analyse", plain, "--refits", 2, *FEW, "--quiet")
    inside = plain / "analysis" / "refits"
    together = json.loads(kaffee("analyse", inside, *FEW, "--json").stdout)
    assert (inside / "analysis.json").exists()
    assert len(together["refits"]) == 1
    # A run that has refits shows them without being asked.
    own = json.loads(kaffee("analyse", plain / "analysis", *FEW, "--json").stdout)
    assert len(own["refits"]) == 1
    named = json.loads(kaffee("analyse", plain, copy, *FEW, "--json").stdout)
    assert len(named["refits"]) == 1
    assert "--refits is for one run" in refused("analyse", plain, copy, "--refits", 2)


def test_what_is_not_finished_is_refused_with_what_to_do(refused, copy):
    (copy / "kaffee" / "model.json").unlink()
    assert "kaffee resume" in refused("analyse", copy)
