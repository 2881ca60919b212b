"""Certificates beside each other whose columns are not the same."""

from kaffee.report.compare import compared_page, comparison_table


def stored(columns, *, warning=None):
    power = [[1.0] * len(columns)] * 3
    agreement = {"frequencies": [0.0, 1.0, 2.0], "spectra": {"data": power, "core": power}, "shown": columns}
    about = {"columns": columns, "test": {"fingerprint": "same"}, **({"warning": warning} if warning else {})}
    return {"verdicts": [{"name": "skill", "status": "pass"}], "agreement": agreement, "about": about}


def figures(**runs):
    section = next((s for s in compared_page(runs).sections if s.title == "Figures"), None)
    return section.text, [figure.title for figure in section.interactive]


def test_common_columns_are_shown_and_the_others_named():
    assert figures(a=stored(["x", "y"]), b=stored(["y", "x"])) == ("", ["Power spectra"])
    text, titles = figures(a=stored(["x", "y"]), b=stored(["y", "z"]))
    assert text == "'Power spectra' shows common columns only, without a: 'x'; b: 'z'."
    assert titles == ["Power spectra"]


def test_without_a_common_column_the_figure_is_left_out_and_the_tables_stay():
    runs = {"a": stored(["x", "y"]), "b": stored(["u", "v"])}
    text, titles = figures(**runs)
    assert text == "'Power spectra' is left out, since no column is in all runs (a: 'x', 'y'; b: 'u', 'v')."
    assert titles == []
    assert "The runs have different columns (a: 'x', 'y'; b: 'u', 'v')" in comparison_table(runs).note
    assert "<table" in compared_page(runs).to_html()


def test_a_warning_of_a_run_is_a_note_of_the_comparison():
    assert comparison_table({"a": stored(["x"]), "b": stored(["x"], warning="trained on.")}).note == "b: trained on."
