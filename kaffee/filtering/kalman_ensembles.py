"""Ensemble Kalman filters: stochastic EnKF, ETKF and LETKF, with inflation, localisation and a gradient.

Beliefs are K members; their mean and covariance (divided by K - 1) stand for those of the state. A belief carries the
seed of its own noise: the same seed gives the same bits, and a window alone is the same as in a batch.
"""

from collections.abc import Callable
from math import log, pi, sqrt
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key, UInt32

from kaffee.errors import ConfigError
from kaffee.filtering.beliefs import Filter
from kaffee.filtering.gaussian import Belief, Readings, Seen, Variances, invert_factor, relative_jitter
from kaffee.model.core import Core, Covariances, States, keep
from kaffee.model.observation import ObservationMap

Members = Float[Array, "W K M"]


class Ensemble(NamedTuple):
    """A batch of K equally likely states each, and the state of its random numbers."""

    members: Members
    seeds: UInt32[Array, "W 2"]

    @property
    def mean(self) -> States:
        """Return the mean of the members."""
        return jnp.mean(self.members, axis=1)

    def anomalies(self) -> Members:
        """Return what members have beyond their mean, so that A'A is the covariance."""
        return (self.members - self.mean[:, None]) / sqrt(self.members.shape[1] - 1)

    def moments(self) -> Belief:
        """Return the Gaussian of the ensemble's mean and covariance."""
        A = self.anomalies()
        return Belief(self.mean, A.mT @ A)

    def variances(self) -> States:
        """Return the variances of the members."""
        return jnp.sum(self.anomalies() ** 2, axis=1)

    def signal_variance(self, observation: ObservationMap) -> Readings:
        """Return the variances of the members' signals."""
        return jnp.sum(_spread(observation.observe(self.members)) ** 2, axis=1)

    def draw(self, key: Key[Array, ""], num_members: int) -> Float[Array, "K W M"]:
        """Draw members at random, each as often as the others but for a remainder."""
        K = self.members.shape[1]
        order = jax.random.permutation(key, jnp.arange(-(-num_members // K) * K) % K, independent=True)[:num_members]
        return jnp.swapaxes(self.members[:, order], 0, 1)


class EnsembleScore(NamedTuple):
    """A reading compared with N(mean, Y'Y + R), the ensemble's predictive density; the factor is that of its matrix."""

    residual: Readings
    whitened: Readings
    nll: Float[Array, " W"]
    anomalies: Float[Array, "W K N"]
    variance: Readings
    present: Readings
    inverse_factor: Float[Array, "W N N"]
    local: Float[Array, "W M N"] | None = None  # the taper between coordinates and readings, of local filters


def _spread(members: Float[Array, "W K N"]) -> Float[Array, "W K N"]:
    return (members - jnp.mean(members, axis=1, keepdims=True)) / sqrt(members.shape[1] - 1)


def split_seeds(seeds: UInt32[Array, "W 2"]) -> tuple[UInt32[Array, "W 2"], Key[Array, " W"]]:
    """Split the random state of every window: what it goes on with, and a key to use now."""
    keys = jax.vmap(jax.random.split)(jax.random.wrap_key_data(seeds))
    return jax.random.key_data(keys[:, 0]), keys[:, 1]


def draw_normal(keys: Key[Array, " W"], shape: tuple[int, ...], dtype: Any) -> Float[Array, "W ..."]:
    """Draw standard normal numbers for every window by its own key, and once where all windows have the same."""

    def one(key: Key[Array, ""]) -> Float[Array, "..."]:
        return jax.random.normal(key, shape, dtype)

    words = jax.random.key_data(keys)
    shared = jnp.all(words == words[:1])
    return lax.cond(shared, lambda: jnp.broadcast_to(one(keys[0]), (len(keys), *shape)), lambda: jax.vmap(one)(keys))


def start_members(mean: States, covariance: Covariances, size: int, seed: int) -> tuple[Members, UInt32[Array, "W 2"]]:
    """Draw the members of N(mean, covariance), and the random state that goes with them."""
    variances = jnp.diagonal(covariance, axis1=1, axis2=2)
    jitter = relative_jitter(mean.dtype) * variances + jnp.finfo(mean.dtype).tiny ** 0.5
    root = lax.linalg.cholesky(covariance + jax.vmap(jnp.diag)(jitter), symmetrize_input=True)
    noise, seeds = _first_noise(mean, size, seed)
    return mean[:, None] + noise @ root.mT, seeds


def start_independent_members(
    mean: States, variance: States, size: int, seed: int
) -> tuple[Members, UInt32[Array, "W 2"]]:
    """Draw the members of N(mean, diag(variance)) with the noise of `start_members`, and nothing of size M^2."""
    # The root of a variance of 0 has no derivative.
    std = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    noise, seeds = _first_noise(mean, size, seed)
    return mean[:, None] + noise * std[:, None], seeds


def _first_noise(mean: States, size: int, seed: int) -> tuple[Members, UInt32[Array, "W 2"]]:
    W, M = mean.shape
    # All windows share their noise: a window alone is then the same as in a batch.
    key = jax.random.key_data(jax.random.key(seed)).astype(jnp.uint32)
    seeds, keys = split_seeds(jnp.broadcast_to(key, (W, 2)))
    return draw_normal(keys, (size, M), mean.dtype), seeds


def move_members(
    core: Core,
    process_variance: Float[Array, "#W M"],
    members: Members,
    mean: States,
    noise: Members,
    *,
    transport: bool,
) -> Members:
    """Take members one step ahead with process noise; without transport they keep their distances from the mean."""
    if transport:
        # A core may hold noise and inputs for each window, which its members share.
        moved = jax.vmap(core.stepper(), in_axes=1, out_axes=1)(members)
    else:
        moved = members + (core.predict_mean(mean) - mean)[:, None]
    return moved + jnp.sqrt(process_variance)[:, None] * noise


class EnsembleFilter(Filter):
    """What all ensemble Kalman filters share.

    Attributes:
        size: K, the number of members.
        inflation: Factor of the members' distances from their mean after each update in which something was read; an
            array can be trained.
        seed: Of all random numbers.
    """

    size: int = 40
    inflation: Float[Array, ""] | float = 1.0
    seed: int = eqx.field(static=True, default=0)

    def __check_init__(self) -> None:
        if self.size < 2:
            raise ConfigError(f"An ensemble needs at least two members, as in enkf:40; not {self.size}.")

    def start(self, mean: States, covariance: Covariances) -> Ensemble:
        return Ensemble(*start_members(mean, covariance, self.size, self.seed))

    def start_independent(self, mean: States, variance: States) -> Ensemble:
        return Ensemble(*start_independent_members(mean, variance, self.size, self.seed))

    def predict(
        self, core: Core, process_variance: Float[Array, "#W M"], belief: Ensemble, *, transport: bool
    ) -> Ensemble:
        seeds, keys = split_seeds(belief.seeds)
        noise = keep(draw_normal(keys, belief.members.shape[1:], belief.members.dtype))
        members = move_members(core, process_variance, belief.members, belief.mean, noise, transport=transport)
        return Ensemble(members, seeds)

    def taper(self, observation: ObservationMap, dtype: Any) -> Float[Array, "N N"] | None:
        """Return the factors of covariances between readings; None for 1 everywhere."""
        return None

    def score(
        self, predicted: Ensemble, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> EnsembleScore:
        """Compare a reading with N(mean, Y'Y + Lambda) of the members' signals Y, for any observation map."""
        present = mask.astype(predicted.members.dtype)
        signals = observation.observe(predicted.members)
        v = jnp.where(mask, x - jnp.mean(signals, axis=1), 0.0)
        Y = present[:, None] * _spread(signals)
        S = Y.mT @ Y
        taper = self.taper(observation, S.dtype)
        S = S if taper is None else S * taper
        R = present * observation_variance
        jitter = relative_jitter(S.dtype) * (jnp.diagonal(S, axis1=1, axis2=2) + R)
        L = lax.linalg.cholesky(S + jax.vmap(jnp.diag)(R + jitter + (1.0 - present)), symmetrize_input=True)
        Li = invert_factor(L)
        y = (Li @ v[:, :, None])[:, :, 0]
        log_det = jnp.sum(jnp.log(jnp.diagonal(L, axis1=1, axis2=2)), axis=1)
        nll = log_det + 0.5 * jnp.sum(y**2, axis=1) + 0.5 * log(2.0 * pi) * jnp.sum(present, axis=1)
        return EnsembleScore(v, y, nll, Y, jnp.broadcast_to(observation_variance, v.shape), present, Li)

    def finish(self, predicted: Ensemble, members: Members, present: Readings) -> Members:
        """Widen updated members around their mean; where nothing was read, the predicted ones stay, to the bit."""
        if not (isinstance(self.inflation, float) and self.inflation == 1.0):
            mean = jnp.mean(members, axis=1, keepdims=True)
            members = mean + self.inflation * (members - mean)
        return jnp.where(jnp.any(present > 0, axis=1)[:, None, None], members, predicted.members)


class EnKF(EnsembleFilter):
    """The stochastic ensemble Kalman filter: every member assimilates the reading with noise of its own.

    Burgers, van Leeuwen and Evensen (1998); the noise of the readings is centred, so that the mean has none.
    """

    def assimilate(self, predicted: Ensemble, scored: EnsembleScore) -> Ensemble:
        seeds, keys = split_seeds(predicted.seeds)
        K = predicted.members.shape[1]
        noise = keep(draw_normal(keys, (K, scored.residual.shape[1]), predicted.members.dtype))
        noise = (noise - jnp.mean(noise, axis=1, keepdims=True)) * jnp.sqrt(scored.variance)[:, None]
        signals = sqrt(K - 1) * scored.anomalies
        target = scored.present[:, None] * (scored.residual[:, None] + noise) - signals
        # K (target) = A' Y (Y'Y + R)^-1 target, by the factor that the score has computed.
        Li = scored.inverse_factor
        members = predicted.members + (target @ Li.mT @ (Li @ scored.anomalies.mT)) @ predicted.anomalies()
        return Ensemble(self.finish(predicted, members, scored.present), seeds)


def _factor(function: Callable[[Array], Any], X: Float[Array, "... K K"]) -> Any:
    """Factor matrices one after the other.

    A batched LAPACK call waits for threads of the pool it runs on: two at once, as in a step that has a Cholesky factor
    too, blocked each other for good on two cores (jaxlib 0.10). Single calls do not wait, and these matrices are small.
    """
    found = lax.map(function, X.reshape(-1, *X.shape[-2:]))
    return jax.tree.map(lambda a: a.reshape(*X.shape[:-2], *a.shape[1:]), found)


@jax.custom_jvp
def inverse_root(C: Float[Array, "... K K"]) -> Float[Array, "... K K"]:
    """Compute (I + C)^{-1/2} of a positive semidefinite C; its derivative does not divide by gaps of eigenvalues."""
    values, U = _factor(jnp.linalg.eigh, C)
    return (U / jnp.sqrt(1.0 + jnp.maximum(values, 0.0))[..., None, :]) @ U.mT


@inverse_root.defjvp
def _inverse_root_jvp(primals: Any, tangents: Any) -> Any:
    (C,), (dC,) = primals, tangents
    values, U = _factor(jnp.linalg.eigh, C)
    r = jnp.sqrt(1.0 + jnp.maximum(values, 0.0))
    # Divided differences of f(x) = (1 + x)^{-1/2}: -1 / (r_i r_j (r_i + r_j))  (Daleckii and Krein).
    a, b = r[..., :, None], r[..., None, :]
    inner = -(U.mT @ dC @ U) / (a * b * (a + b))
    return (U / r[..., None, :]) @ U.mT, U @ inner @ U.mT


def rotate_members(keys: Key[Array, " W"], members: Members) -> Members:
    """Rotate members at random around their mean: mean and covariance stay, outliers do not build up."""
    K = members.shape[1]
    # Columns of the basis: the direction of the mean, then K - 1 others.
    basis = jnp.linalg.qr(jnp.concatenate([jnp.ones((K, 1)), jnp.eye(K)[:, 1:]], axis=1))[0].astype(members.dtype)
    Q, R = _factor(jnp.linalg.qr, draw_normal(keys, (K - 1, K - 1), members.dtype))
    Q = Q * jnp.sign(jnp.diagonal(R, axis1=1, axis2=2))[:, None]
    within = basis[:, 1:]
    mean = jnp.mean(members, axis=1, keepdims=True)
    return mean + (within @ Q @ within.T) @ (members - mean)


class ETKF(EnsembleFilter):
    """The ensemble transform Kalman filter: a deterministic square root, symmetric, in the space of the members.

        C = Y R^-1 Y',   mean+ = mean + v R^-1 Y' (I + C)^-1 A,   A+ = (I + C)^{-1/2} A

    Bishop, Etherton and Majumdar (2001); Hunt, Kostelich and Szunyogh (2007).

    Attributes:
        rotate: Rotate members at random after each update (Sakov and Oke 2008).
    """

    size: int = 24
    rotate: bool = eqx.field(static=True, default=True)

    def assimilate(self, predicted: Ensemble, scored: EnsembleScore) -> Ensemble:
        K, Y = predicted.members.shape[1], scored.anomalies
        weight = scored.present / scored.variance
        root = inverse_root((Y * weight[:, None]) @ Y.mT)
        A = predicted.anomalies()
        # (I + C)^-1 is the square of its root.
        to_mean = ((scored.residual * weight)[:, None] @ Y.mT) @ root @ root
        members = (predicted.mean[:, None] + to_mean @ A) + sqrt(K - 1) * (root @ A)
        return self._rotate(predicted, members, scored.present)

    def _rotate(self, predicted: Ensemble, members: Members, present: Readings) -> Ensemble:
        seeds = predicted.seeds
        if self.rotate:
            seeds, keys = split_seeds(seeds)
            # In a gap too, rotations would mix members at every step, and the flow would bend what they had not bent.
            members = rotate_members(keys, members)
        return Ensemble(self.finish(predicted, members, present), seeds)


def gaspari_cohn(distance: Float[Array, "..."], radius: Any) -> Float[Array, "..."]:
    """Compute the compactly supported correlation of Gaspari and Cohn (1999), Eq. 4.10.

    It resembles exp(-d^2 / (2 radius^2)) and is 0 beyond 2 sqrt(10/3) radius.
    """
    r = distance / (sqrt(10.0 / 3.0) * radius)
    near = 1.0 - 5.0 / 3.0 * r**2 + 5.0 / 8.0 * r**3 + 0.5 * r**4 - 0.25 * r**5
    safe = jnp.maximum(r, 1e-3)
    far = 4.0 - 5.0 * r + 5.0 / 3.0 * r**2 + 5.0 / 8.0 * r**3 - 0.5 * r**4 + r**5 / 12.0 - 2.0 / (3.0 * safe)
    return jnp.where(r <= 1.0, near, jnp.where(r <= 2.0, far, 0.0))


class LETKF(ETKF):
    """The local ETKF: every latent coordinate assimilates the readings near it (Hunt, Kostelich and Szunyogh 2007).

    Attributes:
        radius: Of Gaspari-Cohn's taper, in units of `positions`; an array can be trained.
        positions: Where latent coordinates are, (M,) or M points; by default 0, 1, 2, ...
        period: Length of a ring on which positions lie; None: a line.
    """

    size: int = 7
    radius: Float[Array, ""] | float = 4.0
    positions: tuple[Any, ...] | None = eqx.field(static=True, default=None)
    period: float | None = eqx.field(static=True, default=None)
    rotate: bool = eqx.field(static=True, default=False)

    def _distances(self, observation: ObservationMap, dtype: Any) -> tuple[Array, Array]:
        """Compute distances of coordinates to readings, (M, N), and between readings; a reading is where B looks."""
        M = observation.latent_dim
        places = jnp.asarray(range(M) if self.positions is None else self.positions, dtype)
        places = places[:, None] if places.ndim == 1 else places
        if len(places) != M:
            raise ConfigError(f"The filter letkf has positions of {len(places)} coordinates; the state has {M}.")
        B = jnp.abs(observation.matrix()).astype(dtype)
        read = places[jnp.argmax(B, axis=1)]

        def between(a: Array, b: Array) -> Array:
            gap = jnp.abs(a[:, None] - b[None])
            gap = gap if self.period is None else jnp.minimum(gap % self.period, self.period - gap % self.period)
            return jnp.sqrt(jnp.sum(gap**2, axis=2))

        return between(places, read), between(read, read)

    def taper(self, observation: ObservationMap, dtype: Any) -> Float[Array, "N N"]:
        return gaspari_cohn(self._distances(observation, dtype)[1], self.radius)

    def score(
        self, predicted: Ensemble, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> Any:
        scored = super().score(predicted, x, mask, observation, observation_variance)
        local = gaspari_cohn(self._distances(observation, x.dtype)[0], self.radius)
        return scored._replace(local=jnp.broadcast_to(local, (len(x), *local.shape)))

    def assimilate(self, predicted: Ensemble, scored: Any) -> Ensemble:
        K, Y, A, v = predicted.members.shape[1], scored.anomalies, predicted.anomalies(), scored.residual

        def one(near: Readings, a: Float[Array, "W K"]) -> Float[Array, "W K"]:
            weight = near * scored.present / scored.variance
            root = inverse_root((Y * weight[:, None]) @ Y.mT)
            to_mean = ((v * weight)[:, None] @ Y.mT) @ root @ root
            return (to_mean @ a[:, :, None])[:, :, 0] + sqrt(K - 1) * (root @ a[:, :, None])[:, :, 0]

        moved = jax.vmap(one, in_axes=(1, 2), out_axes=2)(scored.local, A)
        return self._rotate(predicted, predicted.mean[:, None] + moved, scored.present)
