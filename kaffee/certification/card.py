"""The three-axis report card of a model on a system whose truth is known (appendix C.4)."""

from dataclasses import dataclass, field
from math import nan
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.certification.fidelity import Fidelity, Protocol, Reference, measure_fidelity
from kaffee.data.gaps import evenly
from kaffee.filtering.gated import Row, Track
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import get_method, initial_belief
from kaffee.filtering.recursion import Recursion, Step, core_noise, predict
from kaffee.filtering.rollout import forecast_ensemble
from kaffee.filtering.sweep import run_filter, sweep
from kaffee.metrics.scores import (
    TOLERANCE,
    Grounding,
    correlate_growths,
    ensemble_crps,
    ensemble_nll,
    ensemble_rmse,
    oracle_log_growth,
)
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import jsonable


@eqx.filter_jit
def _variance_growth(
    model: StateSpaceModel, x: Float[Array, "T N"], recursion: Recursion, horizon: int, key: Key[Array, ""]
) -> tuple[Float[Array, "T N N"], Float[Array, "T H N"]]:
    """Filter a series; return Omega_{t|t} = B Sigma_{t|t} B' and the diagonals of B Sigma_{t+h|t} B', h = 1..H.

    Without observation noise, in standardised units. `key` draws the noise inside the core, if it has any.
    """
    Gamma = model.shell.process_variance()
    observed = lambda P: model.observation.columns(model.observation.rows(P))[0]  # noqa: E731

    def ahead(belief: Belief, _: None) -> tuple[Belief, Array]:
        belief = predict(model.core, Gamma, belief, transport=recursion.transport, by=recursion.filter)
        return belief, belief.signal_variance(model.observation)[0]

    def keep(track: Track, row: Row, step: Step) -> tuple[Array, Array]:
        _, predicted = jax.lax.scan(ahead, track.belief, None, length=horizon)
        return observed(track.belief.moments().covariance), predicted

    start: Any = recursion.filter.start(*initial_belief(model, model.embed(x[None, 0])))
    noise = core_noise(model.core, key, len(x) - 1, 1, model.dtype)
    return sweep(model, recursion, x[1:, None], gate=None, keep=keep, initial=start, noise=noise).rows


def measure_grounding(
    model: StateSpaceModel,
    recursion: Recursion,
    reference: Reference,
    protocol: Protocol,
    horizons: tuple[int, ...] = (1,),
) -> dict[int, Grounding]:
    """Measure G_tan (Eq. gtan) at horizon 1 and G_tan^(H) beyond, where J*_{t+H-1} ... J*_t pushes the covariance."""
    chosen = protocol.apply_gates(model)
    rows = protocol.warm_up + protocol.grounding_steps + 1
    x = jnp.asarray(reference.scaler.transform(reference.test_observations[:rows]), model.dtype)
    growth = _variance_growth(chosen, x, recursion, max(horizons), jax.random.key(protocol.seed))
    posterior, predicted = (np.asarray(a, np.float64)[protocol.warm_up :] for a in growth)
    # Index i belongs to row i + 1 of x: the first row only anchors the belief.
    first, count = protocol.warm_up + 1, len(posterior)
    J = reference.jacobians(reference.test_states[first : first + count + max(horizons) - 1])
    before = np.diagonal(posterior, axis1=1, axis2=2)
    # Without transport each variance settles at a constant, of which float32 leaves fewer digits.
    tolerance = max(TOLERANCE, 100.0 * float(jnp.finfo(model.dtype).eps))
    measured, product = {}, np.eye(J.shape[1])
    for h in range(1, max(horizons) + 1):
        product = J[h - 1 : h - 1 + count] @ product
        if h in horizons:
            with np.errstate(divide="ignore", invalid="ignore"):
                model_growth = np.log(predicted[:, h - 1]) - np.log(before)
            measured[h] = correlate_growths(model_growth, oracle_log_growth(posterior, product), tolerance=tolerance)
    return measured


class _EnsembleScores(NamedTuple):
    """Scores of ensembles in data units, over the paper's number of starts and over all of them.

    `rmse_clean` is that of the endpoint against the noise-free state, in standardised units (Eq. rmse_10).
    """

    nll: float
    crps: float
    rmse: float
    nll_all: float
    crps_all: float
    rmse_all: float
    rmse_clean: float


def score_ensembles(
    model: StateSpaceModel,
    recursion: Recursion,
    reference: Reference,
    protocol: Protocol,
    start: Literal["embedding", "filtered"],
    horizons: tuple[int, ...] | None = None,
) -> dict[int, _EnsembleScores]:
    """Score ensembles against noisy observations by horizon: path-mean NLL, CRPS and RMSE of the endpoint.

    They start at the "embedding" of a noisy observation, as in the paper, or at a "filtered" belief.
    """
    horizons = horizons or protocol.all_horizons
    first, longest = protocol.warm_up, max(horizons)
    # Each filtered start costs `warm_up` filter steps, so that there are fewer of them.
    count = protocol.num_extra_starts if start == "embedding" else protocol.num_starts
    starts = first + evenly(protocol.forecast_span - first, count)
    x = reference.scaler.transform(reference.test_observations[: protocol.forecast_span + longest + 1])
    if start == "embedding":
        origin: Array | Belief = model.embed(jnp.asarray(x[starts], model.dtype))
    else:
        windows = jnp.asarray(np.stack([x[s - first : s + 1] for s in starts]), model.dtype)
        origin = run_filter(model, windows, jnp.ones_like(windows, bool), recursion, key=jax.random.key(0)).final
    key = jax.random.key(protocol.seed)
    standard = np.asarray(forecast_ensemble(model, origin, longest, protocol.num_members, key=key), np.float64)
    members = reference.scaler.inverse(standard)
    future = np.stack([reference.test_observations[s + 1 : s + 1 + longest] for s in starts])
    paths, endpoints = evenly(len(starts), protocol.num_starts), evenly(len(starts), protocol.num_crps_starts)

    def scores(h: int) -> _EnsembleScores:
        last, truth = members[:, :, h - 1], future[:, h - 1]
        return _EnsembleScores(
            nll=ensemble_nll(members[:, paths, :h], future[paths, :h]),
            crps=ensemble_crps(last[:, endpoints], truth[endpoints]),
            rmse=ensemble_rmse(last[:, endpoints], truth[endpoints]),
            nll_all=ensemble_nll(members[:, :, :h], future[:, :h]),
            crps_all=ensemble_crps(last, truth),
            rmse_all=ensemble_rmse(last, truth),
            rmse_clean=ensemble_rmse(
                standard[:, :, h - 1], reference.scaler.transform(reference.test_states[starts + h])
            ),
        )

    return {h: scores(h) for h in horizons}


