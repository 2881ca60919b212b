"""How time and memory grow with the latent dimension, and the memory of the peers at the paper's size."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.problem import Size
from benchmarks.worker import measure_apart

LATENT = (25, 50, 100, 200, 400)
NEEDS = {"kaffee": "kaffee", "autodiff": "kaffee", "plain_jax": "jax", "dynamax": "dynamax", "torch_dense": "torch"}


def exponent(latent: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log seconds over log M."""
    return round(float(np.polyfit(np.log(latent), np.log(seconds), 1)[0]), 2)


def measure_scaling(size: Size, repeats: int, latent: Sequence[int] = LATENT, seed: int = 0) -> dict[str, Any]:
    """The section `scaling`: one fresh process per M, so that each has its own peak of memory."""
    rows = {str(M): measure_apart("kaffee", replace(size, latent=M), repeats, seed) for M in latent}
    seconds = [row["median"] for row in rows.values()]
    return {
        "scaling": {M: row["median"] for M, row in rows.items()},
        "scaling_detail": {
            **rows,
            "exponent": exponent(latent, seconds),
            "exponent_of_the_last_two": exponent(latent[-2:], seconds[-2:]),
        },
    }


def measure_memory(size: Size, seed: int = 0) -> dict[str, Any]:
    """The section `memory`: megabytes that one value and gradient adds, compilation not counted."""
    installed = [peer for peer, package in NEEDS.items() if importlib.util.find_spec(package)]
    rows = {peer: measure_apart(peer, size, 3, seed) for peer in installed}
    return {
        "memory": {peer: rows[peer].get("added_mb") if peer in rows else None for peer in NEEDS},
        "memory_detail": {
            peer: {name: value for name, value in row.items() if name.endswith("_mb")} for peer, row in rows.items()
        },
    }
