"""Measure a cell: what a worker does, from the cell's prior to its record, for every kind of recipe."""

import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.certification.card import evaluate, measure_grounding, read_core
from kaffee.certification.fidelity import Fidelity, Protocol, Reference
from kaffee.certification.innovations import FilterPass, choose_starts, filter_pass
from kaffee.certification.spread import spread_growth
from kaffee.certification.tangents import Candidate, measure_proxy, try_candidates
from kaffee.checkpoint.reconstruction import Reconstruction, load
from kaffee.data.series import Series
from kaffee.data.windows import training_windows
from kaffee.errors import ConfigError
from kaffee.filtering.evaluation import Target, evaluate_free_runs
from kaffee.filtering.likelihood import Method, get_method
from kaffee.filtering.rollout import free_run
from kaffee.filtering.sweep import run_filter
from kaffee.fitting.pipeline import adapt_prior
from kaffee.fitting.settings import IN_CONTEXT, FoundationSettings
from kaffee.fitting.stages import Stage
from kaffee.foundation.context import condition, lyapunov_window
from kaffee.foundation.hub import from_pretrained
from kaffee.foundation.incontext import ContextSettings, read_context
from kaffee.metrics.lyapunov import lyapunov_spectrum
from kaffee.metrics.scores import correlate_growths, oracle_log_growth
from kaffee.model.core import Core
from kaffee.model.dynamix import DynaMix
from kaffee.model.statespace import StateSpaceModel
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.context_card import evaluate_in_context
from kaffee.paper.controls import SpiralSettings, spiral_cell, van_der_pol_cell
from kaffee.paper.models import reference_for, trained_model, training_record
from kaffee.paper.recipe import CellSettings, DataSettings, load_recipe
from kaffee.records import jsonable, machine, versions
from kaffee.theory.dpc import Certifier, Entry, GapLog, find_gaps, fixed_score, overall_gaps

# Metrics, facts about the training, fingerprint of the data, and when training was over by `time.perf_counter`.
_Measurement = tuple[dict[str, Any], dict[str, Any], str, float]
# The paper's systems are read as states; their cells were measured with this noise.
_TABLE2_CONTEXT = ContextSettings(lags=(0,))


def run_cell(root: str, name: str, preset: str | None, row: str, seed: int, system: str = "") -> str:
    """Run one cell and write its record; an error becomes the record of a failed cell. Return the cell's name."""
    store = ResultStore(Path(root), load_recipe(name, preset))
    cell = Cell(row, seed, system)
    try:
        record = _measure_cell(store, cell)
    except Exception as error:  # a failed cell keeps its error and the others go on
        record = {
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
            "versions": versions(),
        }
    store.write(cell, record)
    return cell.name


def _measure_cell(store: ResultStore, cell: Cell) -> dict[str, Any]:
    start = time.perf_counter()
    metrics, training, fingerprint, trained_at = KINDS[store.recipe.kind](store, cell)
    seconds = {"training": trained_at - start, "evaluation": time.perf_counter() - trained_at}
    return {
        "error": None,
        **jsonable(metrics),
        "training": training,
        "seconds": {part: round(duration, 2) for part, duration in seconds.items()},
        "fingerprint": fingerprint,
        "versions": versions(),
        "machine": machine(),
    }


def _train(store: ResultStore, cell: Cell) -> tuple[Reference, Reconstruction, float]:
    """Return the truth of a cell, its trained model, and the time when training was over."""
    reference = reference_for(store.settings(cell).data, store.settings(cell).protocol)
    return reference, trained_model(store, cell, reference), time.perf_counter()


def _measurement(metrics: dict[str, Any], trained: Reconstruction, trained_at: float) -> _Measurement:
    return metrics, trained.provenance["training"], trained.provenance["fingerprint"], trained_at


