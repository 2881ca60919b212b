"""`import kaffee`: a map of the public names that costs nothing and changes nothing."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kaffee

QUIET = """
import sys
before = set(sys.modules)
import kaffee
heavy = {"jax", "numpy", "scipy", "matplotlib", "equinox", "optax", "rich", "typer"} & set(sys.modules)
assert not heavy, heavy
assert "fit" in dir(kaffee) and "KAFFEE" in dir(kaffee)
kaffee.Schedule
import jax
assert not jax.config.jax_enable_x64
assert jax.config.jax_numpy_dtype_promotion == "standard"
print("ok")
"""


@pytest.mark.parametrize("name", kaffee.__all__)
def test_every_public_name_loads_and_is_documented(name):
    value = getattr(kaffee, name)
    assert name == "__version__" or value.__doc__


def test_importing_loads_nothing_heavy_and_sets_nothing():
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=False)
    assert done.stdout == "ok\n", done.stderr
    assert done.stderr == ""


def test_names_for_type_checkers_are_the_names_at_run_time():
    tree = ast.parse(Path(kaffee.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.asname: f"kaffee.{node.module}" for node in blocks for alias in node.names}
    assert set(typed) == set(kaffee.__all__) - {"__version__"}
    for name, module in typed.items():
        assert getattr(kaffee, name) is getattr(import_module(module), name)


def test_the_function_fit_is_not_hidden_by_a_module():
    import kaffee.fitting.pipeline

    assert callable(kaffee.fit)
    assert kaffee.fit is kaffee.fitting.pipeline.fit


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="fitt"):
        kaffee.fitt  # noqa: B018


def test_a_star_import_gives_the_public_names():
    namespace = {}
    exec("from kaffee import *", namespace)
    assert set(kaffee.__all__) <= set(namespace)
