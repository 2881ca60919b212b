"""Arrays and JSON on disk: atomic, checked, never pickled.

A record is two files in one folder: `NAME.json`, which names the array file and the SHA-256 of both, and
`NAME-<hash>.safetensors`. The JSON is replaced last and in one step, so a reader sees the old record or the new one
whatever happens in between.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as decode_arrays
from safetensors.numpy import save as encode_arrays

from kaffee.errors import CheckpointError, KaffeeError


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


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; NaN, infinities and objects that JSON does not know raise."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be written as JSON: {error}. Use plain, finite values.") from error
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object; anything else is a clear error."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"There is no {what} at {path}. Check the path.") from None
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8, not JSON, absurd numbers are ValueErrors
        raise CheckpointError(f"{path} is not a readable {what}: {error}. Restore it or run again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds {type(value).__name__} instead of a JSON object; it is no {what}. Restore it."
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
    """SHA-256 of the values of a record, whatever the layout of its text."""
    try:
        plain = json.loads(json.dumps(record))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} does not hold plain JSON values: {error}. Restore it.") from error


def read_record(folder: Path, name: str, what: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a record; damage, truncation and foreign files are clear errors, and nothing is executed."""
    meta_path = folder / f"{name}.json"
    meta = read_json(meta_path, what)
    entry, stored = meta.get("arrays"), meta.pop("sha256", None)
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        raise CheckpointError(f"{meta_path} does not name an array file; it is no {what} of kaffee. Check the path.")
    if _digest(meta_path, meta) != stored:
        raise CheckpointError(f"{meta_path} does not fit its own checksum: it is damaged or was edited. Restore it.")
    # Only the last part of the name counts, so that no record can point outside its folder.
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