def _measure_card(store: ResultStore, cell: Cell) -> _Measurement:
    """Evaluate the three-axis report card; a frozen core's deterministic axis is its prior's."""
    row, (reference, trained, trained_at) = store.row(cell), _train(store, cell)
    known_core, prior_cell, protocol = None, store.find_prior(cell), row.settings.protocol
    if prior_cell is not None and not get_method(row.method).train_core and row.settings.adaptation.confine is None:
        known_core = read_core(store.prior_store.read(prior_cell) or {})
    card = evaluate(trained.model, reference, method=row.method, protocol=protocol, core_fidelity=known_core)
    return _measurement(card.to_dict(), trained, trained_at)


def _measure_selection(store: ResultStore, cell: Cell) -> _Measurement:
    reference, trained, trained_at = _train(store, cell)
    return _measurement(_selection_scores(trained.model, reference, get_method(trained.method)), trained, trained_at)


def _measure_gap(store: ResultStore, cell: Cell) -> _Measurement:
    """Log the row's own objective and the certification losses along its training (definition 1)."""
    row, prior_cell, settings = store.row(cell), store.find_prior(cell), store.settings(cell)
    assert prior_cell is not None
    reference = reference_for(settings.data, settings.protocol)
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
    return _measurement(_gap_metrics(log.entries), trained, time.perf_counter())


def _selection_scores(model: StateSpaceModel, reference: Reference, method: Method) -> dict[str, Any]:
    """Compute scores that see nothing but the noisy training data (the paper selects by the first).

    d_stsp_train is that of a shell-on free run (appendix B.2), None if it diverged; nll_train the one-step innovation
    NLL of the method's filter on fixed windows, after 40 steps of warm-up, per entry and standardised.
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
        "nll_train": score,
        "diverged_train": bool(run.num_diverged),
    }


def _gap_metrics(entries: Sequence[Entry]) -> dict[str, Any]:
    """Summarise a gap log: score and losses before and after, whether the whole run shows a gap, the steps with one."""
    first, last = entries[0], entries[-1]
    return {
        "score_before": first.score,
        "score_after": last.score,
        **{f"{name}_before": loss.value for name, loss in first.losses.items()},
        **{f"{name}_after": loss.value for name, loss in last.losses.items()},
        "gap": float(bool(overall_gaps(entries))),
        "gap_steps": float(len({(g.before, g.after) for g in find_gaps(entries)})),
        "overall_gaps": [gap.loss for gap in overall_gaps(entries)],
        "entries": [entry.to_dict() for entry in entries],
    }


@eqx.filter_jit
def _tangent_errors(core: Core, states: Float[Array, "T M"]) -> Float[Array, " T"]:
    """Compute |J(z) - dF/dz|_F / |dF/dz|_F at every state; dF/dz is the core's exact derivative."""
    J, exact = jax.vmap(core.jacobian)(states), jax.vmap(core.exact().jacobian)(states)
    norm = lambda A: jnp.sqrt(jnp.sum(A**2, axis=(1, 2)))  # noqa: E731
    return norm(J - exact) / norm(exact)


def _measure_tangent(store: ResultStore, cell: Cell) -> _Measurement:
    """Measure the Jacobian of the zero-shot core along its free run: relative error, and lambda_1 beside the truth."""
    settings = store.settings(cell)
    reference, model, _ = train_in_context(settings, "prior", cell.seed)
    ready, protocol = time.perf_counter(), settings.protocol
    first = jnp.asarray(reference.scaler.transform(reference.clean[:1]), model.dtype)
    core_key = jax.random.key(protocol.seed)
    run = free_run(model, model.embed(first), protocol.rollout_steps, transient=protocol.transient, core_key=core_key)
    states = run.states[0]
    chosen = states[jnp.linspace(0, len(states) - 1, 500).round().astype(int)]
    dt, truth = reference.system.dt, reference.lyapunov.maximal
    maximal = lyapunov_spectrum(model.core, states, num_exponents=1, dt=dt).maximal
    metrics = {
        "tangent_error": float(np.median(np.asarray(_tangent_errors(model.core, chosen)))),
        "lambda_1": maximal,
        "lambda_1_true": truth,
        "dlambda_1": abs(maximal - truth),
        # Per step, where systems of different time scales can be compared.
        "dlambda_1_step": abs(maximal - truth) * dt,
        "extra": {"diverged_at_core": int(run.diverged_at[0])},
    }
    return metrics, {}, reference.train.fingerprint, ready


