"""Records on disk: atomic, checked, never executed; JSON values; the provenance of results."""

import hashlib
import json
import os
import pickle
import platform
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

import kaffee
from kaffee import records as store
from kaffee.errors import CheckpointError, KaffeeError
from kaffee.records import (
    _find_commit,
    jsonable,
    machine,
    read_json,
    read_record,
    versions,
    write_atomically,
    write_json,
    write_record,
)

ARRAYS = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.array(3, np.int32)}


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def forge(folder, meta, content=None, name="r"):
    """A record whose checksums fit, as an attacker would write it."""
    if content is not None:
        (folder / meta["arrays"]["file"]).write_bytes(content)
        meta["arrays"]["sha256"] = hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    (folder / f"{name}.json").write_text(json.dumps({**meta, "sha256": digest}))


# --- single files ---


def test_a_file_is_created_with_its_folder_and_replaced(tmp_path):
    path = tmp_path / "new" / "folder" / "x.bin"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert files(path.parent) == ["x.bin"]


def test_permissions_are_those_of_any_new_file(tmp_path):
    write_atomically(tmp_path / "ours", b"")
    (tmp_path / "theirs").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit])
def test_a_crash_while_writing_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch, failure):
    path = tmp_path / "x"
    write_atomically(path, b"old")

    def crash(*_):
        raise failure

    monkeypatch.setattr(store.os, "fsync", crash)
    with pytest.raises(failure):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert files(tmp_path) == ["x"]


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    with pytest.raises(KaffeeError, match=r"x cannot be written \(No space left on device\)"):
        write_atomically(tmp_path / "x", b"new")
    assert files(tmp_path) == []


def test_a_file_in_place_of_the_folder_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KaffeeError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "x", b"")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": {1, 2}}, np.float32(1.0)])
def test_what_is_not_json_is_refused_and_nothing_is_written(tmp_path, value):
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        write_json(tmp_path / "x.json", {"value": value})
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable thing"),
        (b'{"a": 1', "not a readable thing"),
        (b"\xff\xfe{}", "not a readable thing"),
        (b"[" * 100_000, "not a readable thing"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not a readable thing"),
        (b"[1, 2]", "holds list instead of a JSON object; it is not a thing"),
        (b"null", "holds NoneType"),
    ],
)
def test_unreadable_json_is_a_clear_error(tmp_path, content, message):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_json(tmp_path / "x.json", "thing")


def test_missing_json_is_a_clear_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"There is no thing at .*x.json"):
        read_json(tmp_path / "x.json", "thing")
    with pytest.raises(CheckpointError, match="not a readable thing"):
        read_json(tmp_path, "thing")


# --- records ---


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((1, 1), np.float32),
        np.array(2.5),
        np.zeros((0, 3)),
        np.arange(12.0).reshape(3, 4).T,
        np.arange(10)[::2],
        np.array([np.nan, np.inf, -0.0]),
        np.array([True, False]),
        np.array(-7, np.int32),
    ],
    ids=str,
)
def test_arrays_come_back_bit_for_bit(tmp_path, array):
    write_record(tmp_path, "r", {"x": array}, {})
    back = read_record(tmp_path, "r", "thing")[0]["x"]
    assert back.shape == array.shape
    assert back.dtype == array.dtype
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()


def test_metadata_come_back_and_old_arrays_go(tmp_path):
    write_record(tmp_path, "r", ARRAYS, {"n": 1})
    write_record(tmp_path, "r", {"a": np.zeros(1)}, {"n": 2, "deep": {"x": [1, None, "ü"], "5": 0.1}})
    write_record(tmp_path, "other", ARRAYS, {})
    arrays, meta = read_record(tmp_path, "r", "thing")
    assert meta["n"] == 2
    assert meta["deep"] == {"x": [1, None, "ü"], "5": 0.1}
    assert list(arrays) == ["a"]
    assert len(files(tmp_path)) == 4


def test_the_same_content_twice_keeps_its_file(tmp_path):
    for _ in range(2):
        write_record(tmp_path, "r", ARRAYS, {})
    assert len(files(tmp_path)) == 2
    assert set(read_record(tmp_path, "r", "thing")[0]) == {"a", "b"}


def test_a_crash_between_arrays_and_json_leaves_the_old_record(tmp_path, monkeypatch):
    write_record(tmp_path, "r", ARRAYS, {"n": 1})

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_json", crash)
    with pytest.raises(KeyboardInterrupt):
        write_record(tmp_path, "r", {"a": np.ones(3)}, {"n": 2})
    arrays, meta = read_record(tmp_path, "r", "thing")
    assert meta["n"] == 1
    np.testing.assert_array_equal(arrays["a"], ARRAYS["a"])


def test_indentation_is_not_damage(tmp_path):
    path = write_record(tmp_path, "r", ARRAYS, {"n": 1})
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert read_record(tmp_path, "r", "thing")[1]["n"] == 1


def test_an_edited_value_is_damage(tmp_path):
    path = write_record(tmp_path, "r", ARRAYS, {"n": 1})
    path.write_text(path.read_text().replace('"n": 1', '"n": 2'))
    with pytest.raises(CheckpointError, match="does not fit its own checksum"):
        read_record(tmp_path, "r", "thing")


