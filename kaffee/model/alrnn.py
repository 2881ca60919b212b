"""The almost-linear RNN (appendix C.1), its gates (appendix B.2), and products that never build its Jacobian."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError, unknown
from kaffee.model.core import Core, Covariances, Jacobian, MomentCotangents, State, States, times_shared

_GATES = ("straight_through", "smooth", "hard")
_STATIC = ("num_gates", "gate", "temperature")


def _smooth_gate(z: Float[Array, "..."], temperature: float) -> Float[Array, "..."]:
    """Compute s(z) = sigma(c z) z with c = 1.7 / tau, close to the GELU at tau = 1."""
    return jax.nn.sigmoid((1.7 / temperature) * z) * z


def _gate_value(z: Float[Array, "..."], gate: str, temperature: float) -> Float[Array, "..."]:
    """Compute the gate as it enters the mean; automatic differentiation sees `_gate_slope` as its derivative."""
    if gate == "smooth":
        return _smooth_gate(z, temperature)
    hard = jax.nn.relu(z)  # not maximum, whose derivative at 0 is 1/2
    if gate == "hard":
        return hard
    surrogate = _smooth_gate(z, temperature)
    return surrogate + jax.lax.stop_gradient(hard - surrogate)


def _gate_slope(z: Float[Array, "..."], gate: str, temperature: float) -> Float[Array, "..."]:
    """Compute the derivative that transports covariances and gradients: s' = sigma + c z sigma (1 - sigma)."""
    if gate == "hard":
        return (z > 0).astype(z.dtype)
    c = 1.7 / temperature
    sigma = jax.nn.sigmoid(c * z)
    return sigma + c * z * sigma * (1.0 - sigma)


def _gate_curvature(z: Float[Array, "..."], gate: str, temperature: float) -> Float[Array, "..."]:
    """Compute the derivative of `_gate_slope`: s'' = c sigma (1 - sigma) (2 + c z (1 - 2 sigma))."""
    if gate == "hard":
        return jnp.zeros_like(z)
    c = 1.7 / temperature
    sigma = jax.nn.sigmoid(c * z)
    return c * sigma * (1.0 - sigma) * (2.0 + c * z * (1.0 - 2.0 * sigma))


class ALRNN(Core):
    """z' = A z + W phi(z) + h, where phi gates the last P coordinates only (Eq. alrnn).

    Its Jacobian is J = diag(A) + W diag(d), d = 1 for linear coordinates and the gate's slope for gated ones,
    so that J X = A * X + W (d * X): the weights W are shared by a whole batch of windows.

    Attributes:
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
        if self.gate not in _GATES:
            raise ConfigError(unknown("gate", self.gate, _GATES))
        if not 0 <= self.num_gates <= self.latent_dim:
            raise ConfigError(f"num_gates must lie between 0 and latent_dim = {self.latent_dim}, not {self.num_gates}.")
        if not self.temperature > 0:
            raise ConfigError(f"The gate's temperature must be positive, not {self.temperature}.")

    @classmethod
    def create(cls, latent_dim: int, num_gates: int, *, key: Key[Array, ""], dtype: Any = jnp.float32) -> "ALRNN":
        """Draw the paper's initialisation: h = 0, W_ij ~ N(0, 0.01^2), A from a normalised positive-definite matrix."""
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
        """Return the same weights under another gate."""
        return replace(self, gate=gate)

    # Hard gates have an exact derivative (pretraining, free runs, Lyapunov spectra); KAFFEE trains with the surrogate.

    def exact(self) -> "ALRNN":
        return self.with_gate("hard") if self.gate == "straight_through" else self

    def surrogate(self) -> "ALRNN":
        return self.with_gate("straight_through") if self.gate == "hard" else self

    def _gated(self, z: Float[Array, "... M"], function: Any, linear: Any) -> Float[Array, "... M"]:
        split = self.latent_dim - self.num_gates
        gated = function(z[..., split:], self.gate, self.temperature)
        return jnp.concatenate([linear(z[..., :split]), gated], axis=-1)

    def activation(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Compute phi(z)."""
        return self._gated(z, _gate_value, lambda linear: linear)

    def slopes(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Compute d, the diagonal of D = dphi/dz."""
        return self._gated(z, _gate_slope, jnp.ones_like)

    def curvatures(self, z: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Compute dd/dz, the change of the diagonal of D with the state."""
        return self._gated(z, _gate_curvature, jnp.zeros_like)

    def __call__(self, z: State) -> State:
        return self.A * z + self.W @ self.activation(z) + self.h

    def jacobian(self, z: State) -> Jacobian:
        return jnp.diag(self.A) + self.W * self.slopes(z)

    def stepper(self) -> Callable[[States], States]:
        # A transposed right-hand side is a slow path of small products on CPUs; the barrier keeps it a plain array.
        Wt = jax.lax.optimization_barrier(self.W.T)
        return lambda z: self.A * z + self.activation(z) @ Wt + self.h

    def pull_back_mean(self, z: States, mean_bar: States, *, with_core: bool) -> tuple[Any, States]:
        """Compute J' mean_bar, and W_bar = sum_b mean_bar phi(z)'."""
        previous_mean_bar = self.A * mean_bar + (mean_bar @ self.W) * self.slopes(z)
        if not with_core:
            return None, previous_mean_bar
        A_bar = jnp.sum(mean_bar * z, axis=0)
        W_bar = jax.lax.optimization_barrier(mean_bar.T) @ self.activation(z)
        return replace(self, A=A_bar, W=W_bar, h=jnp.sum(mean_bar, axis=0)), previous_mean_bar

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        d = self.slopes(z)
        PJt = covariance * self.A + times_shared(covariance * d[:, None, :], self.W.T)
        JP = PJt.mT
        transported = JP * self.A + times_shared(JP * d[:, None, :], self.W.T)
        return self.predict_mean(z), transported

    def pull_back_moments(
        self, z: States, covariance: Covariances, mean_bar: States, covariance_bar: Covariances, *, with_core: bool
    ) -> MomentCotangents:
        """Specialise `Core` to J = diag(A) + W D, by rows of T' = J' P_bar so that every product is a tall one:

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
        core_bar = replace(
            self,
            A=jnp.sum(mean_bar * z, axis=0) + 2.0 * jnp.sum(Tt * covariance, axis=(0, 1)),
            W=mean_bar.T @ self.activation(z) + 2.0 * TPD,
            h=jnp.sum(mean_bar, axis=0),
        )
        return MomentCotangents(core_bar, previous_mean_bar, previous_covariance_bar)

    def hyperparameters(self) -> dict[str, Any]:
        return {"latent_dim": self.latent_dim, **{name: getattr(self, name) for name in _STATIC}}

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M, static = hyperparameters["latent_dim"], {name: hyperparameters[name] for name in _STATIC}
        return cls(A=jnp.zeros(M), W=jnp.zeros((M, M)), h=jnp.zeros(M), **static)
