"""How far to trust what replaces G_tan on real data: its proxies beside it, where the truth is known."""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kaffee.certification.card import tangent_grounding
from kaffee.certification.certificate import plain
from kaffee.certification.fidelity import Protocol, Reference
from kaffee.certification.innovations import FilterPass, choose_starts, filter_pass
from kaffee.certification.spread import spread_growth
from kaffee.certification.tangents import ALLOWED, Candidate, measure_proxy, try_candidates
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.data.timescales import decorrelation_time
from kaffee.filtering.likelihood import get_method
from kaffee.metrics.grounding import grounding, oracle_log_growth
from kaffee.paper.cells import Cell, ResultStore
from kaffee.paper.measurements import Measurement
from kaffee.paper.models import reference_for, trained_model
from kaffee.paper.recipe import DataSettings

NUM_STARTS = 1_000


def held_out(reference: Reference, protocol: Protocol) -> Series:
    """The rows that G_tan sees."""
    rows = protocol.warm_up + protocol.grounding_steps + 1
    return Series.from_arrays(reference.test_observations[:rows], columns=reference.train.columns)


def spread_metrics(run: FilterPass, horizon: int) -> dict[str, Any]:
    """Rank correlation of spread and |error| at one horizon, and its share of what is attainable."""
    found = spread_growth(run, (horizon,), seed=0).horizons[0].spread
    return {
        "spread_rank": found.pooled,
        "spread_rank_within": found.within,
        "spread_ratio": found.pooled_ratio,
        "spread_ratio_within": found.within_ratio,
    }


def proxy_metrics(
    run: FilterPass, reference: Reference, candidates: list[Candidate], suffix: str = ""
) -> dict[str, Any]:
    """The tangent proxy, how far to trust it, and `validity`: its growths' rank correlation with the true ones."""
    proxy, growths = measure_proxy(run, reference.standard_train.recordings, candidates)
    J = reference.jacobians(reference.test_states[run.starts.rows[growths.chosen]])
    validity = grounding(growths.proxy, oracle_log_growth(growths.covariance, J))
    found = {
        "proxy_tan": proxy.pooled,
        "proxy_tan_within": proxy.within,
        "proxy_r2": proxy.r2,
        "proxy_r2_over_linear": proxy.r2_over_linear,
        "proxy_reliability": proxy.reliability,
        "proxy_validity": validity.pooled,
        "proxy_validity_within": validity.within,
        "proxy_method": proxy.method,
    }
    return {name + suffix: value for name, value in found.items()}


@lru_cache(maxsize=4)
def candidates_for(data: DataSettings, protocol: Protocol) -> tuple[Candidate, ...]:
    """What the training data say about maps, which is the same for every model; once per process."""
    return tuple(try_candidates(reference_for(data, protocol).standard_train.recordings, ALLOWED))


def proxies(
    trained: Reconstruction, reference: Reference, protocol: Protocol, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """G_tan by the protocol, and its proxies from training data and the same held-out rows.

    The last columns are without the quadratic map: it is at home in systems whose vector field is quadratic.
    """
    recursion = get_method(trained.method).filter
    truth = tangent_grounding(trained.model, recursion, reference, protocol)[1]
    # As in G_tan: the slopes of the step itself.
    chosen = trained.model.exact() if protocol.gates == "hard" else trained.model
    series = held_out(reference, protocol)
    run = filter_pass(trained.with_model(chosen, trained.method), series, choose_starts(series, NUM_STARTS))
    return {
        "g_tan": truth.pooled,
        "g_tan_within": truth.within,
        **proxy_metrics(run, reference, list(candidates)),
        **spread_metrics(run, round(decorrelation_time(reference.train))),
        **proxy_metrics(run, reference, without(candidates, "quadratic"), "_local"),
    }


def without(candidates: Sequence[Candidate], name: str) -> list[Candidate]:
    """The candidates of other names."""
    return [candidate for candidate in candidates if candidate.name != name]


def measure_proxies(store: ResultStore, cell: Cell) -> Measurement:
    """Train the row's model, then measure G_tan and its proxies; of a prior nothing is measured."""
    settings = store.settings(cell)
    reference = reference_for(settings.data, settings.protocol)
    trained = trained_model(store, cell, reference)
    trained_at = time.perf_counter()
    metrics: dict[str, Any] = {}
    if trained.method != "prior":
        candidates = candidates_for(settings.data, settings.protocol)
        metrics = proxies(trained, reference, settings.protocol, candidates)
    provenance = trained.provenance
    return Measurement(plain(metrics), provenance["training"], provenance["fingerprint"], trained_at)
