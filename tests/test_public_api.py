"""The public map: names load lazily, are documented, and `docs/api.md` lists exactly them."""

import ast
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import kaffee

ROOT = Path(__file__).parents[1]
# The paper's tables and figures have a map of their own, which is not part of the API.
PACKAGES = sorted(
    f"kaffee.{stub.parent.name}" for stub in (ROOT / "kaffee").glob("*/__init__.pyi") if stub.parent.name != "paper"
)
NAMES = [(package, name) for package in ["kaffee", *PACKAGES] for name in import_module(package).__all__]
ENTRIES = re.findall(r"^\.\. auto(\w+):: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)

HEAVY = {"jax", "numpy", "scipy", "pandas", "matplotlib", "plotly", "jinja2", "equinox", "optax", "rich", "typer"}
QUIET = f"""
import sys
import kaffee
{"; ".join(f"import {package}" for package in PACKAGES)}
heavy = {HEAVY} & set(sys.modules)
assert not heavy, heavy
assert "fit" in dir(kaffee) and "KAFFEE" in dir(kaffee)
kaffee.Schedule
import jax
assert not jax.config.jax_enable_x64
assert jax.config.jax_numpy_dtype_promotion == "standard"
print("ok")
"""

# Seconds on an idle machine, and how much slower one that runs other tests may be.
IMPORT_SECONDS, HELP_SECONDS, BUSY = 0.2, 0.5, 4.0


def read_stub(package):
    """The names of a stub, and the modules that they come from."""
    path = ROOT.joinpath(*package.split("."), "__init__.pyi")
    nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: f"{package}.{node.module}" for node in nodes for alias in node.names}


def best_seconds(*command):
    """The shortest of three runs."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def test_importing_loads_nothing_heavy_and_sets_nothing():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_importing_is_quick():
    assert best_seconds("-c", "import kaffee") < BUSY * IMPORT_SECONDS


def test_help_is_quick():
    assert best_seconds("-m", "kaffee.cli.main", "--help") < BUSY * HELP_SECONDS


@pytest.mark.parametrize("package", ["kaffee", *PACKAGES])
def test_names_for_type_checkers_are_the_names_at_run_time(package):
    stub = read_stub(package)
    assert set(stub) == set(import_module(package).__all__) - {"__version__"}
    for name, module in stub.items():
        assert getattr(import_module(package), name) is getattr(import_module(module), name)


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_loads_and_is_documented(package, name):
    assert name == "__version__" or getattr(import_module(package), name).__doc__


def test_every_name_of_kaffee_is_in_the_reference():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in kaffee.__all__ if not re.search(rf"\bkaffee\.{name}\b", text)] == []


def test_the_reference_shows_the_public_names_and_nothing_else():
    assert sorted(path for kind, path in ENTRIES if kind == "module") == PACKAGES
    for _, path in (entry for entry in ENTRIES if entry[0] != "module"):
        package, name = path.rsplit(".", 1)
        assert package == "kaffee"
        assert name in kaffee.__all__
    assert len(set(ENTRIES)) == len(ENTRIES)


@pytest.mark.parametrize("package", ["kaffee", *PACKAGES])
def test_no_module_hides_a_public_name(package):
    """Importing a module sets its name on the package, in place of a function of that name."""
    folder = Path(import_module(package).__file__).parent
    assert not {path.stem for path in folder.iterdir()} & set(import_module(package).__all__)


def test_the_function_fit_is_not_hidden_by_a_module():
    import kaffee.fitting.pipeline

    assert callable(kaffee.fit)
    assert kaffee.fit is kaffee.fitting.pipeline.fit


def test_subpackages_load_on_first_use():
    code = "import sys, kaffee; assert 'jax' not in sys.modules; print(kaffee.inference.forecast.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "forecast\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="No kaffee attribute fitt"):
        kaffee.fitt  # noqa: B018


def test_a_star_import_gives_the_public_names():
    namespace = {}
    exec("from kaffee import *", namespace)
    assert set(kaffee.__all__) <= set(namespace)
