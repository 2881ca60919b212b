"""`kaffee report` and `kaffee compare`: again, on other data beside the run's own, of runs of other columns."""

import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from kaffee.certification.certificate import CertificationSettings, certify
from kaffee.cli._conclusion import explain_staleness
from kaffee.data.gaps import _overlap as overlap
from kaffee.data.gaps import training_rows_note
from kaffee.data.series import Series
from kaffee.data.writing import write_series
from kaffee.fitting.run import Run, Source, _find_place
from kaffee.records import write_json
from kaffee.systems.catalogue import get_system

FEW = CertificationSettings(num_starts=20, members=8, horizons=(1, 5), divergence_runs=2, divergence_steps=50)


def certify_little(patch):
    """Let the commands certify with few starts and short runs."""
    patch.setattr("kaffee.certification.certificate.certify", partial(certify, settings=FEW))


@pytest.fixture(scope="module")
def elsewhere(kaffee, run, tmp_path_factory):
    """(a copy of the run, reports on data that are new and on data of which the half is not)."""
    place = tmp_path_factory.mktemp("report")
    copy = shutil.copytree(run, place / "run")
    settings = Run.open(run).settings
    known = Source(system="lorenz63").load(settings).series.recordings[0]
    new = Source(system="lorenz63").load(replace(settings, seed=7)).series.recordings[0]
    dt = get_system("lorenz63").dt
    with pytest.MonkeyPatch.context() as patch:
        certify_little(patch)
        results = {}
        for name, values in (("new", new[:120]), ("old", known[420:540])):
            path = write_series(Series.from_arrays(values, times=dt * np.arange(120)), place / f"{name}.csv")
            results[name] = kaffee("report", copy, "--on", path)
    return copy, results


def test_a_report_on_other_data_leaves_that_of_the_run_alone(elsewhere, run):
    copy, results = elsewhere
    for result in results.values():
        assert result.exit_code == 0, result.exception
    for name in ("report.html", "certificate.json", "checks.json", "filtering.png"):
        assert (copy / name).read_bytes() == (run / name).read_bytes()
        assert (copy / "on-new" / name).exists()
    assert f"Report: {copy / 'on-new' / 'report.html'}" in results["new"].stdout.replace("\n", "")
    tests = [json.loads((copy / part / "certificate.json").read_text())["about"]["test"] for part in ("", "on-new")]
    assert [test["steps"] for test in tests] == [120, 120]
    # Its certificate is as fresh as that of the run, so that its page can be drawn again.
    assert explain_staleness(copy / "on-new") == ""


def test_a_finished_run_is_drawn_again_without_computing(kaffee, run, tmp_path, monkeypatch):
    copy = shutil.copytree(run, tmp_path / "run")
    page = (copy / "report.html").read_bytes()
    (copy / "report.html").unlink()
    monkeypatch.setattr("kaffee.certification.certificate.certify", lambda *_, **__: pytest.fail("computed"))
    monkeypatch.setattr("kaffee.fitting.run.Source.load", lambda *_, **__: pytest.fail("loaded"))
    result = kaffee("report", copy)
    assert result.exit_code == 0, result.exception
    assert "certifying" not in result.stderr
    assert (copy / "report.html").read_bytes() == page
    assert len(page) < 6e6
    monkeypatch.undo()
    (copy / "certificate.json").unlink()
    monkeypatch.setattr("kaffee.fitting.run.Run.open", lambda *_, **__: pytest.fail("reached"))
    with pytest.raises(pytest.fail.Exception, match="reached"):
        raise kaffee("report", copy).exception


