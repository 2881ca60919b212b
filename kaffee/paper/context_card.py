"""Evaluate a foundation model that was adapted in context (appendix C.5.1), also as an online filter (section 5.2)."""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kaffee.certification.card import measure_grounding, score_ensembles
from kaffee.certification.fidelity import Fidelity, Protocol, Reference, measure_fidelity
from kaffee.filtering.likelihood import get_method
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.sweep import run_filter
from kaffee.metrics.calibration import coverage, normalised_nis
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import jsonable

LEVELS = (0.5, 0.8, 0.95)
_NAN = float("nan")


@dataclass(frozen=True, eq=False)
class AssimilationRun:
    """The beliefs of a filter along held-out data, in data units.

    Attributes:
        truth: The clean state.
        mean, std: Of the filtered belief about it, or of the prediction of the next observation.
        observations: What was measured.
        seen: Which of the measurements the filter was shown.
        nis: Normalised innovations squared per shown entry: 1 if calibrated.
    """

    truth: Float[np.ndarray, "T N"]
    mean: Float[np.ndarray, "T N"]
    std: Float[np.ndarray, "T N"]
    observations: Float[np.ndarray, "T N"]
    seen: Bool[np.ndarray, "T N"]
    nis: float

    def coverage(self, level: float) -> float:
        """Compute the share of true coordinates inside the central bands."""
        return coverage(self.truth - self.mean, self.std, level)

    def to_dict(self, scale: Float[np.ndarray, " N"]) -> dict[str, Any]:
        """Convert coverage, NIS and the RMSE in units of `scale` to JSON values."""
        rmse = float(np.sqrt(np.mean(((self.mean - self.truth) / scale) ** 2)))
        return {**_coverages(self.truth - self.mean, self.std), "nis": self.nis, "rmse": rmse}


def _coverages(errors: Float[np.ndarray, "T N"], std: Float[np.ndarray, "T N"]) -> dict[str, float]:
    return {f"coverage_{round(100 * level)}": coverage(errors, std, level) for level in LEVELS}


def filter_held_out(
    model: StateSpaceModel,
    reference: Reference,
    recursion: Recursion,
    mask: Bool[np.ndarray, "T N"],
    *,
    warm_up: int,
    belief: Literal["filtered", "predicted"] = "filtered",
    seed: int = 0,
) -> AssimilationRun:
    """Filter held-out observations of which `mask` shows some; the first row anchors the belief.

    Args:
        mask: For as many rows as are filtered: the first one, `warm_up` steps that are dropped, and those kept.
        belief: About the state after a step, or about the observation before it, from those assimilated earlier.
    """
    x, scaler = reference.test_observations[: len(mask)], reference.scaler
    standard = jnp.asarray(scaler.transform(x), model.dtype)[None]
    run = run_filter(model, standard, jnp.asarray(mask)[None], recursion, key=jax.random.key(seed))
    kept = slice(warm_up, None)  # of the filter's steps, which begin with the second row
    shown = mask[1:][kept]
    if belief == "filtered":
        mean, std = model.observation.observe(run.mean[0, kept]), run.signal_std[0, kept]
    else:
        mean, std = run.predicted_mean[0, kept], run.predicted_std[0, kept]
    return AssimilationRun(
        truth=reference.test_states[: len(x)][1:][kept],
        mean=scaler.inverse(np.asarray(mean, np.float64)),
        std=np.asarray(std, np.float64) * scaler.scale,
        observations=x[1:][kept],
        seen=shown,
        nis=normalised_nis(np.asarray(run.nis[0, kept], np.float64), shown.sum(axis=1)),
    )


def assimilate_sparsely(
    model: StateSpaceModel,
    reference: Reference,
    recursion: Recursion,
    *,
    num_steps: int,
    warm_up: int = 200,
    every: int = 4,
    hidden: tuple[int, ...] = (),
    seed: int = 0,
) -> AssimilationRun:
    """Filter sparse, partial observations as they come.

    Args:
        num_steps: Steps that are kept, after `warm_up`.
        every: Show every k-th step.
        hidden: Coordinates that are never shown, not even in the first row.
    """
    shape = reference.test_observations[: warm_up + num_steps + 1].shape
    mask = sparse_mask(*shape, every=every, hidden=hidden)
    return filter_held_out(model, reference, recursion, mask, warm_up=warm_up, seed=seed)


