"""The figures of the non-chaotic controls from their cells."""

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from kaffee.bench.controls import VAN_DER_POL, spiral_noise
from kaffee.bench.store import Cell, ResultStore
from kaffee.controls import SpiralSettings, spiral_truth, van_der_pol_truth
from kaffee.controls.figures import nochaos_exp1_main, nochaos_exp1_sweep, nochaos_exp2_rollout, nochaos_exp2_var20
from kaffee.errors import KaffeeError


def control_drawings(store: ResultStore) -> dict[str, Callable[[], Figure]]:
    """All four figures; each needs the first seed of the objectives it compares."""
    settings = store.recipe.settings
    spiral = settings.spiral or SpiralSettings()
    main = next((name for name in store.recipe.systems if spiral_noise(name) == spiral.main_noise), "")

    def first_seed(system: str) -> dict[str, Any]:
        found = {row.name: store.read(Cell(row.name, 0, system)) for row in store.recipe.rows}
        cells = {name: cell for name, cell in found.items() if cell is not None and cell["error"] is None}
        if not cells:
            raise KaffeeError(f"There are no finished cells of {system}. First: kaffee bench run {store.recipe.name}")
        return cells

    def sweep() -> list[dict[str, Any]]:
        cells = [cell for cell in store.cells() if spiral_noise(cell.system) is not None and store.is_done(cell)]
        return [record for cell in cells if (record := store.read(cell)) is not None]

    return {
        "nochaos_exp1_main": lambda: nochaos_exp1_main(spiral_truth(spiral), first_seed(main), spiral),
        "nochaos_exp1_sweep": lambda: nochaos_exp1_sweep(spiral_truth(spiral), sweep()),
        "nochaos_exp2_rollout": lambda: nochaos_exp2_rollout(
            van_der_pol_truth(settings.van_der_pol), first_seed(VAN_DER_POL), settings.van_der_pol
        ),
        "nochaos_exp2_var20": lambda: nochaos_exp2_var20(
            van_der_pol_truth(settings.van_der_pol), first_seed(VAN_DER_POL)
        ),
    }
