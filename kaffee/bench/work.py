"""What a worker does: one cell, from its prior to its report card."""

import time
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax

from kaffee.bench.recipe import CellSettings, DataSettings, load_recipe
from kaffee.bench.selection import gap_metrics, selection_scores
from kaffee.bench.store import Cell, ResultStore
from kaffee.checkpoint import Reconstruction, load
from kaffee.dpc import Certifier, GapLog, fixed_score
from kaffee.errors import KaffeeError
from kaffee.evaluation import Reference, evaluate, simulate_reference
from kaffee.evaluation.card import core_of
from kaffee.evaluation.protocol import Protocol
from kaffee.methods import get_method
from kaffee.provenance import machine, versions
from kaffee.ssm import StateSpaceModel
from kaffee.systems import get_system
from kaffee.training.adaptation import adapt
from kaffee.training.initialise import initialise_shell
from kaffee.training.loop import Trained, Watcher
from kaffee.training.pretraining import pretrain


@lru_cache(maxsize=2)
def reference_for(data: DataSettings, protocol: Protocol) -> Reference:
    """The truth of a recipe's data, once per process."""
    return simulate_reference(
        get_system(data.system),
        num_train_steps=data.num_train_steps,
        process_noise=data.process_noise,
        observation_noise=data.observation_noise,
        seed=data.seed,
        protocol=protocol,
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
        "training": {
            "first_loss": _finite(trained.losses[:1]),
            "last_loss": _finite(trained.losses[-10:]),
            "skipped": trained.skipped,
            "completed": trained.completed,
            "report": str(trained),
            "seconds": round(time.perf_counter() - start, 2),
        },
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


def _run(store: ResultStore, cell: Cell) -> dict[str, Any]:
    row, start = store.row(cell), time.perf_counter()
    reference = reference_for(row.settings.data, row.settings.protocol)
    prepared = time.perf_counter()
    measured, trained, trained_at = KINDS[store.recipe.kind](store, cell, reference)
    return {
        "error": None,
        **measured,
        "training": trained.provenance["training"],
        "seconds": {
            "reference": round(prepared - start, 2),
            "training": round(trained_at - prepared, 2),
            "evaluation": round(time.perf_counter() - trained_at, 2),
        },
        "fingerprint": reference.train.fingerprint,
        "versions": versions(),
        "machine": machine(),
    }


Measurement = tuple[dict[str, Any], Reconstruction, float]


def measure_card(store: ResultStore, cell: Cell, reference: Reference) -> Measurement:
    """The three-axis report card; a frozen core's deterministic axis is its prior's."""
    row, trained = store.row(cell), trained_model(store, cell, reference)
    trained_at = time.perf_counter()
    known_core, prior_cell = None, store.prior_of(cell)
    confined = row.settings.adaptation.confine is not None
    if prior_cell is not None and not get_method(row.method).train_core and not confined:
        known_core = core_of(store.prior_store.read(prior_cell) or {})
    protocol = row.settings.protocol
    card = evaluate(trained.model, reference, method=row.method, protocol=protocol, core_fidelity=known_core)
    return card.to_dict(), trained, trained_at


def measure_selection(store: ResultStore, cell: Cell, reference: Reference) -> Measurement:
    """What hyperparameters are selected by: the training data alone (see `kaffee.bench.selection`)."""
    trained = trained_model(store, cell, reference)
    trained_at = time.perf_counter()
    return selection_scores(trained.model, reference, get_method(store.row(cell).method)), trained, trained_at


def measure_gap(store: ResultStore, cell: Cell, reference: Reference) -> Measurement:
    """The row's own objective and the certification losses along its training (definition 1)."""
    row, prior_cell = store.row(cell), store.prior_of(cell)
    assert prior_cell is not None
    method, adaptation = get_method(row.method), row.settings.adaptation
    prior = load(store.prior_store.cell_folder(prior_cell)).model
    log = GapLog(
        fixed_score(prior, reference.standard_train, method, adaptation),
        Certifier.from_reference(reference, method.filter),
        every=adaptation.schedule.report_every,
    )
    (store.cell_folder(cell) / "model.json").unlink(missing_ok=True)  # a stored model has no log
    trained = trained_model(store, cell, reference, watcher=log)
    return gap_metrics(log.entries), trained, time.perf_counter()


KINDS = {"table": measure_card, "selection": measure_selection, "gap": measure_gap}


def _finite(losses: Any) -> float | None:
    values = [float(x) for x in losses if x == x]
    return sum(values) / len(values) if values else None


def run_cell(root: str, name: str, preset: str | None, row: str, seed: int) -> str:
    """Run one cell and write its record; an error becomes the record of a failed cell. Returns the cell's name."""
    store = ResultStore(Path(root), load_recipe(name, preset))
    cell = Cell(row, seed)
    try:
        record = _run(store, cell)
    except Exception as error:  # a failed cell keeps its error and the others go on
        record = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    store.write(cell, record)
    return cell.name