@dataclass(frozen=True)
class ReportCard:
    """All metrics of one model; NaN where a metric is not defined (no shell, or a diverged run).

    Attributes:
        nll, crps, g_tan: Local probabilistic behaviour (embedding start, data units).
        d_stsp_stoch, d_stsp_core: By histograms up to three coordinates and by mixtures beyond, as in the paper; those
            of a fit's certificate are by kernel densities and cannot be compared with them.
        diverged_core, diverged_stoch: How many of the watched free runs left the attractor.
        extra: Further columns: filtered starts, more starts, within-coordinate G_tan, spectra, other references.
        protocol: How all of this was measured.
    """

    nll: float = nan
    crps: float = nan
    g_tan: float = nan
    d_stsp_stoch: float = nan
    dh_stoch: float = nan
    d_stsp_core: float = nan
    dh_core: float = nan
    d_h_core: float = nan
    diverged_core: int = 0
    diverged_stoch: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        values: dict[str, Any] = jsonable(self)
        return values


def read_core(record: dict[str, Any]) -> Fidelity | None:
    """Read the deterministic axis of a stored card, for models that share its core; None if it is not complete."""
    extra = record.get("extra") or {}
    if "h_core" not in extra:
        return None
    stored = record["d_stsp_core"], record["dh_core"], record["d_h_core"], extra["h_core"]
    d_stsp, dh, d_h, h = (nan if value is None else value for value in stored)
    return Fidelity(d_stsp, dh, d_h, h, extra["exponents_core"], extra["diverged_at_core"], record["diverged_core"])


def evaluate(
    model: StateSpaceModel,
    reference: Reference,
    *,
    method: str = "kaffee",
    protocol: Protocol | None = None,
    core_fidelity: Fidelity | None = None,
) -> ReportCard:
    """Evaluate a model against the true system along the three axes.

    A core that diverges has no deterministic axis: NaN (None in JSON), with `extra["diverged_at_core"]`, the first step
    beyond the bound. A core that comes to rest has all metrics: dh is the h of the reference, and D_H = 1.

    Args:
        method: Decides the filter that goes with the model; "prior" evaluates the core alone.
        core_fidelity: The deterministic axis, if it is known already (a frozen core's is its prior's).
    """
    protocol = protocol or Protocol()
    h = reference.lyapunov.sum_positive
    core = core_fidelity or measure_fidelity(model, reference, protocol, stochastic=False, h_reference=h)
    extra: dict[str, Any] = {
        "h_core": core.h,
        "exponents_core": core.exponents,
        "diverged_at_core": core.diverged_at,
        "h_reference": h,
        "h_reference_error": reference.lyapunov.sum_positive_error,
        "h_reference_noisy": reference.lyapunov_noisy.sum_positive,
    }
    local: dict[str, Any] = {}
    if method != "prior":
        recursion = get_method(method).filter
        embedded = score_ensembles(model, recursion, reference, protocol, "embedding")
        filtered = score_ensembles(model, recursion, reference, protocol, "filtered")
        tangents = measure_grounding(model, recursion, reference, protocol, (1, *protocol.spectrum_horizons))
        noisy = measure_fidelity(model, reference, protocol, stochastic=True, h_reference=h)
        here, after, tangent = embedded[protocol.horizon], filtered[protocol.horizon], tangents[1]
        local = {
            "nll": here.nll,
            "crps": here.crps,
            "g_tan": tangent.pooled,
            "d_stsp_stoch": noisy.d_stsp,
            "dh_stoch": noisy.dh,
            "diverged_stoch": noisy.diverged,
        }
        extra |= {
            "nll_all_starts": here.nll_all,
            "crps_all_starts": here.crps_all,
            "nll_filtered": after.nll_all,
            "crps_filtered": after.crps_all,
            "spectrum": {
                str(h): {
                    "embedding": embedded[h]._asdict(),
                    "filtered": filtered[h]._asdict(),
                    "g_tan": tangents[h].pooled,
                    "g_tan_within": tangents[h].within,
                }
                for h in protocol.spectrum_horizons
            },
            "g_tan_within": tangent.within,
            "h_stoch": noisy.h,
            "dh_stoch_noisy_reference": abs(noisy.h - reference.lyapunov_noisy.sum_positive),
            "d_h_stoch": noisy.d_h,
            "exponents_stoch": noisy.exponents,
            "diverged_at_stoch": noisy.diverged_at,
        }
    return ReportCard(
        **local,
        d_stsp_core=core.d_stsp,
        dh_core=core.dh,
        d_h_core=core.d_h,
        diverged_core=core.diverged,
        extra=extra,
        protocol={**protocol.to_dict(), "starts": "embedding", "coordinates": "data units"},
    )
