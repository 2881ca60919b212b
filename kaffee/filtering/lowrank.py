"""Diagonal plus low rank: P = diag(d) + L L', so that a filter of M latents costs M^2 r instead of M^3.

The update is exact in this family where B picks coordinates (a diagonal minus rank r precision stays one):

    D = d_o + Lambda,   G = I + L_o' D^-1 L_o,   log det Omega = sum log D + log det G,   Omega^-1 by Woodbury,
    d+ = d Lambda / (d + Lambda) on observed rows,   L+ = diag(d+ / d) L chol(G^-1)

The prediction T = J (diag(d) + L L') J' is projected by a single-pass Nystrom approximation, Y = T V,
L' = Y chol(V'Y)^-T, d' = diag T - rowsum L'^2 + Gamma with exact diag T. Variances are therefore exact and only
correlations are lost; with r = M it is the dense filter. Which ones are lost is V's choice, a constant to gradients:

    V = G^1/2 qr(G^1/2 J L),   G = H + K^2 diag(J' G J),   H = diag(B' diag(Omega)^-1 B),   K = 1 - diag(P) H

J L is the span that the filtered belief has, moved; multiplying by T adds what noise has brought. An error E of P costs
about tr(Omega^-1 B E B' Omega^-1 B E B') / 4 nats at the next reading, that at later ones after updates and steps: G is
the diagonal of the Gramian of the readings to come, so that V leans to what they will show (`relevance`).

Its dear products are J L, J'V and Y, of size M^2 r with a dense core. They are kept for the gradient (`keep`), which
has five more on its way back: eight in all, and memory of four M r numbers per step and window.
"""

from collections.abc import Callable
from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError
from kaffee.filtering.beliefs import Filter
from kaffee.filtering.gaussian import Belief, Readings, Seen, Variances, invert_factor, relative_jitter
from kaffee.model.core import Core, Covariances, States, keep
from kaffee.model.observation import ObservationMap, Projection

Factor = Float[Array, "W M r"]

# Readings ahead that the Gramian looks. With the Jacobian of now for those to come, more of them add little.
LOOKAHEAD = 3
# Of the largest entry of V'TV: its other entries are no more precise than this.
_ROUNDINGS = 10.0


class LowRankBelief(NamedTuple):
    """A batch of N(mean, diag(diagonal) + factor factor'), with what a reading tells of every coordinate.

    `information` is H of the last reading, all entries of it present: 1 / its variance where B picks coordinates.
    `relevance` is the Gramian's diagonal that follows from it, by the Jacobian of the last prediction.
    """

    mean: States
    diagonal: States
    factor: Factor
    information: States
    relevance: States

    def moments(self) -> Belief:
        """Return the dense Gaussian."""
        return Belief(self.mean, jax.vmap(jnp.diag)(self.diagonal) + self.factor @ self.factor.mT)

    def variances(self) -> States:
        """Return the diagonal of P."""
        return self.diagonal + jnp.sum(self.factor**2, axis=2)

    def signal_variance(self, observation: ObservationMap) -> Readings:
        """Return the diagonal of B P B'."""
        if isinstance(observation, Projection):
            return observation.observe(self.variances())
        B = observation.tangent(self.mean).matrix()
        return jnp.einsum("...nm,wm->wn", B**2, self.diagonal) + jnp.sum((B @ self.factor) ** 2, axis=2)

    def draw(self, key: Key[Array, ""], num_members: int) -> Float[Array, "K W M"]:
        """Draw states: independent noise of the diagonal and r common directions."""
        own, common = jax.random.split(key)
        W, M, r = self.factor.shape
        independent = jax.random.normal(own, (num_members, W, M), self.mean.dtype) * jnp.sqrt(self.diagonal)
        weights = jax.random.normal(common, (num_members, W, r), self.mean.dtype)
        return self.mean + independent + jnp.einsum("wmr,kwr->kwm", self.factor, weights)


class LowRankScore(NamedTuple):
    """A reading compared with a low-rank belief, with what the update needs of it.

    `change` is P B' Omega^-1 v, that of the mean; the last three are those of the filtered belief.
    """

    residual: Readings
    whitened: Readings
    nll: Float[Array, " W"]
    change: States
    diagonal: States
    factor: Factor
    information: States


def _cholesky(S: Float[Array, "W r r"]) -> Float[Array, "W r r"]:
    """Factor a matrix whose rounding error scales with its diagonal, and with the largest entry of it."""
    variances = jnp.diagonal(S, axis1=1, axis2=2)
    largest = jnp.max(variances, axis=1, keepdims=True)
    # A floor far below any variance of use keeps directions without any spread finite.
    floor = 1e-30 if S.dtype == jnp.float32 else 1e-200
    jitter = relative_jitter(S.dtype) * variances + _ROUNDINGS * jnp.finfo(S.dtype).eps * largest + floor
    return lax.linalg.cholesky(S + jax.vmap(jnp.diag)(jitter), symmetrize_input=True)


