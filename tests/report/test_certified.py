"""The certificate as a page, as what a run keeps of it, and beside another."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from kaffee.certification.certificate import CertificationSettings, certify
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import CheckpointError
from kaffee.model.maps import Linear
from kaffee.model.observation import Projection
from kaffee.model.shell import Shell
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import write_json
from kaffee.report.compare import compared_page, comparison_table, decided_table, read_certificate, verdicts_table
from kaffee.report.deciding import reasons
from kaffee.report.page import Report
from kaffee.report.sections import cards, sections, stored_certificate, verdict_table

SMALL = CertificationSettings(num_starts=60, members=20, horizons=(1, 2, 5), divergence_runs=2, divergence_steps=100)
A = np.array([[0.95, -0.25], [0.25, 0.95]]) * 0.98


@pytest.fixture(scope="module")
def certificate():
    """Of the very model that made the data: a noisy damped rotation."""
    rng = np.random.default_rng(0)
    z, rows = np.zeros(2), []
    for _ in range(1600):
        z = A @ z + 0.3 * rng.standard_normal(2)
        rows.append(z + 0.1 * rng.standard_normal(2))
    train, test = Series.from_arrays(np.array(rows), columns=["<i>a", "b"]).split(0.75)
    model = StateSpaceModel(
        core=Linear(A.astype(np.float32), np.zeros(2, np.float32)),
        shell=Shell.from_std(np.full(2, 0.3), np.full(2, 0.1)),
        observation=Projection(2, 2),
        embedding=np.eye(2, dtype=np.float32),
    )
    truth = Reconstruction(model, Scaler.identity(2), ("<i>a", "b"), 0.5, "kaffee")
    return certify(truth, train, test, settings=SMALL)


def test_the_first_screen_has_a_card_for_every_check_with_its_rule(certificate):
    found = cards(certificate)
    assert [card.status for card in found] == [v.status for v in certificate.verdicts]
    assert {card.axis[0] for card in found} == {"1", "2", "3"}
    assert all(card.rule and card.sentence and card.value for card in found)
    assert {card.axis[0]: card.check for card in found} == {"1": "tangents", "2": "stochastic run", "3": "core"}
    assert found[0].status == "pass"
    assert len(verdict_table(certificate).rows) == len(found)


def test_what_decided_is_shown_with_its_name(certificate):
    first = replace(certificate.verdicts[0], status="fail", value=-0.4, quantity="bias in standard deviations, b")
    changed = replace(certificate, verdicts=(first, *certificate.verdicts[1:]))
    card = cards(changed)[0]
    assert (card.name, card.value) == ("bias in standard deviations, b", "-0.4")
    assert verdict_table(changed).rows[0][2:] == ["fail", "bias in standard deviations, b: -0.4"]
    assert decided_table({"a": stored_certificate(changed)}).rows[0][1] == "bias in standard deviations, b: -0.4"
    unknown = replace(first, value=None, quantity="")
    assert verdict_table(replace(certificate, verdicts=(unknown,))).rows[0][3] == "–"


def test_reasons_are_the_sentences_of_what_did_not_pass():
    both = [{"name": name, "status": "unknown", "sentence": "Too short."} for name in ("calibration", "whiteness")]
    other = [
        {"name": "skill", "status": "pass", "sentence": "Good."},
        {"name": "core", "status": "fail", "sentence": "Bad."},
    ]
    assert reasons([*both, *other]) == ["calibration, whiteness (unknown): Too short.", "core (fail): Bad."]


def test_an_older_certificate_is_shown_by_what_its_number_was(certificate, tmp_path):
    old = stored_certificate(certificate)
    first, *others = ({key: verdict[key] for key in verdict if key != "quantity"} for verdict in old["verdicts"])
    sentence = "One-step predictions are not calibrated: NIS 0.54 of x5."
    old["verdicts"] = [{**first, "status": "fail", "value": 0.864181, "sentence": sentence}, *others]
    write_json(tmp_path / "certificate.json", old)
    read = read_certificate(tmp_path)
    decided = dict(decided_table({"old": read, "new": stored_certificate(certificate)}).to_json()[0])
    assert decided["old"] == "normalised innovation squared: 0.864"
    assert sentence in reasons(read["verdicts"])[0]
    assert "Decided by" in compared_page({"old": read, "again": read}).to_html()


def test_every_part_has_its_section_and_names_are_escaped(certificate):
    page = Report("t", sections(certificate, true_maximum=0.1), verdicts=cards(certificate)).to_html()
    titles = re.findall("<h2>(.*?)</h2>", page)
    for title in ("Attractor", "Forecast", "Skill", "Calibration", "Spread", "Spectra", "Lyapunov exponents"):
        assert title in titles
    assert "<i>a" not in page.replace("\\u003c", "")
    assert "largest, true system" in page
    assert page.count("class='badge ") == 3


def test_the_worst_coordinate_can_be_found_in_a_table(certificate):
    (found,) = [
        table for section in sections(certificate) for table in section.tables if table.title == "By coordinate"
    ]
    residuals = certificate.residuals
    assert [row[:2] for row in found.rows] == [["<i>a", residuals.counts[0]], ["b", residuals.counts[1]]]
    assert found.rows[1][3] == residuals.coverage_each[1]


def test_a_part_that_is_missing_says_why(certificate):
    without = replace(certificate, agreement=None, spread=None, tangents=None, missing={"agreement": "too short & so"})
    titles = [section.title for section in sections(without)]
    assert "Attractor" not in titles
    assert "Spread" not in titles
    page = Report("t", sections(without)).to_html()
    assert "too short &amp; so" in page


def test_what_is_kept_is_json_without_the_trajectories(certificate):
    stored = stored_certificate(certificate)
    assert "drawn" not in stored["agreement"]
    assert json.loads(json.dumps(stored, allow_nan=False))["axes"]["1"]["status"] == certificate.axes[1]


def test_runs_are_compared_from_their_files(certificate, tmp_path):
    worse = stored_certificate(certificate)
    worse["residuals"]["nis"] = 3.0
    worse["verdicts"][0]["status"] = "fail"
    worse["agreement"] = None
    write_json(tmp_path / "a" / "certificate.json", stored_certificate(certificate))
    write_json(tmp_path / "b" / "certificate.json", worse)
    both = {name: read_certificate(tmp_path / name) for name in ("a", "b")}
    rows = {row["metric"]: row for row in comparison_table(both).to_json()}
    assert rows["nis"]["better"] == "a"
    assert rows["nll, one step"]["better"] == "–"
    assert rows["d_stsp of the core"]["b"] is None
    assert verdicts_table(both).rows[0] == ["calibration", "pass", "fail"]
    page = compared_page(both).to_html()
    assert "Coverage of one-step bands" in page
    assert "Power spectra" not in page


def test_without_a_certificate_the_command_to_make_one_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="First: kaffee report"):
        read_certificate(tmp_path)
    (tmp_path / "certificate.json").write_text("{}")
    with pytest.raises(CheckpointError, match="incomplete or was edited"):
        read_certificate(tmp_path)
