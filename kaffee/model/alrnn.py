"""The almost-linear RNN (appendix C.1), its gates (appendix B.2), and products that never build its Jacobian."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError, unknown
from kaffee.model.core import Core, Covariances, Jacobian, MomentCotangents, State, States, keep, times_shared
from kaffee.model.matrices import (
    Matrix,
    Structured,
    as_dense,
    blank,
    cotangent,
    describe_structure,
    diagonal,
    draw_matrix,
    transported_variances,
)

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


def _rectified_moments(m: Float[Array, "W P"], covariance: Float[Array, "W P P"]) -> tuple[Array, Array, Array]:
    """Compute E relu(z), E relu'(z) and Cov relu(z) for z ~ N(m, covariance).

    Means, slopes and variances are exact; covariances are the first terms of Mehler's series in the correlation, which
    leave out 0.002 of the product of standard deviations at a correlation of one half. Every term is positive
    semidefinite, and so is what the exact diagonal has beyond them.
    """
    tiny = 1e-20 if m.dtype == jnp.float32 else 1e-200
    variance = jnp.maximum(jnp.diagonal(covariance, axis1=1, axis2=2), tiny)
    s = jnp.sqrt(variance)
    a = m / s
    Phi, psi = jax.scipy.stats.norm.cdf(a), jax.scipy.stats.norm.pdf(a)
    mean = m * Phi + s * psi
    # E g^2 - (E g)^2 without the cancellation of m^2, which would leave nothing of a variance below eps m^2.
    closed = jax.scipy.stats.norm.cdf(-a)
    exact = variance * jnp.maximum(Phi + a**2 * Phi * closed + a * psi * (1.0 - 2.0 * Phi) - psi**2, 0.0)
    rho = covariance / (s[:, :, None] * s[:, None, :])
    # s^k E g^(k) / s: Phi, psi, -a psi, (a^2 - 1) psi, ... by derivatives of the normal density.
    orders = (Phi, psi, -a * psi, (a**2 - 1.0) * psi)
    total, power, factorial = jnp.zeros_like(rho), jnp.ones_like(rho), 1.0
    for k, c in enumerate(orders, start=1):
        power, factorial = power * rho, factorial * k
        total = total + (s * c)[:, :, None] * (s * c)[:, None, :] * power / factorial
    rest = jnp.maximum(exact - jnp.diagonal(total, axis1=1, axis2=2), 0.0)
    return mean, Phi, total + jax.vmap(jnp.diag)(rest)


def gated_moments(m: States, covariance: Covariances, num_gates: int) -> tuple[States, States, Float[Array, "W P P"]]:
    """Compute E phi(z), the mean slopes d, and what Cov phi(z) has beyond D P D among gates, for z ~ N(m, P).

    J P J' with mean slopes has every covariance but those between gates, which are more than slopes say.
    """
    split = m.shape[1] - num_gates
    P = covariance[:, split:, split:]
    mean, slopes, gates = _rectified_moments(m[:, split:], P)
    activation = jnp.concatenate([m[:, :split], mean], axis=1)
    d = jnp.concatenate([jnp.ones_like(m[:, :split]), slopes], axis=1)
    return activation, d, gates - slopes[:, :, None] * P * slopes[:, None, :]


class GatedTangent(NamedTuple):
    """Products with J = diag(A) + W diag(d) for a batch of slopes d: W is shared by all windows."""

    A: Float[Array, " M"]
    W: Matrix
    slopes: States

    def _times(self, W: Matrix, X: Float[Array, "M W K"]) -> Float[Array, "M W K"]:
        return (W @ X.reshape(X.shape[0], -1)).reshape(X.shape)

    def apply(self, X: Float[Array, "W M K"]) -> Float[Array, "W M K"]:
        """Compute J X as one wide product."""
        gated = jnp.swapaxes(self.slopes[:, :, None] * X, 0, 1)
        return self.A[:, None] * X + jnp.swapaxes(self._times(self.W, gated), 0, 1)

    def apply_transposed(self, X: Float[Array, "W M K"]) -> Float[Array, "W M K"]:
        """Compute J' X = A X + D W' X."""
        moved = keep(jnp.swapaxes(self._times(self.W.T, jnp.swapaxes(X, 0, 1)), 0, 1))
        return self.A[:, None] * X + self.slopes[:, :, None] * moved

    def square_apply(self, d: States) -> States:
        """Compute (J o J) d = A^2 d + 2 A diag(W) s d + (W o W) (s^2 d)."""
        s = self.slopes
        own = self.A**2 * d + 2.0 * self.A * diagonal(self.W) * s * d
        return own + transported_variances(self.W, s**2 * d)

    def square_apply_transposed(self, d: States) -> States:
        """Compute (J o J)' d = A^2 d + 2 A diag(W) s d + s^2 (W o W)' d."""
        s = self.slopes
        own = self.A**2 * d + 2.0 * self.A * diagonal(self.W) * s * d
        return own + s**2 * transported_variances(self.W.T, d)


class ALRNN(Core):
    """z' = A z + W phi(z) + h, where phi gates the last P coordinates only (Eq. alrnn).

    Its Jacobian is J = diag(A) + W diag(d), d = 1 for linear coordinates and the gate's slope for gated ones,
    so that J X = A * X + W (d * X): the weights W are shared by a whole batch of windows.

    Attributes:
        W: An array, or a matrix with structure (`kaffee.model.matrices`), with which a step is linear in M.
        num_gates: P, how many of the last coordinates pass a ReLU.
        gate: "hard" (ReLU and its exact derivative), "straight_through" (ReLU forward, smooth derivative; how the
            paper trains) or "smooth" (the surrogate in both directions).
        temperature: tau of the surrogate.
    """

    A: Float[Array, " M"]
    W: Matrix
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
    def create(
        cls,
        latent_dim: int,
        num_gates: int,
        *,
        key: Key[Array, ""],
        dtype: Any = jnp.float32,
        structure: str | None = None,
    ) -> "ALRNN":
        """Draw the paper's initialisation: h = 0, W_ij ~ N(0, 0.01^2), A from a normalised positive-definite matrix.

        With a structure, W = U V' has this rank ("lowrank:16"), or these neighbours ("banded:3"), and entries of the
        same variance.
        """
        key_A, key_W = jax.random.split(key)
        R = jax.random.normal(key_A, (latent_dim, latent_dim), dtype)
        positive = R.T @ R / latent_dim + jnp.eye(latent_dim, dtype=dtype)
        A = jnp.diagonal(positive) / jnp.linalg.eigvalsh(positive)[-1]
        W = draw_matrix(latent_dim, structure, 0.01, key=key_W, dtype=dtype)
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
        return jnp.diag(self.A) + as_dense(self.W) * self.slopes(z)

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
        if isinstance(self.W, Structured):
            W_bar = cotangent(self.W, mean_bar, self.activation(z))
        else:
            W_bar = jax.lax.optimization_barrier(mean_bar.T) @ self.activation(z)
        return replace(self, A=A_bar, W=W_bar, h=jnp.sum(mean_bar, axis=0)), previous_mean_bar

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        return self.predict_mean(z), self._transport(self.slopes(z), covariance)

    def _transport(self, d: States, covariance: Covariances) -> Covariances:
        """Compute J P J' for J = diag(A) + W diag(d)."""
        PJt = covariance * self.A + times_shared(covariance * d[:, None, :], self.W.T)
        JP = PJt.mT
        return JP * self.A + times_shared(JP * d[:, None, :], self.W.T)

    def linearise_products(self, z: States) -> tuple[States, GatedTangent]:
        return self.predict_mean(z), GatedTangent(self.A, self.W, self.slopes(z))

    def propagate_gaussian(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        """Compute E F(z) and Cov F(z) of the ReLU for z ~ N(m, P): closed forms in every gate.

        With y = (z, phi(z)) and g_i = relu(z_i):  E g = m Phi + s psi,  Cov(z, g_i) = P_{.i} Phi_i  (Stein),
        Cov(g_i, g_j) = sum_k E g_i^(k) E g_j^(k) P_ij^k / k!  (Mehler), Var g_i exact. Phi, psi at m / s.
        """
        activation, d, excess = gated_moments(z, covariance, self.num_gates)
        Wg = as_dense(self.W)[:, self.latent_dim - self.num_gates :]
        mean = self.A * z + activation @ self.W.T + self.h
        return mean, self._transport(d, covariance) + Wg @ excess @ Wg.T

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
        TPD = cotangent(self.W, Tt.reshape(-1, M), (covariance * d[:, None, :]).reshape(-1, M))
        mean_part = cotangent(self.W, mean_bar, self.activation(z))
        core_bar = replace(
            self,
            A=jnp.sum(mean_bar * z, axis=0) + 2.0 * jnp.sum(Tt * covariance, axis=(0, 1)),
            W=jax.tree.map(lambda a, b: a + 2.0 * b, mean_part, TPD),
            h=jnp.sum(mean_bar, axis=0),
        )
        return MomentCotangents(core_bar, previous_mean_bar, previous_covariance_bar)

    def hyperparameters(self) -> dict[str, Any]:
        structure = describe_structure(self.W)
        dense = {"latent_dim": self.latent_dim, **{name: getattr(self, name) for name in _STATIC}}
        return dense if structure is None else {**dense, "structure": structure}

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M, static = hyperparameters["latent_dim"], {name: hyperparameters[name] for name in _STATIC}
        return cls(A=jnp.zeros(M), W=blank(M, hyperparameters.get("structure")), h=jnp.zeros(M), **static)
