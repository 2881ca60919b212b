"""The state of an online filter on disk: safetensors and JSON, checksummed, tied to its model."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kaffee.arrays import fill_arrays, named_arrays
from kaffee.checkpoint import Reconstruction
from kaffee.errors import CheckpointError
from kaffee.inference.tracking import Track
from kaffee.provenance import versions
from kaffee.store import read_record, write_record

FORMAT = "kaffee-online"
FORMAT_VERSION = 1
NAME = "online"
# The counter of rejections has 32 bits.
MAX_PATIENCE = 2**31 - 1


def fingerprint(reconstruction: Reconstruction) -> str:
    """SHA-256 of all that decides what a filter computes: weights, scaler, method."""
    head = {"scaler": reconstruction.scaler.to_dict(), "method": reconstruction.method}
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for name, array in sorted(named_arrays(reconstruction.model).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write_track(folder: Path, reconstruction: Reconstruction, track: Track, facts: Mapping[str, Any]) -> Path:
    """Write a track and the facts beside it; JSON values."""
    meta = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions(),
        "model": fingerprint(reconstruction),
        "facts": dict(facts),
    }
    write_record(folder, NAME, named_arrays(track), meta)
    return folder


def read_track(folder: Path, reconstruction: Reconstruction, template: Track) -> tuple[Track, dict[str, Any]]:
    """Read what `write_track` wrote for the same model."""
    arrays, meta = read_record(folder, NAME, "state of an online filter")
    if meta.get("format") != FORMAT or meta.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{folder}/{NAME}.json is not the state of an online filter that this version reads (format "
            f"{meta.get('format')!r:.80}, version {meta.get('format_version')!r:.80}). Start anew without it."
        )
    if meta.get("model") != fingerprint(reconstruction):
        raise CheckpointError(
            f"{folder} is the state of another model's filter. Restore it with the model it was saved with, or start "
            "anew without it."
        )
    return fill_arrays(template, arrays, str(folder)), _facts(meta.get("facts"), folder)


def _facts(given: Any, folder: Path) -> dict[str, Any]:
    """What `OnlineFilter.save` notes beside the track, with the values that it can have."""
    if isinstance(given, dict):
        gate, patience, steps, time = (given.get(name) for name in ("gate", "patience", "num_steps", "time"))
        whole = type(patience) is int and 1 <= patience <= MAX_PATIENCE and type(steps) is int and steps >= 0
        since = given.get("steps_since_time", 0)  # older states do not say
        known = (time is None or (type(time) is float and math.isfinite(time))) and type(since) is int and since >= 0
        if whole and known and (gate is None or (type(gate) is float and 0.0 < gate < 1.0)):
            facts = {"gate": gate, "patience": patience, "num_steps": steps}
            return facts | {"time": time, "steps_since_time": since}
    raise CheckpointError(
        f"{folder}/{NAME}.json does not say which gate the filter had and how many steps it took. "
        "Start anew without it."
    )
