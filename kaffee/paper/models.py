"""The data of a cell and the model that is trained on them."""

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import jax

from kaffee.certification.fidelity import Protocol, Reference, simulate_reference
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.errors import KaffeeError
from kaffee.fitting.pipeline import adapt_prior, train_prior
from kaffee.fitting.stages import Stage
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.recipe import DataSettings
from kaffee.systems.catalogue import get_system
from kaffee.training.loop import Watcher


@lru_cache(maxsize=24)
def reference_for(
    data: DataSettings, protocol: Protocol, scaler: Literal["states", "observations"] = "states"
) -> Reference:
    """Simulate the truth of a recipe's data, once per process; `scaler` as in `simulate_reference`."""
    options = {name: value for name, value in vars(data).items() if name != "system"}
    return simulate_reference(get_system(data.system), **options, protocol=protocol, scaler=scaler)


def training_record(stage: Stage, seconds: float) -> dict[str, Any]:
    """Collect what a cell remembers of its training, JSON values."""
    first, last = ([float(loss) for loss in part if loss == loss] for part in (stage.losses[:1], stage.losses[-10:]))
    return {
        "first_loss": first[0] if first else None,
        "last_loss": sum(last) / len(last) if last else None,
        "skipped": stage.skipped,
        "completed": stage.completed,
        "report": stage.report,
        "seconds": round(seconds, 2),
    }


def trained_model(
    store: ResultStore, cell: Cell, reference: Reference, watcher: Watcher | None = None
) -> Reconstruction:
    """Train the model of a cell, or take it from disk if this was done before under the same settings."""
    known = stored_model(store, cell)
    if known is not None:
        return known
    row, started = store.row(cell), time.perf_counter()
    settings, rows = row.settings, reference.standard_train
    if row.method == "prior":
        key_core, key_embedding = jax.random.split(jax.random.key(cell.seed))
        core = settings.core.create(rows.num_coordinates, key=key_core)
        model = StateSpaceModel.create(core, rows.num_coordinates, key=key_embedding)
    else:
        prior_cell = store.find_prior(cell)
        assert prior_cell is not None
        model = load(store.prior_store.cell_folder(prior_cell)).model
    start = Reconstruction(model, reference.scaler, reference.train.columns, reference.system.dt)
    if row.method == "prior":
        stage = train_prior(start, rows, settings.pretraining, settings.shell, seed=cell.seed)
    else:
        stage = adapt_prior(start, rows, row.method, settings.adaptation, seed=cell.seed, watcher=watcher)
    provenance = {
        "seed": cell.seed,
        "fingerprint": reference.train.fingerprint,
        "training_hash": row.training_hash,
        "training": training_record(stage, time.perf_counter() - started),
    }
    made = replace(stage.reconstruction, provenance=provenance)
    made.save(store.cell_folder(cell))
    return made


def stored_model(store: ResultStore, cell: Cell) -> Reconstruction | None:
    """Load the model of a cell if it is on disk and was trained under the settings of its row."""
    try:
        known = load(store.cell_folder(cell))
    except KaffeeError:  # absent or broken: it is trained again
        return None
    return known if known.provenance.get("training_hash") == store.row(cell).training_hash else None
