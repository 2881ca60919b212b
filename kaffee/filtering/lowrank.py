"""Diagonal plus low rank: P = diag(d) + L L', so that a filter of M latents costs M^2 r instead of M^3.

The update is exact in this family where B picks coordinates (a diagonal minus rank r precision stays one):

    D = d_o + Lambda,   G = I + L_o' D^-1 L_o,   log det Omega = sum log D + log det G,   Omega^-1 by Woodbury,
    d+ = d Lambda / (d + Lambda) on observed rows,   L+ = diag(d+ / d) L chol(G^-1)

The prediction T = J (diag(d) + L L') J' is projected by a single-pass Nystrom approximation on the basis of the last
step, a constant to gradients: V = qr(last Y), Y = T V, L' = Y chol(V'Y)^-T, d' = diag T - rowsum L'^2 + Gamma with
exact diag T. Variances are therefore exact and only correlations are lost; with r = M it is the dense filter.

Its dear products are J L, J'V and Y, of size M^2 r with a dense core. They are kept for the gradient (`keep`), which
has five more on its way back: eight in all, and memory of five M r numbers per step and window.
"""

from collections.abc import Callable
from math import log, pi
from typing import NamedTuple

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


class LowRankBelief(NamedTuple):
    """A batch of N(mean, diag(diagonal) + factor factor'), with what spans the basis of its next projection.

    The basis is made orthonormal when it is used and not before: a factorisation that nothing waits for would run
    beside others, and two batched LAPACK calls at once can block each other for good in jaxlib 0.10 on two cores.
    """

    mean: States
    diagonal: States
    factor: Factor
    basis: Factor

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
    basis: Factor


def _cholesky(S: Float[Array, "W r r"]) -> Float[Array, "W r r"]:
    """Factor a matrix whose rounding error scales with its diagonal."""
    jitter = relative_jitter(S.dtype) * jnp.diagonal(S, axis1=1, axis2=2)
    # A floor far below any variance of use keeps directions without any spread finite.
    floor = 1e-30 if S.dtype == jnp.float32 else 1e-200
    return lax.linalg.cholesky(S + jax.vmap(jnp.diag)(jitter + floor), symmetrize_input=True)


def project(product: Callable[[Factor], Factor], diagonal: States, basis: Factor) -> tuple[States, Factor, Factor]:
    """Approximate a covariance T, given as X -> T X and its diagonal, by diag(d) + L L'; returns d, L and a new basis.

    d is not negative: the Nystrom approximation never exceeds T, but for rounding.
    """
    V = jnp.linalg.qr(lax.stop_gradient(basis))[0]
    Y = product(V)
    R = _cholesky(V.mT @ Y)
    L = Y @ invert_factor(R).mT
    rest = jnp.maximum(diagonal - jnp.sum(L**2, axis=2), 0.0)
    return rest, L, lax.stop_gradient(Y)


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

    def _first_basis(self, variance: States) -> Factor:
        """Return unit vectors of the coordinates of the largest variance."""
        M = variance.shape[1]
        largest = lax.stop_gradient(lax.top_k(variance, min(self.rank, M))[1])
        return jnp.swapaxes(jax.nn.one_hot(largest, M, dtype=variance.dtype), 1, 2)

    def start(self, mean: States, covariance: Covariances) -> LowRankBelief:
        """Project a dense covariance, on its largest columns first: a diagonal one of few large entries is exact."""
        diagonal = jnp.diagonal(covariance, axis1=1, axis2=2)
        V = project(lambda X: covariance @ X, diagonal, self._first_basis(diagonal))[2]
        # Uncorrelated coordinates stay so: rounding aside, projecting a diagonal matrix on unit vectors is exact.
        return LowRankBelief(mean, *project(lambda X: covariance @ X, diagonal, V))

    def start_independent(self, mean: States, variance: States) -> LowRankBelief:
        """Take variances as they are: there is nothing to project, and nothing of size M^2 to build."""
        V = self._first_basis(variance)
        return LowRankBelief(mean, variance, jnp.zeros_like(V), V)

    def predict(
        self, core: Core, process_variance: Float[Array, "#W M"], belief: LowRankBelief, *, transport: bool
    ) -> LowRankBelief:
        scale = self.inflation**2
        if not transport:
            d = scale * belief.diagonal + process_variance
            return LowRankBelief(core.predict_mean(belief.mean), d, self.inflation * belief.factor, belief.basis)
        mean, J = core.linearise_products(belief.mean)
        # Three products of size M^2 r; with these kept, the way back has five more and none of the first.
        d, JL = belief.diagonal, keep(J.apply(belief.factor))

        def product(V: Factor) -> Factor:
            back = J.apply_transposed(V)  # keeps its own
            return keep(J.apply(d[:, :, None] * back) + JL @ (belief.factor.mT @ back))

        diagonal = J.square_apply(d) + jnp.sum(JL**2, axis=2)
        rest, L, V = project(product, diagonal, belief.basis)
        return LowRankBelief(mean, scale * rest + process_variance, self.inflation * L, V)

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
        return LowRankScore(v, _whiten(v, weight, nis), nll, change, kept * d, posterior, predicted.basis)

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
        B = present[:, :, None] * observation.tangent(predicted.mean).matrix()
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
        rest, factor, basis = project(product, diagonal, predicted.basis)
        change = jnp.einsum("wnm,wn->wm", C, y)
        return LowRankScore(v, y, nll, change, rest, factor, basis)

    def assimilate(self, predicted: LowRankBelief, scored: LowRankScore) -> LowRankBelief:
        return LowRankBelief(predicted.mean + scored.change, scored.diagonal, scored.factor, scored.basis)


def _whiten(v: Readings, weight: Readings, nis: Float[Array, " W"]) -> Readings:
    """Scale residuals by their own variances so that their squares add up to the NIS, which needs no N x N factor."""
    rough = jnp.sqrt(weight) * v
    total = jnp.sum(rough**2, axis=1)
    ratio = jnp.where(total > 0, jnp.maximum(nis, 0.0) / jnp.where(total > 0, total, 1.0), 1.0)
    return lax.stop_gradient(jnp.sqrt(ratio)[:, None] * rough)
