"""A surrogate as a folder: the model, and its prior beside it."""

from pathlib import Path
from typing import Any, NamedTuple

from kaffee.checkpoint import Reconstruction, load, save
from kaffee.config import update
from kaffee.errors import CheckpointError, ConfigError
from kaffee.runs import RunFolder
from kaffee.settings import FitSettings


class Stored(NamedTuple):
    """What a folder holds."""

    reconstruction: Reconstruction
    prior: Reconstruction | None
    settings: FitSettings | None


def write_surrogate(folder: str | Path, reconstruction: Reconstruction, prior: Reconstruction | None) -> Path:
    """Write both; returns the folder."""
    path = save(reconstruction, folder)
    if prior is not None:
        save(prior, path / "prior")
    return path


def read_surrogate(folder: str | Path, core: Any = None) -> Stored:
    """Read what `write_surrogate`, `kaffee.save` or `kaffee fit` wrote."""
    path = model = Path(folder)
    if not (path / "model.json").exists() and RunFolder(path).exists:
        model = path / RunFolder(path).settings().method
        if not (model / "model.json").exists():
            raise CheckpointError(f"{path} has no finished model yet. First: kaffee resume {path}")
    reconstruction = load(model, core=core)
    prior = load(path / "prior", core=core) if (path / "prior" / "model.json").exists() else None
    return Stored(reconstruction, prior, _settings(reconstruction))


def _settings(reconstruction: Reconstruction) -> FitSettings | None:
    """The settings of the fit; None for a model that was made otherwise, or by a version with other settings."""
    values = reconstruction.provenance.get("settings")
    try:
        return update(FitSettings(), values) if isinstance(values, dict) else None
    except ConfigError:
        return None
