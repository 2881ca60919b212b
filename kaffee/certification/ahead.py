"""Beliefs carried ahead without observations: by the model's own covariance recursion, and by ensembles."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.certification.baselines import Forecast
from kaffee.certification.passes import FilterPass
from kaffee.forecast import forecast_ensemble
from kaffee.gaussian import Belief
from kaffee.inference.tracking import signal_variance
from kaffee.recursion import Recursion, predict
from kaffee.rollout import DIVERGENCE_BOUND
from kaffee.ssm import StateSpaceModel

# Numbers of an ensemble that are in memory at once: 160 MB.
MAX_NUMBERS = 40_000_000


class Ahead(NamedTuple):
    """Moments of the signal B z after 0..H steps without observations, in standardised units."""

    mean: Float[np.ndarray, "S H N"]
    variance: Float[np.ndarray, "S H N"]


@eqx.filter_jit
def _ahead(model: StateSpaceModel, recursion: Recursion, beliefs: Belief, num_steps: int) -> tuple[Array, Array]:
    Gamma, observation = model.shell.process_variance(), model.observation

    def moments(belief: Belief) -> tuple[Array, Array]:
        return observation.observe(belief.mean), signal_variance(observation, belief.covariance)

    def body(belief: Belief, _: None) -> tuple[Belief, tuple[Array, Array]]:
        belief = predict(model.core, Gamma, belief, transport=recursion.transport)
        return belief, moments(belief)

    _, later = jax.lax.scan(body, beliefs, None, length=num_steps)
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), moments(beliefs), later)


def carry_ahead(model: StateSpaceModel, recursion: Recursion, beliefs: Belief, num_steps: int) -> Ahead:
    """z' = F(z), P' = J P J' + Gamma, `num_steps` times; index 0 is the filtered belief itself."""
    found = _ahead(model, recursion, beliefs, num_steps)
    return Ahead(*(np.asarray(a, np.float64).swapaxes(0, 1) for a in found))


def gaussian_forecast(
    model: StateSpaceModel, recursion: Recursion, beliefs: Belief, horizons: Sequence[int]
) -> Forecast:
    """Readings at `horizons` by the covariance recursion; exact for a linear core, and for any at one step."""
    ahead, chosen = carry_ahead(model, recursion, beliefs, max(horizons)), list(horizons)
    noise = np.asarray(model.shell.observation_variance(), np.float64)
    return Forecast(ahead.mean[:, chosen], np.sqrt(ahead.variance[:, chosen] + noise))


def ensemble_forecast(
    model: StateSpaceModel, beliefs: Belief, horizons: Sequence[int], members: int, *, seed: int
) -> tuple[Forecast, int]:
    """Mean and standard deviation of sampled readings at `horizons`, and how many members left the attractor.

    Those are left out from where they left, as in `kaffee.inference.forecast`; with fewer than two others NaN.
    """
    longest, (S, _) = max(horizons), beliefs.mean.shape
    chunk = max(1, min(S, MAX_NUMBERS // (members * longest * model.num_observed)))
    # The last chunk is filled up with repetitions, so that one program serves all.
    order = np.concatenate([np.arange(S), np.zeros(-S % chunk, int)]).reshape(-1, chunk)
    keys = jax.random.split(jax.random.key(seed), len(order))
    steps = np.array(horizons) - 1
    means: list[np.ndarray] = []
    stds: list[np.ndarray] = []
    diverged = 0
    for key, index in zip(keys, order, strict=True):
        some = Belief(beliefs.mean[index], beliefs.covariance[index])
        values = np.asarray(forecast_ensemble(model, some, longest, members, key=key), np.float64)
        away = np.logical_or.accumulate(~(np.abs(values) < DIVERGENCE_BOUND).all(axis=3), axis=2)
        chosen, gone = values[:, :, steps], away[:, :, steps]
        diverged += int(away[:, :, -1][:, : S - len(means) * chunk].sum())
        kept = np.where(gone[..., None], 0.0, chosen)
        count = (~gone).sum(axis=0)[..., None]
        mean = kept.sum(axis=0) / np.maximum(count, 1)
        squares = np.where(gone[..., None], 0.0, (kept - mean) ** 2).sum(axis=0)
        means.append(np.where(count > 1, mean, np.nan))
        stds.append(np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), np.nan))
    return Forecast(np.concatenate(means)[:S], np.concatenate(stds)[:S]), diverged


@eqx.filter_jit
def _observed(model: StateSpaceModel, beliefs: Belief) -> Float[Array, "S N N"]:
    return model.observation.columns(model.observation.rows(beliefs.covariance))


def observed_growth(run: FilterPass) -> tuple[Float[np.ndarray, "S N"], Float[np.ndarray, "S N N"]]:
    """log [B P_{t+1|t} B']_jj - log [B P_{t|t} B']_jj at the starts of a pass, and B P_{t|t} B'."""
    model = run.reconstruction.model
    ahead = carry_ahead(model, run.recursion, run.beliefs, 1)
    before = np.asarray(_observed(model, run.beliefs), np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(ahead.variance[:, 1]) - np.log(ahead.variance[:, 0]), before
