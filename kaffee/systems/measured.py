"""Measured Lyapunov exponents of the catalogue; made by `kaffee systems --measure --json`."""

import json
from importlib.resources import files
from typing import Any

from kaffee.lyapunov import lyapunov_spectrum
from kaffee.systems.system import System


def measure_system(system: System, num_steps: int) -> dict[str, Any]:
    """The Lyapunov spectrum of a system's flow along its own attractor; JSON values."""
    spectrum = lyapunov_spectrum(system, num_steps=num_steps)
    dimension = spectrum.kaplan_yorke_dimension
    return {
        "exponents": [round(float(x), 5) for x in spectrum.exponents],
        "standard_errors": [round(float(x), 5) for x in spectrum.standard_errors],
        "sum_positive": round(spectrum.sum_positive, 5),
        "kaplan_yorke_dimension": round(dimension, 4) if dimension == dimension else None,
        "num_steps": spectrum.num_steps,
    }


def stored_measurements() -> dict[str, dict[str, Any]]:
    """The stored measurements by system name.

    >>> round(stored_measurements()["lorenz63"]["exponents"][0], 1)
    0.9
    """
    return json.loads(files("kaffee.systems").joinpath("measured.json").read_text(encoding="utf-8"))
