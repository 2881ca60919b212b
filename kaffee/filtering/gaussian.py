"""Conditioning a Gaussian belief on a linear observation with missing entries: pure linear algebra.

One Cholesky factor S = L L' serves the likelihood, the gain and the posterior:

    C = L^-1 B P,   y = L^-1 v,   z+ = z + C' y,   P+ = P - C' C,   K = C' L^-T,
    -log p(x) = sum log diag L + y' y / 2 + (number observed) log(2 pi) / 2

A missing entry gets a zero row in B and v and a unit diagonal in S: it adds exactly 0 to the likelihood and
leaves the belief alone, while every shape stays static.

A tall map, x = C s + b + noise of more channels N than components s = z_1..z_K, is conditioned on in K dimensions
(the matrix inversion lemma): with R the noise of the entries that were read, v the residual, G = C' R^-1 C = U U',

    v~ = U^-1 C' R^-1 v = U' (s - s_predicted) + noise of variance 1,    r = v - C G^-1 C' R^-1 v
    -log p(x) = -log p(v~) + (log det R + r' R^-1 r + (number observed - K) log 2 pi) / 2
"""

from math import log, pi
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Key

from kaffee.model.core import Covariances, States
from kaffee.model.observation import LinearObservation, ObservationMap

# Share of itself by which every diagonal entry of S grows. S is computed as J P J' + ..., whose rounding error scales
# with the covariance: a constant would do nothing when covariances are large, and a share of the mean variance would
# cost precise channels beside noisy ones 0.56 nats per step at a ratio of 1000 between standard deviations.
_RELATIVE_JITTER = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-2, "float16": 1e-3}
# Of the information of a row: a few roundings, since no gain is computed from what has none.
_INFORMATION_JITTER = 64.0

Readings = Float[Array, "W N"]
Seen = Bool[Array, "W N"]
Variances = Float[Array, "*#W N"]


class Belief(NamedTuple):
    """A batch of Gaussian beliefs N(mean, covariance), the dense representation (see `kaffee.filtering.beliefs`)."""

    mean: States
    covariance: Covariances

    def moments(self) -> "Belief":
        """Return the dense Gaussian with the same mean and covariance."""
        return self

    def variances(self) -> States:
        """Take the diagonal; rounding may leave what is zero in exact arithmetic a hair below."""
        return jnp.maximum(jnp.diagonal(self.covariance, axis1=-2, axis2=-1), 0.0)

    def signal_variance(self, observation: ObservationMap) -> Readings:
        """Compute the diagonal of B P B'."""
        B = observation.tangent(self.mean)
        projected = B.columns(B.rows(self.covariance))
        return jnp.maximum(jnp.diagonal(projected, axis1=-2, axis2=-1), 0.0)

    def draw(self, key: Key[Array, ""], num_members: int) -> Float[Array, "K W M"]:
        """Draw states; the root is made of eigenvalues, which tolerates rounding below zero."""
        values, vectors = jnp.linalg.eigh(self.covariance)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
        noise = jax.random.normal(key, (num_members, *self.mean.shape), self.mean.dtype)
        return self.mean + jnp.einsum("sij,ksj->ksi", root, noise)


class Innovation(NamedTuple):
    """The comparison of an observation with a predicted belief: v (0 where missing), L^-1, y, C and -log p(x).

    Of a tall map L^-1 and C are those of the K numbers v~ (see above), `reduced` is y~ = L^-1 v~, and y has N entries
    again, R^-1/2 r + R^-1/2 C U^-T y~: independent ones of variance 1, as many as were read.
    """

    residual: Readings
    inverse_factor: Float[Array, "W K K"]
    whitened: Readings
    projected: Float[Array, "W K M"]
    nll: Float[Array, " W"]
    reduced: Float[Array, "W K"] | None = None

    @property
    def normalised(self) -> Float[Array, "W K"]:
        """The whitened numbers that the belief is conditioned on, L^-1 v."""
        return self.whitened if self.reduced is None else self.reduced


class Compressed(NamedTuple):
    """What a reading of a tall map says of the K components: v~ = `factor` (s - s_predicted) + noise of variance 1.

    Attributes:
        residual: v~.
        factor: U', up to the jitter of G.
        constant: The rest of -log p(x), which no belief changes.
        rest: R^-1/2 r.
        frame: R^-1/2 C U^-T, whose columns are orthonormal.
    """

    residual: Float[Array, "W K"]
    factor: Float[Array, "W K K"]
    constant: Float[Array, " W"]
    rest: Readings
    frame: Float[Array, "W N K"]


def relative_jitter(dtype: Any) -> float:
    """Return the jitter's share of each innovation variance, for a floating-point type."""
    return _RELATIVE_JITTER[jnp.dtype(dtype).name]


def invert_factor(L: Float[Array, "W K K"]) -> Float[Array, "W K K"]:
    """Invert a triangular factor; multiplying by the inverse is far faster than wide solves on CPUs."""
    identity = jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape)
    return lax.linalg.triangular_solve(L, identity, left_side=True, lower=True)