def sparse_mask(num_steps: int, num_coordinates: int, *, every: int, hidden: tuple[int, ...] = ()) -> np.ndarray:
    """Show every `every`-th step, but not the hidden coordinates.

    >>> sparse_mask(4, 2, every=3, hidden=(1,)).astype(int).tolist()
    [[1, 0], [0, 0], [0, 0], [1, 0]]
    """
    mask = np.zeros((num_steps, num_coordinates), bool)
    mask[::every] = True
    mask[:, list(hidden)] = False
    return mask


@dataclass(frozen=True)
class ContextCard:
    """The columns of Table 2 and more; NaN where a metric is not defined (no shell, or a diverged run).

    Attributes:
        nll: One-step ensemble NLL per coordinate from the filtered belief, in data units; `nll_standard` in those of
            the context.
        rmse: RMSE of the ensemble mean after `protocol.horizon` steps from the filtered belief against the clean state,
            in standardised units (Eq. rmse_10).
        g_tan, g_tan_within: Eq. gtan, pooled over coordinates, and within them.
        d_stsp_core, d_h_core: Of the core's free run against the clean trajectory.
        d_stsp_ratio: D_stsp over that of the unadapted core.
        diverged_core: How many of the watched free runs left the attractor.
        coverage_50, coverage_80, coverage_95: Shares of held-out observations within the bands of the one-step
            prediction.
        nis: Normalised innovations squared, per coordinate: 1 if calibrated.
        extra: Forecasts from embedded observations; the filter that sees every fourth step, never the last coordinate.
        protocol: The settings of the evaluation.
    """

    d_stsp_core: float
    d_stsp_ratio: float
    d_h_core: float
    diverged_core: int
    nll: float = _NAN
    nll_standard: float = _NAN
    rmse: float = _NAN
    g_tan: float = _NAN
    g_tan_within: float = _NAN
    coverage_50: float = _NAN
    coverage_80: float = _NAN
    coverage_95: float = _NAN
    nis: float = _NAN
    extra: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; numbers that are not finite become None."""
        return jsonable(self)


def evaluate_in_context(
    model: StateSpaceModel,
    reference: Reference,
    *,
    method: str = "kaffee",
    protocol: Protocol,
    base: Fidelity | None = None,
    core_fidelity: Fidelity | None = None,
) -> ContextCard:
    """Evaluate an adapted model on the continuation of its context.

    Args:
        method: Whose filter goes with the model; "prior" evaluates the core alone.
        base: The deterministic axis of the unadapted core; None: this model is it.
        core_fidelity: The deterministic axis of this model, if it is known already (a frozen core's is the base's).
    """
    core = core_fidelity or measure_fidelity(model, reference, protocol, stochastic=False, h_reference=None)
    measured: dict[str, Any] = {}
    extra: dict[str, Any] = {"diverged_at_core": core.diverged_at}
    if method != "prior":
        recursion = get_method(method).filter
        filtered = score_ensembles(model, recursion, reference, protocol, "filtered")
        embedded = score_ensembles(model, recursion, reference, protocol, "embedding", (1,))[1]
        tangent = measure_grounding(model, recursion, reference, protocol)[1]
        units = float(np.mean(np.log(reference.scaler.scale)))
        steps, warm_up, last = protocol.grounding_steps, protocol.warm_up, reference.train.num_coordinates - 1
        rows: Any = {"warm_up": warm_up, "seed": protocol.seed}
        every = np.ones((warm_up + steps + 1, last + 1), bool)
        one_step = filter_held_out(model, reference, recursion, every, belief="predicted", **rows)
        hidden = (last,) if last else ()
        sparse = assimilate_sparsely(model, reference, recursion, num_steps=steps, hidden=hidden, **rows)
        measured = {
            "nll": filtered[1].nll_all,
            "nll_standard": filtered[1].nll_all - units,
            "rmse": filtered[protocol.horizon].rmse_clean,
            "g_tan": tangent.pooled,
            "g_tan_within": tangent.within,
            **_coverages(one_step.observations - one_step.mean, one_step.std),
            "nis": one_step.nis,
        }
        extra |= {
            "nll_embedding": embedded.nll_all,
            "nll_standard_embedding": embedded.nll_all - units,
            "crps": filtered[1].crps_all,
            **{f"sparse_{name}": value for name, value in sparse.to_dict(reference.scaler.scale).items()},
        }
    return ContextCard(
        d_stsp_core=core.d_stsp,
        d_stsp_ratio=1.0 if base is None else core.d_stsp / base.d_stsp,
        d_h_core=core.d_h,
        diverged_core=core.diverged,
        **measured,
        extra=extra,
        protocol={**protocol.to_dict(), "starts": "filtered", "coordinates": "data units"},
    )
