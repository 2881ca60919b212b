"""Transfer: a core that is known, and frozen, for a group that it has not seen; only map, noise and units are fitted.

    x_t = C (z_1, ..., z_K)_t + b + noise,        z_{t+1} = F(z_t) + noise,        F given

Free runs of the known model tell its law of motion; principal components of the new rows are brought to the coordinates
in which they obey it (`kaffee.training.alignment`). Of the best of these the likelihood of the rows chooses, and the
pipeline trains map and shell from there.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, ConfigError
from kaffee.filtering.gated import make_gate
from kaffee.filtering.recursion import Recursion
from kaffee.filtering.rollout import DIVERGENCE_BOUND, free_run
from kaffee.filtering.sweep import batch_recordings, sweep
from kaffee.fitting.initial_core import load_with_core
from kaffee.fitting.learned_maps import Maps, find_maps
from kaffee.fitting.settings import FitSettings, ObservationSettings
from kaffee.model.observation import LinearObservation, Projection
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.records import read_json
from kaffee.training.alignment import Affine, Law, align, choose_lags

_RUNS, _STEPS, _TRANSIENT = 16, 500, 200
_CANDIDATES = 4
_MOST_ROWS = 1_000  # that tell candidates apart


def load_shared(start: str) -> Reconstruction:
    """Load the model whose core is transferred: that of a folder, or the fitted one of a run."""
    folder = Path(start).expanduser()
    if not (folder / "model.json").exists() and (folder / "run.json").exists():
        folder = folder / str(read_json(folder / "run.json", "run").get("settings", {}).get("method"))
    if not (folder / "model.json").exists():
        raise CheckpointError(f"{start} holds no finished model whose core could be transferred. Fit it first.")
    known = load_with_core(folder, None)
    if not isinstance(known.model.observation, LinearObservation) or not known.model.observation.hidden:
        raise ConfigError(
            f"{start}: its core was not fitted with a map that is learned, so that it has no components that another "
            "map could show. Fit it with --observation learned."
        )
    return known


def start_transfer(known: Reconstruction, settings: FitSettings, train: Series) -> tuple[Maps, StateSpaceModel]:
    """Find maps from the components of a known core to the channels of training rows, and the model that they make."""
    base = components_model(known.model)
    asked = replace(settings, observation=ObservationSettings(components=base.num_observed), core=type(settings.core)())
    maps = find_maps(asked, train, aligned=False)
    assert maps is not None
    law, whitened = learn_law(base, choose_lags(maps.scores.decorrelation_time))
    owners = maps.rows.groups or ("",) * maps.rows.num_recordings
    chosen = []
    for g, name in enumerate(maps.names or ("",)):
        mine = [r for r, owner in enumerate(owners) if owner == name]
        rows = maps.rows.take([(r, slice(0, _MOST_ROWS)) for r in mine])
        turns = align(law, [maps.scores.recordings[r] for r in mine], most=_CANDIDATES)
        candidates = [maps.components[g].turned(*turn).turned(*whitened) for turn in turns]
        chosen.append(min(candidates, key=lambda each: measure_nll(each.lift(base), replace(rows, groups=()))))
    projected = [
        chosen[(*maps.names, "").index(o)].project(x) for o, x in zip(owners, maps.rows.recordings, strict=True)
    ]
    maps = replace(maps, components=tuple(chosen), scores=replace(maps.scores, recordings=tuple(projected)))
    return maps, maps.lift(base)


def components_model(model: StateSpaceModel) -> StateSpaceModel:
    """Make of a model with a learned map one whose readings are the components themselves; groups are averaged."""
    own = model.observation
    assert isinstance(own, LinearObservation)
    K, M = own.num_components, model.latent_dim
    E = jnp.mean(jnp.reshape(model.embedding @ own.B, (-1, M, K)), axis=0)
    process = jnp.mean(jnp.reshape(model.shell.log_process_std, (-1, M)), axis=0)
    quiet = Shell(process, jnp.full(K, -5.0, model.dtype))
    return StateSpaceModel(model.core, quiet, Projection(K, M), E, model.climate)


def learn_law(model: StateSpaceModel, lags: tuple[int, ...]) -> tuple[Law, Affine]:
    """Learn the law of motion of a model's components from its free runs, and how to get from variance 1 to them."""
    if model.climate is None:
        raise ConfigError("The known model has no climate to start free runs from. Fit it with adaptation.climate on.")
    states = model.climate.states
    start = states[np.linspace(0, len(states) - 1, _RUNS).astype(int)]
    run = free_run(model, start, _STEPS, key=jax.random.key(0), transient=_TRANSIENT)
    z: Float[np.ndarray, "R T K"] = np.asarray(run.states, np.float64)[..., : model.num_observed]
    z = z[(np.asarray(run.diverged_at) == 0) & (np.abs(z) < DIVERGENCE_BOUND).all(axis=(1, 2))]
    if not len(z):
        raise ConfigError("All free runs of the known model diverge; its core is not worth a transfer.")
    mean, covariance = z.mean(axis=(0, 1)), np.atleast_2d(np.cov(z.reshape(-1, z.shape[-1]).T))
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 1e-9 * values.max()))) @ vectors.T
    white = (z - mean) @ np.linalg.inv(root).T
    return Law.fit(list(white), lags), Affine(root, mean)


def measure_nll(model: StateSpaceModel, rows: Series) -> float:
    """Compute the NLL of standardised rows per row, infinite where the filter fails."""
    x: Any = batch_recordings(rows, model.dtype)
    nll = np.asarray(sweep(model, Recursion(), x, gate=make_gate()).rows.nll, np.float64)
    return float(np.nanmean(nll)) if np.isfinite(nll).any() else np.inf
