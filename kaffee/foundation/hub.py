"""Where pretrained weights live: a path, kaffee's own folder, the model hub's local cache, or, if asked, the network.

Nothing here touches the network unless `download=True` or `pull` says so.
"""

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from kaffee.errors import CheckpointError, ConfigError, unknown
from kaffee.foundation.weights import DEFAULT, KNOWN, MAX_BYTES, Release, Weights, decode_weights, read_weights
from kaffee.model.dynamix import DynaMix
from kaffee.records import write_atomically


class Located(NamedTuple):
    """The two files of a model on this machine."""

    weights: Path
    config: Path

    def read(self) -> Weights:
        """Read and check them."""
        return read_weights(*self)

    def doubt(self, weights: Weights) -> str:
        """Say why these may not be the published weights although they are called so; empty if there is no doubt."""
        same_file = (release for release in KNOWN.values() if release.weights == self.weights.name)
        release = KNOWN.get(weights.name) or next(same_file, None)
        if release is None or not (differences := release.differences(weights)):
            return ""
        return (
            f"{self.weights} is called {release.name} but is not the file kaffee was measured with: {differences}. "
            "Fetch it again (kaffee models pull), or give a model of your own another name."
        )


def from_pretrained(name_or_path: str | Path = DEFAULT, *, download: bool = False, dtype: Any = jnp.float32) -> DynaMix:
    """Load the pretrained DynaMix; warn if the files are called like a published model and are not that model.

    Args:
        name_or_path: A published name (`kaffee models list`), a weight file (.safetensors, its configuration beside it)
            or a folder that holds both.
        download: Fetch a published model if it is not on this machine; otherwise the network is not touched.
        dtype: Of the weights; float64 needs JAX's 64-bit mode.
    """
    located = obtain(name_or_path, download=download)
    weights = located.read()
    if doubt := located.doubt(weights):
        warnings.warn(doubt, stacklevel=2)
    return weights.to_core(dtype)


def obtain(name_or_path: str | Path, *, download: bool) -> Located:
    """Find the files of a model on this machine; fetch them first if that is needed and asked for."""
    try:
        return locate(name_or_path)
    except CheckpointError:
        if not (download and str(name_or_path) in KNOWN):
            raise
        return pull(str(name_or_path))


def _models_folder() -> Path:
    """Return $KAFFEE_HOME/models, by default ~/.cache/kaffee/models."""
    return Path(os.environ.get("KAFFEE_HOME") or Path.home() / ".cache" / "kaffee") / "models"


def _list_places(release: Release) -> list[Path]:
    """List the folders that may hold a published model, in the order in which they are searched."""
    return [_models_folder(), *list_snapshots(release.repository)]


