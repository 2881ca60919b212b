"""Errors say what was given, what is allowed and what to do next."""

import pytest

from kaffee import errors
from kaffee.errors import CheckpointError, ConfigError, DataError, KaffeeError, unknown


def test_a_near_miss_is_suggested():
    assert unknown("method", "kaffe", ["kaffee", "blind"]) == "Unknown method 'kaffe'. Did you mean 'kaffee'?"
    assert "Did you mean 'kaffee'" in unknown("method", "KAFFE", ["kaffee"])


def test_without_a_near_one_all_are_listed():
    assert unknown("method", "zzz", ["a", "b"], see="x") == "Unknown method 'zzz'. Allowed: a, b. See: x"


@pytest.mark.parametrize("kind", [DataError, ConfigError, CheckpointError])
def test_all_errors_have_one_base(kind):
    assert issubclass(kind, KaffeeError)
    assert errors.KaffeeError is KaffeeError


@pytest.mark.parametrize("kind", [DataError, ConfigError])
def test_bad_values_are_value_errors_too(kind):
    assert issubclass(kind, ValueError)
