"""The rows of the paper as values."""

import dataclasses

import pytest

from kaffee.errors import ConfigError
from kaffee.filtering.likelihood import METHODS, get_method
from kaffee.filtering.recursion import Recursion


@pytest.mark.parametrize(
    ("name", "objective", "transport", "train_core"),
    [
        ("kaffee", "filtered", True, True),
        ("blind", "filtered", False, True),
        ("core_collapse", "open_loop", True, True),
        ("noise_masking", "open_loop", False, True),
        ("frozen_core", "filtered", True, False),
    ],
)
def test_table_of_the_paper(name, objective, transport, train_core):
    method = get_method(name)
    assert dataclasses.astuple(method) == (objective, transport, train_core)
    assert method.recursion == Recursion(assimilate=objective == "filtered", transport=transport)
    assert method.filter == Recursion(assimilate=True, transport=transport)
    assert method.trainable_parts == (("core", "shell") if train_core else ("shell",))


def test_the_table_has_no_other_rows():
    assert len(METHODS) == 5
    assert len(set(METHODS.values())) == 5


def test_names_are_forgiving_and_errors_helpful():
    assert get_method("Core-Collapse") is METHODS["core_collapse"]
    with pytest.raises(ConfigError, match=r"Unknown method 'kafee'. Did you mean 'kaffee'"):
        get_method("kafee")
    with pytest.raises(ConfigError, match="Allowed: kaffee, blind"):
        get_method("xyz")
