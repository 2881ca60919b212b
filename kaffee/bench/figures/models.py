"""The trained models of one seed, for the panel that needs more than the numbers in the cells."""

from collections.abc import Callable
from typing import NamedTuple

from kaffee.bench.figures.cycle import Band, Cycle, observed_cycle, predicted_band
from kaffee.bench.figures.rows import DrawnRow
from kaffee.bench.store import Cell, ResultStore
from kaffee.bench.training import reference_for, stored_model, trained_model
from kaffee.errors import CheckpointError
from kaffee.methods import get_method

SHOWN = ("kaffee", "blind")


class CycleData(NamedTuple):
    """What panel g shows."""

    cycle: Cycle
    bands: list[tuple[DrawnRow, Band]]
    seed: int


def cycle_data(store: ResultStore, rows: list[DrawnRow], say: Callable[[str], None]) -> CycleData | None:
    """Filter the test data by the models of the first seed that all shown rows have; None if there is no model.

    A model that is not on disk is trained again from its prior, which is part of the results.

    Args:
        say: Told what takes time, and what is missing.
    """
    shown = [row for row in rows if row.method in SHOWN]
    seeds = [{record["seed"] for record in row.records} for row in shown]
    common = set.intersection(*seeds) if seeds else set()
    if not common:
        return None
    seed = min(common)
    settings = shown[0].row.settings
    reference, warm_up = reference_for(settings.data, settings.protocol), settings.protocol.warm_up
    bands = []
    for row in shown:
        cell = Cell(row.row.name, seed)
        if stored_model(store, cell) is None:
            say(f"The model of {cell.name} is not on disk: training it again from its prior (about half a minute).")
        try:
            model = trained_model(store, cell, reference)
        except CheckpointError as error:
            say(f"Panel g is drawn without {cell.name}. {error}")
            continue
        bands.append((row, predicted_band(model, get_method(row.method).filter, reference, warm_up)))
    return CycleData(observed_cycle(reference, warm_up), bands, seed) if bands else None