def project(
    product: Callable[[Factor], Factor], diagonal: States, span: Factor, weight: States
) -> tuple[States, Factor]:
    """Approximate a covariance T, given as X -> T X and its diagonal, by diag(d) + L L'; returns d and L.

    d is not negative: the Nystrom approximation never exceeds T, but for rounding.
    """
    # The factorisation is made where it is used: one that nothing waits for would run beside others, and two batched
    # LAPACK calls at once can block each other for good in jaxlib 0.10 on two cores.
    root = jnp.sqrt(weight)[:, :, None]
    V = root * jnp.linalg.qr(root * lax.stop_gradient(span))[0]
    Y = product(V)
    L = Y @ invert_factor(_cholesky(V.mT @ Y)).mT
    return jnp.maximum(diagonal - jnp.sum(L**2, axis=2), 0.0), L


def relevance(J: Any, variance: States, information: States) -> States:
    """Compute G, what an error of every coordinate costs at readings to come, by the Jacobian of now."""
    kept = jnp.clip(1.0 - variance * information, 0.0, 1.0) ** 2
    G = information
    for _ in range(LOOKAHEAD):
        G = information + kept * J.square_apply_transposed(G)
    # Coordinates that nothing shows stay in the basis, if last: with r = M all of them are needed.
    return jnp.maximum(G, jnp.finfo(G.dtype).eps ** 0.5 * jnp.max(G, axis=1, keepdims=True))


