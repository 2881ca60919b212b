"""What is measured in a cell: the report card, the scores for selection, the gap of definition 1."""

import time
from typing import Any, NamedTuple

from kaffee.bench.selection import gap_metrics, selection_scores
from kaffee.bench.store import Cell, ResultStore
from kaffee.bench.training import reference_for, trained_model
from kaffee.checkpoint import Reconstruction, load
from kaffee.dpc import Certifier, GapLog, fixed_score
from kaffee.evaluation import Reference, evaluate
from kaffee.evaluation.card import core_of
from kaffee.methods import get_method


class Measurement(NamedTuple):
    """What a cell keeps.

    Attributes:
        metrics: JSON values.
        training: What is known about the training, JSON values.
        fingerprint: Of the training data.
        trained_at: When training was over, by `time.perf_counter`.
    """

    metrics: dict[str, Any]
    training: dict[str, Any]
    fingerprint: str
    trained_at: float


def _measurement(metrics: dict[str, Any], trained: Reconstruction, trained_at: float) -> Measurement:
    return Measurement(metrics, trained.provenance["training"], trained.provenance["fingerprint"], trained_at)


def _reference(store: ResultStore, cell: Cell) -> Reference:
    settings = store.settings(cell)
    return reference_for(settings.data, settings.protocol)


def measure_card(store: ResultStore, cell: Cell) -> Measurement:
    """The three-axis report card; a frozen core's deterministic axis is its prior's."""
    row, reference = store.row(cell), _reference(store, cell)
    trained = trained_model(store, cell, reference)
    trained_at = time.perf_counter()
    known_core, prior_cell = None, store.prior_of(cell)
    confined = row.settings.adaptation.confine is not None
    if prior_cell is not None and not get_method(row.method).train_core and not confined:
        known_core = core_of(store.prior_store.read(prior_cell) or {})
    protocol = row.settings.protocol
    card = evaluate(trained.model, reference, method=row.method, protocol=protocol, core_fidelity=known_core)
    return _measurement(card.to_dict(), trained, trained_at)


def measure_selection(store: ResultStore, cell: Cell) -> Measurement:
    """What hyperparameters are selected by: the training data alone (see `kaffee.bench.selection`)."""
    reference = _reference(store, cell)
    trained = trained_model(store, cell, reference)
    trained_at = time.perf_counter()
    scores = selection_scores(trained.model, reference, get_method(store.row(cell).method))
    return _measurement(scores, trained, trained_at)


def measure_gap(store: ResultStore, cell: Cell) -> Measurement:
    """The row's own objective and the certification losses along its training (definition 1)."""
    row, prior_cell, reference = store.row(cell), store.prior_of(cell), _reference(store, cell)
    assert prior_cell is not None
    method, adaptation = get_method(row.method), row.settings.adaptation
    prior = load(store.prior_store.cell_folder(prior_cell)).model
    log = GapLog(
        fixed_score(prior, reference.standard_train, method, adaptation),
        Certifier.from_reference(reference, method.filter),
        every=adaptation.schedule.report_every,
        last=adaptation.schedule.num_updates,
    )
    (store.cell_folder(cell) / "model.json").unlink(missing_ok=True)  # a stored model has no log
    trained = trained_model(store, cell, reference, watcher=log)
    return _measurement(gap_metrics(log.entries), trained, time.perf_counter())
