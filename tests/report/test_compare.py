"""Runs beside each other, from their certificates."""

import copy

import pytest
from sample import certificate

from kaffee.errors import CheckpointError
from kaffee.records import write_json
from kaffee.report.compare import _find_winner, lay_out_comparison, read_certificate, tabulate_comparison
from kaffee.report.page import list_reasons


def stored(columns, *, warning=None):
    power = [[1.0] * len(columns)] * 3
    agreement = {"frequencies": [0.0, 1.0, 2.0], "spectra": {"data": power, "core": power}, "shown": columns}
    about = {"columns": columns, "test": {"fingerprint": "same"}, **({"warning": warning} if warning else {})}
    return {"verdicts": [{"name": "skill", "status": "pass"}], "agreement": agreement, "about": about}


def figures(**runs):
    section = next((s for s in lay_out_comparison(runs).sections if s.title == "Figures"), None)
    return section.text, {picture.title: picture.figure for picture in section.pictures}


@pytest.mark.parametrize(
    ("values", "best", "winner"),
    [
        ([0.5, 0.4], "low", 1),
        ([3.0, 2.0], "high", 0),
        ([0.95, 0.89], 0.9, 1),
        ([1.0, 1.0], "low", None),
        ([1.0, 2.0], None, None),
        ([None, 2.0], "low", None),
        ([None, float("nan")], "low", None),
    ],
)
def test_the_better_run_is_named(values, best, winner):
    assert _find_winner(values, best) == winner


def test_common_columns_are_shown_and_the_others_named():
    text, found = figures(a=stored(["x", "y"]), b=stored(["y", "x"]))
    assert (text, list(found)) == ("", ["Power spectra"])
    names = [trace.name for trace in found["Power spectra"].data if trace.meta == "x"]
    assert names == ["data", "a: kaffee core", "b: kaffee core"]  # what runs share is shown once
    looks = {(trace.line.color, trace.line.dash) for trace in found["Power spectra"].data if trace.meta == "x"}
    assert len(looks) == 3
    text, found = figures(a=stored(["x", "y"]), b=stored(["y", "z"]))
    assert text == "'Power spectra' shows common columns only, without a: 'x'; b: 'z'."
    assert list(found) == ["Power spectra"]


def test_without_a_common_column_the_figure_is_left_out_and_the_tables_stay():
    runs = {"a": stored(["x", "y"]), "b": stored(["u", "v"])}
    text, found = figures(**runs)
    assert text == "'Power spectra' is left out, since no column is in all runs (a: 'x', 'y'; b: 'u', 'v')."
    assert found == {}
    assert "The runs have different columns (a: 'x', 'y'; b: 'u', 'v')" in tabulate_comparison(runs).note
    assert "<table" in lay_out_comparison(runs).to_html()


def test_a_warning_of_a_run_is_a_note_of_the_comparison():
    assert tabulate_comparison({"a": stored(["x"]), "b": stored(["x"], warning="trained on.")}).note == "b: trained on."


def test_runs_are_compared_from_their_files(tmp_path):
    own = certificate().to_dict()
    worse = copy.deepcopy(own)
    worse["residuals"]["nis"] = 3.0
    worse["verdicts"][0]["status"] = "fail"
    worse["agreement"] = None
    write_json(tmp_path / "a" / "certificate.json", own)
    write_json(tmp_path / "b" / "certificate.json", worse)
    both = {name: read_certificate(tmp_path / name) for name in ("a", "b")}
    rows = {row["metric"]: row for row in tabulate_comparison(both).to_json()}
    assert rows["nis"]["better"] == "a"
    assert rows["nll, one step"]["better"] == "–"
    assert rows["d_stsp of the core"]["b"] is None
    assert lay_out_comparison(both).sections[0].tables[0].rows[0] == ["calibration", "pass", "fail"]
    assert list(figures(**both)[1]) == ["Coverage of one-step bands", "Marginal NLL by horizon"]
    assert list(figures(a=own, b=own)[1])[2:] == ["Power spectra", "Lyapunov exponents of the cores"]


def test_an_older_certificate_is_shown_by_what_its_number_was(tmp_path):
    old = certificate().to_dict()
    first, *others = ({key: verdict[key] for key in verdict if key != "quantity"} for verdict in old["verdicts"])
    sentence = "One-step predictions are not calibrated: NIS 0.54 of x5."
    old["verdicts"] = [{**first, "status": "fail", "value": 0.864181, "sentence": sentence}, *others]
    write_json(tmp_path / "certificate.json", old)
    read = read_certificate(tmp_path)
    _, decided = lay_out_comparison({"old": read, "new": certificate().to_dict()}).sections[0].tables
    assert decided.to_json()[0]["old"] == "normalised innovation squared: 0.864"
    assert sentence in list_reasons(read["verdicts"])[0]
    assert "Decided by" in lay_out_comparison({"old": read, "again": read}).to_html()


def test_without_a_certificate_the_command_to_make_one_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="First: kaffee report"):
        read_certificate(tmp_path)
    (tmp_path / "certificate.json").write_text("{}")
    with pytest.raises(CheckpointError, match="incomplete or was edited"):
        read_certificate(tmp_path)
