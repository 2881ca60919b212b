"""Models on disk: one folder of safetensors and JSON that loads with one call and no skeleton.

Nothing in a folder can execute code: every value of `model.json` is checked before anything is built of it.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from kaffee.data.scaler import Scaler
from kaffee.errors import CheckpointError, ConfigError, KaffeeError, unknown
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.likelihood import METHODS
from kaffee.filtering.recursion import Recursion
from kaffee.model.core import Core
from kaffee.model.discrete import Discrete
from kaffee.model.inputs import Driven, drive
from kaffee.model.observation import LinearObservation, ObservationMap, Projection
from kaffee.model.statespace import LOG_STD_BOUND, Climate, Shell, StateSpaceModel
from kaffee.model.wrappers import CORE_TYPES, Confined, Custom, as_core
from kaffee.records import read_json, read_record, versions, write_record

_FORMAT, _FORMAT_VERSION = "kaffee-model", 1
_REMEDY = " Restore the folder, or train again."
_OBSERVATION_TYPES: dict[str, type[ObservationMap]] = {"projection": Projection, "linear": LinearObservation}


class WrongCall(CheckpointError):
    """Nothing is wrong with the folder; it has to be loaded in another way."""


@dataclass(frozen=True)
class Reconstruction:
    """A state-space model in standardised coordinates, with what ties it to data.

    Attributes:
        columns: Names of the observed coordinates.
        dt: Time between two steps.
        method: Which row of the paper trained it ("prior" if none did).
        provenance: Seed, fingerprint of the data, versions, settings; JSON values.
        filter_name: The filter to use it with, as in `kaffee.filtering.filters`.
        inputs: Names of the known inputs, in the order of the core's.
        groups, scalers: Names and scalers of groups that share the core; empty if there are none. `group` takes one,
            which everything that is done with a model is done with.
    """

    model: StateSpaceModel
    scaler: Scaler
    columns: tuple[str, ...] = ()
    dt: float = 1.0
    method: str = "prior"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    filter_name: str = "ekf"
    inputs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    scalers: tuple[Scaler, ...] = ()

    def group(self, name: str | None) -> "Reconstruction":
        """Take the model of one group, with its own map, shell and scaler; None: the model has no groups."""
        if name is None:
            if self.groups:
                raise ConfigError(
                    f"The model is shared by {len(self.groups)} groups. Name one of them (--group, or group=): "
                    f"{', '.join(self.groups[:8])}{', ...' if len(self.groups) > 8 else ''}."
                )
            return self
        if name not in self.groups:
            raise ConfigError(unknown("group", name, self.groups) if self.groups else "The model has no groups.")
        g = self.groups.index(name)
        origin = {**self.provenance, "group": name}
        model = self.model.select(g)
        return replace(self, model=model, scaler=self.scalers[g], provenance=origin, groups=(), scalers=())

    @property
    def filter(self) -> Recursion:
        """The filter that goes with how the model was trained."""
        method = METHODS.get(self.method)
        return replace(Recursion() if method is None else method.filter, filter=parse_filter(self.filter_name))

    def with_filter(self, name: str | None) -> "Reconstruction":
        """Use the model with another filter, such as "lowrank:32" or "enkf:40"; None: with the one it has.

        `kaffee.filtering.filters.FILTERS` has all names.
        """
        if name is None:
            return self
        parse_filter(name)
        return replace(self, filter_name=name)

    def save(self, folder: str | Path) -> Path:
        """Write to a folder, atomically; returns the folder."""
        return save(self, folder)

    def with_model(self, model: StateSpaceModel, method: str) -> "Reconstruction":
        """Put another model in place of this one, for the same data."""
        return replace(self, model=model, method=method)


def save(reconstruction: Reconstruction, folder: str | Path) -> Path:
    """Write a model to a folder: `model.json` and its safetensors."""
    model, observation = reconstruction.model, reconstruction.model.observation
    kind = next((name for name, known in _OBSERVATION_TYPES.items() if type(observation) is known), None)
    if kind is None:
        raise CheckpointError(
            f"An observation map of class {type(observation).__name__} cannot be saved; use a Projection or "
            "LinearObservation."
        )
    meta: dict[str, Any] = {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "versions": versions(),
        "core": _core_entry(model.core),
        "observation": {"type": kind, "num_observed": model.num_observed, "latent_dim": model.latent_dim},
        "scaler": reconstruction.scaler.to_dict(),
        "columns": list(reconstruction.columns),
        "dt": reconstruction.dt,
        "method": reconstruction.method,
        "provenance": dict(reconstruction.provenance),
    }
    if isinstance(observation, LinearObservation) and observation.hidden:
        meta["observation"]["hidden"] = observation.hidden
    if reconstruction.groups:
        meta["groups"] = list(reconstruction.groups)
        meta["scalers"] = [scaler.to_dict() for scaler in reconstruction.scalers]
    if reconstruction.filter_name != "ekf":
        meta["filter"] = reconstruction.filter_name
    if reconstruction.inputs:
        meta["inputs"] = list(reconstruction.inputs)
    if model.shell.bound != LOG_STD_BOUND:
        meta["log_std_bound"] = model.shell.bound
    return write_record(Path(folder), "model", named_arrays(model), meta).parent


def _core_entry(core: Core) -> dict[str, Any]:
    if isinstance(core, Confined):
        return {**_core_entry(core.inner), "confined": True}
    if isinstance(core, Driven):
        return {**_core_entry(core.inner), "driven": core.input_dim}
    for name, kind in CORE_TYPES.items():
        if type(core) is kind:
            return {"type": name, "hyperparameters": core.hyperparameters()}
    inner = core.function if isinstance(core, Custom) else core
    inputs = {"input_dim": core.input_dim} if core.input_dim else {}
    return {"type": "custom", "class": f"{type(inner).__module__}.{type(inner).__qualname__}", **inputs}


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
        template = _build_template(meta, core, arrays)
        blank = _read_ties(meta, template)
    except WrongCall as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, KaffeeError) as error:
        reason = str(error) if isinstance(error, KaffeeError) else f"{type(error).__name__}: {error}."
        raise CheckpointError(f"{folder}/model.json is incomplete or was edited. {reason}{_REMEDY}") from error
    return replace(blank, model=fill_arrays(template, arrays, str(folder)))


def _check_format(folder: Path, meta: Mapping[str, Any]) -> None:
    if meta.get("format") != _FORMAT:
        raise CheckpointError(
            f"{folder}/model.json is not a kaffee model (format: {meta.get('format')!r:.80}). Check the path."
        )
    version = meta.get("format_version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{folder}/model.json has no valid format_version ({version!r:.80}).{_REMEDY}")
    if version > _FORMAT_VERSION:
        raise CheckpointError(
            f"{folder} was written by a newer kaffee, in format {version}; this version reads up to {_FORMAT_VERSION}. "
            "Upgrade: pip install -U kaffee"
        )


def _build_template(meta: Mapping[str, Any], given: Any, arrays: Mapping[str, np.ndarray]) -> StateSpaceModel:
    """Build a model of the right structure whose arrays are only shapes: no stored number can ask for memory."""
    entry, seen = meta["core"], meta["observation"]
    if entry["type"] == "custom" and given is None:
        raise WrongCall(
            f"The core is of your own class {entry.get('class')!s:.200}, which kaffee does not import for you. "
            "Load it with load(folder, core=an_object_of_that_class)."
        )
    if entry["type"] not in (*CORE_TYPES, "custom"):
        raise CheckpointError(f"Unknown core type {entry['type']!r:.80}; known: {', '.join(CORE_TYPES)}.")
    if entry["type"] != "custom" and given is not None:
        raise WrongCall(f"The core is a built-in {entry['type']} that needs no core=; use load(folder).")
    N, M, hidden = seen["num_observed"], seen["latent_dim"], seen.get("hidden", 0)
    driven, own_inputs = entry.get("driven", 0), entry.get("input_dim", 0)
    for size in (N, M, hidden, driven, own_inputs):
        if type(size) is not int:
            raise CheckpointError(f"A size of the model is {size!r}; it must be a whole number.")
    groups = meta.get("groups", [])
    named = isinstance(groups, list) and all(isinstance(name, str) for name in groups)
    if not named or len(set(groups)) != len(groups) or (groups and seen["type"] != "linear"):
        raise CheckpointError(f"'groups' must be names, each once, of a model with linear maps; not {groups!r:.80}.")
    lead = (len(groups),) if groups else ()
    if "embedding" not in arrays or arrays["embedding"].shape != (*lead, M, N):
        raise CheckpointError(f"The stored embedding does not have the shape ({M}, {N}) that model.json asks for.")
    if not 0 <= hidden < M:
        raise CheckpointError(f"{hidden} of {M} latent coordinates are said to be hidden; at least one is observed.")
    if seen["type"] not in _OBSERVATION_TYPES:
        raise CheckpointError(f"Unknown observation type {seen['type']!r:.80}.")
    if driven and sum(array.shape == (M, driven) for array in arrays.values()) < 1:
        raise CheckpointError(f"No stored array has the shape ({M}, {driven}) of the map of {driven} inputs.")
    bound = meta.get("log_std_bound", LOG_STD_BOUND)
    if type(bound) not in (int, float) or not LOG_STD_BOUND <= bound < math.inf:
        raise CheckpointError(f"'log_std_bound' must be a number from {LOG_STD_BOUND:g}, not {bound!r:.80}.")
    if entry["type"] != "custom":  # a core of one's own may hold what it likes
        _check_weights(arrays)
    # Building a skeleton takes time in proportion to its sizes; none exceeds the number of weights.
    stored = sum(array.size for array in arrays.values())
    for name, value in entry.get("hyperparameters", {}).items():
        if isinstance(value, int) and not 0 <= value <= stored:
            raise CheckpointError(f"The core's {name} = {value} does not fit the {stored} numbers that are stored.")

    def build() -> StateSpaceModel:
        if entry["type"] == "custom":
            core = as_core(given, M, own_inputs)
        else:
            core = CORE_TYPES[entry["type"]].skeleton(**entry["hyperparameters"])
            _check_core(core, M)
        core = drive(core, driven)
        if entry.get("confined", False):
            core = Confined(core, jnp.zeros(M), jnp.zeros(M))
        observation: ObservationMap
        if seen["type"] == "projection":
            observation = Projection(N, M)
        else:
            offset = jnp.zeros((*lead, N)) if "observation.offset" in arrays else None
            observation = LinearObservation(jnp.zeros((*lead, N, M - hidden)), offset, hidden)
        # Models of older versions, and those of the paper, have no climate.
        climate = None
        if "climate.mean" in arrays:
            climate = Climate(jnp.zeros(M), jnp.zeros((M, M)), jnp.zeros(arrays["climate.states"].shape))
        shell = Shell(jnp.zeros((*lead, M)), jnp.zeros((*lead, N)), float(bound))
        kind = meta["scaler"].get("likelihood")
        discrete = Discrete(jnp.zeros(N), jnp.zeros(N), kind) if "discrete.offset" in arrays else None
        return StateSpaceModel(core, shell, observation, jnp.zeros((*lead, M, N)), climate, discrete)

    return eqx.filter_eval_shape(build)


def _read_ties(meta: Mapping[str, Any], template: StateSpaceModel) -> Reconstruction:
    """Check scaler, columns, step, method and provenance, and put them around a model."""
    N, scaler = template.num_observed, Scaler.from_dict(meta["scaler"])
    columns, dt, method, provenance = (meta[key] for key in ("columns", "dt", "method", "provenance"))
    if scaler.num_coordinates != N:
        raise CheckpointError(f"The scaler is one of {scaler.num_coordinates} coordinates, the model of {N}.")
    named = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
    if not named or len(columns) not in (0, N):
        raise CheckpointError(f"'columns' must be {N} names, or none; not {columns!r:.80}.")
    if type(dt) not in (int, float) or not 0 < dt < math.inf:
        raise CheckpointError(f"'dt', the time between two steps, must be a positive number, not {dt!r:.80}.")
    if not isinstance(method, str) or not isinstance(provenance, dict):
        raise CheckpointError("'method' must be a word and 'provenance' an object.")
    name = meta.get("filter", "ekf")
    if not isinstance(name, str):
        raise CheckpointError(f"'filter' must be a word, not {name!r:.80}.")
    inputs, K = meta.get("inputs", []), template.input_dim
    if not isinstance(inputs, list) or not all(isinstance(each, str) for each in inputs) or len(inputs) != K:
        raise CheckpointError(f"'inputs' must be {K} names; not {inputs!r:.80}.")
    if (0 if scaler.inputs is None else scaler.inputs.num_coordinates) != K:
        raise CheckpointError(f"The scaler of the inputs does not fit the {K} inputs of the model.")
    groups, scalers = tuple(meta.get("groups", ())), tuple(map(Scaler.from_dict, meta.get("scalers", ())))
    if len(groups) != len(scalers) or any(each.num_coordinates != N for each in scalers):
        raise CheckpointError(f"{len(scalers)} scalers for {len(groups)} groups; there is one of {N} for each.")
    known = Reconstruction(template, scaler, tuple(columns), float(dt), method, provenance, inputs=tuple(inputs))
    return replace(known, groups=groups, scalers=scalers).with_filter(name)


def _check_core(core: Core, latent_dim: int) -> None:
    """Refuse settings of a core that are of another type than it was written for, or of another size."""
    if core.latent_dim != latent_dim:
        raise CheckpointError(f"The core has {core.latent_dim} latent coordinates, the model {latent_dim}.")
    for entry in dataclasses.fields(core):
        kind: Any = entry.type
        value = getattr(core, entry.name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise CheckpointError(f"The core's {entry.name} is {value!r:.80}; it must be one of {get_args(kind)}.")
        wanted = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(kind)
        if entry.metadata.get("static") and wanted and type(value) not in wanted:
            raise CheckpointError(f"The core's {entry.name} is {value!r:.80}, which is no {wanted[-1].__name__}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"The core's {entry.name} is {value}; it must be finite.")


def _check_weights(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse weights that no model of kaffee has: not numbers, or in types that its arithmetic does not mix."""
    types = {array.dtype.name for array in arrays.values() if array.dtype.kind == "f"}
    if len(types) > 1 or not types <= {"float32", "float64"}:
        raise CheckpointError(f"The weights are of type {', '.join(sorted(types))}; all must be float32, or float64.")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise CheckpointError(f"The weights {name!r:.80} hold values that are not numbers (nan).")


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Collect every array leaf under its path, such as "core.W".

    >>> sorted(named_arrays({"a": jnp.zeros(2), "b": {"c": jnp.ones(())}}))
    ['a', 'b.c']
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))
    named = {_join(path): np.asarray(leaf) for path, leaf in leaves}
    if len(named) < len(leaves):
        raise CheckpointError(f"Two arrays have the same name; rename one of {', '.join(named)}.")
    return named


