"""The true Lyapunov exponents, computed once and kept beside the cells."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from kaffee.bench.recipe import CellSettings
from kaffee.store import read_json, write_json


def true_exponents(settings: CellSettings, path: Path) -> Float[np.ndarray, " N"]:
    """The spectrum of the noise-free flow over as many steps as the protocol's free runs, largest first.

    It is that of `Reference.lyapunov`, from which the cells keep only the sum of the positive exponents.

    Args:
        path: A JSON file that is read if it holds this spectrum, and written if not.
    """
    wanted = {"system": settings.data.system, "num_steps": settings.protocol.rollout_steps}
    if path.exists():
        known = read_json(path, "reference spectrum")
        if {key: known.get(key) for key in wanted} == wanted:
            return np.array(known["exponents"], np.float64)
    from kaffee.lyapunov import lyapunov_spectrum
    from kaffee.systems import get_system

    spectrum = lyapunov_spectrum(get_system(settings.data.system), num_steps=settings.protocol.rollout_steps)
    write_json(path, {**wanted, "exponents": spectrum.exponents.tolist()})
    return spectrum.exponents
