"""Settings from TOML and `--set`: types are checked, unknown keys are errors with a suggestion."""

import contextlib
import dataclasses
import json
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaffee.errors import ConfigError
from kaffee.fitting.config import differences, override, parse_override, read_toml, to_dict, to_toml, update
from kaffee.fitting.settings import FitSettings


@dataclasses.dataclass(frozen=True)
class Inner:
    number: float = 0.5
    count: int | None = 3
    choice: Literal["a", "b"] = "a"


@dataclasses.dataclass(frozen=True)
class Outer:
    flag: bool = False
    name: str = "x"
    pair: tuple[int, ...] = (1, 2)
    inner: Inner = Inner()


def read_back(text, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return read_toml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("flag=true", Outer(flag=True)),
        ("name=plain words", Outer(name="plain words")),
        ('name="quoted"', Outer(name="quoted")),
        ("name=a=b", Outer(name="a=b")),
        ("pair=[3]", Outer(pair=(3,))),
        ("inner.number=2", Outer(inner=Inner(number=2.0))),
        ("inner.number = 1e-3 ", Outer(inner=Inner(number=1e-3))),
        ("inner.count=none", Outer(inner=Inner(count=None))),
        ("inner.count=None", Outer(inner=Inner(count=None))),
        ("inner.count=7", Outer(inner=Inner(count=7))),
        ("inner.choice=b", Outer(inner=Inner(choice="b"))),
    ],
)
def test_values_are_set(text, value):
    assert override(Outer(), [text]) == value


def test_later_values_win_others_stay_and_whole_numbers_become_floats():
    result = override(Outer(name="kept"), ["inner.count=1", "inner.count=2", "inner.choice=b", "inner.number=2"])
    assert result == Outer(name="kept", inner=Inner(number=2.0, count=2, choice="b"))
    assert type(result.inner.number) is float


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flagg=true", "Unknown setting 'flagg'. Did you mean 'flag'?"),
        ("inner.cuont=3", "Unknown setting 'inner.cuont'. Did you mean 'inner.count'?"),
        ("zzz=3", "Unknown setting 'zzz'. Allowed: flag, name, pair, inner"),
        ("inner.=3", "Unknown setting 'inner.'"),
        (".inner=3", "Unknown setting ''"),
        ("inner.count.deep=3", "inner.count = {'deep': 3} does not fit; it must be a whole number or none"),
        ("inner=3", "inner is a group of settings; set one of its keys, such as inner.number"),
        ("inner.count=true", "inner.count = True does not fit"),
        ("inner.number=false", "inner.number = False does not fit; it must be a number"),
        ("inner.count=1.0", "inner.count = 1.0 does not fit; it must be a whole number or none"),
        ("inner.count=three", "inner.count = 'three' does not fit"),
        ("inner.choice=c", "inner.choice = 'c' does not fit; it must be 'a' or 'b'"),
        ("inner.number=none", "inner.number = None does not fit"),
        ("flag=1", "flag = 1 does not fit"),
        ("flag=yes", "flag = 'yes' does not fit"),
        ("name=3", "name = 3 does not fit"),
        ("pair=3", "pair = 3 does not fit"),
        ("inner.count=", "inner.count = '' does not fit"),
        ("inner.count=[1", r"inner.count = '\[1' does not fit"),
        ("inner.count=2024-01-01", "does not fit"),
        ("inner.count=" + "1" * 5000, "does not fit"),
        ("flag", "'flag' is not of the form key=value"),
        ("=3", "'=3' is not of the form key=value"),
        ("", "'' is not of the form key=value"),
    ],
)
def test_what_does_not_fit_is_a_clear_error(text, message):
    with pytest.raises(ConfigError, match=message):
        override(Outer(), [text])


def test_an_unknown_key_in_a_nested_table_is_an_error():
    with pytest.raises(ConfigError, match=r"Unknown setting 'pretraining.schedule.num_update'. Did you mean"):
        update(FitSettings(), {"pretraining": {"schedule": {"num_update": 3}}})


def test_toml_comes_back(tmp_path):
    original = Outer(flag=True, name='a "b" \\ c', pair=(), inner=Inner(1e-300, None, "b"))
    assert update(Outer(), read_back(to_toml(original), tmp_path)) == original


def test_all_settings_of_a_fit_come_back_also_where_none_is_not_the_default(tmp_path):
    changes = [
        "adaptation.optimiser.clip_norm=none",
        "pretraining.optimiser.final_learning_rate=none",
        "core.latent_dim=7",
        "method=blind",
        "test_fraction=0.125",
    ]
    original = override(FitSettings(), changes)
    assert original.adaptation.optimiser.clip_norm is None
    for given_ones in (original, FitSettings()):
        assert update(FitSettings(), read_back(to_toml(given_ones), tmp_path)) == given_ones
        assert update(FitSettings(), json.loads(json.dumps(to_dict(given_ones)))) == given_ones


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    number=st.floats(allow_nan=False),
    count=st.none() | st.integers(-(2**63), 2**63 - 1),
    name=st.text(st.characters(exclude_categories=["C"], codec="utf-8")),
)
def test_any_values_come_back_from_toml(tmp_path_factory, number, count, name):
    original = Outer(name=name, inner=Inner(number=number, count=count))
    assert update(Outer(), read_back(to_toml(original), tmp_path_factory.mktemp("toml"))) == original


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text())
def test_no_text_is_worse_than_a_clear_error(text):
    with contextlib.suppress(ConfigError):
        assert isinstance(override(Outer(), [text]), Outer)


@pytest.mark.parametrize("content", [b"seed = \n\n", b"seed = 1\nseed = 2", b"\xff", b"a = " + b"[" * 50_000])
def test_missing_and_bad_toml_are_clear_errors(tmp_path, content):
    path = tmp_path / "mine.toml"
    with pytest.raises(ConfigError, match="There is no settings file at"):
        read_toml(path)
    path.write_bytes(content)
    where = ".*line 1" if content.startswith(b"seed = \n") else ""
    with pytest.raises(ConfigError, match=f"mine.toml is not a readable TOML file: {where}"):
        read_toml(path)
    with pytest.raises(ConfigError, match="not a readable TOML file"):
        read_toml(tmp_path)


def test_differences_name_the_keys():
    ours, theirs = {"a": 1, "b": {"c": 2, "d": 3}, "e": 1}, {"a": 1, "b": {"c": 5, "d": 3}, "f": None}
    assert differences(ours, theirs) == ["b.c: 5 before, 2 now", "e: None before, 1 now"]
    assert differences(ours, ours) == []


def test_parsing_makes_nested_tables():
    assert parse_override("a.b.c=[1, 'x']") == {"a": {"b": {"c": [1, "x"]}}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"pretraining.forcing.interval={2**63}", "interval = 9223372036854775808 does not fit.*at most 19 digits"),
        (f"adaptation.guard={10**30}", "guard = 10+ does not fit.*at most 19 digits or none"),
        (f"seed={-(2**70)}", "seed = -.* does not fit"),
        (f"pretraining.schedule.batch_size={2**62}", "batch_size is at most 1000000"),
        (f"core.hidden_dim={2**62}", "core.hidden_dim is at most"),
        (f"simulation.num_steps={2**62}", "simulation.num_steps is at most"),
    ],
)
def test_huge_numbers_are_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        override(FitSettings(), [text])
