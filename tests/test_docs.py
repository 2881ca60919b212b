"""The tables in the docs are those of the committed results."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def fill():
    spec = importlib.util.spec_from_file_location("fill", ROOT / "docs" / "fill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_tables_are_up_to_date(fill, page):
    text = page.read_text(encoding="utf-8")
    assert fill.filled(text) == text, "stale; run: python docs/fill.py"


def test_a_block_is_replaced_and_the_rest_is_left_alone(fill, monkeypatch):
    monkeypatch.setattr(fill, "table", lambda arguments: f"[{arguments}]")
    text = "a\n<!-- begin: table1 --rows kaffee -->\nold\n<!-- end -->\nb\n"
    assert fill.filled(text) == "a\n<!-- begin: table1 --rows kaffee -->\n\n[table1 --rows kaffee]\n\n<!-- end -->\nb\n"