def fill_arrays(template: PyTree, arrays: Mapping[str, np.ndarray], what: str) -> PyTree:
    """Replace every array leaf of a template by the array of its name; names, shapes and kinds must fit exactly.

    The kind is float, integer or truth value; float64 arrays become float32 where JAX's 64-bit mode is off.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(template)
    slots = {_join(path) for path, leaf in leaves if _is_slot(leaf)}
    missing, extra = sorted(slots - set(arrays)), sorted(set(arrays) - slots)
    if missing or extra:
        raise CheckpointError(f"{what}: arrays missing: {missing or 'none'}; not expected: {extra or 'none'}.{_REMEDY}")

    def fill(path: Any, leaf: Any) -> Any:
        if not _is_slot(leaf):
            return leaf
        array, where = arrays[_join(path)], f"{what}: {_join(path)}"
        if array.shape != leaf.shape:
            raise CheckpointError(f"{where} has shape {array.shape} but should have {leaf.shape}. Restore the folder.")
        if array.dtype.kind != np.dtype(leaf.dtype).kind:
            raise CheckpointError(f"{where} is of type {array.dtype} but should be {leaf.dtype}. Restore the folder.")
        return jnp.asarray(array.astype(jax.dtypes.canonicalize_dtype(array.dtype)))

    return jax.tree_util.tree_map_with_path(fill, template)


def _join(path: Any) -> str:
    """Write the path of a leaf as a dotted name."""
    kinds = ("name", "key", "idx")
    return ".".join(str(getattr(entry, kind)) for entry in path for kind in kinds if hasattr(entry, kind))


def _is_slot(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) or eqx.is_array(leaf)
