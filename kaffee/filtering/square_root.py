"""The square-root extended Kalman filter: a triangular factor of the covariance is carried, and never its square.

With P = S S' a prediction and an update are one triangularisation each, A Q = L (Q orthogonal, L lower triangular):

    [J S   Gamma^1/2] -> S_pred,      [Lambda^1/2  B S]    [Omega^1/2         0  ]
                                      [    0        S ] -> [K Omega^1/2   S_plus ]

since both sides have the same A A' (Kaminski, Bryson and Schmidt 1971; Morf and Kailath 1975, after Potter). Nothing is
subtracted, so that no covariance has a negative variance whatever the rounding, and no step needs jitter: what precise
readings say of a state is not lost in float32. The price is QR in place of Cholesky, of M + N rows for every reading.
"""

from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from kaffee.filtering.beliefs import Filter
from kaffee.filtering.gaussian import Belief, Readings, Seen, Variances, relative_jitter
from kaffee.model.core import Core, Covariances, States, keep
from kaffee.model.observation import ObservationMap


class Rooted(NamedTuple):
    """A batch of Gaussian beliefs N(mean, S S') with lower triangular S."""

    mean: States
    root: Covariances

    def moments(self) -> Belief:
        """Return the dense Gaussian."""
        return Belief(self.mean, self.root @ self.root.mT)

    def variances(self) -> States:
        """Return the diagonal of S S'."""
        return jnp.sum(self.root**2, axis=2)

    def signal_variance(self, observation: ObservationMap) -> Readings:
        """Return the diagonal of B S S' B'."""
        return jnp.sum(observation.tangent(self.mean).rows(self.root) ** 2, axis=2)

    def draw(self, key: Key[Array, ""], num_members: int) -> Float[Array, "K W M"]:
        """Draw states: the root times standard normal numbers."""
        noise = jax.random.normal(key, (num_members, *self.mean.shape), self.mean.dtype)
        return self.mean + jnp.einsum("wij,kwj->kwi", self.root, noise)


class RootScore(NamedTuple):
    """A reading compared with N(mean, S S'): v, y = Omega^-1/2 v, -log p(x), and the filtered belief."""

    residual: Readings
    whitened: Readings
    nll: Float[Array, " W"]
    mean: States
    root: Covariances


def _solve(L: Float[Array, "W m m"], X: Float[Array, "W m n"]) -> Float[Array, "W m n"]:
    """Compute L^-1 X, window by window: two batched LAPACK calls at once can block each other (docs/filters.md)."""
    return lax.map(lambda pair: lax.linalg.triangular_solve(*pair, left_side=True, lower=True), (L, X))


@jax.custom_jvp
def triangularise(A: Float[Array, "W m n"]) -> Float[Array, "W m m"]:
    """Compute the lower triangular L with L L' = A A' and a positive diagonal, for n >= m columns.

    >>> print(triangularise(jnp.array([[[3.0, 4.0], [0.0, 5.0]]])))
    [[[5. 0.]
      [4. 3.]]]
    """
    R = lax.map(lambda a: jnp.linalg.qr(a, mode="r"), A.mT)
    return (R * jnp.where(jnp.diagonal(R, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, :, None]).mT


@triangularise.defjvp
def _triangularise_jvp(primals: Any, tangents: Any) -> Any:
    # L L' = A A' differentiated: L^-1 dL is the lower half of L^-1 (dA A' + A dA') L^-T. It needs no Q.
    (A,), (dA,) = primals, tangents
    L = keep(triangularise(A))
    Li = _solve(L, jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape))
    half = (Li @ dA) @ (Li @ A).mT
    inner = half + half.mT
    return L, L @ (jnp.tril(inner, -1) + 0.5 * inner * jnp.eye(L.shape[-1], dtype=L.dtype))


class SquareRoot(Filter):
    """The extended Kalman filter in square-root form: exact for linear models, and positive in any precision.

    The sum of two coordinates, each known to 1, is read to 1e-5. Its variance afterwards is 1e-10; in float32 the dense
    filter has that of its jitter.

    >>> from kaffee.filtering.beliefs import Dense
    >>> from kaffee.model.observation import LinearObservation
    >>> reading = (jnp.ones((1, 1)), jnp.ones((1, 1), bool), LinearObservation(jnp.ones((1, 2))), jnp.array([1e-10]))
    >>> for by in (SquareRoot(), Dense()):
    ...     start = by.start_independent(jnp.zeros((1, 2)), jnp.ones((1, 2)))
    ...     filtered = by.assimilate(start, by.score(start, *reading))
    ...     print(f"{float(filtered.signal_variance(reading[2])[0, 0]):.1e}")
    1.0e-10
    2.0e-05

    Attributes:
        inflation: Factor of the transported spread, as in `Dense`.
    """

    inflation: Float[Array, ""] | float = 1.0

    def start(self, mean: States, covariance: Covariances) -> Rooted:
        variances = jnp.diagonal(covariance, axis1=1, axis2=2)
        jitter = relative_jitter(mean.dtype) * variances + jnp.finfo(mean.dtype).tiny ** 0.5
        root = lax.linalg.cholesky(covariance + jax.vmap(jnp.diag)(jitter), symmetrize_input=True)
        return Rooted(mean, root)

    def start_independent(self, mean: States, variance: States) -> Rooted:
        return Rooted(mean, jax.vmap(jnp.diag)(jnp.sqrt(variance)))

    def predict(self, core: Core, process_variance: Float[Array, "#W M"], belief: Rooted, *, transport: bool) -> Rooted:
        if transport:
            mean, J = core.linearise_products(belief.mean)
            moved = J.apply(belief.root)
        else:
            mean, moved = core.predict_mean(belief.mean), belief.root
        noise = jnp.sqrt(jnp.broadcast_to(process_variance, mean.shape))
        return Rooted(mean, triangularise(jnp.concatenate([self.inflation * moved, jax.vmap(jnp.diag)(noise)], axis=2)))

    def score(
        self, predicted: Rooted, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> RootScore:
        """Triangularise the array of the update: its first columns score the reading, its last are the new root."""
        N, present = x.shape[1], mask.astype(predicted.mean.dtype)
        v = jnp.where(mask, x - observation.observe(predicted.mean), 0.0)
        # A missing entry has a row of zeros in B and a noise of its own, of variance 1: it adds 0 and changes nothing.
        deviation = jnp.sqrt(jnp.where(mask, observation_variance, 1.0))
        BS = present[:, :, None] * observation.tangent(predicted.mean).rows(predicted.root)
        above = jnp.concatenate([jax.vmap(jnp.diag)(deviation), BS], axis=2)
        below = jnp.pad(predicted.root, ((0, 0), (0, 0), (N, 0)))
        L = triangularise(jnp.concatenate([above, below], axis=1))
        y = _solve(L[:, :N, :N], v[:, :, None])[:, :, 0]
        log_det = jnp.sum(jnp.log(jnp.diagonal(L, axis1=1, axis2=2)[:, :N]), axis=1)
        nll = log_det + 0.5 * jnp.sum(y**2, axis=1) + 0.5 * log(2.0 * pi) * jnp.sum(present, axis=1)
        mean = predicted.mean + jnp.einsum("wmn,wn->wm", L[:, N:, :N], y)
        return RootScore(v, y, nll, mean, L[:, N:, N:])

    def assimilate(self, predicted: Rooted, scored: RootScore) -> Rooted:
        return Rooted(scored.mean, scored.root)