def innovation_covariance(
    covariance: Covariances, present: Readings, observation: ObservationMap, observation_variance: Variances
) -> tuple[Float[Array, "W N M"], Float[Array, "W N N"]]:
    """Compute B P and Omega, with missing rows masked and the scaled jitter added (Eq. kf_innovation_cov)."""
    BP = present[:, :, None] * observation.rows(covariance)
    BPB = observation.columns(BP) * present[:, None, :]
    variances = jnp.diagonal(BPB, axis1=1, axis2=2) + present * observation_variance
    jitter = relative_jitter(covariance.dtype) * variances
    diagonal = present * observation_variance + jitter + (1.0 - present)
    return BP, BPB + jnp.eye(present.shape[1], dtype=covariance.dtype) * diagonal[:, None, :]


def compress(observation: LinearObservation, variance: Variances, mean: States, x: Readings, mask: Seen) -> Compressed:
    """Compress a reading of N channels into K numbers that say as much about the state."""
    present = mask.astype(mean.dtype)
    v = jnp.where(mask, x - observation.observe(mean), 0.0)
    weight = present * jax.lax.rsqrt(variance)
    scaled = weight[:, :, None] * observation.B
    G, y = scaled.mT @ scaled, weight * v
    h = jnp.einsum("wnk,wn->wk", scaled, y)
    # Directions that no entry of this row shows have no information: with the jitter their factor is 0, as it should.
    largest = jnp.max(jnp.diagonal(G, axis1=1, axis2=2), axis=1)
    floor = _INFORMATION_JITTER * jnp.finfo(mean.dtype).eps * jnp.where(largest > 0, largest, 1.0)
    U = lax.linalg.cholesky(G + floor[:, None, None] * jnp.eye(G.shape[-1], dtype=G.dtype), symmetrize_input=False)
    Ui = invert_factor(U)
    residual = jnp.einsum("wij,wj->wi", Ui, h)
    frame = scaled @ Ui.mT
    rest = y - jnp.einsum("wnk,wk->wn", frame, residual)
    count = jnp.sum(present, axis=1)
    logs = jnp.sum(present * jnp.log(variance), axis=1)
    constant = 0.5 * (logs + jnp.sum(rest**2, axis=1) + log(2.0 * pi) * count)
    return Compressed(residual, Ui @ G, constant, rest, frame)


def any_seen(mask: Seen, residual: Float[Array, "W K"]) -> Float[Array, "W K"]:
    """Return 1 for the K numbers of a row of which anything was read, 0 for those of an empty one."""
    return jnp.broadcast_to(jnp.any(mask, axis=1)[:, None], residual.shape).astype(residual.dtype)


def is_tall(observation: ObservationMap) -> bool:
    """Tell whether readings are compressed before a belief is conditioned on them."""
    return isinstance(observation, LinearObservation) and observation.tall


def innovate(
    belief: Belief, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
) -> Innovation:
    """Compare a predicted belief with an observation."""
    present = mask.astype(belief.mean.dtype)
    if isinstance(observation, LinearObservation) and observation.tall:
        few = compress(observation, observation_variance, belief.mean, x, mask)
        seen, some = LinearObservation(few.factor, hidden=observation.hidden), any_seen(mask, few.residual)
        Li, y, C, nll = _normalise(belief.covariance, few.residual, some, seen, jnp.ones_like(some[0]))
        whitened = few.rest + jnp.einsum("wnk,wk->wn", few.frame, y)
        residual = jnp.where(mask, x - observation.observe(belief.mean), 0.0)
        return Innovation(residual, Li, whitened, C, nll + few.constant, reduced=y)
    residual = jnp.where(mask, x - observation.observe(belief.mean), 0.0)
    observation = observation.tangent(belief.mean)
    Li, y, C, nll = _normalise(belief.covariance, residual, present, observation, observation_variance)
    constant = 0.5 * log(2.0 * pi) * jnp.sum(present, axis=1)
    return Innovation(residual, Li, y, C, nll + constant)


def _normalise(
    covariance: Covariances, residual: Array, present: Array, observation: ObservationMap, variance: Variances
) -> tuple[Array, Array, Array, Float[Array, " W"]]:
    """Compute L^-1, y, C and the likelihood without its constant."""
    BP, S = innovation_covariance(covariance, present, observation, variance)
    L = lax.linalg.cholesky(S, symmetrize_input=False)
    inverse_factor = invert_factor(L)
    whitened = jnp.einsum("bnm,bm->bn", inverse_factor, residual)
    log_det = jnp.sum(jnp.log(jnp.diagonal(L, axis1=1, axis2=2)), axis=1)
    nll = log_det + 0.5 * jnp.sum(whitened**2, axis=1)
    return inverse_factor, whitened, inverse_factor @ BP, nll


def assimilate(belief: Belief, innovation: Innovation) -> Belief:
    """Compute the filtered belief (Eqs. kf_update_mean and kf_update_cov), as symmetric as the predicted one."""
    C = innovation.projected
    # The barrier keeps the transpose a plain array: without it the product takes a slow path on CPUs.
    Ct = lax.optimization_barrier(C.mT)
    mean = belief.mean + jnp.einsum("bnm,bn->bm", C, innovation.normalised)
    return Belief(mean, belief.covariance - Ct @ C)


def gain(innovation: Innovation) -> Float[Array, "W M N"]:
    """Compute the gain K = P B' Omega^-1 (Eq. kf_gain)."""
    return innovation.projected.mT @ innovation.inverse_factor
