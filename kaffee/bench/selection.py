"""Small measurements beside the report card: what hyperparameters are selected by, and the DPC gap of a run."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kaffee.dpc.gaps import Entry, find_gaps, overall_gaps
from kaffee.evaluation.dynamics import state_space_divergence
from kaffee.evaluation.reference import Reference
from kaffee.filtering import run_filter
from kaffee.methods import Method
from kaffee.rollout import free_run
from kaffee.ssm import StateSpaceModel
from kaffee.training.sampling import training_windows


def selection_scores(model: StateSpaceModel, reference: Reference, method: Method) -> dict[str, Any]:
    """Scores that see nothing but the noisy training data (the paper selects by the first).

    d_stsp_train: D_stsp of a shell-on free run against the training data (appendix B.2).
    nll_train: One-step innovation NLL of the filter that goes with the method, on fixed training windows, after 40
        steps of warm-up; per entry, standardised.
    diverged_train: Whether that free run diverged; then d_stsp_train does not exist.
    """
    series = reference.standard_train
    data = series.recordings[0]
    start = model.embed(jnp.asarray(data[:1], model.dtype))
    run = free_run(model, start, len(data), key=jax.random.key(0), transient=1_000)
    diverged = bool(run.diverged_at[0] > 0)
    generated = np.asarray(run.observations[0], np.float64)
    batch = training_windows(series, 101, model.dtype).sample(jax.random.key(0), 64)
    nll = run_filter(model.exact(), batch.observations, batch.mask, method.filter).nll[:, 40:]
    score = float(jnp.mean(nll)) / series.num_coordinates
    return {
        "d_stsp_train": None if diverged else state_space_divergence(data, generated),
        "nll_train": score if np.isfinite(score) else None,
        "diverged_train": diverged,
    }


def gap_metrics(entries: Sequence[Entry]) -> dict[str, Any]:
    """Score and losses before and after, whether the whole run shows a DPC gap, in which steps one opened."""
    first, last = entries[0], entries[-1]
    changes = {f"{name}_before": _finite(loss.value) for name, loss in first.losses.items()}
    changes |= {f"{name}_after": _finite(loss.value) for name, loss in last.losses.items()}
    return {
        "score_before": _finite(first.score),
        "score_after": _finite(last.score),
        **changes,
        "gap": float(bool(overall_gaps(entries))),
        "gap_steps": float(len({(g.before, g.after) for g in find_gaps(entries)})),
        "overall_gaps": [gap.loss for gap in overall_gaps(entries)],
        "entries": [entry.to_dict() for entry in entries],
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
