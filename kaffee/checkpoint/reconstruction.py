"""Models on disk: one folder of safetensors and JSON that loads with one call and no skeleton."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from kaffee.checkpoint.pytrees import (
    WrongCall,
    check_core,
    check_weights,
    fill_arrays,
    named_arrays,
    read_sizes,
    read_ties,
)
from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError, KaffeeError
from kaffee.filtering.likelihood import METHODS
from kaffee.filtering.recursion import Recursion
from kaffee.model.core import Core
from kaffee.model.observation import LinearObservation, ObservationMap, Projection
from kaffee.model.shell import Shell
from kaffee.model.statespace import StateSpaceModel
from kaffee.model.wrappers import CORE_TYPES, Confined, Custom, as_core
from kaffee.records import read_json, read_record, versions, write_record

FORMAT = "kaffee-model"
FORMAT_VERSION = 1
_REMEDY = " Restore the folder, or train again."
OBSERVATION_TYPES: dict[str, type[ObservationMap]] = {"projection": Projection, "linear": LinearObservation}


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

    @property
    def filter(self) -> Recursion:
        """The filter that goes with how the model was trained."""
        method = METHODS.get(self.method)
        return Recursion() if method is None else method.filter

    def save(self, folder: str | Path) -> Path:
        """Write to a folder, atomically; returns the folder."""
        return save(self, folder)

    def with_model(self, model: StateSpaceModel, method: str) -> "Reconstruction":
        """The same data ties around another model."""
        return replace(self, model=model, method=method)


def _core_entry(core: Core) -> dict[str, Any]:
    if isinstance(core, Confined):
        return {**_core_entry(core.inner), "confined": True}
    for name, kind in CORE_TYPES.items():
        if type(core) is kind:
            return {"type": name, "hyperparameters": core.hyperparameters()}
    inner = core.function if isinstance(core, Custom) else core
    return {"type": "custom", "class": f"{type(inner).__module__}.{type(inner).__qualname__}"}


def _observation_entry(observation: ObservationMap) -> dict[str, Any]:
    for name, kind in OBSERVATION_TYPES.items():
        if type(observation) is kind:
            return {"type": name, "num_observed": observation.num_observed, "latent_dim": observation.latent_dim}
    raise CheckpointError(
        f"An observation map of class {type(observation).__name__} cannot be saved; use a Projection or "
        "LinearObservation."
    )


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


def load(folder: str | Path, *, core: Any = None) -> Reconstruction:
    """Read a model; nothing in the folder can execute code.

    Args:
        core: Needed only for a core of the user's own class: an object of that class with the same shapes, whose
            arrays are replaced by the stored ones.
    """
    folder = Path(folder)
    # First, so that a newer format is called that, whatever else is new in it.
    _check_format(folder, read_json(folder / "model.json", "model"))
    arrays, meta = read_record(folder, "model", "model")
    try:
        template = _template(meta, core, arrays)
        ties = read_ties(meta, template.num_observed)
    except WrongCall as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, KaffeeError) as error:
        reason = str(error) if isinstance(error, KaffeeError) else f"{type(error).__name__}: {error}."
        raise CheckpointError(f"{folder}/model.json is incomplete or was edited. {reason}{_REMEDY}") from error
    return Reconstruction(fill_arrays(template, arrays, str(folder)), *ties)


def _check_format(folder: Path, meta: Mapping[str, Any]) -> None:
    if meta.get("format") != FORMAT:
        raise CheckpointError(
            f"{folder}/model.json is not a kaffee model (format: {meta.get('format')!r:.80}). Check the path."
        )
    version = meta.get("format_version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{folder}/model.json has no valid format_version ({version!r:.80}).{_REMEDY}")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{folder} was written by a newer kaffee, in format {version}; this version reads up to {FORMAT_VERSION}. "
            "Upgrade: pip install -U kaffee"
        )


def _template(meta: Mapping[str, Any], given: Any, arrays: Mapping[str, np.ndarray]) -> StateSpaceModel:
    """A model of the right structure whose arrays are only shapes, so that no stored number can ask for memory."""
    entry = meta["core"]
    if entry["type"] == "custom" and given is None:
        raise WrongCall(
            f"The core is of your own class {entry.get('class')!s:.200}, which kaffee does not import for you. "
            "Load it with load(folder, core=an_object_of_that_class)."
        )
    if entry["type"] not in (*CORE_TYPES, "custom"):
        raise CheckpointError(f"Unknown core type {entry['type']!r:.80}; known: {', '.join(CORE_TYPES)}.")
    if entry["type"] != "custom" and given is not None:
        raise WrongCall(f"The core is a built-in {entry['type']} that needs no core=; use load(folder).")
    N, M = read_sizes(meta["observation"])
    if "embedding" not in arrays or arrays["embedding"].shape != (M, N):
        raise CheckpointError(f"The stored embedding does not have the shape ({M}, {N}) that model.json asks for.")
    if meta["observation"]["type"] not in OBSERVATION_TYPES:
        raise CheckpointError(f"Unknown observation type {meta['observation']['type']!r:.80}.")
    if entry["type"] != "custom":  # a core of one's own may hold what it likes
        check_weights(arrays)
    # Building a skeleton takes time in proportion to its sizes; none exceeds the number of weights.
    stored = sum(array.size for array in arrays.values())
    for name, value in entry.get("hyperparameters", {}).items():
        if isinstance(value, int) and not 0 <= value <= stored:
            raise CheckpointError(f"The core's {name} = {value} does not fit the {stored} numbers that are stored.")

    def build() -> StateSpaceModel:
        known = CORE_TYPES.get(entry["type"])
        if known is None:
            core = as_core(given, M)
        else:
            core = known.skeleton(**entry["hyperparameters"])
            check_core(core, M)
        if entry.get("confined", False):
            core = Confined(core, jnp.zeros(M), jnp.zeros(M))
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
