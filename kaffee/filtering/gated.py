"""The filter of all inference: the recursion between a gate before each update and a restart after it.

Batch filter, smoother, forecasts, certificate and online filter all call `advance`, so that they agree by construction.
For plausible readings and a belief that is not lost it is the recursion of training, and nothing else.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from scipy.special import chdtri

from kaffee.data.validation import check_count
from kaffee.errors import ConfigError
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import make_dynamics, start_belief, start_step
from kaffee.filtering.particles import count_effective
from kaffee.filtering.recursion import Recursion, Step, choose_variance, predict, update
from kaffee.model.discrete import reading_noise
from kaffee.model.statespace import StateSpaceModel

# Readings this many standard deviations of the training data away carry no information and overflow float32.
ABSURD = 1e6
# A belief this much wider than the data knows less than their mean does; the linearisation has long failed.
LOST = 10.0
# Nats by which the climate must foresee a reading better than the belief before the belief starts again. If the belief
# is right, that happens to one reading in exp(SURPRISE), 100 000, at most: the expectation of p_climate / p is 1.
SURPRISE = 11.5


class Gate(NamedTuple):
    """Which readings are believed: the validation gate of target tracking (Bar-Shalom et al. 2001, section 2.3).

    Attributes:
        threshold: A reading with v_i^2 / Omega_ii beyond it is rejected.
        patience: After so many rejections of a coordinate in a row the belief is more likely to be wrong, and its next
            reading is believed.
    """

    threshold: Float[Array, ""]
    patience: Int[Array, ""]


class Track(NamedTuple):
    """The state that the filter carries from row to row.

    The first row starts the belief; `rejections` count how often in a row a coordinate was rejected.
    """

    belief: Belief
    started: Bool[Array, " W"]
    rejections: Int[Array, "W N"]


class Row(NamedTuple):
    """The moments at one row, in standardised coordinates.

    A model with a climate predicts every row; without one, what is predicted, and its scores, are NaN at a (re)start.
    A reading that the climate foresees far better than the belief has the climate's scores, and `SURPRISE` more nats:
    the likelihood of a model whose state jumps once in 100 000 rows.

    Attributes:
        state_mean, state_std: Of z given all readings up to this row.
        predicted_state_mean, predicted_state_std: Of z given those before it.
        signal_mean, signal_std: Of B z given all readings up to this row, without observation noise.
        reading_mean, reading_std: Of the reading x = B z + noise given those before it.
        nll: -log p of the accepted entries given all earlier ones.
        nis: v' Omega^-1 v, with as many degrees of freedom as entries were accepted.
        accepted, rejected: Which entries were used, and which were read but not believed.
        restarted: Whether the belief starts again at this row: the first one, or where the belief was lost.
        fault: Index in `recursion.QUANTITIES`: what was not finite, if that is why.
        effective: How many particles count after the reading, 1 / sum w^2; None for filters that weigh none.
    """

    state_mean: Float[Array, "W M"]
    state_std: Float[Array, "W M"]
    predicted_state_mean: Float[Array, "W M"]
    predicted_state_std: Float[Array, "W M"]
    signal_mean: Float[Array, "W N"]
    signal_std: Float[Array, "W N"]
    reading_mean: Float[Array, "W N"]
    reading_std: Float[Array, "W N"]
    nll: Float[Array, " W"]
    nis: Float[Array, " W"]
    accepted: Bool[Array, "W N"]
    rejected: Bool[Array, "W N"]
    restarted: Bool[Array, " W"]
    fault: Int[Array, " W"]
    effective: Float[Array, " W"] | None = None


def make_gate(quantile: float | None = None, patience: int = 10) -> Gate:
    """Reject a reading if v_i^2 / Omega_ii exceeds this quantile of chi-square with one degree of freedom.

    Without a quantile only absurd readings are rejected; with 0.9999, one good reading in ten thousand is lost.

    >>> round(float(make_gate(0.95).threshold), 3)
    3.841
    """
    patience = check_count("patience", patience, 1)
    if quantile is None:
        return Gate(jnp.asarray(jnp.inf, jnp.float32), jnp.asarray(0, jnp.int32))
    if not 0.0 < quantile < 1.0:
        raise ConfigError(f"The gate is a quantile between 0 and 1, such as 0.9999; not {quantile:g}.")
    return Gate(jnp.asarray(chdtri(1.0, 1.0 - quantile), jnp.float32), jnp.asarray(patience, jnp.int32))


def new_track(model: StateSpaceModel, recursion: Recursion, num_tracks: int) -> Track:
    """Make tracks that have not seen anything; their belief is a placeholder."""
    M, N = model.latent_dim, model.num_observed
    zeros = jnp.zeros((num_tracks, M), model.dtype)
    belief: Any = recursion.filter.start_independent(zeros, jnp.ones_like(zeros))
    return Track(belief, jnp.zeros(num_tracks, bool), jnp.zeros((num_tracks, N), jnp.int32))


def choose(condition: Bool[Array, " W"], yes: Any, no: Any) -> Any:
    """Apply `where` along the batch axis of all arrays in two trees."""
    return jax.tree.map(lambda a, b: jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)


def advance(
    model: StateSpaceModel,
    recursion: Recursion,
    gate: Gate | None,
    track: Track,
    x: Float[Array, "W D"],
    noise: Float[Array, "W K"] | None = None,
    variance: Float[Array, "W N"] | None = None,
) -> tuple[Track, Row, Step]:
    """Filter one row of readings for a batch of tracks; NaN is missing. Compilation drops what is not used of it.

    The first row starts the belief (`start_belief`). The belief restarts in the same way when it is lost: a quantity
    is not finite, or nothing is read and the prediction is ten times as wide as data and noise (an EKF covariance grows
    as exp(2 lambda t) in a gap, without the bound that the attractor sets). With a climate it also restarts at a
    reading that is no surprise to the climate but next to impossible for the belief: a wide one, soon after a start,
    may have been linearised at the wrong place, and would be sure of itself for many rows.

    Args:
        x: Readings, and after them the inputs of a model that takes any, which are never missing.
        gate: None for the bare recursion: every reading is believed, and nothing restarts.
        noise: The realisation of the core's internal noise; None for none of it.
        variance: Of the readings, in place of Lambda; NaN, or None for all: Lambda.
    """
    x, inputs = model.split(x)
    observation, dynamics = model.observation, make_dynamics(model, track.belief)
    Gamma, core = dynamics.process_variance, model.core.given(noise, inputs)
    predicted = predict(core, Gamma, track.belief, transport=recursion.transport, by=recursion.filter)
    predicted_signal = predicted.signal_variance(observation)
    Lambda = choose_variance(dynamics.observation_variance, variance)
    Lambda = reading_noise(model.discrete, Lambda, observation.observe(predicted.mean))
    present = ~jnp.isnan(x)
    if gate is None:
        accepted = present
    else:
        residual = x - observation.observe(predicted.mean)
        finite = jnp.isfinite(jnp.sum(predicted.mean, axis=1) + jnp.sum(predicted_signal, axis=1))
        within = residual**2 <= gate.threshold.astype(x.dtype) * (predicted_signal + Lambda)
        believed = within | (track.rejections >= gate.patience) | ~(track.started & finite)[:, None]
        accepted = present & jnp.isfinite(x) & (jnp.abs(x) < ABSURD) & believed
    used = jnp.where(accepted, x, 0.0)
    now = update(recursion, dynamics, observation, predicted, used, accepted, variance)
    fault = jnp.where(track.started, now.fault, 0)
    restarted = unscored = surprised = jnp.zeros_like(track.started)
    if gate is not None:
        own = Belief(predicted.mean, jax.vmap(jnp.diag)(jnp.atleast_2d(Gamma)))
        widest = LOST**2 * (1.0 + own.signal_variance(observation) + Lambda)
        adrift = jnp.any(predicted_signal > widest, axis=1) & ~jnp.any(accepted, axis=1)
        restarted = ~track.started | (fault > 0) | adrift
        if model.climate is None:
            unscored = restarted
            started = start_belief(model, used, accepted, recursion, variance)
            now = now._replace(filtered=choose(restarted, started, now.filtered))
        else:
            nis, count = jnp.sum(now.innovation.whitened**2, axis=1), jnp.sum(accepted, axis=1).astype(x.dtype)
            odd = ~restarted & (nis > count + 2.0 * SURPRISE)

            def begin(now: Step) -> tuple[Step, Bool[Array, " W"]]:
                start = start_step(model, used, accepted, recursion, variance)
                surprised = odd & (now.innovation.nll > start.innovation.nll + SURPRISE)
                return choose(restarted | surprised, start, now), surprised

            # A branch, since a start costs as much as an update.
            now, surprised = jax.lax.cond(jnp.any(restarted | odd), begin, lambda now: (now, surprised), now)
            # What was predicted before a surprise stands.
            predicted = choose(surprised, predicted, now.predicted)
            predicted_signal = predicted.signal_variance(observation)
            restarted = restarted | surprised
    belief = now.filtered
    rejections = jnp.where(present, jnp.where(accepted, 0, track.rejections + 1), track.rejections)

    def scored(value: Array) -> Array:
        return choose(unscored, jnp.full_like(value, jnp.nan), value)

    row = Row(
        state_mean=belief.mean,
        state_std=jnp.sqrt(belief.variances()),
        predicted_state_mean=scored(predicted.mean),
        predicted_state_std=scored(jnp.sqrt(predicted.variances())),
        signal_mean=observation.observe(belief.mean),
        signal_std=jnp.sqrt(belief.signal_variance(observation)),
        reading_mean=scored(observation.observe(predicted.mean)),
        reading_std=scored(jnp.sqrt(predicted_signal + Lambda)),
        nll=scored(now.innovation.nll + jnp.where(surprised, SURPRISE, 0.0).astype(x.dtype)),
        nis=scored(jnp.sum(now.innovation.whitened**2, axis=1)),
        accepted=accepted,
        rejected=present & ~accepted,
        restarted=restarted,
        fault=fault,
        effective=count_effective(now.innovation),
    )
    return Track(belief, jnp.ones_like(track.started), rejections), row, now
