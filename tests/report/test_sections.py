"""The certificate as a page: every part has its section, from a stored certificate as from a new one."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from sample import certificate, with_page

from kaffee.certification.certificate import Certificate
from kaffee.errors import CheckpointError
from kaffee.records import write_record
from kaffee.report.page import list_reasons
from kaffee.report.sections import _list_sections, lay_out_certificate, tabulate_results, tabulate_verdicts
from kaffee.report.stills import draw_stills
from kaffee.tables import Table


@pytest.fixture(scope="module")
def found():
    return certificate()


def test_the_first_screen_has_a_card_for_every_check_with_its_rule(found):
    first = replace(found.verdicts[0], status="fail", value=-0.4, quantity="bias in standard deviations, b")
    changed = replace(found, verdicts=(first, *found.verdicts[1:]))
    page = lay_out_certificate(changed).to_html()
    assert page.count('<li class="card ') == len(found.verdicts) == 7
    name, value = re.findall('<span class="name">(.*?)</span> <strong>(.*?)</strong>', page)[0]
    assert (name, value) == ("bias in standard deviations, b", "-0.4")
    assert tabulate_verdicts(changed).rows[0] == [
        *("1 local probabilistic", "calibration", "fail", "bias in standard deviations, b: -0.4")
    ]
    unknown = replace(first, value=None, quantity="", rule="")
    assert tabulate_verdicts(replace(found, verdicts=(unknown,))).rows[0][3] == "–"
    assert "needs data that are not there" in lay_out_certificate(replace(found, verdicts=(unknown,))).to_html()


def test_reasons_are_the_sentences_of_what_did_not_pass():
    both = [{"name": name, "status": "unknown", "sentence": "Too short."} for name in ("calibration", "whiteness")]
    other = [
        {"name": "skill", "status": "pass", "sentence": "Good."},
        {"name": "core", "status": "fail", "sentence": "Bad."},
    ]
    assert list_reasons([*both, *other]) == ["calibration, whiteness (unknown): Too short.", "core (fail): Bad."]


def test_one_number_for_one_quantity(found):
    """The table of results says what the sections say, by the same estimators."""
    rows = {row["model"]: row for row in tabulate_results(with_page(found)).to_json()}
    assert list(rows) == ["prior", "kaffee", "truth"]
    assert rows["kaffee"]["nll"] == found.residuals.nll_standard
    assert rows["kaffee"]["coverage 90 %"] == found.residuals.coverage["0.9"]
    assert rows["kaffee"]["d_stsp"] == rows["prior"]["d_stsp"] == found.agreement.core.typical.d_stsp
    assert rows["kaffee"]["lambda_1"] == found.agreement.exponents.values[0]
    assert rows["truth"]["d_stsp"] == found.agreement.truth.d_stsp
    assert (rows["truth"]["nll"], rows["truth"]["lambda_1"]) == (None, 0.1)
    assert Table(**tabulate_results(found).to_record()).to_html() == tabulate_results(found).to_html()


def test_every_part_has_its_section_and_names_are_escaped(found):
    page = lay_out_certificate(with_page(found)).to_html()
    assert re.findall("<h2>(.*?)</h2>", page) == [
        *(
            "Result",
            "What to do",
            "Attractor",
            "Forecast",
            "Skill",
            "Calibration",
            "Spread",
            "Spectra",
            "Lyapunov exponents",
        ),
        *("Filtering", "Training", "Settings", "Provenance"),
    ]
    assert "<i>a" not in page
    assert "largest, true system" in page
    assert page.count('class="badge ') == 3


def test_a_stored_certificate_gives_the_same_page_and_stills(found, tmp_path):
    whole = with_page(found)
    whole.save(tmp_path, {"made_of": "this"})
    read, conclusion = Certificate.load(tmp_path)
    assert conclusion == {"made_of": "this"}
    assert read.verdicts == whole.verdicts
    assert set(draw_stills(read)) == {"attractor", "filtering", "training"}
    first = lay_out_certificate(read).to_html()
    read.save(tmp_path, conclusion)
    assert lay_out_certificate(Certificate.load(tmp_path)[0]).to_html() == first
    np.testing.assert_allclose(read.agreement.drawn["core"], whole.agreement.drawn["core"], rtol=1e-6)
    stored = json.loads((tmp_path / "certificate.json").read_text())
    assert "drawn" not in stored["agreement"]
    assert stored["axes"]["1"]["status"] == found.axes[1]
    (tmp_path / "certificate.json").write_text(json.dumps({**stored, "fan": 7}))
    with pytest.raises(CheckpointError, match="damaged or was edited"):
        Certificate.load(tmp_path)


def test_a_certificate_of_an_older_version_is_an_error_that_says_so(found, tmp_path):
    values = found.to_dict()
    part = values.pop("checks")
    write_record(tmp_path, "certificate", found.arrays(), values)
    with pytest.raises(CheckpointError, match="cannot be read by this version"):
        Certificate.load(tmp_path)
    # A field with a default may be newer than the certificate; the path may be a text.
    values |= {"checks": part}
    del values["agreement"]["truth"], values["purpose"], values["drift"], values["agreement"]["core"]["clipped"]
    del values["residuals"]["interval_score_standard"]
    write_record(tmp_path, "certificate", found.arrays(), values)
    old = Certificate.load(str(tmp_path))[0]
    assert old.agreement.truth is old.purpose is old.drift is None
    assert old.agreement.core.clipped == 0.0
    page = lay_out_certificate(old).to_html()
    assert "Good for" not in page
    assert "<td>interval score of 90% bands, standardised units</td><td>–</td>" in page


def test_the_worst_coordinate_can_be_found_in_a_table(found):
    tables = [table for section in _list_sections(found) for table in section.tables]
    (by_coordinate,) = [table for table in tables if table.title == "By coordinate"]
    residuals = found.residuals
    assert [row[:2] for row in by_coordinate.rows] == [["<i>a", residuals.counts[0]], ["b", residuals.counts[1]]]
    assert by_coordinate.rows[1][3] == residuals.coverage_each[1]


def test_a_part_that_is_missing_says_why(found):
    without = replace(found, agreement=None, spread=None, tangents=None, withheld=None)
    without = replace(without, missing={"agreement": "too short & so"})
    titles = [section.title for section in _list_sections(without)]
    assert not {"Attractor", "Spread", "Filtering"} & set(titles)
    assert "too short &amp; so" in lay_out_certificate(without).to_html()
    assert set(draw_stills(without)) == set()


def test_a_warning_stands_under_the_title_and_in_the_provenance(found):
    doubted = replace(found, about={**found.about, "warning": "seen before & more"})
    assert lay_out_certificate(doubted).to_html().count("seen before &amp; more") == 2
