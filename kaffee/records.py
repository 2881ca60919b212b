"""Records on disk (JSON and safetensors: atomic, checked, never pickled), and the provenance of results.

A record is two files: `NAME-<hash>.safetensors`, and `NAME.json` with its name and the SHA-256 of both. The JSON is
replaced last and in one step, so that a reader sees either the old record or the new one, never half of it.
"""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as decode_arrays
from safetensors.numpy import save as encode_arrays

from kaffee import __version__
from kaffee.errors import CheckpointError, KaffeeError

# Arrays are not kept in JSON: names of ten thousand columns and settings take less than one megabyte.
_MAX_JSON = 16_000_000


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step; a crash leaves the old content."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes private files; give the usual permissions. The umask can only be read by setting it.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KaffeeError(
            f"{path} cannot be written ({error.strerror or error}). Is the folder writable, and is there room?"
        ) from error


def jsonable(value: Any, *, digits: int | None = None, exact: int = 0) -> Any:
    """Convert to JSON values: dataclasses and named tuples to dictionaries, arrays to nested lists, NaN to None.

    With `digits`, floats are rounded to so many significant digits, except in arrays of at most `exact` entries and, if
    `exact` is not 0, single numbers.

    >>> jsonable({"a": np.array([1.0, np.nan]), "b": np.int64(2), "c": 1.0 / 3.0}, digits=3)
    {'a': [1.0, None], 'b': 2, 'c': 0.333}
    """
    again = partial(jsonable, digits=digits, exact=exact)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: again(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return again(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): again(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [again(item) for item in value]
    if hasattr(value, "tolist"):
        array = np.asarray(value)
        rounds = digits if array.ndim == 0 or array.size > exact else None
        return jsonable(array.tolist(), digits=rounds, exact=exact if array.ndim == 0 else 0)
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return value if digits is None or exact else float(f"{value:.{digits}g}")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; raise for NaN, infinities and objects that JSON does not have."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be written as JSON: {error}. Use plain, finite values.") from error
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; raise CheckpointError for anything else, and for more than `_MAX_JSON` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_JSON + 1)
        if len(content) > _MAX_JSON:
            raise CheckpointError(
                f"{path} has more than {_MAX_JSON / 1e6:g} MB, which no {what} of kaffee has: it is damaged or of "
                "another kind. Restore it or run again."
            )
        value = json.loads(content.decode())
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"There is no {what} at {path}. Check the path.") from None
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8, not JSON, absurd numbers are ValueErrors
        raise CheckpointError(f"{path} is not a readable {what}: {error}. Restore it or run again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds {type(value).__name__} instead of a JSON object; it is not a {what}. Restore it."
        )
    return value


def write_record(folder: Path, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Path:
    """Write arrays and metadata as one record and remove the array files of earlier ones."""
    contiguous = {key: np.ascontiguousarray(value).reshape(np.shape(value)) for key, value in arrays.items()}
    content = encode_arrays(contiguous)
    digest = hashlib.sha256(content).hexdigest()
    target = folder / f"{name}-{digest[:12]}.safetensors"
    write_atomically(target, content)
    path = folder / f"{name}.json"
    record = {**meta, "arrays": {"file": target.name, "sha256": digest, "bytes": len(content)}}
    write_json(path, {**record, "sha256": _digest(path, record)})
    for stale in folder.glob(f"{name}-*.safetensors"):
        if stale.name != target.name:
            stale.unlink(missing_ok=True)
    return path


def _digest(path: Path, record: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of the values of a record, independent of the layout of its text."""
    try:
        plain = json.loads(json.dumps(record))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} does not hold plain JSON values: {error}. Restore it.") from error


def read_record(folder: Path, name: str, what: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a record without executing anything; raise CheckpointError for damaged, truncated or foreign files."""
    meta_path = folder / f"{name}.json"
    meta = read_json(meta_path, what)
    entry, stored = meta.get("arrays"), meta.pop("sha256", None)
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise CheckpointError(f"{meta_path} does not name an array file; it is not a {what} of kaffee. Check the path.")
    if _digest(meta_path, meta) != stored:
        raise CheckpointError(f"{meta_path} does not fit its own checksum: it is damaged or was edited. Restore it.")
    # Use the last part of the name only, so that no record can point outside its folder.
    path = folder / Path(entry["file"]).name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{what}: the weights {path} cannot be read ({error.strerror}). Restore them.") from error
    except ValueError as error:
        raise CheckpointError(f"{meta_path} names an impossible array file ({error}). Restore it.") from error
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise CheckpointError(
            f"{path} has {len(content)} bytes and another checksum than {name}.json records "
            f"({entry.get('bytes')} bytes): it is damaged, truncated or exchanged. Restore it or train again."
        )
    try:
        return decode_arrays(content), meta
    except KeyError as error:  # a type that NumPy does not have
        raise CheckpointError(
            f"{path} holds values of type {error}, which kaffee does not write. Restore it or train again."
        ) from error
    except (SafetensorError, ValueError) as error:  # the latter for shapes that NumPy does not have
        raise CheckpointError(f"{path} is not a safetensors file: {error}. Restore it or train again.") from error


def versions() -> dict[str, str]:
    """Collect the versions of kaffee (with its commit, if it runs from a checkout), Python and what decides numbers."""
    packages = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
    commit = _find_commit(Path(__file__).resolve().parents[1])
    ours = {"kaffee": __version__} | ({} if commit is None else {"commit": commit})
    ours["python"] = platform.python_version()
    return ours | {package: importlib.metadata.version(package) for package in packages}


@cache
def _find_commit(root: Path) -> str | None:
    """Ask git, once per process, for the commit of a source tree; "-dirty" if tracked Python files differ from it.

    None for a folder that is not itself the top of a checkout: a package that was installed inside one is not in it.
    """
    # A hook's GIT_DIR would answer for its own repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def ask(*words: str) -> "subprocess.CompletedProcess[str]":
        command = ["git", "--no-optional-locks", "-C", str(root), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=False)

    try:
        found = ask("rev-parse", "--show-toplevel", "HEAD")
        top, _, commit = found.stdout.strip().rpartition("\n")
        if found.returncode or Path(top).resolve() != root:
            return None
        return commit + ("-dirty" if ask("diff", "--quiet", "HEAD", "--", "*.py").returncode else "")
    except (OSError, subprocess.TimeoutExpired):
        return None


def machine() -> dict[str, Any]:
    """Describe the processor, its usable cores and the operating system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = names[0] if names else platform.processor() or "unknown"
    return {"processor": processor, "cores": cores, "system": f"{platform.system()} {platform.machine()}"}
