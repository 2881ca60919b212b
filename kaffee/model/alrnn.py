"""The almost-linear RNN (appendix C.1) with products that never build its Jacobian."""

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError
from kaffee.model import gates
from kaffee.model.core import Core, MomentCotangents, times_shared


class ALRNN(Core):
    """z' = A z + W phi(z) + h, where phi gates the last P coordinates only (Eq. alrnn).

    Its Jacobian is J = diag(A) + W diag(d), d = 1 for linear coordinates and the gate's slope for gated ones,
    so that J X = A * X + W (d * X): the weights W are shared by a whole batch of windows.

    Attributes:
        A: Diagonal of the linear part, (M,).
        W: Connectivity, (M, M).
        h: Bias, (M,).
        num_gates: P, how many of the last coordinates pass a ReLU.
        gate: "hard" (ReLU and its exact derivative), "straight_through" (ReLU forward, smooth derivative; how the
            paper trains) or "smooth" (the surrogate in both directions).
        temperature: tau of the surrogate.
    """

    A: Float[Array, " M"]
    W: Float[Array, "M M"]
    h: Float[Array, " M"]
    num_gates: int = eqx.field(static=True)
    gate: str = eqx.field(static=True, default="hard")
    temperature: float = eqx.field(static=True, default=1.0)

    def __check_init__(self) -> None:
        gates.check_mode(self.gate)
        if not 0 <= self.num_gates <= self.latent_dim:
            raise ConfigError(f"num_gates must lie between 0 and latent_dim = {self.latent_dim}, not {self.num_gates}.")
        if not self.temperature > 0:
            raise ConfigError(f"The gate's temperature must be positive, not {self.temperature}.")

    @classmethod
    def create(cls, latent_dim: int, num_gates: int, *, key: Key[Array, ""], dtype: Any = jnp.float32) -> "ALRNN":
        """The paper's initialisation: h = 0, W_ij ~ N(0, 0.01^2), A from a normalised positive-definite matrix.

        >>> core = ALRNN.create(100, 50, key=jax.random.key(0))
        >>> core.W.shape, bool(0.3 < core.A.mean() < 0.5)
        ((100, 100), True)
        """
        key_A, key_W = jax.random.split(key)
        R = jax.random.normal(key_A, (latent_dim, latent_dim), dtype)
        positive = R.T @ R / latent_dim + jnp.eye(latent_dim, dtype=dtype)
        A = jnp.diagonal(positive) / jnp.linalg.eigvalsh(positive)[-1]
        W = 0.01 * jax.random.normal(key_W, (latent_dim, latent_dim), dtype)
        return cls(A=A, W=W, h=jnp.zeros(latent_dim, dtype), num_gates=num_gates)

    @property
    def latent_dim(self) -> int:
        return self.h.shape[0]

    def with_gate(self, gate: str) -> "ALRNN":
        """The same weights under another gate."""
        return ALRNN(self.A, self.W, self.h, self.num_gates, gate, self.temperature)

    def exact(self) -> "ALRNN":
        return self.with_gate("hard") if self.gate == "straight_through" else self

    def surrogate(self) -> "ALRNN":
        return self.with_gate("straight_through") if self.gate == "hard" else self

    def _gated(self, z: Float[Array, "... M"], function: Any, linear: Any) -> Float[Array, "... M"]:
        split = self.latent_dim - self.num_gates
        gated = function(z[..., split:], self.gate, self.temperature)
        return jnp.concatenate([linear(z[..., :split]), gated], axis=-1)

    def activation(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """phi(z)."""
        return self._gated(z, gates.value, lambda linear: linear)

    def slopes(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """d, the diagonal of D."""
        return self._gated(z, gates.slope, jnp.ones_like)

    def curvatures(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """dd/dz, how the diagonal of D depends on the state."""
        return self._gated(z, gates.curvature, jnp.zeros_like)

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return self.A * z + self.W @ self.activation(z) + self.h

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        return jnp.diag(self.A) + self.W * self.slopes(z)

    def stepper(self) -> Callable[[Float[Array, "W M"]], Float[Array, "W M"]]:
        # A transposed right-hand side is a slow path of small products on CPUs; the barrier keeps it a plain array.
        Wt = jax.lax.optimization_barrier(self.W.T)
        return lambda z: self.A * z + self.activation(z) @ Wt + self.h

    def pull_back_mean(
        self, z: Float[Array, "W M"], mean_bar: Float[Array, "W M"], *, with_core: bool
    ) -> tuple[Any, Float[Array, "W M"]]:
        """J' mean_bar, and W_bar = sum_b mean_bar phi(z)'."""
        previous_mean_bar = self.A * mean_bar + (mean_bar @ self.W) * self.slopes(z)
        if not with_core:
            return None, previous_mean_bar
        core_bar = ALRNN(
            A=jnp.sum(mean_bar * z, axis=0),
            W=jax.lax.optimization_barrier(mean_bar.T) @ self.activation(z),
            h=jnp.sum(mean_bar, axis=0),
            num_gates=self.num_gates,
            gate=self.gate,
            temperature=self.temperature,
        )
        return core_bar, previous_mean_bar

    def predict_moments(
        self, z: Float[Array, "W M"], covariance: Float[Array, "W M M"]
    ) -> tuple[Float[Array, "W M"], Float[Array, "W M M"]]:
        d = self.slopes(z)
        PJt = covariance * self.A + times_shared(covariance * d[:, None, :], self.W.T)
        JP = PJt.mT
        transported = JP * self.A + times_shared(JP * d[:, None, :], self.W.T)
        return self.predict_mean(z), transported

    def pull_back_moments(
        self,
        z: Float[Array, "W M"],
        covariance: Float[Array, "W M M"],
        mean_bar: Float[Array, "W M"],
        covariance_bar: Float[Array, "W M M"],
        *,
        with_core: bool,
    ) -> MomentCotangents:
        """As in `Core`, with J = diag(A) + W D, by rows of T' = J' P_bar so that every product is a tall one:

        U = T' W,    J' T = T' J = T' A + U D,
        W_bar = sum_b mean_bar phi(z)' + 2 T P D,     A_bar = sum_b mean_bar * z + 2 colsum(T' * P),
        z_bar = J' mean_bar + 2 colsum(U * P) * dd/dz
        """
        d = self.slopes(z)
        Tt = covariance_bar * self.A[:, None] + times_shared(covariance_bar, self.W).mT * d[:, :, None]
        U = times_shared(Tt, self.W)
        previous_covariance_bar = Tt * self.A + U * d[:, None, :]
        through_slopes = 2.0 * jnp.sum(U * covariance, axis=1) * self.curvatures(z)
        previous_mean_bar = self.A * mean_bar + (mean_bar @ self.W) * d + through_slopes
        if not with_core:
            return MomentCotangents(None, previous_mean_bar, previous_covariance_bar)
        M = self.latent_dim
        TPD = Tt.reshape(-1, M).T @ (covariance * d[:, None, :]).reshape(-1, M)
        core_bar = ALRNN(
            A=jnp.sum(mean_bar * z, axis=0) + 2.0 * jnp.sum(Tt * covariance, axis=(0, 1)),
            W=mean_bar.T @ self.activation(z) + 2.0 * TPD,
            h=jnp.sum(mean_bar, axis=0),
            num_gates=self.num_gates,
            gate=self.gate,
            temperature=self.temperature,
        )
        return MomentCotangents(core_bar, previous_mean_bar, previous_covariance_bar)

    def hyperparameters(self) -> dict[str, Any]:
        return {
            "latent_dim": self.latent_dim,
            "num_gates": self.num_gates,
            "gate": self.gate,
            "temperature": self.temperature,
        }

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M = hyperparameters["latent_dim"]
        return cls(
            A=jnp.zeros(M),
            W=jnp.zeros((M, M)),
            h=jnp.zeros(M),
            num_gates=hyperparameters["num_gates"],
            gate=hyperparameters["gate"],
            temperature=hyperparameters["temperature"],
        )