def list_snapshots(repository: str) -> list[Path]:
    """List where the model hub's own cache keeps a repository, the newest first; where it would, if it is not there."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = cache / f"models--{repository.replace('/', '--')}" / "snapshots"
    newest_first = sorted(snapshots.glob("*/"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    return newest_first or [snapshots]


def locate(name_or_path: str | Path) -> Located:
    """Find the files of a model on this machine, without touching the network."""
    path, name = Path(name_or_path).expanduser(), str(name_or_path)
    if path.is_file():
        return _locate_beside(path)
    if path.is_dir() and (name not in KNOWN or list(path.glob("*.safetensors"))):
        return _locate_within(path)
    if name not in KNOWN and (path.suffix or len(path.parts) > 1):
        raise CheckpointError(f"There is no weight file or folder {path}.")
    release = _find_release(name)
    searched = _list_places(release)
    for folder in searched:
        located = Located(folder / release.weights, folder / release.config)
        if all(file.is_file() for file in located):
            return located
    raise CheckpointError(
        f"The weights of {name} are not on this machine; looked in {' and '.join(map(str, searched))}. Fetch them: "
        f"kaffee models pull (or from_pretrained(download=True)); without a network: kaffee models pull --from FOLDER, "
        f"which holds {release.weights} and {release.config}."
    )


def _find_release(name: str) -> Release:
    if name not in KNOWN:
        raise ConfigError(unknown("model", name, KNOWN, see="kaffee models list"))
    return KNOWN[name]


def _locate_beside(weights: Path) -> Located:
    """Find the configuration that lies beside a weight file."""
    if weights.suffix != ".safetensors":
        raise CheckpointError(f"{weights} is no .safetensors file. Pass the weight file or its folder.")
    published = [release.config for release in KNOWN.values() if release.weights == weights.name]
    candidates = [*published, f"{weights.stem.replace('dynamix-', 'config_', 1)}.json", "config.json"]
    for candidate in candidates:
        if (weights.parent / candidate).is_file():
            return Located(weights, weights.parent / candidate)
    raise CheckpointError(f"Beside {weights} there is no configuration ({' or '.join(dict.fromkeys(candidates))}).")


def _locate_within(folder: Path) -> Located:
    """Find the one model in a folder; a published one is preferred."""
    files = sorted(folder.glob("*.safetensors"))
    published = [release.weights for release in KNOWN.values()]
    for candidates in (files, [path for path in files if path.name in published]):
        if len(candidates) == 1:
            return _locate_beside(candidates[0])
    names = ", ".join(path.name for path in files) or "none"
    raise CheckpointError(f"{folder} should hold one .safetensors file; found: {names}. Pass the file itself.")


def pull(
    name: str = DEFAULT, *, source: str | Path | None = None, endpoint: str | None = None, force: bool = False
) -> Located:
    """Bring a published model into kaffee's folder, from the hub or from a path; checked before it is stored.

    Args:
        source: A file or folder to copy from instead of the network.
        endpoint: Address of the hub; $HF_ENDPOINT or https://huggingface.co by default.
        force: Replace another model that is there under this name. Without it, only the published one may.
    """
    release = _find_release(name)
    if source is not None:
        given = locate(source)
        weights, contents = given.read(), (given.weights.read_bytes(), given.config.read_bytes())
    else:
        base = (endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        addresses = [f"{base}/{release.repository}/resolve/main/{file}" for file in release.files]
        contents = _fetch(addresses[0]), _fetch(addresses[1])
        weights = decode_weights(*contents, *addresses)
    stored = Located(_models_folder() / release.weights, _models_folder() / release.config)
    if not force and release.differences(weights):
        _check_not_replaced(stored, contents)
    for path, content in zip(stored, contents, strict=True):
        write_atomically(path, content)
    return stored


def _check_not_replaced(stored: Located, contents: tuple[bytes, bytes]) -> None:
    """Raise if a model that can be read would be lost; a damaged one may be replaced."""
    try:
        stored.read()
    except CheckpointError:
        return
    for path, content in zip(stored, contents, strict=True):
        there, new = (hashlib.sha256(given).hexdigest()[:12] for given in (path.read_bytes(), content))
        if there != new:
            raise CheckpointError(
                f"{path} is there already (sha256 {there}), and the file to be stored (sha256 {new}) is not the one "
                "that kaffee was measured with; nothing was replaced. To replace it all the same: kaffee models pull "
                "--force"
            )


def _fetch(address: str, *, limit: int = MAX_BYTES, timeout: float = 30.0) -> bytes:
    """Fetch an https address (http on this machine only), complete and not larger than `limit` bytes."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) not in (("http", "127.0.0.1"), ("http", "localhost")):
        raise ConfigError(f"{address} is not an https address.")
    try:
        with urllib.request.urlopen(address, timeout=timeout) as response:
            content = response.read(limit + 1)
            stated = response.headers.get("Content-Length")
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        raise CheckpointError(
            f"{address} cannot be fetched ({reason}). Is there a network? Without one, copy the files from elsewhere: "
            "kaffee models pull --from FOLDER"
        ) from error
    if len(content) > limit:
        raise CheckpointError(f"{address} is larger than {limit} bytes; nothing was stored.")
    if stated is not None and stated.isdecimal() and len(content) != int(stated):
        raise CheckpointError(f"{address} ended after {len(content)} of {stated} bytes; nothing was stored. Try again.")
    return content
