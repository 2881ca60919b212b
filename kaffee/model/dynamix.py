"""The DynaMix core: AL-RNN experts mixed by a gate that reads a context (section 5.2, appendix C.5)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.data.scaler import check_context, check_shape
from kaffee.errors import CheckpointError, ConfigError, unknown
from kaffee.model.alrnn import gated_moments
from kaffee.model.core import Core, Covariances, Jacobian, MomentCotangents, State, States
from kaffee.model.gating import Context, Gating

Tangent = Literal["mixture", "full"]


class DynaMix(Core):
    """z' = sum_k w_k(z) f_k(z),   f_k(z) = A_k z + W_k phi(z) + h_k   (appendix C.5).

    phi is the ReLU for the last P coordinates and the identity for the others; `Gating` computes w from z, the context
    and the gate noise eps. There are two Jacobians:

        mixture   sum_k w_k (diag(A_k) + W_k D(z))                            the paper's: w is constant in z
        full      the same + sum_k f_k(z) (dw_k/dz)'                          the derivative of the step itself

    Gradients of the step follow the same choice: with "mixture" none passes through dw/dz. The choice does not change
    values, and gradients treat the context as constant.

    Attributes:
        A, W, h: The experts, stacked.
        gating, context: The gate's parameters psi, and the context that it reads, set by `in_context`.
        B: Embedding of initial states, see `initial_state`.
        noise: eps, (N,) or one row for each window; None means 0.
        num_gates: P.
        train_gate: Whether psi gets a gradient: with "mixture" through the mean only (the paper detaches the weights in
            its Jacobian), with "full" through mean and Jacobian. The paper leaves open whether it does; default no.
        origin: Source of the weights.
    """

    A: Float[Array, "E M"]
    W: Float[Array, "E M M"]
    h: Float[Array, "E M"]
    gating: Gating
    B: Float[Array, "N M"]
    context: Context | None = None
    noise: Float[Array, "... N"] | None = None
    num_gates: int = eqx.field(static=True, default=0)
    tangent: Tangent = eqx.field(static=True, default="mixture")
    train_gate: bool = eqx.field(static=True, default=False)
    origin: str = eqx.field(static=True, default="")

    def __check_init__(self) -> None:
        if self.tangent not in get_args(Tangent):
            raise ConfigError(unknown("tangent", str(self.tangent), get_args(Tangent)))
        if getattr(self.W, "ndim", None) != 3:
            return  # JAX rebuilds modules with placeholders in place of arrays
        (E, M), N = self.W.shape[:2], self.B.shape[0]
        if not 0 <= self.num_gates <= M:
            raise ConfigError(f"num_gates must lie between 0 and latent_dim = {M}, not {self.num_gates}.")
        for name, array, shape in (
            ("A", self.A, (E, M)),
            ("W", self.W, (E, M, M)),
            ("h", self.h, (E, M)),
            ("B", self.B, (N, M)),
        ):
            if array.shape != shape:
                raise ConfigError(f"{name} has shape {array.shape}; with {E} experts and M = {M} it must be {shape}.")

    @classmethod
    def create(
        cls,
        latent_dim: int,
        *,
        num_observed: int = 3,
        num_experts: int = 4,
        num_gates: int = 2,
        hidden_dim: int | None = None,
        num_frames: int = 0,
        key: Key[Array, ""],
        dtype: Any = jnp.float32,
    ) -> "DynaMix":
        """Draw random weights of any size, and a random context of `num_frames` frames unless 0, for trials."""
        if not 1 <= num_observed <= latent_dim or num_experts < 1:
            raise ConfigError(
                f"DynaMix needs 1 <= num_observed <= latent_dim and an expert; given num_observed = {num_observed}, "
                f"latent_dim = {latent_dim} and {num_experts} experts."
            )
        sizes = (latent_dim, num_observed, num_experts, hidden_dim or num_experts, num_gates, num_frames)
        return _random_core(sizes, key, jnp.dtype(dtype))

    @property
    def latent_dim(self) -> int:
        return self.h.shape[1]

    @property
    def num_observed(self) -> int:
        """Dimension N of the context."""
        return self.B.shape[0]

    @property
    def num_experts(self) -> int:
        """Number of experts E."""
        return self.h.shape[0]

    @property
    def num_parameters(self) -> int:
        """Number of learned values, which excludes context and noise."""
        return sum(leaf.size for leaf in jax.tree.leaves((self.A, self.W, self.h, self.gating, self.B)))

    @property
    def noise_dim(self) -> int:
        return self.num_observed

    def in_context(self, context: Float[Array, "T N"]) -> "DynaMix":
        """Condition the core on a standardised context (mean 0, standard deviation 1 in every coordinate)."""
        if isinstance(context, jax.core.Tracer):
            check_shape(context.shape, self.num_observed)
        else:
            check_context(context, self.num_observed)
        return replace(self, context=self.gating.read(jnp.asarray(context, self.h.dtype)))

    def with_noise(self, noise: Float[Array, "... N"]) -> "DynaMix":
        if noise.ndim not in (1, 2) or noise.shape[-1] != self.num_observed:
            N = self.num_observed
            raise ConfigError(f"Gate noise has shape ({N},), or (W, {N}) for W windows; given {noise.shape}.")
        return replace(self, noise=noise)

    def without_noise(self) -> "DynaMix":
        return self if self.noise is None else replace(self, noise=None)

    def with_tangent(self, tangent: Tangent, *, train_gate: bool | None = None) -> "DynaMix":
        """Return the same map under another Jacobian, and with or without gradients of the gate."""
        return replace(self, tangent=tangent, train_gate=self.train_gate if train_gate is None else train_gate)

    def exact(self) -> "DynaMix":
        return self.with_tangent("full")

    def with_hard_gates(self) -> "DynaMix":
        return self  # they are; which Jacobian they are in is `tangent`'s to say

    def initial_state(self, x: Float[Array, "... N"]) -> Float[Array, "... M"]:
        """Embed an observation: x B, with the first N coordinates overwritten by x."""
        return jnp.concatenate([x, (x @ self.B)[..., self.num_observed :]], axis=-1)

    # The private methods below take one state z with its noise eps; the public ones choose the noise and batch them.

    def _slopes(self, z: State) -> State:
        """Compute the diagonal of D(z) = dphi/dz."""
        split = self.latent_dim - self.num_gates
        return jnp.concatenate([jnp.ones_like(z[:split]), (z[split:] > 0).astype(z.dtype)])

    def _gate(self) -> tuple[Gating, Context]:
        """Return psi and the context, detached where gradients must not pass."""
        if self.context is None:
            raise ConfigError("This DynaMix has no context yet. Condition it first: core = core.in_context(context).")
        gating = self.gating if self.train_gate else jax.lax.stop_gradient(self.gating)
        return gating, jax.lax.stop_gradient(self.context)

    def _weights(self, z: State, eps: Float[Array, " N"]) -> Float[Array, " E"]:
        gating, context = self._gate()
        seen = jax.lax.stop_gradient(z) if self.tangent == "mixture" else z
        return gating.weights(seen, eps, context)

    def _experts(self, z: State) -> Float[Array, "E M"]:
        split = self.latent_dim - self.num_gates
        phi = jnp.concatenate([z[:split], jax.nn.relu(z[split:])])
        return self.A * z + self.W @ phi + self.h

    def _step(self, z: State, eps: Float[Array, " N"]) -> State:
        return self._weights(z, eps) @ self._experts(z)

    def _linearise(self, z: State, eps: Float[Array, " N"]) -> tuple[State, Jacobian]:
        """Compute F(z) and J(z), evaluating the gate once for both."""
        if self.tangent == "mixture":
            w = self._weights(z, eps)
            J = self._mixture(z, jax.lax.stop_gradient(w))
            # F(z) = J z + sum_k w_k h_k, as phi(z) = D(z) z; the weights of this J are constants to gradients.
            return w @ self._experts(z) if self.train_gate else J @ z + w @ self.h, J
        gating, context = self._gate()
        w, dw = gating.linearise(z, eps, context)
        f = self._experts(z)
        return w @ f, self._mixture(z, w) + f.T @ dw

    def _blend(self, w: Float[Array, " E"]) -> Jacobian:
        """Compute sum_k w_k W_k."""
        return jnp.reshape(w @ jnp.reshape(self.W, (self.num_experts, -1)), self.W.shape[1:])

    def _mixture(self, z: State, w: Float[Array, " E"]) -> Jacobian:
        """Compute sum_k w_k (diag(A_k) + W_k D(z))."""
        return jnp.diag(w @ self.A) + self._blend(w) * self._slopes(z)

    def _eps(self, z: Float[Array, "... M"]) -> tuple[Float[Array, "... N"], int | None]:
        """Return the noise for a state or a batch of states, and its batch axis."""
        if self.noise is None:
            return jnp.zeros(self.num_observed, z.dtype), None
        if self.noise.ndim == 2 and self.noise.shape[:-1] != z.shape[:-1]:
            raise ConfigError(f"Gate noise of shape {self.noise.shape} does not fit states of shape {z.shape}.")
        return jax.lax.stop_gradient(self.noise), 0 if self.noise.ndim == 2 else None

    def __call__(self, z: State) -> State:
        return self._step(z, self._eps(z)[0])

    def jacobian(self, z: State) -> Jacobian:
        return self._linearise(z, self._eps(z)[0])[1]

    def predict_mean(self, z: States) -> States:
        eps, axis = self._eps(z)
        return jax.vmap(self._step, in_axes=(0, axis))(z, eps)

    def linearise(self, z: States) -> tuple[States, Covariances]:
        eps, axis = self._eps(z)
        return jax.vmap(self._linearise, in_axes=(0, axis))(z, eps)

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        mean, J = self.linearise(z)
        # The barrier keeps the transpose a plain array: without it the product takes a slow path on CPUs.
        return mean, J @ covariance @ jax.lax.optimization_barrier(J.mT)

    def propagate_gaussian(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        """Compute mean and covariance of sum_k w_k f_k(z) for z ~ N(m, P), in closed form with w = w(m).

        Experts share z and phi(z), so that with these weights they are one AL-RNN, of sum_k w_k (A, W, h)_k: its
        moments (`ALRNN.propagate_gaussian`) have all covariances between experts. The gate, a softmax of an attention,
        has none in closed form; with the tangent "full" the covariance has its first order:

            J = sum_k w_k E J_k + E f_k w_k'
        """
        eps, axis = self._eps(z)
        given = z, eps, covariance, *gated_moments(z, covariance, self.num_gates)
        return jax.vmap(self._propagate, in_axes=(0, axis, 0, 0, 0, 0))(*given)

    def _propagate(
        self, z: State, eps: Float[Array, " N"], P: Jacobian, activation: State, d: State, excess: Float[Array, "P P"]
    ) -> tuple[State, Jacobian]:
        experts = self.A * z + self.W @ activation + self.h
        if self.tangent == "mixture":
            w = self._weights(z, eps)
            held, through_gate = jax.lax.stop_gradient(w), jnp.zeros_like(P)
        else:
            gating, context = self._gate()
            w, dw = gating.linearise(z, eps, context)
            held, through_gate = w, experts.T @ dw
        W = self._blend(held)
        J, Wg = jnp.diag(held @ self.A) + W * d + through_gate, W[:, self.latent_dim - self.num_gates :]
        return w @ experts, J @ P @ J.T + Wg @ excess @ Wg.T

    def _pull_back(self, function: Callable[..., Any], z: Array, with_core: bool) -> tuple[Any, Callable[..., Any]]:
        if not with_core:
            return super()._pull_back(function, z, with_core)
        # The noise is not part of the core's cotangent.
        arrays, static = eqx.partition(self.without_noise(), eqx.is_inexact_array)

        def rebuilt(a: Any, z_: Array) -> Any:
            return function(replace(eqx.combine(a, static), noise=self.noise), z_)

        return jax.vjp(rebuilt, arrays, z)

    def pull_back_moments(
        self, z: States, covariance: Covariances, mean_bar: States, covariance_bar: Covariances, *, with_core: bool
    ) -> MomentCotangents:
        arguments = (z, covariance, mean_bar, covariance_bar)
        if self.tangent == "mixture" and not self.train_gate:
            return self._pull_back_mixture(*arguments, with_core=with_core)
        return super().pull_back_moments(*arguments, with_core=with_core)

    def _pull_back_mixture(
        self, z: Array, covariance: Array, mean_bar: Array, covariance_bar: Array, *, with_core: bool
    ) -> MomentCotangents:
        """Pull back where w is constant, so that F(z) = J z + sum_k w_k h_k with J piecewise constant.

        G = J_bar + F_bar z',   W_k-bar = sum_b w_bk G_b D(z_b),   A_k-bar = sum_b w_bk diag(G_b),   z_bar = J' F_bar
        """
        eps, axis = self._eps(z)
        w = jax.vmap(self._weights, in_axes=(0, axis))(z, eps)
        J = jax.vmap(self._mixture)(z, w)
        # The barrier keeps the transpose a plain array: without it the product takes a slow path on CPUs.
        T, Jt = covariance_bar @ J, jax.lax.optimization_barrier(J.mT)
        z_bar, covariance_bar = jnp.einsum("bji,bi->bj", Jt, mean_bar), Jt @ T
        if not with_core:
            return MomentCotangents(None, z_bar, covariance_bar)
        G = 2.0 * T @ covariance + mean_bar[:, :, None] * z[:, None, :]
        d = jax.vmap(self._slopes)(z)
        W_bar = jnp.reshape(w.T @ jnp.reshape(G * d[:, None, :], (len(z), -1)), self.W.shape)
        bars = (w.T @ jnp.diagonal(G, axis1=1, axis2=2), W_bar, w.T @ mean_bar)
        zeros = jax.tree.map(jnp.zeros_like, eqx.filter(self.without_noise(), eqx.is_inexact_array))
        return MomentCotangents(eqx.tree_at(lambda c: (c.A, c.W, c.h), zeros, bars), z_bar, covariance_bar)

    def hyperparameters(self) -> dict[str, Any]:
        if self.noise is not None:
            raise CheckpointError("A realisation of the gate noise is not part of a model: save core.without_noise().")
        return {
            "latent_dim": self.latent_dim,
            "num_observed": self.num_observed,
            "num_experts": self.num_experts,
            "num_gates": self.num_gates,
            "hidden_dim": self.gating.hidden_bias.shape[0],
            "num_frames": 0 if self.context is None else self.context.frames.shape[1],
            "tangent": self.tangent,
            "train_gate": self.train_gate,
            "origin": self.origin,
        }

    @classmethod
    def skeleton(cls, **hyperparameters: Any) -> Self:
        M, N, E, H, K = (
            hyperparameters[name] for name in ("latent_dim", "num_observed", "num_experts", "hidden_dim", "num_frames")
        )
        shapes = Gating.shapes(M, N, E, H)
        return cls(
            A=jnp.zeros((E, M)),
            W=jnp.zeros((E, M, M)),
            h=jnp.zeros((E, M)),
            gating=Gating(**{name: jnp.zeros(shape) for name, shape in shapes.items()}),
            B=jnp.zeros((N, M)),
            context=Context(jnp.zeros((N, K)), jnp.zeros((N, K))) if K else None,
            **{name: hyperparameters[name] for name in ("num_gates", "tangent", "train_gate", "origin")},
        )


@partial(jax.jit, static_argnums=(0, 2))  # as a whole: op by op, a dozen programs would be compiled
def _random_core(sizes: tuple[int, ...], key: Key[Array, ""], dtype: Any) -> DynaMix:
    M, N, E, H, P, num_frames = sizes
    keys = jax.random.split(key, 6)
    core = DynaMix(
        A=jax.random.uniform(keys[0], (E, M), dtype, 0.3, 0.8),
        W=0.3 * M**-0.5 * jax.random.normal(keys[1], (E, M, M), dtype),
        h=0.1 * jax.random.normal(keys[2], (E, M), dtype),
        gating=Gating.create(M, N, E, H, key=keys[3], dtype=dtype),
        B=jax.random.uniform(keys[4], (N, M), dtype, -(N**-0.5), N**-0.5),
        num_gates=P,
    )
    return core.in_context(jax.random.normal(keys[5], (num_frames, N), dtype)) if num_frames else core
