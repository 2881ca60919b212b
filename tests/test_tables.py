"""One table, four ways to write it: whatever is in a cell, none of them breaks."""

import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from kaffee.tables import Table, number

HOSTILE = Table(
    "<b>t</b> [/x]",
    ("a|b", "<script>", "[red]c"),
    [["[/nope] <i>", 1.5, math.nan], ["x|y", None, math.inf]],
    note="50 % & <more> [/]",
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (-0.5, "-0.500"),
        (1e-3, "0.001"),
        (9.9e-4, "9.9e-04"),
        (1e5, "1.0e+05"),
        (99999.0, "99999.000"),
        (np.float32(0.1234567), "0.123"),
        (np.float64(2.0), "2.000"),
        (np.nan, "–"),
        (np.float32("nan"), "–"),
        (None, "–"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (True, "True"),
        (0, "0"),
        (10**12, "1000000000000"),
        ("", ""),
    ],
)
def test_numbers_as_people_read_them(value, text):
    assert number(value) == text


def test_digits_can_be_chosen():
    assert number(math.pi, digits=1) == "3.1"
    assert number(1e-9, digits=0) == "1e-09"


def test_a_terminal_shows_brackets_as_they_are():
    out = io.StringIO()
    Console(file=out, width=200).print(HOSTILE)
    for text in ("[/nope] <i>", "[red]c", "[/x]", "[/]", "1.500", "–"):
        assert text in out.getvalue()


def test_html_is_escaped():
    page = HOSTILE.to_html()
    assert "<script>" not in page
    assert "<i>" not in page
    assert "&lt;script&gt;" in page
    assert "50 % &amp; &lt;more&gt;" in page
    assert page.count("<td>") == 6


def test_markdown_keeps_its_columns():
    lines = HOSTILE.to_markdown().splitlines()
    assert lines[0] == r"| a\|b | <script> | [red]c |"
    assert lines[1] == "| --- | ---: | ---: |"
    assert lines[3] == r"| x\|y | – | inf |"
    assert lines[-1] == HOSTILE.note


def test_json_is_json():
    rows = HOSTILE.to_json()
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert rows[0] == {"a|b": "[/nope] <i>", "<script>": 1.5, "[red]c": None}
    assert rows[1]["[red]c"] is None


def test_json_takes_numpy_values():
    rows = Table("t", ("a", "b"), [[np.int64(3), np.float32(0.5)]]).to_json()
    assert json.dumps(rows) == '[{"a": 3, "b": 0.5}]'


def test_a_row_of_another_length_is_noticed():
    with pytest.raises(ValueError, match="zip"):
        Table("t", ("a", "b"), [[1]]).to_json()


def test_a_table_may_be_empty():
    table = Table("t", ("a",), [])
    assert table.to_json() == []
    assert table.to_html().count("<td>") == 0
    assert table.to_markdown() == "| a |\n| --- |\n"


def test_a_table_that_is_too_wide_comes_in_parts_with_whole_numbers():
    wide = Table("Wide", ("row", *[f"metric_{i}" for i in range(8)]), [["kaffee", *["1.234±0.567"] * 8]], note="Note.")
    out = io.StringIO()
    Console(file=out, width=80).print(wide)
    text = out.getvalue()
    assert text.count("1.234±0.567") == 8
    assert text.count("kaffee") == 2
    assert text.count("Wide") == 1
    assert text.count("Note.") == 1
    assert max(map(len, text.splitlines())) <= 80
    out = io.StringIO()
    Console(file=out, width=200).print(wide)
    assert out.getvalue().count("kaffee") == 1
