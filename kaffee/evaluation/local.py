"""Axis 1, local probabilistic behaviour: ensemble NLL, CRPS and G_tan on held-out data."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.evaluation.protocol import Protocol
from kaffee.evaluation.reference import Reference
from kaffee.filtering import run_filter
from kaffee.forecast import forecast_ensemble
from kaffee.gaussian import Belief
from kaffee.metrics.grounding import Grounding, grounding, oracle_log_growth
from kaffee.metrics.scores import ensemble_crps, ensemble_nll
from kaffee.objectives import dynamics_of, initial_belief
from kaffee.recursion import Recursion, observations_of, predict, step
from kaffee.ssm import StateSpaceModel


class Growth(NamedTuple):
    """Variances along a filter run, in standardised observed coordinates.

    Attributes:
        posterior: Omega_{t|t} = B Sigma_{t|t} B'.
        predicted: The diagonal of B Sigma_{t+H|t} B', without observation noise.
    """

    posterior: Float[Array, "T N N"]
    predicted: Float[Array, "T N"]


@eqx.filter_jit
def variance_growth(model: StateSpaceModel, x: Float[Array, "T N"], recursion: Recursion, horizon: int = 1) -> Growth:
    """Filter a complete series and, at each step, predict `horizon` steps ahead without assimilation."""
    start = initial_belief(model, model.embed(x[None, 0]))
    dynamics = dynamics_of(model, start)
    observations = observations_of(x[None, 1:], jnp.ones_like(x[None, 1:], bool), model.observation)
    observed = lambda P: model.observation.columns(model.observation.rows(P))[0]  # noqa: E731

    def ahead(_: int, belief: Belief) -> Belief:
        return predict(dynamics.core, dynamics.process_variance, belief, transport=recursion.transport)

    def body(belief: Belief, inputs: tuple[Array, Array]) -> tuple[Belief, Growth]:
        now = step(recursion, dynamics, model.observation, belief, *inputs)
        future = jax.lax.fori_loop(0, horizon, ahead, now.filtered)
        return now.filtered, Growth(observed(now.filtered.covariance), jnp.diagonal(observed(future.covariance)))

    return jax.lax.scan(body, start, (observations.x, observations.mask))[1]


def tangent_grounding(
    model: StateSpaceModel, recursion: Recursion, reference: Reference, protocol: Protocol, horizon: int = 1
) -> Grounding:
    """G_tan (Eq. gtan), or G_tan^(H) for a longer horizon: model growth against the true tangent's."""
    chosen = model.exact() if protocol.gates == "hard" else model
    rows = protocol.warm_up + protocol.grounding_steps + 1
    x = jnp.asarray(reference.scaler.transform(reference.test_observations[:rows]), model.dtype)
    growth = jax.tree.map(
        lambda a: np.asarray(a, np.float64)[protocol.warm_up :], variance_growth(chosen, x, recursion, horizon)
    )
    # Growth[i] belongs to row i + 1 of x: the first row only anchors the belief.
    first = protocol.warm_up + 1
    J = reference.jacobians(reference.test_states[first : first + len(growth.predicted) + horizon - 1])
    product = J[: len(growth.predicted)]
    for h in range(1, horizon):
        product = J[h : h + len(growth.predicted)] @ product
    before = np.diagonal(growth.posterior, axis1=1, axis2=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        model_growth = np.log(growth.predicted) - np.log(before)
    return grounding(model_growth, oracle_log_growth(growth.posterior, product))


class ForecastScores(NamedTuple):
    """Ensemble scores in data units."""

    nll: float
    crps: float
    nll_many: float
    crps_many: float


def evenly(total: int, count: int) -> np.ndarray:
    """`count` evenly spaced indices below `total`."""
    return np.linspace(0, total - 1, count).round().astype(int)


def filtered_beliefs(
    model: StateSpaceModel, recursion: Recursion, x: Float[np.ndarray, "T N"], starts: np.ndarray, warm_up: int
) -> Belief:
    """The beliefs at rows `starts` of x, each after filtering the `warm_up` rows before it."""
    windows = jnp.asarray(np.stack([x[s - warm_up : s + 1] for s in starts]), model.dtype)
    return run_filter(model, windows, jnp.ones_like(windows, bool), recursion).final


def forecast_scores(
    model: StateSpaceModel,
    recursion: Recursion,
    reference: Reference,
    protocol: Protocol,
    start: str,
    horizon: int | None = None,
) -> ForecastScores:
    """Path-mean NLL and endpoint CRPS of ensembles against noisy observations, in data units (appendix C.4).

    Args:
        start: "embedding" of the noisy observation (the paper's) or "filtered" belief.
    """
    horizon = protocol.horizon if horizon is None else horizon
    first = protocol.warm_up
    starts = first + evenly(protocol.forecast_span - first, protocol.num_extra_starts)
    x = reference.scaler.transform(reference.test_observations[: protocol.forecast_span + horizon + 1])
    if start == "embedding":
        origin: Array | Belief = model.embed(jnp.asarray(x[starts], model.dtype))
    else:
        origin = filtered_beliefs(model, recursion, x, starts, protocol.warm_up)
    key = jax.random.key(protocol.seed)
    ensemble = forecast_ensemble(model, origin, horizon, protocol.num_members, key=key)
    members = reference.scaler.inverse(np.asarray(ensemble, np.float64))
    future = np.stack([reference.test_observations[s + 1 : s + 1 + horizon] for s in starts])

    def scores(count: int) -> tuple[float, float]:
        chosen = evenly(len(starts), count)
        return (
            ensemble_nll(members[:, chosen], future[chosen]),
            ensemble_crps(members[:, chosen, -1], future[chosen, -1]),
        )

    everything = scores(len(starts))
    return ForecastScores(scores(protocol.num_starts)[0], scores(protocol.num_crps_starts)[1], *everything)
