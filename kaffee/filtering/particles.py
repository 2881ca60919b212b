"""The bootstrap particle filter (Gordon, Salmond and Smith 1993): weighted states, any observation map.

    w_k <- w_k p(x | z_k),    -log p(x_t | x_{<t}) = -log sum_k w_k p(x | z_k)

Systematic resampling where fewer than a share of the particles count. Gradients pass through states and weights; which
particles are chosen is a constant to them, a bias that vanishes with the number of particles.
"""

from math import log, pi
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key, UInt32

from kaffee.errors import ConfigError
from kaffee.filtering.beliefs import DiscreteScore, Filter
from kaffee.filtering.gaussian import Belief, Readings, Seen, Variances, relative_jitter
from kaffee.filtering.kalman_ensembles import (
    Members,
    draw_normal,
    move_members,
    split_seeds,
    start_independent_members,
    start_members,
)
from kaffee.model.core import Core, Covariances, States
from kaffee.model.discrete import Discrete
from kaffee.model.observation import ObservationMap

# Fewer effective particles than this describe no distribution: one of them has nearly all of the weight.
COLLAPSED = 2.0
# Share of rows with so few of them that is worth a warning: an outlier alone makes one particle win.
COLLAPSE_WARNING = 0.1


class Particles(NamedTuple):
    """A batch of K states each with normalised log weights, and the state of its random numbers."""

    members: Members
    log_weights: Float[Array, "W K"]
    seeds: UInt32[Array, "W 2"]

    @property
    def mean(self) -> States:
        """Return the weighted mean."""
        return jnp.einsum("wk,wkm->wm", jnp.exp(self.log_weights), self.members)

    def moments(self) -> Belief:
        """Return the Gaussian of the weighted mean and covariance."""
        away = self.members - self.mean[:, None]
        return Belief(self.mean, jnp.einsum("wk,wki,wkj->wij", jnp.exp(self.log_weights), away, away))

    def variances(self) -> States:
        """Return the weighted variances."""
        return jnp.einsum("wk,wkm->wm", jnp.exp(self.log_weights), (self.members - self.mean[:, None]) ** 2)

    def signal_variance(self, observation: ObservationMap) -> Readings:
        """Return the weighted variances of the particles' signals."""
        signals, weights = observation.observe(self.members), jnp.exp(self.log_weights)
        away = signals - jnp.einsum("wk,wkn->wn", weights, signals)[:, None]
        return jnp.einsum("wk,wkn->wn", weights, away**2)

    def draw(self, key: Key[Array, ""], num_members: int) -> Float[Array, "K W M"]:
        """Draw particles by their weights."""
        keys = jax.random.split(key, len(self.members))
        chosen = jax.vmap(lambda k, w: jax.random.categorical(k, w, shape=(num_members,)))(keys, self.log_weights)
        return jnp.swapaxes(jax.vmap(lambda z, i: z[i])(self.members, chosen), 0, 1)


class ParticleScore(NamedTuple):
    """A reading compared with the mixture of particles; `log_weights` are those after it."""

    residual: Readings
    whitened: Readings
    nll: Float[Array, " W"]
    log_weights: Float[Array, "W K"]

    def effective_size(self) -> Float[Array, " W"]:
        """Return how many particles count after the reading and before any resampling, 1 / sum w^2."""
        return jnp.exp(-jax.scipy.special.logsumexp(2.0 * lax.stop_gradient(self.log_weights), axis=1))


def count_effective(scored: Any) -> Float[Array, " W"] | None:
    """Return how many particles count after a reading was scored; None for filters that weigh none."""
    scored = scored.by if isinstance(scored, DiscreteScore) else scored
    return scored.effective_size() if isinstance(scored, ParticleScore) else None


def describe_collapse(fraction: float | None, median: float | None = None) -> str:
    """Say that particles collapsed and what to do, if this fraction of the rows is too many; else nothing.

    >>> describe_collapse(0.05)
    ''
    """
    if fraction is None or not fraction > COLLAPSE_WARNING:
        return ""
    middle = "" if median is None else f" (median {median:.1f})"
    return (
        f"the particles collapsed: in {fraction:.0%} of the rows fewer than two count{middle}, so that bands are too "
        "narrow; use many more, or a filter for more dimensions, such as etkf:40 or ekf"
    )


