"""Cells of the in-context table: a foundation model, ten updates on a context, the evaluation of appendix C.5.1."""

import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kaffee.bench.kinds import Measurement
from kaffee.bench.recipe import CellSettings, FoundationSettings
from kaffee.bench.store import Cell, ResultStore
from kaffee.bench.training import reference_for, training_record
from kaffee.checkpoint import Reconstruction
from kaffee.data.series import Series
from kaffee.dynamix import DynaMix, from_pretrained
from kaffee.evaluation.context import evaluate_in_context
from kaffee.evaluation.dynamics import Fidelity
from kaffee.evaluation.reference import Reference
from kaffee.incontext import adapt_in_context, condition, lyapunov_window, read_all
from kaffee.methods import get_method
from kaffee.training.loop import Trained


@lru_cache(maxsize=4)
def pretrained(settings: FoundationSettings) -> DynaMix:
    """The foundation model, once per process."""
    return from_pretrained(settings.model).with_tangent(settings.tangent, train_gate=settings.train_gate)


def context_reference(settings: CellSettings, seed: int) -> Reference:
    """The truth around a context whose observation noise the seed decides, standardised by that context."""
    return reference_for(replace(settings.data, seed=seed), settings.protocol, "observations")


def conditioned(settings: CellSettings, reference: Reference) -> tuple[Reconstruction, Series]:
    """The zero-shot surrogate with its first shell, and the standardised context."""
    assert settings.foundation is not None
    return condition(
        pretrained(settings.foundation),
        reference.train.recordings[0],
        dt=reference.system.dt,
        columns=reference.train.columns,
        residuals=settings.shell.residuals,
        forcing=settings.pretraining.forcing,
        alpha=settings.shell.alpha,
        held_out=settings.foundation.held_out or 0.0,
    )


def adapted(
    settings: CellSettings, reference: Reference, zero_shot: Reconstruction, context: Series, method: str, seed: int
) -> Trained:
    """A few updates by a method, on windows of one Lyapunov time of the system as the paper states it."""
    system = reference.system
    scored = lyapunov_window(system.lambda_1, system.dt)
    trained = adapt_in_context(
        zero_shot.model, context, get_method(method), seed=seed, scored=scored, settings=settings.adaptation
    )
    if not (settings.foundation and settings.foundation.held_out):
        return trained
    return replace(trained, model=read_all(trained.model, reference.standard_train.recordings[0]))


def _base(record: dict[str, Any] | None) -> Fidelity | None:
    """The deterministic axis of the unadapted model from its record."""
    if record is None:
        return None
    nan = float("nan")
    d_stsp, d_h = (nan if record[name] is None else record[name] for name in ("d_stsp_core", "d_h_core"))
    return Fidelity(d_stsp, nan, d_h, nan, [], record["extra"]["diverged_at_core"], record["diverged_core"])


def measure_in_context(store: ResultStore, cell: Cell) -> Measurement:
    """The card of a method on one system; a frozen core's deterministic axis is the base's."""
    settings, method, start = store.settings(cell), store.row(cell).method, time.perf_counter()
    reference = context_reference(settings, cell.seed)
    zero_shot, context = conditioned(settings, reference)
    model, training, base, known = zero_shot.model, {}, None, None
    if method != "prior":
        prior_cell = store.prior_of(cell)
        assert prior_cell is not None
        base = _base(store.prior_store.read(prior_cell))
        trained = adapted(settings, reference, zero_shot, context, method, cell.seed)
        model, training = trained.model, training_record(trained, time.perf_counter() - start)
        known = None if get_method(method).train_core else base
    trained_at = time.perf_counter()
    card = evaluate_in_context(
        model, reference, method=method, protocol=settings.protocol, base=base, core_fidelity=known
    )
    return Measurement(card.to_dict(), training, reference.train.fingerprint, trained_at)
