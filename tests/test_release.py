"""The release: what the wheel contains, and that its facts agree."""

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

import kaffee

ROOT = Path(__file__).parents[1]
MEGABYTE = 2**20
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel as `make dist` builds it, without an environment of its own."""
    builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed: make dev")
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")))
    return Path(path)


def test_the_wheel_contains_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"kaffee-{kaffee.__version__}.dist-info/"
    tracked = subprocess.run(["git", "ls-files", "kaffee"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = set(tracked.stdout.split()) or {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "kaffee").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(info)} >= files
    assert {name.split("/")[0] for name in names} == {"kaffee", info[:-1]}
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name or "results/" in name]
    for needed in ("py.typed", "__init__.pyi", "report/page.html.j2", "systems/measured.json", "cli/citations.bib"):
        assert f"kaffee/{needed}" in names
    assert {f"{info}METADATA", f"{info}entry_points.txt", f"{info}licenses/LICENSE"} <= names


def test_the_wheel_is_small(wheel):
    assert wheel.stat().st_size < MEGABYTE


def test_what_the_wheel_says_of_itself(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = f"kaffee-{kaffee.__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert f"Version: {kaffee.__version__}\n" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "kaffee = kaffee.cli.main:run" in scripts


def test_versions_agree():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(kaffee.__version__)}$", citation, re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+", kaffee.__version__)


def test_every_dependency_has_a_lower_bound_and_no_upper_one():
    for requirement in PROJECT["dependencies"]:
        assert re.fullmatch(r"[a-z0-9-]+>=\d+(\.\d+)*", requirement), requirement


def test_what_tests_need_is_what_users_are_offered():
    extras = PROJECT["optional-dependencies"]
    for name in ("arviz", "dask", "export", "parquet", "sktime"):
        assert set(extras[name]) <= set(extras["dev"]), name


def test_a_type_checker_reads_what_a_user_writes():
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert "tests/consumer.py" in mypy["files"]
    assert mypy["warn_unused_ignores"]