@pytest.mark.parametrize("cut", [0, 1, 8, 50, -1])
def test_truncated_arrays_are_a_clear_error(tmp_path, cut):
    write_record(tmp_path, "r", ARRAYS, {})
    path = next(tmp_path.glob("r-*"))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="damaged, truncated or exchanged"):
        read_record(tmp_path, "r", "thing")


def test_missing_arrays_are_a_clear_error(tmp_path):
    write_record(tmp_path, "r", ARRAYS, {})
    next(tmp_path.glob("r-*")).unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_record(tmp_path, "r", "thing")


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "../../etc/passwd", "..", "", ".", "a\0b", "\ud800"])
def test_no_name_leads_out_of_the_folder(tmp_path, file):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    forge(folder, {"arrays": {"file": file, "sha256": hashlib.sha256(b"secret").hexdigest()}})
    with pytest.raises(CheckpointError, match=r"cannot be read|impossible array file"):
        read_record(folder, "r", "thing")


@pytest.mark.parametrize("entry", [None, [], "x", {}, {"file": 3}, {"file": None}])
def test_a_record_without_arrays_is_foreign(tmp_path, entry):
    forge(tmp_path, {"arrays": entry})
    with pytest.raises(CheckpointError, match="does not name an array file"):
        read_record(tmp_path, "r", "thing")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def safetensors_header(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        pickle.dumps(Bomb()),
        struct.pack("<Q", 2**62) + b"{}",
        safetensors_header({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}),
        safetensors_header({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"\0\0"),
        safetensors_header({"a": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"\0"),
        safetensors_header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
    ],
    ids=["empty", "garbage", "pickle", "huge header", "huge array", "bfloat16", "float8", "negative"],
)
def test_hostile_arrays_with_a_fitting_checksum_are_clear_errors(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    forge(tmp_path, {"arrays": {"file": "x.safetensors"}}, content)
    with pytest.raises(CheckpointError, match=r"not a safetensors file|does not write"):
        read_record(tmp_path, "r", "thing")
    assert not (tmp_path / "exploded").exists()


# --- JSON values ---


class Pair(NamedTuple):
    low: float
    high: float


@dataclass
class Result:
    pair: Pair
    values: np.ndarray


def test_results_become_plain_json_values():
    result = Result(Pair(-np.inf, np.float32(0.5)), np.array([[1.0, np.nan]]))
    assert jsonable({1: result, "b": (np.int64(2), None, "x", True)}) == {
        "1": {"pair": {"low": None, "high": 0.5}, "values": [[1.0, None]]},
        "b": [2, None, "x", True],
    }


def test_long_arrays_are_rounded_and_short_ones_are_not():
    third, many = 1.0 / 3.0, np.full(5, 1.0 / 3.0)
    assert jsonable([third, many], digits=3) == [0.333, [0.333] * 5]
    assert jsonable([third, many, many[:2]], digits=3, exact=2) == [third, [0.333] * 5, [third] * 2]


# --- provenance ---


def test_versions_of_all_that_decides_the_numbers():
    found = versions()
    assert found["kaffee"] == kaffee.__version__
    assert found["python"] == platform.python_version()
    assert found["jax"] == jax.__version__
    assert found["numpy"] == np.__version__
    assert {"jaxlib", "equinox", "optax", "scipy"} <= set(found)


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_that_of_the_checkout_and_says_whether_python_files_differ(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1\n")
    (package / "b.md").write_text("1\n")
    git(tmp_path, "init", "-q")
    assert _find_commit.__wrapped__(tmp_path) is None  # nothing committed
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as inside a hook
    assert _find_commit.__wrapped__(tmp_path) == head
    (package / "b.md").write_text("2\n")
    (package / "new.py").write_text("1\n")
    assert _find_commit.__wrapped__(tmp_path) == head
    (package / "a.py").write_text("2\n")
    assert _find_commit.__wrapped__(tmp_path) == f"{head}-dirty"
    assert _find_commit.__wrapped__(package) is None  # inside a checkout is not a checkout


def test_without_git_or_a_checkout_there_is_only_the_version(tmp_path, monkeypatch):
    assert _find_commit.__wrapped__(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _find_commit.__wrapped__(Path(kaffee.__file__).resolve().parents[1]) is None
    monkeypatch.setattr("kaffee.records._find_commit", lambda root: None)
    assert "commit" not in versions()
    monkeypatch.setattr("kaffee.records._find_commit", lambda root: "abc")
    assert versions()["commit"] == "abc"


def test_the_machine_is_json_and_names_its_usable_cores():
    found = machine()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1
    assert found["processor"]
    assert platform.system() in found["system"]


def test_json_of_tens_of_megabytes_is_refused_at_once(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    path.write_bytes(b'{"a": "' + b"x" * 20_000_000 + b'"}')
    monkeypatch.setattr(store.json, "loads", lambda text: pytest.fail("parsed"))
    with pytest.raises(CheckpointError, match=r"has more than 16 MB, which no model of kaffee has"):
        read_json(path, "model")
