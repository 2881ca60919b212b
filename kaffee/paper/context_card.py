"""Evaluate a foundation model that was adapted in context (appendix C.5.1), also as an online filter (section 5.2)."""

from dataclasses import dataclass
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

LEVELS = (0.5, 0.8, 0.95)
_COVERAGES = tuple(f"coverage_{round(100 * level)}" for level in LEVELS)


@dataclass(frozen=True, eq=False)
class AssimilationRun:
    """The beliefs of a filter along held-out data, in data units.

    Attributes:
        mean, std: Of the filtered belief about the clean state, or of the prediction of the next observation.
        seen: Which of the observations the filter was shown.
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


def _coverages(errors: Float[np.ndarray, "T N"], std: Float[np.ndarray, "T N"]) -> dict[str, float]:
    return {name: coverage(errors, std, level) for name, level in zip(_COVERAGES, LEVELS, strict=True)}


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
    kept, rows = slice(warm_up, None), slice(warm_up + 1, len(x))  # the filter's first step is to the second row
    if belief == "filtered":
        mean, std = model.observation.observe(run.mean[0, kept]), run.signal_std[0, kept]
    else:
        mean, std = run.predicted_mean[0, kept], run.predicted_std[0, kept]
    return AssimilationRun(
        truth=reference.test_states[rows],
        mean=scaler.inverse(np.asarray(mean, np.float64)),
        std=np.asarray(std, np.float64) * scaler.scale,
        observations=x[rows],
        seen=mask[rows],
        nis=normalised_nis(np.asarray(run.nis[0, kept], np.float64), mask[rows].sum(axis=1)),
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
    """Filter every k-th observation without the hidden coordinates; keep `num_steps` after `warm_up`."""
    mask = np.zeros(reference.test_observations[: warm_up + num_steps + 1].shape, bool)
    mask[::every] = True
    mask[:, list(hidden)] = False
    return filter_held_out(model, reference, recursion, mask, warm_up=warm_up, seed=seed)


_SHELL_METRICS = ("nll", "nll_standard", "rmse", "g_tan", "g_tan_within", *_COVERAGES, "nis")


def evaluate_in_context(
    model: StateSpaceModel,
    reference: Reference,
    *,
    method: str = "kaffee",
    protocol: Protocol,
    base: Fidelity | None = None,
    core_fidelity: Fidelity | None = None,
) -> dict[str, Any]:
    """Evaluate an adapted model on the continuation of its context: the columns of Table 2 and more.

    nll is the one-step ensemble NLL per coordinate from the filtered belief, in data units (`nll_standard`: in those
    of the context); rmse that of the ensemble mean after `protocol.horizon` steps against the clean state, standardised
    (Eq. rmse_10); d_stsp_ratio D_stsp over that of the unadapted core; coverage_* and nis are of one-step predictions
    of held-out observations. `extra` has forecasts from embedded observations, and the filter that sees every fourth
    step and never the last coordinate. NaN where a metric is not defined (no shell, or a diverged run).

    Args:
        method: Whose filter goes with the model; "prior" evaluates the core alone.
        base: The deterministic axis of the unadapted core; None: this model is it.
        core_fidelity: The deterministic axis of this model, if it is known already (a frozen core's is the base's).
    """
    core = core_fidelity or measure_fidelity(model, reference, protocol, stochastic=False, h_reference=None)
    card: dict[str, Any] = {
        "d_stsp_core": core.d_stsp,
        "d_stsp_ratio": 1.0 if base is None else core.d_stsp / base.d_stsp,
        "d_h_core": core.d_h,
        "diverged_core": core.diverged,
        **dict.fromkeys(_SHELL_METRICS, float("nan")),
        "extra": {"diverged_at_core": core.diverged_at},
        "protocol": {**protocol.to_dict(), "starts": "filtered", "coordinates": "data units"},
    }
    if method == "prior":
        return card
    recursion, scale = get_method(method).filter, reference.scaler.scale
    filtered = score_ensembles(model, recursion, reference, protocol, "filtered")
    embedded = score_ensembles(model, recursion, reference, protocol, "embedding", (1,))[1]
    tangent = measure_grounding(model, recursion, reference, protocol)[1]
    units = float(np.mean(np.log(scale)))
    steps, warm_up, last = protocol.grounding_steps, protocol.warm_up, reference.train.num_coordinates - 1
    rows: Any = {"warm_up": warm_up, "seed": protocol.seed}
    every = np.ones((warm_up + steps + 1, last + 1), bool)
    one_step = filter_held_out(model, reference, recursion, every, belief="predicted", **rows)
    hidden = (last,) if last else ()
    sparse = assimilate_sparsely(model, reference, recursion, num_steps=steps, hidden=hidden, **rows)
    errors = sparse.mean - sparse.truth
    card["extra"] |= {
        "nll_embedding": embedded.nll_all,
        "nll_standard_embedding": embedded.nll_all - units,
        "crps": filtered[1].crps_all,
        **{f"sparse_{name}": share for name, share in _coverages(errors, sparse.std).items()},
        "sparse_nis": sparse.nis,
        "sparse_rmse": float(np.sqrt(np.mean((errors / scale) ** 2))),
    }
    return card | {
        "nll": filtered[1].nll_all,
        "nll_standard": filtered[1].nll_all - units,
        "rmse": filtered[protocol.horizon].rmse_clean,
        "g_tan": tangent.pooled,
        "g_tan_within": tangent.within,
        **_coverages(one_step.observations - one_step.mean, one_step.std),
        "nis": one_step.nis,
    }