@lru_cache(maxsize=4)
def _pretrained(settings: FoundationSettings) -> DynaMix:
    """Load the foundation model, once per process."""
    return from_pretrained(settings.model).with_tangent(settings.tangent, train_gate=settings.train_gate)


def train_in_context(settings: CellSettings, method: str, seed: int) -> tuple[Reference, StateSpaceModel, Stage | None]:
    """Condition the foundation model on a context, and adapt it by a few updates unless the method is "prior".

    The seed decides the observation noise of the context, by which the truth is standardised. Windows are one Lyapunov
    time long, of the system as the paper states it.
    """
    foundation = settings.foundation
    assert foundation is not None
    reference = reference_for(replace(settings.data, seed=seed), settings.protocol, "observations")
    system, observations = reference.system, reference.train.recordings[0]
    if foundation.model == IN_CONTEXT:
        read = read_context(reference.train, _TABLE2_CONTEXT, scaler=reference.scaler)
        # Its shell comes with it: without updates the row is the surrogate as it was read.
        adaptation = replace(settings.adaptation, scored=lyapunov_window(system.lambda_1, system.dt))
        if not adaptation.schedule.num_updates:
            return reference, read.model, None
        trained = adapt_prior(read, reference.standard_train, method, adaptation, seed=seed)
        return reference, trained.model, trained
    zero_shot, context = condition(
        _pretrained(foundation),
        observations,
        dt=system.dt,
        columns=reference.train.columns,
        residuals=settings.shell.residuals,
        forcing=settings.pretraining.forcing,
        alpha=settings.shell.alpha,
        held_out=foundation.held_out or 0.0,
    )
    if method == "prior":
        return reference, zero_shot.model, None
    adaptation = replace(settings.adaptation, scored=lyapunov_window(system.lambda_1, system.dt))
    whole = reference.standard_train.recordings[0] if foundation.held_out else None
    trained = adapt_prior(zero_shot, context, method, adaptation, seed=seed, context=whole)
    return reference, trained.model, trained


def _base_fidelity(record: dict[str, Any] | None) -> Fidelity | None:
    """Read the deterministic axis of the unadapted model from its record."""
    if record is None:
        return None
    nan = float("nan")
    d_stsp, d_h = (nan if record[name] is None else record[name] for name in ("d_stsp_core", "d_h_core"))
    return Fidelity(d_stsp, nan, d_h, nan, [], record["extra"]["diverged_at_core"], record["diverged_core"])


def _measure_in_context(store: ResultStore, cell: Cell) -> _Measurement:
    """Adapt the foundation model to one context (appendix C.5.1); a frozen core's deterministic axis is the base's."""
    settings, method, start = store.settings(cell), store.row(cell).method, time.perf_counter()
    reference, model, trained = train_in_context(settings, method, cell.seed)
    training, base, known = {}, None, None
    if method != "prior":
        prior_cell = store.find_prior(cell)
        assert prior_cell is not None
        base = _base_fidelity(store.prior_store.read(prior_cell))
    if trained is not None:
        training = training_record(trained, time.perf_counter() - start)
        own = settings.foundation is not None and settings.foundation.model == IN_CONTEXT
        known = None if get_method(method).train_core or own else base
    trained_at = time.perf_counter()
    protocol = settings.protocol
    card = evaluate_in_context(model, reference, method=method, protocol=protocol, base=base, core_fidelity=known)
    return card, training, reference.train.fingerprint, trained_at


VAN_DER_POL, _SPIRAL = "van_der_pol", "spiral_"


def spiral_noise(system: str) -> float | None:
    """Read the noise level of a spiral experiment from its name; None for others.

    >>> spiral_noise("spiral_0.5"), spiral_noise("van_der_pol")
    (0.5, None)
    """
    return float(system.removeprefix(_SPIRAL)) if system.startswith(_SPIRAL) else None


