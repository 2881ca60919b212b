"""Compiled programs between processes: found again, apart by machine, bounded, off on request."""

import os
import subprocess
import sys

import pytest

from kaffee.checkpoint import programs
from kaffee.checkpoint.programs import (
    KNOWN_BY,
    QUICK,
    cache_folder,
    cache_programs,
    compile_quickly,
    describe_machine,
    inspect_cache,
    prune_cache,
)
from kaffee.cli import main

COUNTING = """
import kaffee
print(kaffee.cache_programs())
import jax, jax.numpy as jnp
hits = []
jax.monitoring.register_event_listener(lambda name, **kw: hits.append(name) if "cache_hits" in name else None)
jax.jit(lambda x: jnp.tanh(x) @ x)(jnp.ones((3, 3)))
print(len(hits))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("KAFFEE_CACHE", str(tmp_path))
    return tmp_path


def fill(place, sizes):
    folder = place / "0123456789abcdef"
    folder.mkdir()
    for age, size in enumerate(sizes):
        path = folder / f"program{age}-cache"
        path.write_bytes(bytes(size))
        os.utime(path, (1e9 - age, 1e9 - age))
    return folder


def run_counting(place):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["KAFFEE_CACHE"] = str(place)
    done = subprocess.run([sys.executable, "-c", COUNTING], env=environment, capture_output=True, text=True, check=True)
    folder, hits = done.stdout.split()
    return folder, int(hits), done.stderr


def test_a_second_process_finds_the_programs_of_the_first(place):
    folder, hits, _ = run_counting(place)
    assert folder == str(place / describe_machine())
    assert hits == 0
    _, hits, said = run_counting(place)
    assert hits > 0
    assert not said
    assert inspect_cache().files > 0


def test_it_is_off_on_request_and_leaves_an_own_choice_alone(place):
    for word in ("off", "OFF", "0"):
        environment = {"KAFFEE_CACHE": word}
        assert cache_programs(environment) is None
        assert environment == {"KAFFEE_CACHE": word}
    own = {"JAX_COMPILATION_CACHE_DIR": "elsewhere"}
    assert str(cache_programs(own)) == "elsewhere"
    assert own == {"JAX_COMPILATION_CACHE_DIR": "elsewhere"}


def test_processes_that_this_one_starts_share_the_folder(place):
    environment = {"KAFFEE_CACHE": str(place)}
    folder = cache_programs(environment)
    assert folder == place / describe_machine()
    assert environment["JAX_COMPILATION_CACHE_DIR"] == str(folder)


def test_without_a_place_to_write_nothing_is_kept(place):
    (place / "file").write_text("in the way")
    assert cache_programs({"KAFFEE_CACHE": str(place / "file")}) is None


def test_the_usual_place_is_the_users_cache(tmp_path):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "kaffee" / "programs"
    assert cache_folder({"KAFFEE_CACHE": "off"}).parts[-2:] == ("kaffee", "programs")


def test_other_processors_and_versions_have_other_folders(monkeypatch):
    names = {describe_machine()}
    monkeypatch.setattr(programs, "_describe_processor", lambda: "another")
    names.add(describe_machine())
    monkeypatch.setattr(programs, "version", lambda name: "99.0")
    names.add(describe_machine())
    assert len(names) == 3


def test_the_least_used_go_first_until_the_rest_fits(place):
    folder = fill(place, [10, 20, 30, 40])
    (folder / "notes.txt").write_text("not a program")
    assert inspect_cache()[1:] == (4, 100)
    assert prune_cache(100) == 0
    assert prune_cache(65) == 1  # the oldest, of 40 bytes
    assert inspect_cache()[1:] == (3, 60)
    assert prune_cache(0) == 3
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_programs_are_compiled_quickly_unless_something_speaks_against_it(monkeypatch):
    environment = {}
    assert compile_quickly(environment)
    assert environment == {"XLA_FLAGS": QUICK}
    for given in ({"XLA_FLAGS": ""}, {"KAFFEE_COMPILE": "full"}):
        before = dict(given)
        assert not compile_quickly(given)
        assert given == before
    monkeypatch.setattr(programs, "version", lambda name: f"{KNOWN_BY[1][0]}.{KNOWN_BY[1][1] + 1}.0")
    assert not compile_quickly({})
    monkeypatch.setattr(programs, "version", lambda name: "0.10.2")
    monkeypatch.setattr(programs, "find_spec", lambda name: name == "jax_plugins")
    assert not compile_quickly({})


def test_this_version_knows_the_flags():
    command = [sys.executable, "-c", "import jax; print(jax.devices()[0].platform)"]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": QUICK}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("command", "expected"), [("bench", None), ("--version", QUICK)])
def test_the_command_line_compiles_quickly_but_for_the_benchmark(monkeypatch, command, expected):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("KAFFEE_CACHE", "off")
    monkeypatch.setattr(sys, "argv", ["kaffee", command])
    monkeypatch.setattr(main, "app", lambda: None)
    main.run()
    assert os.environ.get("XLA_FLAGS") == expected
    os.environ.pop("XLA_FLAGS", None)
