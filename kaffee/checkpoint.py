"""Models on disk: one folder of safetensors and JSON that loads with one call and no skeleton."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from kaffee.arrays import fill_arrays, named_arrays
from kaffee.cores import CORE_TYPES, Core, Custom
from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError, KaffeeError
from kaffee.observation import LinearObservation, ObservationMap, Projection
from kaffee.provenance import versions
from kaffee.shell import Shell
from kaffee.ssm import StateSpaceModel
from kaffee.store import read_record, write_record

FORMAT = "kaffee-model"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Reconstruction:
    """A state-space model together with what ties it to data.

    Attributes:
        model: In standardised coordinates.
        scaler: From data units to there and back.
        columns: Names of the observed coordinates.
        dt: Time between two steps.
        method: Which row of the paper trained it ("prior" if none did).
        provenance: Seed, fingerprint of the data, versions, settings; JSON values.
    """

    model: StateSpaceModel
    scaler: Scaler
    columns: tuple[str, ...] = ()
    dt: float = 1.0
    method: str = "prior"
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write to a folder, atomically; returns the folder."""
        return save(self, folder)

    def with_model(self, model: StateSpaceModel, method: str) -> "Reconstruction":
        """The same data ties around another model."""
        return replace(self, model=model, method=method)


def _core_entry(core: Core) -> dict[str, Any]:
    for name, kind in CORE_TYPES.items():
        if type(core) is kind:
            return {"type": name, "hyperparameters": core.hyperparameters()}
    inner = core.function if isinstance(core, Custom) else core
    return {"type": "custom", "class": f"{type(inner).__module__}.{type(inner).__qualname__}"}


def _observation_entry(observation: ObservationMap) -> dict[str, Any]:
    kind = {Projection: "projection", LinearObservation: "linear"}[type(observation)]
    return {"type": kind, "num_observed": observation.num_observed, "latent_dim": observation.latent_dim}


def save(reconstruction: Reconstruction, folder: str | Path) -> Path:
    """Write a model to a folder: `model.json` and its safetensors."""
    folder, model = Path(folder), reconstruction.model
    meta = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions(),
        "core": _core_entry(model.core),
        "observation": _observation_entry(model.observation),
        "scaler": reconstruction.scaler.to_dict(),
        "columns": list(reconstruction.columns),
        "dt": reconstruction.dt,
        "method": reconstruction.method,
        "provenance": dict(reconstruction.provenance),
    }
    write_record(folder, "model", named_arrays(model), meta)
    return folder


def load(folder: str | Path, *, core: Core | None = None) -> Reconstruction:
    """Read a model; nothing in the folder can execute code.

    Args:
        core: Needed only for a core of the user's own class: an object of that class with the same shapes, whose
            arrays are replaced by the stored ones.
    """
    folder = Path(folder)
    arrays, meta = read_record(folder, "model", "model")
    _check_format(folder, meta)
    try:
        template = _template(meta, core)
        scaler = Scaler.from_dict(meta["scaler"])
        columns, dt = tuple(map(str, meta["columns"])), float(meta["dt"])
        method, provenance = str(meta["method"]), dict(meta["provenance"])
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, KaffeeError) as error:
        raise CheckpointError(
            f"{folder}/model.json is incomplete or was edited ({type(error).__name__}: {error})."
        ) from error
    model = fill_arrays(template, arrays, str(folder))
    return Reconstruction(model, scaler, columns, dt, method, provenance)


def _check_format(folder: Path, meta: Mapping[str, Any]) -> None:
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{folder}/model.json is not a kaffee model (format: {meta.get('format')!r}).")
    version = meta.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{folder}/model.json has no valid format_version ({version!r}).")
    if version > FORMAT_VERSION:
        writer = (meta.get("versions") or {}).get("kaffee", "a newer version")
        raise CheckpointError(
            f"{folder} was written by kaffee {writer} in format {version}; this version reads up to {FORMAT_VERSION}. "
            "Upgrade: pip install -U kaffee"
        )


def _template(meta: Mapping[str, Any], given: Core | None) -> StateSpaceModel:
    """A model of the right structure whose arrays are only shapes, so that no stored number can ask for memory."""
    entry = meta["core"]
    if entry["type"] == "custom" and given is None:
        raise CheckpointError(
            f"The core is of your own class {entry.get('class')}, which kaffee does not import for you. "
            "Load it with load(folder, core=an_object_of_that_class)."
        )
    if entry["type"] not in (*CORE_TYPES, "custom"):
        raise CheckpointError(f"Unknown core type {entry['type']!r}; known: {', '.join(CORE_TYPES)}.")
    N, M = int(meta["observation"]["num_observed"]), int(meta["observation"]["latent_dim"])

    def build() -> StateSpaceModel:
        core = given if given is not None else CORE_TYPES[entry["type"]].skeleton(**entry["hyperparameters"])
        observation: ObservationMap = Projection(N, M)
        if meta["observation"]["type"] == "linear":
            observation = LinearObservation(jnp.zeros((N, M)))
        return StateSpaceModel(core, Shell(jnp.zeros(M), jnp.zeros(N)), observation, jnp.zeros((M, N)))

    return eqx.filter_eval_shape(build)


def save_state(folder: Path, name: str, tree: Any, meta: Mapping[str, Any]) -> None:
    """Write any pytree of arrays, such as the state of a training run."""
    write_record(folder, name, named_arrays(tree), meta)


def load_state(folder: Path, name: str, template: Any) -> tuple[Any, dict[str, Any]]:
    """Read back what `save_state` wrote into the structure of `template`."""
    arrays, meta = read_record(folder, name, "training state")
    return fill_arrays(template, arrays, f"{folder}/{name}"), meta
