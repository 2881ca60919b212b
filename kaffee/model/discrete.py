"""Readings that are not Gaussian: counts (Poisson) and binary ones (Bernoulli), around a linear predictor.

    eta = offset + gain * s,   s = B z,      counts: x ~ Poisson(exp eta),   binary: x ~ Bernoulli(1 / (1 + exp(-eta)))

Everything around the likelihood works on standardised numbers, so readings are encoded on the scale of eta and come
back without loss: y = (t(x) - offset) / gain with t(x) = log(x + 1/2), or log 3 and -log 3 of ones and zeros
(`kaffee.data.scaler`). Offset and gain are the scaler's, so that s is a standardised log rate or log odds.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError, unknown

Kind = Literal["poisson", "bernoulli"]
KINDS: tuple[Kind, ...] = ("poisson", "bernoulli")
# Readings that tell next to nothing keep this much information, so that pseudo-readings stay finite.
_LEAST_INFORMATION = 1e-6
# Counts beyond exp(13.8), a million, are no counts of a cell of a recording; float32 is exact up to 16 million.
_LARGEST = 13.8
# Newton's steps towards a mode are no longer than this, in units of eta: exp(eta) makes undamped ones overshoot.
_LONGEST_STEP = 2.0
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class Discrete(eqx.Module):
    """The likelihood of encoded counts or binary readings y given the signal s = B z; works entry by entry.

    >>> counts = Discrete(jnp.zeros(1), jnp.ones(1), "poisson")
    >>> y = jnp.log(jnp.array([3.5]))
    >>> round(float(counts.decode(y)[0]), 3), round(float(counts.log_density(y, jnp.zeros(1))[0]), 4)
    (3.0, -2.7918)
    """

    offset: Float[Array, " N"]
    gain: Float[Array, " N"]
    kind: Kind = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(unknown("likelihood", self.kind, KINDS))

    def predictor(self, signal: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Compute eta, no larger than that of a million counts."""
        return jnp.minimum(self.offset + self.gain * signal, _LARGEST)

    def decode(self, y: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Return the count, or 0 or 1, that was encoded."""
        t = self.offset + self.gain * y
        whole = jnp.round(jnp.exp(t) - 0.5) if self.kind == "poisson" else (t > 0).astype(t.dtype)
        return jax.lax.stop_gradient(jnp.maximum(whole, 0.0))

    def encode(self, x: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Encode counts, or zeros and ones."""
        t = jnp.log(x + 0.5) if self.kind == "poisson" else jnp.log(3.0) * (2.0 * x - 1.0)
        return (t - self.offset) / self.gain

    def rate(self, signal: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Compute E[x | s]: the rate of counts, the probability of a one."""
        eta = self.predictor(signal)
        return jnp.exp(eta) if self.kind == "poisson" else jax.nn.sigmoid(eta)

    def log_density(self, y: Float[Array, "... N"], signal: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Compute log p(x | s) of the encoded reading, per entry."""
        eta, x = self.predictor(signal), self.decode(y)
        if self.kind == "poisson":
            return x * eta - jnp.exp(eta) - jax.scipy.special.gammaln(x + 1.0)
        return -jax.nn.softplus(jnp.where(x > 0, -eta, eta))

    def site(self, y: Float[Array, "... N"], signal: Float[Array, "... N"]) -> tuple[Array, Array]:
        """Expand log p(x | s) to second order at s: a Gaussian pseudo-reading of the signal and its variance.

        s + (x - mu) / (gain w) with variance 1 / (gain^2 w), mu the mean of x at s and w its variance.
        """
        variance = self.noise_variance(signal)
        return signal + self.gain * variance * (self.decode(y) - self.rate(signal)), variance

    def noise_variance(self, signal: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Compute the variance that a reading has around the signal, in units of the signal, to first order."""
        mean = self.rate(signal)
        weight = mean if self.kind == "poisson" else mean * (1.0 - mean)
        return 1.0 / (self.gain**2 * jnp.maximum(weight, _LEAST_INFORMATION))

    def damp(self, before: Float[Array, "... N"], after: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Shorten a step of the signal."""
        longest = _LONGEST_STEP / self.gain
        return before + jnp.clip(after - before, -longest, longest)

    def mode(
        self, y: Float[Array, "... N"], mean: Float[Array, "... N"], variance: Float[Array, "... N"], steps: int = 6
    ) -> Float[Array, "... N"]:
        """Find the mode of p(x | s) N(s; mean, variance), each entry on its own, by damped Newton steps."""
        at = mean
        for _ in range(steps):
            pseudo, noise = self.site(y, at)
            at = self.damp(at, (mean * noise + pseudo * variance) / (noise + variance))
        return at

    def draw(self, key: Key[Array, ""], signal: Float[Array, "... N"]) -> Float[Array, "... N"]:
        """Draw encoded readings of a signal."""
        rate = self.rate(signal)
        drawn = jax.random.poisson(key, rate) if self.kind == "poisson" else jax.random.bernoulli(key, rate)
        return self.encode(drawn.astype(signal.dtype))

    def cumulative(
        self, y: Float[Array, "... N"], mean: Float[Array, "... N"], variance: Float[Array, "... N"]
    ) -> tuple[Array, Array, Array]:
        """Compute P(X < x), P(X <= x) and P(X = x) of a reading whose signal is N(mean, variance).

        By Gauss-Hermite quadrature; a number drawn evenly between the first two is uniform if the prediction is right.
        """
        nodes, weights = (jnp.asarray(a, mean.dtype) for a in (_NODES, _WEIGHTS / _WEIGHTS.sum()))
        signal = mean[..., None] + jnp.sqrt(variance)[..., None] * nodes
        spread = Discrete(self.offset[..., None], self.gain[..., None], self.kind)
        rate, x = spread.rate(signal), self.decode(y)
        p = jnp.exp(spread.log_density(y[..., None], signal)) @ weights
        if self.kind == "poisson":
            below = jnp.where(x[..., None] > 0, jax.scipy.special.gammaincc(jnp.maximum(x[..., None], 1.0), rate), 0.0)
        else:
            below = jnp.where(x[..., None] > 0, 1.0 - rate, 0.0)
        low = below @ weights
        return low, low + p, p


def reading_noise(discrete: Discrete | None, variance: Any, signal: Float[Array, "... N"]) -> Any:
    """Return the variance of readings around a signal: Lambda of a Gaussian model, else that of the likelihood."""
    return variance if discrete is None else discrete.noise_variance(signal)
