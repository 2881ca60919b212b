"""Cells of the non-chaotic controls: an objective, an experiment and a seed (appendix D.2)."""

import time

from kaffee.bench.kinds import Measurement
from kaffee.bench.store import Cell, ResultStore
from kaffee.controls import SpiralSettings, spiral_cell, van_der_pol_cell
from kaffee.errors import ConfigError

VAN_DER_POL, SPIRAL = "van_der_pol", "spiral_"


def spiral_noise(system: str) -> float | None:
    """The noise level of a spiral experiment; None for others.

    >>> spiral_noise("spiral_0.5"), spiral_noise("van_der_pol")
    (0.5, None)
    """
    return float(system.removeprefix(SPIRAL)) if system.startswith(SPIRAL) else None


def measure_control(store: ResultStore, cell: Cell) -> Measurement:
    """One fit; the curves of the figures are kept of the first seed only."""
    settings, noise, objective = store.settings(cell), spiral_noise(cell.system), store.row(cell).method
    first = cell.seed == 0
    if noise is not None:
        spiral = settings.spiral or SpiralSettings()
        metrics = spiral_cell(objective, noise, cell.seed, spiral, curves=first and noise == spiral.main_noise)
    elif cell.system == VAN_DER_POL:
        metrics = van_der_pol_cell(objective, cell.seed, settings.van_der_pol, curves=first)
    else:
        raise ConfigError(f"There is no control '{cell.system}'; there are {VAN_DER_POL} and {SPIRAL}<noise>.")
    training = {name: metrics.pop(name) for name in ("skipped", "completed", "final_loss")}
    return Measurement(metrics, training, "", time.perf_counter())
