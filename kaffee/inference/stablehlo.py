"""Compiled programs of a model in StableHLO, which run without kaffee: step of the core, start and step of the filter.

    step:    z (b, M)                                      ->  F(z) (b, M), B F(z) (b, N) in data units
    start:                                                 ->  s_0, the state of a filter that has read nothing
    filter:  s_{t-1}, x_t (N,) in data units, NaN missing  ->  s_t, mean, std, predicted_mean, predicted_std, log p(x_t)

A state is a list of arrays; the filter is that of `OnlineFilter` without a gate. Weights are constants of the programs.
Each is stored twice: NAME.jaxexport for `jax.export.deserialize`, which knows how to call it, and NAME.stablehlo, the
portable artifact for other runtimes. `programs.json` names arguments and results, with shapes and types.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jaxtyping import Array

from kaffee.checkpoint.reconstruction import Reconstruction, named_arrays
from kaffee.errors import ConfigError, unknown
from kaffee.filtering.gated import advance, make_gate, new_track
from kaffee.inference.matching import model_columns
from kaffee.records import versions, write_atomically, write_json

FORMAT = {"format": "kaffee-programs", "format_version": 1}
PLATFORMS = ("cpu", "cuda", "tpu")
_RESULTS = ("mean", "std", "predicted_mean", "predicted_std", "log_likelihood")
# Offsets, in standard deviations, at which a reading in float32 has lost a thousandth of them.
_FAR = 1e4


def export_programs(
    reconstruction: Reconstruction, folder: str | Path, *, platforms: tuple[str, ...] = PLATFORMS
) -> Path:
    """Write the programs of a model to a folder; returns it.

    Args:
        platforms: Where the programs should run, in JAX's names.
    """
    if find_spec("flatbuffers") is None:
        raise ConfigError("Programs are written by flatbuffers, which is not installed: pip install 'kaffee[export]'")
    for platform in platforms:
        if platform not in (*PLATFORMS, "rocm"):
            raise ConfigError(unknown("platform", platform, (*PLATFORMS, "rocm")))
    reconstruction = reconstruction.group(None)
    folder, model, scaler = Path(folder), reconstruction.model, reconstruction.scaler
    if model.core.input_dim:
        driven = ", ".join(reconstruction.inputs)
        raise ConfigError(
            f"The model is driven by {driven}, and programs take no inputs yet. Fit one without --inputs."
        )
    if model.discrete is not None:
        raise ConfigError("Counts and binary readings are filtered as files (filter_recordings), not in programs yet.")
    if model.dtype == jnp.float32 and (np.abs(scaler.mean) > _FAR * scaler.scale).any():
        far = model_columns(reconstruction)[int(np.argmax(np.abs(scaler.mean) / scaler.scale))]
        warnings.warn(
            f"Readings of '{far}' are more than {_FAR:g} standard deviations from zero, and a program in float32 takes "
            "them with that much less precision. Fit data without the offset.",
            UserWarning,
            stacklevel=2,
        )
    mean, scale = (jnp.asarray(each, model.dtype) for each in (scaler.mean, scaler.scale))
    recursion, gate = reconstruction.filter, make_gate()
    blank = new_track(model, recursion, 1)
    leaves, structure = jax.tree.flatten(blank)
    exact = model.exact()

    def step(z: Array) -> tuple[Array, Array]:
        z = exact.core.predict_mean(z)
        return z, exact.observation.observe(z) * scale + mean

    def start() -> tuple[Array, ...]:
        return tuple(leaves)

    def filter_row(*arguments: Array) -> tuple[Array, ...]:
        *state, x = arguments
        track, row, _ = advance(
            model, recursion, gate, jax.tree.unflatten(structure, state), ((x - mean) / scale)[None]
        )
        units = jnp.sum(jnp.where(row.accepted[0], jnp.log(scale), 0.0))
        moments = (row.signal_mean[0], row.signal_std[0], row.reading_mean[0], row.reading_std[0])
        shifts = (mean, jnp.zeros_like(mean)) * 2
        found = [value * scale + shift for value, shift in zip(moments, shifts, strict=True)]
        return (*jax.tree.leaves(track), *found, -row.nll[0] - units)

    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    reading = jax.ShapeDtypeStruct((model.num_observed,), model.dtype)
    states = jax.ShapeDtypeStruct(jax_export.symbolic_shape(f"b, {model.latent_dim}"), model.dtype)
    names = [f"state.{name}" for name in named_arrays(blank)]
    programs: dict[str, tuple[Callable[..., Any], list[Any], list[str], list[str]]] = {
        "step": (step, [states], ["z"], ["z", "x"]),
        "start": (start, [], [], names),
        "filter": (filter_row, [*shapes, reading], [*names, "x"], [*names, *_RESULTS]),
    }
    facts = {}
    for name, (function, arguments, given, returned) in programs.items():
        program = jax_export.export(jax.jit(function), platforms=platforms)(*arguments)
        write_atomically(folder / f"{name}.jaxexport", bytes(program.serialize()))
        write_atomically(folder / f"{name}.stablehlo", program.mlir_module_serialized)
        facts[name] = {
            "arguments": _describe(given, program.in_avals),
            "results": _describe(returned, program.out_avals),
        }
    about = {"columns": list(model_columns(reconstruction)), "dt": reconstruction.dt, "method": reconstruction.method}
    about |= {"filter": reconstruction.filter_name, "platforms": list(platforms), "versions": versions()}
    write_json(folder / "programs.json", {**FORMAT, **about, "programs": facts})
    return folder


def _describe(names: list[str], shapes: Any) -> list[dict[str, Any]]:
    """Name arrays, with shape and type; a size that is free is a word."""
    return [
        {
            "name": name,
            "shape": [size if isinstance(size, int) else str(size) for size in a.shape],
            "dtype": str(a.dtype),
        }
        for name, a in zip(names, shapes, strict=True)
    ]
