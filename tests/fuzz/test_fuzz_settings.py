"""Settings from files and from the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import JSON, damaged, edited, fuzz, result_or_advice
from kaffee.errors import ConfigError
from kaffee.fitting.config import override, parse_override, read_toml, to_dict, to_toml, update
from kaffee.fitting.settings import FitSettings

TOML = to_toml(FitSettings())
KEYS = [line.split(" = ")[0] for line in TOML.splitlines() if " = " in line]
PATHS = [
    *("seed", "method", "core", "core.latent_dim", "core.type", "pretraining.schedule.num_updates", "shell.alpha"),
    *("pretraining.optimiser.learning_rate", "adaptation.optimiser.clip_norm", "adaptation.segment"),
    *("core.", ".", "a..b"),
]
VALUES = st.one_of(
    st.sampled_from(
        [
            *("none", "null", "1", "-1", "1e400", "nan", "inf", "1_0", "0x10", "'a'", '"\\u0000"', "[1, 2]", "{a = 1}"),
            *("true", "9" * 400, "9" * 5000, "[" * 200, "[" * 2000, "2024-01-01", "1\nseed = 2", "#", "", "=", "[["),
        ]
    ),
    st.text(max_size=8),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("settings") / "mine.toml"


def settings_in(path):
    """What a file of settings says; errors of its values name the key, those of its text the file."""
    tables = result_or_advice(lambda: read_toml(path), str(path))
    return None if tables is None else result_or_advice(lambda: update(FitSettings(), tables))


@fuzz(150)
@given(content=st.binary(max_size=100) | damaged(TOML.encode()))
def test_damaged_files(path, content):
    path.write_bytes(content)
    found = settings_in(path)
    assert found is None or isinstance(found, FitSettings)


@fuzz(150)
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_odd_values_in_files(path, key, value):
    path.write_text(TOML.replace(f"{key} = ", f"{key} = {value} #"), encoding="utf-8", errors="replace")
    settings_in(path)


@fuzz(200)
@given(values=edited(to_dict(FitSettings())) | JSON)
def test_odd_values(values):
    if isinstance(values, dict):
        found = result_or_advice(lambda: update(FitSettings(), values))
        assert found is None or isinstance(found, FitSettings)


@fuzz(200)
@given(key=st.sampled_from(PATHS) | st.text(max_size=5), value=VALUES)
def test_options_of_the_command_line(key, value):
    text = f"{key}={value}"
    parsed = result_or_advice(lambda: parse_override(text))
    assert parsed is None or isinstance(parsed, dict)
    found = result_or_advice(lambda: override(FitSettings(), [text]))
    assert found is None or isinstance(found, FitSettings)


def test_values_that_once_ended_in_a_traceback():
    for text, words in (
        (f"shell.alpha={'9' * 400}", "shell.alpha = 9+ ... does not fit"),
        (f"seed={'[' * 2000}", r"seed = '\[+ ... does not fit"),
    ):
        with pytest.raises(ConfigError, match=words):
            override(FitSettings(), [text])