class ParticleFilter(Filter):
    """Particles that move by the model and are weighted by the likelihood of the reading.

    Attributes:
        size: K.
        resample_below: Share of effective particles, 1 / sum w^2 / K, below which they are resampled.
        jitter: After resampling, noise of this many optimal bandwidths of the particles' covariance (Musso, Oudjane and
            Le Gland 2001): copies of one particle would stay copies where there is little process noise.
        seed: Of all random numbers.
    """

    size: int = 1000
    resample_below: float = eqx.field(static=True, default=0.5)
    jitter: float = eqx.field(static=True, default=0.0)
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        if self.size < 2:
            raise ConfigError(f"A particle filter needs at least two particles, as in particle:1000; not {self.size}.")
        if not 0.0 <= self.resample_below <= 1.0 or self.jitter < 0.0:
            raise ConfigError(
                f"resample_below lies between 0 and 1 and jitter is not negative; got {self.resample_below} and "
                f"{self.jitter}."
            )

    def start(self, mean: States, covariance: Covariances) -> Particles:
        return self._weigh_evenly(*start_members(mean, covariance, self.size, self.seed))

    def start_independent(self, mean: States, variance: States) -> Particles:
        return self._weigh_evenly(*start_independent_members(mean, variance, self.size, self.seed))

    def _weigh_evenly(self, members: Members, seeds: UInt32[Array, "W 2"]) -> Particles:
        return Particles(members, jnp.full(members.shape[:2], -log(self.size), members.dtype), seeds)

    def predict(
        self, core: Core, process_variance: Float[Array, "#W M"], belief: Particles, *, transport: bool
    ) -> Particles:
        seeds, keys = split_seeds(belief.seeds)
        noise = draw_normal(keys, belief.members.shape[1:], belief.members.dtype)
        members = move_members(core, process_variance, belief.members, belief.mean, noise, transport=transport)
        return Particles(members, belief.log_weights, seeds)

    def score(
        self,
        predicted: Particles,
        x: Readings,
        mask: Seen,
        observation: ObservationMap,
        observation_variance: Variances,
    ) -> ParticleScore:
        present = mask.astype(predicted.members.dtype)
        signals, R = observation.observe(predicted.members), jnp.broadcast_to(observation_variance, x.shape)
        away = jnp.where(mask[:, None], x[:, None] - signals, 0.0)
        terms = present * (jnp.log(R) + log(2.0 * pi))
        log_p = -0.5 * jnp.sum(away**2 / R[:, None] + terms[:, None], axis=2)
        return self._weigh(predicted, x, mask, observation, log_p, R)

    def score_discrete(
        self, predicted: Particles, y: Readings, mask: Seen, observation: ObservationMap, likelihood: Discrete
    ) -> DiscreteScore:
        """Weigh particles by the likelihood itself, without approximation."""
        signals = observation.observe(predicted.members)
        log_p = jnp.where(mask[:, None], likelihood.log_density(y[:, None], signals), 0.0)
        noise = likelihood.noise_variance(observation.observe(predicted.mean))
        scored = self._weigh(predicted, y, mask, observation, jnp.sum(log_p, axis=2), noise)
        return DiscreteScore(scored.residual, scored.whitened, scored.nll, scored)

    def _weigh(
        self,
        predicted: Particles,
        x: Readings,
        mask: Seen,
        observation: ObservationMap,
        log_p: Float[Array, "W K"],
        variance: Readings,
    ) -> ParticleScore:
        """Multiply weights by likelihoods; `variance` is that of readings around the signal."""
        joint = predicted.log_weights + log_p
        evidence = jax.scipy.special.logsumexp(joint, axis=1)
        signals = observation.observe(predicted.members)
        mean = jnp.einsum("wk,wkn->wn", jnp.exp(predicted.log_weights), signals)
        v = jnp.where(mask, x - mean, 0.0)
        std = jnp.sqrt(predicted.signal_variance(observation) + variance)
        return ParticleScore(v, lax.stop_gradient(v / std), -evidence, joint - evidence[:, None])

    def assimilate(self, predicted: Particles, scored: ParticleScore) -> Particles:
        seeds, keys = split_seeds(predicted.seeds)
        log_w, K = scored.log_weights, self.size
        weights = jnp.exp(lax.stop_gradient(log_w))
        wanted = scored.effective_size() < self.resample_below * K

        def resample(key: Key[Array, ""], w: Float[Array, " K"]) -> Array:
            points = (jnp.arange(K, dtype=w.dtype) + jax.random.uniform(key, dtype=w.dtype)) / K
            # Rounding leaves the sum of the weights beside 1: a point beyond it would take the last particle, whatever
            # its weight, and the logarithm of a weight of 0 is not finite.
            total = jnp.cumsum(w)
            return jnp.clip(jnp.searchsorted(total, points * total[-1]), 0, K - 1)

        chosen = jax.vmap(resample)(keys, weights)
        copies = jax.vmap(lambda z, i: z[i])(predicted.members, chosen)
        if self.jitter:
            seeds, keys = split_seeds(seeds)
            copies = copies + self._jitter(keys, Particles(predicted.members, log_w, seeds))
        # Keeps the gradient of the weights, whose values are equal after resampling.
        kept = jax.vmap(lambda w, i: w[i])(log_w, chosen)
        even = kept - lax.stop_gradient(kept) - log(K)
        members = jnp.where(wanted[:, None, None], copies, predicted.members)
        return Particles(members, jnp.where(wanted[:, None], even, log_w), seeds)

    def _jitter(self, keys: Key[Array, " W"], belief: Particles) -> Members:
        K, M = belief.members.shape[1:]
        covariance = lax.stop_gradient(belief.moments().covariance)
        variances = jnp.diagonal(covariance, axis1=1, axis2=2)
        floor = relative_jitter(covariance.dtype) * variances + jnp.finfo(covariance.dtype).tiny ** 0.5
        root = lax.linalg.cholesky(covariance + jax.vmap(jnp.diag)(floor), symmetrize_input=True)
        bandwidth = self.jitter * (4.0 / (M + 2.0) / K) ** (1.0 / (M + 4.0))
        return bandwidth * draw_normal(keys, (K, M), covariance.dtype) @ root.mT