def _measure_control(store: ResultStore, cell: Cell) -> _Measurement:
    """Fit one non-chaotic control (appendix D.2); the curves of the figures are kept of the first seed only."""
    settings, noise, objective = store.settings(cell), spiral_noise(cell.system), store.row(cell).method
    first = cell.seed == 0
    if noise is not None:
        spiral = settings.spiral or SpiralSettings()
        metrics = spiral_cell(objective, noise, cell.seed, spiral, curves=first and noise == spiral.main_noise)
    elif cell.system == VAN_DER_POL:
        metrics = van_der_pol_cell(objective, cell.seed, settings.van_der_pol, curves=first)
    else:
        raise ConfigError(f"There is no control '{cell.system}'; there are {VAN_DER_POL} and {_SPIRAL}<noise>.")
    training = {name: metrics.pop(name) for name in ("skipped", "completed", "final_loss")}
    return metrics, training, "", time.perf_counter()


@lru_cache(maxsize=4)
def _train_candidates(data: DataSettings, protocol: Protocol) -> tuple[Candidate, ...]:
    """Fit the maps that a tangent proxy chooses from, which are the same for every model; once per process."""
    return tuple(try_candidates(reference_for(data, protocol).standard_train.recordings))


def _measure_proxies(store: ResultStore, cell: Cell) -> _Measurement:
    """Measure G_tan and what replaces it on real data, where the truth is known; of a prior nothing is measured."""
    settings, (reference, trained, trained_at) = store.settings(cell), _train(store, cell)
    if trained.method == "prior":
        return _measurement({}, trained, trained_at)
    candidates = _train_candidates(settings.data, settings.protocol)
    return _measurement(_compare_proxies(trained, reference, settings.protocol, candidates), trained, trained_at)


def _compare_proxies(
    trained: Reconstruction, reference: Reference, protocol: Protocol, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """Measure G_tan by the protocol, and its proxies from training data and the same held-out rows.

    The last columns are without the quadratic map: it is at home in systems whose vector field is quadratic.
    """
    truth = measure_grounding(trained.model, get_method(trained.method).filter, reference, protocol)[1]
    chosen = protocol.apply_gates(trained.model)  # as in G_tan
    rows = protocol.warm_up + protocol.grounding_steps + 1
    series = Series.from_arrays(reference.test_observations[:rows], columns=reference.train.columns)
    run = filter_pass(trained.with_model(chosen, trained.method), series, choose_starts(series, 1_000))
    spread = spread_growth(run, (round(reference.train.decorrelation_time),), seed=0).horizons[0].spread
    local = [candidate for candidate in candidates if candidate.name != "quadratic"]
    return {
        "g_tan": truth.pooled,
        "g_tan_within": truth.within,
        **_proxy_metrics(run, reference, list(candidates)),
        "spread_rank": spread.pooled,
        "spread_rank_within": spread.within,
        "spread_ratio": spread.pooled_ratio,
        "spread_ratio_within": spread.within_ratio,
        **{f"{name}_local": value for name, value in _proxy_metrics(run, reference, local).items()},
    }


def _proxy_metrics(run: FilterPass, reference: Reference, candidates: list[Candidate]) -> dict[str, Any]:
    """Compute the tangent proxy, and `validity`: the rank correlation of its growths with the true ones."""
    proxy, growths = measure_proxy(run, reference.standard_train.recordings, candidates)
    J = reference.jacobians(reference.test_states[run.starts.rows[growths.chosen]])
    validity = correlate_growths(growths.proxy, oracle_log_growth(growths.covariance, J))
    return {
        "proxy_tan": proxy.pooled,
        "proxy_tan_within": proxy.within,
        **{f"proxy_{name}": getattr(proxy, name) for name in ("r2", "r2_over_linear", "reliability", "method")},
        "proxy_validity": validity.pooled,
        "proxy_validity_within": validity.within,
    }


# The measurement of a recipe's cells, by its `kind`.
KINDS = {
    "table": _measure_card,
    "selection": _measure_selection,
    "gap": _measure_gap,
    "context": _measure_in_context,
    "tangent": _measure_tangent,
    "control": _measure_control,
    "proxies": _measure_proxies,
}
