"""A model as an online Bayesian filter: sparse, partial, noisy observations assimilated as they come (section 5.2)."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from kaffee.certification.card import score_ensembles, tangent_grounding
from kaffee.certification.fidelity import Fidelity, Protocol, Reference, fidelity
from kaffee.filtering.likelihood import get_method
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.sweep import run_filter
from kaffee.metrics.calibration import coverage, normalised_nis
from kaffee.model.statespace import StateSpaceModel
from kaffee.records import jsonable

LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True, eq=False)
class SparseRun:
    """What the filter believed of the clean state at every step, in data units.

    Attributes:
        truth: The clean state.
        mean, std: Of the filtered belief about it.
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
        """The share of true coordinates inside the central bands."""
        return coverage(self.truth - self.mean, self.std, level)

    def to_dict(self, scale: Float[np.ndarray, " N"]) -> dict[str, Any]:
        """Coverage, NIS and the RMSE in units of `scale`; JSON values."""
        error = (self.mean - self.truth) / scale
        bands = {f"coverage_{round(100 * level)}": self.coverage(level) for level in LEVELS}
        return {**bands, "nis": self.nis, "rmse": float(np.sqrt(np.mean(error**2)))}


def sparse_mask(num_steps: int, num_coordinates: int, *, every: int, hidden: tuple[int, ...] = ()) -> np.ndarray:
    """True for every `every`-th step, but in the hidden coordinates.

    >>> sparse_mask(4, 2, every=3, hidden=(1,)).astype(int).tolist()
    [[1, 0], [0, 0], [0, 0], [1, 0]]
    """
    mask = np.zeros((num_steps, num_coordinates), bool)
    mask[::every] = True
    mask[:, list(hidden)] = False
    return mask


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
) -> SparseRun:
    """Filter the held-out observations of which only some are shown; the first row anchors the belief.

    Args:
        num_steps: Steps that are kept, after `warm_up`.
        every: Show every k-th step.
        hidden: Coordinates that are never shown, not even in the first row.
    """
    x = reference.test_observations[: warm_up + num_steps + 1]
    mask = sparse_mask(len(x), x.shape[1], every=every, hidden=hidden)
    standard = jnp.asarray(reference.scaler.transform(x), model.dtype)[None]
    run = run_filter(model, standard, jnp.asarray(mask)[None], recursion, key=jax.random.key(seed))
    kept = slice(warm_up, None)  # of the filter's steps, which begin with the second row
    scale, shown = reference.scaler.scale, mask[1:][kept]
    mean = np.asarray(model.observation.observe(run.mean[0, kept]), np.float64)
    return SparseRun(
        truth=reference.test_states[: len(x)][1:][kept],
        mean=reference.scaler.inverse(mean),
        std=np.asarray(run.signal_std[0, kept], np.float64) * scale,
        observations=x[1:][kept],
        seen=shown,
        nis=normalised_nis(np.asarray(run.nis[0, kept], np.float64), shown.sum(axis=1)),
    )


# The evaluation of a foundation model that was adapted in context (appendix C.5.1).


NAN = float("nan")


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
        extra: The same forecasts from embedded observations; the filter when it sees every
            fourth step only, and never the last coordinate.
        protocol: How all of this was measured.
    """

    d_stsp_core: float
    d_stsp_ratio: float
    d_h_core: float
    diverged_core: int
    nll: float = NAN
    nll_standard: float = NAN
    rmse: float = NAN
    g_tan: float = NAN
    g_tan_within: float = NAN
    coverage_50: float = NAN
    coverage_80: float = NAN
    coverage_95: float = NAN
    nis: float = NAN
    extra: dict[str, Any] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite become None."""
        values: dict[str, Any] = jsonable(self)
        return values


def filter_calibration(
    model: StateSpaceModel, recursion: Recursion, reference: Reference, protocol: Protocol
) -> dict[str, float]:
    """Coverage and normalised innovations of one-step predictions along the held-out observations."""
    rows = protocol.warm_up + protocol.grounding_steps + 1
    x = jnp.asarray(reference.scaler.transform(reference.test_observations[:rows]), model.dtype)[None]
    run = run_filter(model, x, jnp.ones_like(x, bool), recursion, key=jax.random.key(protocol.seed))
    residuals, std, nis = (
        np.asarray(a[0, protocol.warm_up :], np.float64) for a in (run.innovations, run.predicted_std, run.nis)
    )
    bands = {f"coverage_{round(100 * level)}": coverage(residuals, std, level) for level in LEVELS}
    return {**bands, "nis": normalised_nis(nis, residuals.shape[1])}


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
        method: Decides the filter that goes with the model; "prior" evaluates the core alone.
        base: The deterministic axis of the unadapted core; None: this model is it.
        core_fidelity: The deterministic axis of this model, if it is known already (a frozen core's is the base's).
    """
    core = core_fidelity or fidelity(model, reference, protocol, stochastic=False, h_reference=None)
    measured: dict[str, Any] = {}
    extra: dict[str, Any] = {"diverged_at_core": core.diverged_at}
    if method != "prior":
        recursion = get_method(method).filter
        filtered = score_ensembles(model, recursion, reference, protocol, "filtered")
        embedded = score_ensembles(model, recursion, reference, protocol, "embedding", (1,))[1]
        tangent = tangent_grounding(model, recursion, reference, protocol)[1]
        units = float(np.mean(np.log(reference.scaler.scale)))
        measured = {
            "nll": filtered[1].nll_all,
            "nll_standard": filtered[1].nll_all - units,
            "rmse": filtered[protocol.horizon].rmse_clean,
            "g_tan": tangent.pooled,
            "g_tan_within": tangent.within,
            **filter_calibration(model, recursion, reference, protocol),
        }
        last = reference.train.num_coordinates - 1
        sparse = assimilate_sparsely(
            model,
            reference,
            recursion,
            num_steps=protocol.grounding_steps,
            warm_up=protocol.warm_up,
            hidden=(last,) if last else (),
            seed=protocol.seed,
        )
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
