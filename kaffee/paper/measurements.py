"""What is measured in a cell: the report card, the scores for selection, the gap of definition 1."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.certification.card import evaluate, read_core
from kaffee.certification.fidelity import Fidelity, Reference
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.errors import ConfigError
from kaffee.filtering.evaluation import Target, evaluate_free_runs
from kaffee.filtering.likelihood import Method, get_method
from kaffee.filtering.rollout import free_run
from kaffee.filtering.sweep import run_filter
from kaffee.foundation.context import adapt_in_context, condition, lyapunov_window, read_all
from kaffee.foundation.hub import from_pretrained
from kaffee.metrics.lyapunov import lyapunov_spectrum
from kaffee.model.core import Core
from kaffee.model.dynamix import DynaMix
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.context_card import evaluate_in_context
from kaffee.paper.controls.spiral import SpiralSettings, spiral_cell
from kaffee.paper.controls.van_der_pol import van_der_pol_cell
from kaffee.paper.models import reference_for, trained_model, training_record
from kaffee.paper.recipe import CellSettings, FoundationSettings
from kaffee.records import jsonable
from kaffee.theory.dpc import Certifier, Entry, GapLog, find_gaps, fixed_score, overall_gaps
from kaffee.training.loop import Trained


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
        known_core = read_core(store.prior_store.read(prior_cell) or {})
    protocol = row.settings.protocol
    card = evaluate(trained.model, reference, method=row.method, protocol=protocol, core_fidelity=known_core)
    return _measurement(card.to_dict(), trained, trained_at)


def measure_selection(store: ResultStore, cell: Cell) -> Measurement:
    """What hyperparameters are selected by: the training data alone (see `kaffee.paper.measurements`)."""
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


# Small measurements beside the report card: what hyperparameters are selected by, and the DPC gap of a run.


def selection_scores(model: StateSpaceModel, reference: Reference, method: Method) -> dict[str, Any]:
    """Compute scores that see nothing but the noisy training data (the paper selects by the first).

    d_stsp_train: D_stsp of a shell-on free run against the training data (appendix B.2).
    nll_train: One-step innovation NLL of the filter that goes with the method, on fixed training windows, after 40
        steps of warm-up; per entry, standardised.
    diverged_train: Whether that free run diverged; then d_stsp_train does not exist.
    """
    series = reference.standard_train
    data = series.recordings[0]
    target = Target(data, spectra=False)
    run = evaluate_free_runs(model, data[:1], target, len(data), key=jax.random.key(0), transient=1_000)
    batch = training_windows(series, 101, model.dtype).sample(jax.random.key(0), 64)
    nll = run_filter(model.exact(), batch.observations, batch.mask, method.filter).nll[:, 40:]
    score = float(jnp.mean(nll)) / series.num_coordinates
    return {
        "d_stsp_train": None if run.num_diverged else run.distances[0].d_stsp,
        "nll_train": score if np.isfinite(score) else None,
        "diverged_train": bool(run.num_diverged),
    }


def gap_metrics(entries: Sequence[Entry]) -> dict[str, Any]:
    """Summarise a gap log: score and losses before and after, whether the whole run shows a gap, the steps with one."""
    first, last = entries[0], entries[-1]
    changes = {f"{name}_before": loss.value for name, loss in first.losses.items()}
    changes |= {f"{name}_after": loss.value for name, loss in last.losses.items()}
    return {
        **jsonable({"score_before": first.score, "score_after": last.score, **changes}),
        "gap": float(bool(overall_gaps(entries))),
        "gap_steps": float(len({(g.before, g.after) for g in find_gaps(entries)})),
        "overall_gaps": [gap.loss for gap in overall_gaps(entries)],
        "entries": [entry.to_dict() for entry in entries],
    }


# How good are the two Jacobians of DynaMix as tangents of the step they belong to, and of the system?


COMPARED_STATES = 500


@eqx.filter_jit
def tangent_errors(core: Core, states: Float[Array, "T M"]) -> Float[Array, " T"]:
    """|J(z) - dF/dz|_F / |dF/dz|_F at every state; dF/dz by the core's exact derivative."""
    J, exact = jax.vmap(core.jacobian)(states), jax.vmap(core.exact().jacobian)(states)
    norm = lambda A: jnp.sqrt(jnp.sum(A**2, axis=(1, 2)))  # noqa: E731
    return norm(J - exact) / norm(exact)


def measure_tangent(store: ResultStore, cell: Cell) -> Measurement:
    """Along a free run of the zero-shot core: relative error of its Jacobian, and lambda_1 beside the truth's."""
    settings = store.settings(cell)
    reference = context_reference(settings, cell.seed)
    zero_shot, _ = conditioned(settings, reference)
    ready, protocol, model = time.perf_counter(), settings.protocol, zero_shot.model
    first = jnp.asarray(reference.scaler.transform(reference.clean[:1]), model.dtype)
    core_key = jax.random.key(protocol.seed)
    run = free_run(model, model.embed(first), protocol.rollout_steps, transient=protocol.transient, core_key=core_key)
    states = run.states[0]
    chosen = states[jnp.linspace(0, len(states) - 1, COMPARED_STATES).round().astype(int)]
    dt, truth = reference.system.dt, reference.lyapunov.maximal
    found = lyapunov_spectrum(model.core, states, num_exponents=1, dt=dt).maximal
    metrics = {
        "tangent_error": float(np.median(np.asarray(tangent_errors(model.core, chosen)))),
        "lambda_1": found,
        "lambda_1_true": truth,
        "dlambda_1": abs(found - truth),
        # Per step, where systems of different time scales can be compared.
        "dlambda_1_step": abs(found - truth) * dt,
        "extra": {"diverged_at_core": int(run.diverged_at[0])},
    }
    return Measurement(metrics, {}, reference.train.fingerprint, ready)


# Cells of the in-context table: a foundation model, ten updates on a context, the evaluation of appendix C.5.1.


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


# Cells of the non-chaotic controls: an objective, an experiment and a seed (appendix D.2).


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
