"""Published DynaMix checkpoints: a safetensors file and its JSON, which cannot execute code and are checked first."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as decode_arrays

from kaffee.errors import CheckpointError
from kaffee.model.dynamix import DynaMix
from kaffee.model.gating import Gating

# The published model has 44 kB; a file a thousand times larger is another one.
MAX_BYTES = 64 * 2**20
_REMEDY = " Fetch both files again: kaffee models pull"

# Our names of the gate's parameters and those of the release.
GATING = {
    "D": "D",
    "conv_weight": "conv.weight",
    "conv_bias": "conv.bias",
    "hidden_weight": "mlp_layer1.weight",
    "hidden_bias": "mlp_layer1.bias",
    "output_weight": "mlp_layer2.weight",
    "output_bias": "mlp_layer2.bias",
    "sigma": "sigma",
    "attention_temperature": "softmax_temp1",
    "expert_temperature": "softmax_temp2",
}


@dataclass(frozen=True)
class _Architecture:
    """The sizes that the configuration states."""

    latent_dim: int
    num_observed: int
    num_experts: int
    num_gates: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> "_Architecture":
        """Read the JSON of the release; options that kaffee does not implement are errors."""
        given = config.get("architecture")
        if not isinstance(given, dict):
            raise CheckpointError(f"{where} has no 'architecture'; it is no configuration of a DynaMix model.{_REMEDY}")
        sizes = {}
        for field, key in (("latent_dim", "M"), ("num_observed", "N"), ("num_experts", "Experts"), ("num_gates", "P")):
            value = given.get(key)
            if type(value) is not int or value < (0 if key == "P" else 1):
                raise CheckpointError(f"{where}: architecture.{key} must be a whole number, not {value!r:.80}.")
            sizes[field] = value
        fixed = {"hidden_dim": 0, "expert_type": "almost_linear_rnn", "probabilistic_expert": False}
        for key, supported in fixed.items():
            if (value := given.get(key, supported)) != supported:
                raise CheckpointError(
                    f"{where}: {key} = {value!r:.80} is not supported; kaffee reads {supported!r} only.{_REMEDY}"
                )
        read = cls(**sizes)
        if not max(read.num_observed, read.num_gates) <= read.latent_dim:
            raise CheckpointError(f"{where}: M = {read.latent_dim} must be at least N and P; given {sizes}.")
        return read

    def tensor_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """List the shape of every tensor of a release whose gate has so many hidden units."""
        M, N, E = self.latent_dim, self.num_observed, self.num_experts
        gate = Gating.shapes(M, N, E, hidden).items()
        parts = {"A": (M,), "W": (M, M), "h": (M,)}
        experts = {f"experts.{k}.{part}": shape for k in range(E) for part, shape in parts.items()}
        return {"B": (N, M), **experts, **{f"gating_network.{GATING[name]}": shape or (1,) for name, shape in gate}}


@dataclass(frozen=True, eq=False)
class Weights:
    """A checkpoint that was read and checked: tensors under the names of the release, and the weight file's SHA-256."""

    name: str
    architecture: _Architecture
    tensors: Mapping[str, np.ndarray]
    sha256: str

    @property
    def digest(self) -> str:
        """sha256 of names and numbers as float32, the same for every lossless copy; `sha256` depends on the header."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.shape} ".encode() + tensor.astype("<f4").tobytes())
        return digest.hexdigest()

    def to_core(self, dtype: Any = jnp.float32) -> DynaMix:
        """Build the model; condition it on data by `in_context`."""
        E = self.architecture.num_experts

        def stack(part: str) -> Any:
            return jnp.asarray(np.stack([self.tensors[f"experts.{k}.{part}"] for k in range(E)]), dtype)

        gate = {ours: jnp.asarray(self.tensors[f"gating_network.{name}"], dtype) for ours, name in GATING.items()}
        for scalar in ("attention_temperature", "expert_temperature"):
            gate[scalar] = gate[scalar].reshape(())
        return DynaMix(
            **{part: stack(part) for part in ("A", "W", "h")},
            gating=Gating(**gate),
            B=jnp.asarray(self.tensors["B"], dtype),
            num_gates=self.architecture.num_gates,
            origin=f"{self.name} sha256:{self.sha256}",
        )


def read_weights(path: str | Path, config: str | Path) -> Weights:
    """Read and check a checkpoint."""
    contents = []
    for file, what in ((Path(config), "configuration"), (Path(path), "weight file")):
        try:
            if file.stat().st_size > MAX_BYTES:
                size = f"{MAX_BYTES >> 20} MB"
                raise CheckpointError(f"{file} is larger than {size}; it is no {what} of DynaMix.{_REMEDY}")
            contents.append(file.read_bytes())
        except OSError as error:
            raise CheckpointError(f"The {what} {file} cannot be read ({error.strerror or error}).{_REMEDY}") from error
    return decode_weights(contents[1], contents[0], str(path), str(config))


def decode_weights(content: bytes, config_content: bytes, where: str, config_where: str) -> Weights:
    """Decode and check the bytes of both files; messages call them `where` and `config_where`."""
    try:
        config = json.loads(config_content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{config_where} is not JSON: {error}.{_REMEDY}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{config_where} holds {type(config).__name__} instead of a JSON object.{_REMEDY}")
    architecture = _Architecture.from_config(config, config_where)
    try:
        tensors = decode_arrays(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{where} ({len(content)} bytes) is not a safetensors file, or was truncated: {error}. Fetch it again: "
            "kaffee models pull"
        ) from error
    # Before a name is made for each of them: a file may ask for a billion.
    if 3 * architecture.num_experts > len(tensors):
        raise CheckpointError(
            f"{where} holds {len(tensors)} tensors, too few for the {architecture.num_experts!s:.20} experts that "
            f"{config_where} states.{_REMEDY}"
        )
    hidden = tensors.get("gating_network.mlp_layer1.bias", np.zeros(architecture.num_experts))
    _check_tensors(tensors, architecture.tensor_shapes(int(hidden.size)), where)
    return Weights(str(config.get("name") or "dynamix"), architecture, tensors, hashlib.sha256(content).hexdigest())


def _check_tensors(given: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    missing, extra = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
    if missing or extra:
        raise CheckpointError(f"{where}: tensors missing: {_few(missing)}; not expected: {_few(extra)}.{_REMEDY}")
    for name, shape in expected.items():
        tensor = given[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"{where}: tensor {name} has shape {tensor.shape}; the configuration asks for {shape}.{_REMEDY}"
            )
        if tensor.dtype.kind != "f":
            raise CheckpointError(f"{where}: tensor {name} is of type {tensor.dtype}; it must be floating point.")
        with np.errstate(all="ignore"):  # what float32 does not hold is no weight of a model in float32 or float64
            single = tensor.astype(np.float32)
        if not np.isfinite(single).all():
            raise CheckpointError(f"{where}: tensor {name} holds values that are not finite.{_REMEDY}")
        if "softmax_temp" in name and not single.all():
            raise CheckpointError(f"{where}: tensor {name} is 0; a temperature must not be.{_REMEDY}")


def _few(names: list[str], limit: int = 6) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > limit else ""
    return (", ".join(f"{name:.80}" for name in names[:limit]) + more) or "none"


@dataclass(frozen=True)
class Release:
    """A published model: its place on the hub, its two files, the terms, whom to name, and how to know it again.

    Attributes:
        digest: `Weights.digest` of the copy that kaffee was measured with; the hub's own file may have another header.
    """

    name: str
    repository: str
    weights: str
    config: str
    licence: str
    attribution: str
    digest: str
    architecture: _Architecture

    @property
    def files(self) -> tuple[str, str]:
        """Both file names."""
        return self.weights, self.config

    @property
    def terms(self) -> dict[str, str]:
        """What the CC-BY licence asks to name."""
        return {"licence": self.licence, "attribution": self.attribution}

    def differences(self, given: Weights) -> str:
        """Say what is not as it was published; empty for a faithful copy."""
        sizes = zip(asdict(given.architecture).items(), asdict(self.architecture).values(), strict=True)
        other = [f"{name} = {size} instead of {published}" for (name, size), published in sizes if size != published]
        if given.digest != self.digest:
            other.append(f"digest of the numbers {given.digest[:12]} instead of {self.digest[:12]}")
        return ", ".join(other)


DEFAULT = "dynamix-3d-alrnn-v1.0"
KNOWN = {
    DEFAULT: Release(
        name=DEFAULT,
        repository="DurstewitzLab/dynamix",
        weights="dynamix-3d-alrnn-v1.0.safetensors",
        config="config_3d-alrnn-v1.0.json",
        licence="CC-BY-4.0",
        attribution=(
            "C. Hemmer and D. Durstewitz, True Zero-Shot Inference of Dynamical Systems Preserving Long-Term "
            "Statistics, NeurIPS 2025"
        ),
        digest="f8f00dc2473a61189d5e91db0dbb8c50cb4cffae801dfd8e902de8cb6857463f",
        architecture=_Architecture(latent_dim=30, num_observed=3, num_experts=10, num_gates=2),
    )
}


def licence_terms(model: Any) -> dict[str, str]:
    """Collect what a model made by `Weights.to_core` must carry along (CC-BY: whose, which terms, that it changed)."""
    origin = str(getattr(model, "origin", ""))
    release = KNOWN.get(origin.partition(" sha256:")[0])
    if release is None:
        return {"foundation_model": origin} if origin else {}
    return {"foundation_model": origin, **release.terms, "changes": "adapted to a recording by kaffee"}
