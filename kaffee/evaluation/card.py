"""The three-axis report card of a model on a system."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kaffee.evaluation.dynamics import Fidelity, fidelity
from kaffee.evaluation.local import forecast_scores, tangent_grounding
from kaffee.evaluation.protocol import Protocol
from kaffee.evaluation.reference import Reference
from kaffee.methods import get_method
from kaffee.ssm import StateSpaceModel


@dataclass(frozen=True)
class ReportCard:
    """All metrics of one model; NaN where a metric is not defined (no shell, or a diverged run).

    Attributes:
        nll, crps, g_tan: Local probabilistic behaviour (embedding start, data units).
        d_stsp_stoch, dh_stoch: Stochastic dynamics.
        d_stsp_core, dh_core, d_h_core: Deterministic dynamics.
        diverged_core, diverged_stoch: How many of the watched free runs left the attractor.
        extra: Further columns: filtered starts, more starts, within-coordinate G_tan, spectra, other references.
        protocol: How all of this was measured.
    """

    nll: float
    crps: float
    g_tan: float
    d_stsp_stoch: float
    dh_stoch: float
    d_stsp_core: float
    dh_core: float
    d_h_core: float
    diverged_core: int
    diverged_stoch: int
    extra: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite become None."""
        return json_values(asdict(self))


def core_of(record: dict[str, Any]) -> Fidelity | None:
    """The deterministic axis of a stored card, for models that share its core; None if it is not complete."""
    extra = record.get("extra") or {}
    if "h_core" not in extra:
        return None

    def number(value: float | None) -> float:
        return float("nan") if value is None else value

    return Fidelity(
        d_stsp=number(record["d_stsp_core"]),
        dh=number(record["dh_core"]),
        d_h=number(record["d_h_core"]),
        h=number(extra["h_core"]),
        exponents=extra["exponents_core"],
        diverged_at=extra["diverged_at_core"],
        diverged=record["diverged_core"],
    )


def json_values(value: Any) -> Any:
    """Plain values for JSON, with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: json_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [json_values(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


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
    beyond the bound, and `diverged_core`, how many of the watched runs did the same; likewise with the shell on. A core
    that comes to rest has all metrics: no positive exponents, so that dh is the h of the reference, and D_H = 1.

    Args:
        method: Decides the filter that goes with the model; "prior" evaluates the core alone.
        core_fidelity: The deterministic axis, if it is known already (a frozen core's is its prior's).

    Raises:
        ConfigError: For an unknown method, or a reference with a constant coordinate (see `kaffee.metrics`).
    """
    protocol = protocol or Protocol()
    h = reference.lyapunov.sum_positive
    core = core_fidelity or fidelity(model, reference, protocol, stochastic=False, h_reference=h)
    extra: dict[str, Any] = {
        "h_core": core.h,
        "exponents_core": core.exponents,
        "diverged_at_core": core.diverged_at,
        "h_reference": h,
        "h_reference_error": reference.lyapunov.sum_positive_error,
        "h_reference_noisy": reference.lyapunov_noisy.sum_positive,
    }
    nan = float("nan")
    local: dict[str, Any] = dict.fromkeys(("nll", "crps", "g_tan", "d_stsp_stoch", "dh_stoch"), nan)
    local["diverged_stoch"] = 0
    if method != "prior":
        recursion = get_method(method).filter
        embedded = forecast_scores(model, recursion, reference, protocol, "embedding")
        filtered = forecast_scores(model, recursion, reference, protocol, "filtered")
        tangents = tangent_grounding(model, recursion, reference, protocol, (1, *protocol.spectrum_horizons))
        noisy = fidelity(model, reference, protocol, stochastic=True, h_reference=h)
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
