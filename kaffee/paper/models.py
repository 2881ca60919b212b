"""The data of a cell and the model that is trained on them."""

import time
from functools import lru_cache
from typing import Any, Literal

import jax

from kaffee.certification.fidelity import Protocol, Reference, simulate_reference
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.errors import KaffeeError
from kaffee.filtering.likelihood import get_method
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.recipe import CellSettings, DataSettings
from kaffee.systems.catalogue import get_system
from kaffee.training.adaptation import adapt
from kaffee.training.loop import Trained, Watcher
from kaffee.training.pretraining import initialise_shell, pretrain


@lru_cache(maxsize=24)
def reference_for(
    data: DataSettings, protocol: Protocol, scaler: Literal["states", "observations"] = "states"
) -> Reference:
    """The truth of a recipe's data, once per process; `scaler` as in `simulate_reference`."""
    return simulate_reference(
        get_system(data.system),
        num_train_steps=data.num_train_steps,
        process_noise=data.process_noise,
        observation_noise=data.observation_noise,
        seed=data.seed,
        protocol=protocol,
        scaler=scaler,
    )


def train_prior(settings: CellSettings, reference: Reference, seed: int) -> tuple[StateSpaceModel, Trained]:
    """Pretrain a core and give it its first shell."""
    key_core, key_embedding = jax.random.split(jax.random.key(seed))
    num_observed = reference.train.num_coordinates
    core = settings.core.create(num_observed, key=key_core)
    model = StateSpaceModel.create(core, num_observed, key=key_embedding)
    trained = pretrain(model, reference.standard_train, settings.pretraining, seed=seed)
    shell = initialise_shell(
        trained.model,
        reference.standard_train,
        residuals=settings.shell.residuals,
        forcing=settings.pretraining.forcing,
        alpha=settings.shell.alpha,
    )
    return shell, trained


def training_record(trained: Trained, seconds: float) -> dict[str, Any]:
    """What a cell remembers of its training, JSON values."""
    return {
        "first_loss": _finite(trained.losses[:1]),
        "last_loss": _finite(trained.losses[-10:]),
        "skipped": trained.skipped,
        "completed": trained.completed,
        "report": str(trained),
        "seconds": round(seconds, 2),
    }


def trained_model(
    store: ResultStore, cell: Cell, reference: Reference, watcher: Watcher | None = None
) -> Reconstruction:
    """Train the model of a cell, or take it from disk if this was done before under the same settings."""
    known = stored_model(store, cell)
    if known is not None:
        return known
    row, start = store.row(cell), time.perf_counter()
    settings = row.settings
    if row.method == "prior":
        model, trained = train_prior(settings, reference, cell.seed)
    else:
        prior_cell = store.prior_of(cell)
        assert prior_cell is not None
        prior = load(store.prior_store.cell_folder(prior_cell)).model
        method = get_method(row.method)
        trained = adapt(prior, reference.standard_train, method, settings.adaptation, seed=cell.seed, watcher=watcher)
        model = trained.model
    provenance = {
        "seed": cell.seed,
        "fingerprint": reference.train.fingerprint,
        "training_hash": row.training_hash,
        "training": training_record(trained, time.perf_counter() - start),
    }
    columns, dt = reference.train.columns, reference.system.dt
    made = Reconstruction(model, reference.scaler, columns, dt, method=row.method, provenance=provenance)
    made.save(store.cell_folder(cell))
    return made


def stored_model(store: ResultStore, cell: Cell) -> Reconstruction | None:
    """The model of a cell if it is on disk and was trained under the settings of its row."""
    try:
        known = load(store.cell_folder(cell))
    except KaffeeError:  # absent, or broken: then it is made anew
        return None
    return known if known.provenance.get("training_hash") == store.row(cell).training_hash else None


def _finite(losses: Any) -> float | None:
    values = [float(x) for x in losses if x == x]
    return sum(values) / len(values) if values else None
