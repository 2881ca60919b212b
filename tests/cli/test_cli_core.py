"""`kaffee fit --core` and the settings that the data suggest, as a user types them."""

import numpy as np
import pytest

from cli.conftest import SMALL, sets
from kaffee.data.series import Series
from kaffee.data.writing import write_series
from kaffee.fitting.run import Run

OWN = """
import equinox as eqx
import jax.numpy as jnp

class Turning(eqx.Module):
    angle: object

    def __call__(self, z):
        c, s = jnp.cos(self.angle), jnp.sin(self.angle)
        return jnp.stack([c * z[0] - s * z[1], s * z[0] + c * z[1]])

def make(num_observed):
    return Turning(jnp.array(0.1))
"""
FEW = (*SMALL, "adaptation.schedule.num_updates=5")


@pytest.fixture(scope="module")
def own_run(kaffee, tmp_path_factory):
    """A run around the user's core, as the user would make it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(OWN)
    phase = 0.12 * np.arange(400)
    noise = 0.05 * np.random.default_rng(0).standard_normal((400, 2))
    write_series(Series.from_arrays(np.stack([np.cos(phase), np.sin(phase)], axis=1) + noise), folder / "turn.csv")
    few = [text for text in FEW if not text.startswith(("core.", "pretraining.schedule.num_updates"))]
    result = kaffee("fit", folder / "turn.csv", "-o", folder / "run", "--core", f"{folder}/mine.py:make", *sets(*few))
    return folder, result


def test_a_run_starts_from_the_users_core(own_run):
    folder, result = own_run
    assert result.exit_code == 0, result.output
    assert Run.open(folder / "run").settings.core.start == f"{folder}/mine.py:make"


def test_what_the_data_suggest_is_shown_with_its_reason(own_run):
    _, result = own_run
    assert "Settings from the data" in result.stderr
    assert "decorrelation time" in result.stderr
    assert "given" in result.stderr


def test_the_core_is_named_again_to_use_the_model(kaffee, refused, own_run):
    folder, _ = own_run
    arguments = ("forecast", folder / "run", folder / "turn.csv", "-o", folder / "ahead.csv", "--steps", 5)
    for command in (arguments, ("diagnose", folder / "run"), ("dpc", folder / "run")):
        message = refused(*command)
        assert "the core is your own code" in message
        assert message.endswith("--core FILE.py:FUNCTION")
    assert kaffee(*arguments, "--core", f"{folder}/mine.py:make").exit_code == 0
    assert kaffee("report", folder / "run").exit_code == 0  # draws the stored certificate, which needs no model
    assert kaffee("diagnose", folder / "run", "--windows", 4, "--core", f"{folder}/mine.py:make").exit_code == 0
    assert "FILE.py:FUNCTION is needed" in refused(*arguments, "--core", "elsewhere")


def test_the_papers_settings_are_one_word_away(kaffee, own_run):
    folder, _ = own_run
    suggested = kaffee("fit", folder / "turn.csv", "--print-config").stdout
    paper = kaffee("fit", folder / "turn.csv", "--print-config", "--paper").stdout
    assert "confine = 0.25" in suggested
    assert 'confine = "none"' in paper
    assert "num_updates = 150" in paper


def test_a_built_in_core_needs_no_function(refused, run, own_run, tmp_path):
    folder, _ = own_run
    message = refused("run-free", run, "-o", tmp_path / "out.csv", "--core", f"{folder}/mine.py:make3")
    assert "has no function 'make3'" in message
    (tmp_path / "three.py").write_text("def make(n):\n    return lambda z: 0.5 * z\n")
    message = refused("run-free", run, "-o", tmp_path / "out.csv", "--core", f"{tmp_path}/three.py:make")
    assert "the core is one of kaffee's own. Leave out --core" in message


BAD = """
import jax.numpy as jnp

def boom(n):
    raise KeyError("boom <b>")

def number(n):
    return 3

def short(n):
    return lambda z: z[:1]

def fails(n):
    def step(z):
        return jnp.dot(jnp.ones((n + 1, n + 1)), z)
    return step

def leaves(n):
    raise SystemExit(2)

def calls(n):
    import jax
    import numpy as np
    return lambda z: jax.pure_callback(np.sin, z, z)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("boom", "KeyError: 'boom <b>' (line 5 of "),
        ("number", "number(2) returned 3; a function z -> z' is needed."),
        ("short", "The core maps a state of shape (2,) to (1,)"),
        ("fails", "(line 15 of "),
        ("leaves", "SystemExit: 2 (line 19 of "),
        ("calls", "The core cannot be differentiated twice, which training needs: ValueError: Pure callbacks"),
        ("calls", "(line 24 of "),
    ],
)
def test_errors_of_the_users_code_name_the_function_and_the_line(refused, own_run, tmp_path, name, message):
    (tmp_path / "bad.py").write_text(BAD)
    sentence = refused("fit", own_run[0] / "turn.csv", "-o", tmp_path / "run", "--core", f"{tmp_path}/bad.py:{name}")
    assert sentence.startswith(f"--core {tmp_path}/bad.py:{name}: ")
    assert message in sentence


def test_a_file_that_is_not_python_is_named_with_the_line(refused, own_run, tmp_path):
    (tmp_path / "bad.py").write_text("import os\ndef make(n)\n    pass\n")
    sentence = refused("fit", own_run[0] / "turn.csv", "-o", tmp_path / "run", "--core", f"{tmp_path}/bad.py:make")
    assert f"bad.py:make: SyntaxError: expected ':' (line 2 of {tmp_path}/bad.py)" in sentence