class LowRank(Filter):
    """The extended Kalman filter with P = diag(d) + L L' of rank r; a rank beyond M is M.

    Attributes:
        inflation: Factor of the transported spread, as in `Dense`.
    """

    rank: int = 20
    inflation: Float[Array, ""] | float = 1.0

    def __check_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"A low-rank filter needs a rank of at least 1, as in lowrank:20; not {self.rank}.")

    def _largest(self, variance: States) -> Factor:
        """Return unit vectors of the coordinates of the largest variance."""
        M = variance.shape[1]
        largest = lax.stop_gradient(lax.top_k(variance, min(self.rank, M))[1])
        return jnp.swapaxes(jax.nn.one_hot(largest, M, dtype=variance.dtype), 1, 2)

    def start(self, mean: States, covariance: Covariances) -> LowRankBelief:
        """Project a dense covariance, on its largest columns first: a diagonal one of few large entries is exact."""
        diagonal, even = jnp.diagonal(covariance, axis1=1, axis2=2), jnp.ones_like(mean)
        L = project(lambda X: covariance @ X, diagonal, self._largest(diagonal), even)[1]
        # Uncorrelated coordinates stay so: rounding aside, projecting a diagonal matrix on unit vectors is exact.
        return LowRankBelief(mean, *project(lambda X: covariance @ X, diagonal, L, even), even, even)

    def start_independent(self, mean: States, variance: States) -> LowRankBelief:
        """Write the largest variances as a factor: nothing is lost, and nothing of size M^2 is built."""
        V = self._largest(variance)
        # The root of a variance of 0 has no derivative.
        std = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
        even = jnp.ones_like(mean)
        return LowRankBelief(mean, variance * (1.0 - jnp.sum(V, axis=2)), std[:, :, None] * V, even, even)

    def predict(
        self, core: Core, process_variance: Float[Array, "#W M"], belief: LowRankBelief, *, transport: bool
    ) -> LowRankBelief:
        scale = self.inflation**2
        if not transport:
            d = scale * belief.diagonal + process_variance
            told = belief.information, belief.relevance
            return LowRankBelief(core.predict_mean(belief.mean), d, self.inflation * belief.factor, *told)
        mean, J = core.linearise_products(belief.mean)
        # Three products of size M^2 r; with these kept, the way back has five more and none of the first.
        d, JL = belief.diagonal, keep(J.apply(belief.factor))

        def product(V: Factor) -> Factor:
            back = J.apply_transposed(V)  # keeps its own
            return keep(J.apply(d[:, :, None] * back) + JL @ (belief.factor.mT @ back))

        diagonal = J.square_apply(d) + jnp.sum(JL**2, axis=2)
        weight = lax.stop_gradient(relevance(J, scale * diagonal + process_variance, belief.information))
        rest, L = project(product, diagonal, JL, weight)
        return LowRankBelief(mean, scale * rest + process_variance, self.inflation * L, belief.information, weight)

    def score(
        self,
        predicted: LowRankBelief,
        x: Readings,
        mask: Seen,
        observation: ObservationMap,
        observation_variance: Variances,
    ) -> LowRankScore:
        present = mask.astype(predicted.mean.dtype)
        v = jnp.where(mask, x - observation.observe(predicted.mean), 0.0)
        if not isinstance(observation, Projection):
            return self._score_any(predicted, v, present, observation, observation_variance)
        d, L, N = predicted.diagonal, predicted.factor, observation.num_observed
        told = observation.lift(_precision(predicted, observation, observation_variance))
        # Missing: 1 / D = 0 takes the entry out of G, and log D = 0 out of the likelihood.
        D = jnp.where(mask, (d[:, :N] + observation_variance) * (1.0 + relative_jitter(d.dtype)), 1.0)
        weight = present / D
        Lo = L[:, :N]
        G = jnp.eye(L.shape[2], dtype=d.dtype) + Lo.mT @ (weight[:, :, None] * Lo)
        R = lax.linalg.cholesky(G, symmetrize_input=True)
        Ri = invert_factor(R)
        reduced = Ri @ (Lo.mT @ (weight * v)[:, :, None])
        nis = jnp.sum(weight * v**2, axis=1) - jnp.sum(reduced[:, :, 0] ** 2, axis=1)
        log_det = 0.5 * jnp.sum(jnp.log(D), axis=1) + jnp.sum(jnp.log(jnp.diagonal(R, axis1=1, axis2=2)), axis=1)
        nll = log_det + 0.5 * nis + 0.5 * log(2.0 * pi) * jnp.sum(present, axis=1)
        # Omega^-1 v = D^-1 (v - L_o G^-1 L_o' D^-1 v)
        solved = Ri.mT @ reduced
        u = weight * (v - (Lo @ solved)[:, :, 0])
        Bu = observation.lift(u)
        change = d * Bu + (L @ (L.mT @ Bu[:, :, None]))[:, :, 0]
        kept = jnp.concatenate([1.0 - weight * d[:, :N], jnp.ones_like(d[:, N:])], axis=1)
        # L+ = diag(kept) L R^-T, since G^-1 = R^-T R^-1.
        posterior = (kept[:, :, None] * L) @ Ri.mT
        return LowRankScore(v, _whiten(v, weight, nis), nll, change, kept * d, posterior, told)

    def _score_any(
        self,
        predicted: LowRankBelief,
        v: Readings,
        present: Readings,
        observation: ObservationMap,
        observation_variance: Variances,
    ) -> LowRankScore:
        """Score by a dense Omega and project the filtered covariance, where B is no choice of coordinates."""
        d, L = predicted.diagonal, predicted.factor
        B = observation.tangent(predicted.mean).matrix()
        precision = _precision(predicted, observation, observation_variance)
        told = jnp.einsum("...nm,wn->wm", lax.stop_gradient(B) ** 2, precision)
        B = present[:, :, None] * B
        BL = B @ L
        BP = B * d[:, None, :] + BL @ L.mT
        S = BP @ B.mT
        variances = jnp.diagonal(S, axis1=1, axis2=2) + present * observation_variance
        extra = present * observation_variance + relative_jitter(d.dtype) * variances + (1.0 - present)
        R = lax.linalg.cholesky(S + jax.vmap(jnp.diag)(extra), symmetrize_input=True)
        Ri = invert_factor(R)
        y, C = (Ri @ v[:, :, None])[:, :, 0], Ri @ BP
        log_det = jnp.sum(jnp.log(jnp.diagonal(R, axis1=1, axis2=2)), axis=1)
        nll = log_det + 0.5 * jnp.sum(y**2, axis=1) + 0.5 * log(2.0 * pi) * jnp.sum(present, axis=1)

        def product(V: Factor) -> Factor:
            return d[:, :, None] * V + L @ (L.mT @ V) - C.mT @ (C @ V)

        diagonal = d + jnp.sum(L**2, axis=2) - jnp.sum(C**2, axis=1)
        rest, factor = project(product, diagonal, L, predicted.relevance)
        change = jnp.einsum("wnm,wn->wm", C, y)
        return LowRankScore(v, y, nll, change, rest, factor, told)

    def assimilate(self, predicted: LowRankBelief, scored: LowRankScore) -> LowRankBelief:
        mean = predicted.mean + scored.change
        return LowRankBelief(mean, scored.diagonal, scored.factor, scored.information, predicted.relevance)


def _precision(predicted: LowRankBelief, observation: ObservationMap, observation_variance: Variances) -> Readings:
    """Compute diag(Omega)^-1 as if nothing were missing, a constant to gradients."""
    return lax.stop_gradient(1.0 / (predicted.signal_variance(observation) + observation_variance))


def _whiten(v: Readings, weight: Readings, nis: Float[Array, " W"]) -> Readings:
    """Scale residuals by their own variances so that their squares add up to the NIS, which needs no N x N factor."""
    rough = jnp.sqrt(weight) * v
    total = jnp.sum(rough**2, axis=1)
    ratio = jnp.where(total > 0, jnp.maximum(nis, 0.0) / jnp.where(total > 0, total, 1.0), 1.0)
    return lax.stop_gradient(jnp.sqrt(ratio)[:, None] * rough)
