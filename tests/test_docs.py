"""The tables in the docs are those of the committed results."""

import importlib
import importlib.util
import re
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


PAGES = [*sorted((ROOT / "docs").glob("*.md")), *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "CHANGELOG"))]
# The changelog says that these are gone; a paper and an entry point only look like names.
NOT_NAMES = {"kaffee.tex", "kaffee.commands", "kaffee.data.decorrelation_time"}


def resolve(dotted: str) -> bool:
    """Tell whether a dotted path names a module or something in one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if not hasattr(value, name):
                return name in getattr(value, "__annotations__", {}) or name in getattr(
                    value, "__dataclass_fields__", {}
                )
            value = getattr(value, name)
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_names_in_the_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    dotted = set(re.findall(r"\bkaffee(?:\.[A-Za-z_]\w*)+", text)) - NOT_NAMES
    assert sorted(name for name in dotted if not resolve(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_paths_in_the_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:kaffee|tests|docs|benchmarks|examples|results)/[\w./-]+)`", text))
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_short_names_in_the_map_of_the_paper_exist():
    text = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    short = {name for name in re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", text) if not name.startswith("kaffee.")}
    assert sorted(name for name in short if not resolve(f"kaffee.{name}")) == []
