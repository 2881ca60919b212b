"""The path along which proposition 1 and lemma 1 differentiate, as a core: the recursion itself can walk it."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.cores.core import Core


class Rescaled(Core):
    """The core with J(s) = s J in the covariance and F unchanged in the mean (lemma 1; s = e^s' in proposition 1).

    `jacobian` is therefore not the derivative of the step unless s = 1.
    """

    inner: Core
    scale: Float[Array, ""]

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.inner(z)

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        return self.scale * self.inner.jacobian(z)

    def predict_mean(self, z: Float[Array, "W M"]) -> Float[Array, "W M"]:
        return self.inner.predict_mean(z)

    def predict_moments(
        self, z: Float[Array, "W M"], covariance: Float[Array, "W M M"]
    ) -> tuple[Float[Array, "W M"], Float[Array, "W M M"]]:
        mean, transported = self.inner.predict_moments(z, covariance)
        return mean, jnp.square(self.scale) * transported