def test_a_finished_run_is_certified_again_if_asked_to(kaffee, run, tmp_path, monkeypatch):
    copy = shutil.copytree(run, tmp_path / "run")
    certify_little(monkeypatch)
    result = kaffee("report", copy, "--again")
    assert result.exit_code == 0, result.exception
    assert f"{copy}: certifying, since --again asks for it" in result.stderr
    settings = json.loads((copy / "certificate.json").read_text())["about"]["settings"]
    assert settings["num_starts"] == FEW.num_starts
    assert explain_staleness(copy) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("certificate", "there is no certificate yet"),
        ("arrays", "damaged or another version wrote it"),
        ("model", "about other models"),
    ],
)
def test_a_certificate_that_cannot_be_drawn_says_why(run, tmp_path, change, reason):
    copy = shutil.copytree(run, tmp_path / "run")
    assert explain_staleness(copy) == ""
    if change == "certificate":
        (copy / "certificate.json").unlink()
    elif change == "arrays":
        next(copy.glob("certificate-*.safetensors")).unlink()
    else:
        shutil.copy(copy / "prior" / "model.json", copy / "kaffee" / "model.json")
    assert reason in explain_staleness(copy)


def test_other_data_of_the_same_name_have_their_own_place(tmp_path):
    certificate = {"verdicts": [], "about": {"test": {"fingerprint": "first"}}}
    write_json(tmp_path / "on-day" / "certificate.json", certificate)
    assert _find_place(tmp_path / "on-day", "first") == tmp_path / "on-day"
    assert _find_place(tmp_path / "on-day", "second") == tmp_path / "on-day-2"
    write_json(
        tmp_path / "on-day-2" / "certificate.json", {**certificate, "about": {"test": {"fingerprint": "second"}}}
    )
    assert _find_place(tmp_path / "on-day", "second") == tmp_path / "on-day-2"
    assert _find_place(tmp_path / "on-day", "third") == tmp_path / "on-day-3"
    assert _find_place(tmp_path / "on-night", "first") == tmp_path / "on-night"


def test_rows_that_were_trained_on_are_not_called_held_out(kaffee, elsewhere, tmp_path):
    copy, results = elsewhere
    sentence = "60 of 120 complete rows of "
    assert sentence not in results["new"].stderr
    assert sentence in results["old"].stderr
    assert "warning" not in json.loads((copy / "on-new" / "certificate.json").read_text())["about"]
    assert sentence in json.loads((copy / "on-old" / "certificate.json").read_text())["about"]["warning"]
    page = (copy / "on-old" / "report.html").read_text(encoding="utf-8")
    assert page.count("they are not held out") == 2  # under the title and in the provenance
    compared = kaffee("compare", copy / "on-old", copy / "on-new", "-o", tmp_path / "both.html", "--json")
    assert compared.exit_code == 0, compared.exception
    assert "they are not held out" in (tmp_path / "both.html").read_text(encoding="utf-8")


def test_runs_of_other_columns_are_compared_without_the_figure_that_cannot_be(kaffee, refused, elsewhere, tmp_path):
    certificate = json.loads((elsewhere[0] / "certificate.json").read_text())
    for name, columns in (("copy", ["x1", "x2"]), ("other", ["u", "v"])):
        spectra = {"frequencies": [0.0, 1.0, 2.0], "spectra": {"data": [[1.0, 1.0]] * 3}, "shown": columns}
        certificate |= {"agreement": spectra, "about": {**certificate["about"], "columns": columns}}
        write_json(tmp_path / name / "certificate.json", certificate)
    copy, other = tmp_path / "copy", tmp_path / "other"
    result = kaffee("compare", copy, other, "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.exception
    assert "nll, one step" in result.stdout
    assert "The runs have different columns" in result.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "is left out, since no column is in all runs" in page
    assert "NLL by horizon" in page
    for output in (copy / "report.html", copy / "run.json"):
        assert "must end in .html and must not overwrite" in refused("compare", copy, other, "-o", output)


def test_coarse_readings_are_alike_without_being_the_same():
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.standard_normal((3000, 1)), axis=0)
    coarse = Series.from_arrays(np.round(10 * np.sin(walk)))
    train, test = coarse.split(0.8)
    assert training_rows_note(train, test) == ""
    assert training_rows_note(train, coarse) != ""
    gappy = np.where(rng.uniform(size=(500, 2)) < 0.3, np.nan, rng.standard_normal((500, 2)))
    train, test = Series.from_arrays(gappy).split(0.8)
    assert overlap(train, test)[0] == 0
    assert overlap(train, Series.from_arrays(gappy))[0] == np.isfinite(gappy[:400]).all(axis=1).sum()
