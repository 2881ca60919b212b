"""The gating network of DynaMix: from a context and a state to the weights of the experts (appendix C.5).

For context frames c_1..c_T and K = T - 1 (the last frame has no successor to be convolved with):

    q   = D z + sigma * eps,   eps ~ N(0, I)                      perturbed projection of the state
    a_t = softmax_t(-||c_t - q||_1 / |tau_1|)                     attention
    e_t = C_0 c_t + C_1 c_{t+1} + b                               features: a convolution of width 2
    u   = sum_t a_t e_t
    w   = softmax(-(M_2 relu(M_1 [u; z] + b_1) + b_2) / |tau_2|)

Frames and features are stored as (N, K): sums over time then run over contiguous memory.
"""

from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

_KERNEL = 2


class Context(eqx.Module):
    """Frames c_t and features e_t of a context for t = 1..K; constants to every gradient."""

    frames: Float[Array, "N K"]
    features: Float[Array, "N K"]


class Gating(eqx.Module):
    """The gate's parameters psi, with the symbols of the equations above.

    `conv_weight`, `conv_bias` are C_k as (out, in, k), and b; hidden ones M_1 and b_1, output ones M_2 and b_2; the
    temperatures of attention and experts are tau_1 and tau_2.
    """

    D: Float[Array, "N M"]
    conv_weight: Float[Array, "N N 2"]
    conv_bias: Float[Array, " N"]
    hidden_weight: Float[Array, "H N+M"]
    hidden_bias: Float[Array, " H"]
    output_weight: Float[Array, "E H"]
    output_bias: Float[Array, " E"]
    sigma: Float[Array, " N"]
    attention_temperature: Float[Array, ""]
    expert_temperature: Float[Array, ""]

    @staticmethod
    def shapes(M: int, N: int, E: int, H: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter."""
        return {
            "D": (N, M),
            "conv_weight": (N, N, _KERNEL),
            "conv_bias": (N,),
            "hidden_weight": (H, N + M),
            "hidden_bias": (H,),
            "output_weight": (E, H),
            "output_bias": (E,),
            "sigma": (N,),
            "attention_temperature": (),
            "expert_temperature": (),
        }

    @classmethod
    def create(cls, M: int, N: int, E: int, H: int, *, key: Key[Array, ""], dtype: Any) -> "Gating":
        """Draw weights ~ N(0, 1/fan_in); D = [I 0], sigma = 0.05, temperatures 0.5, most hidden units open."""
        shapes = cls.shapes(M, N, E, H)
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        fan_in = {"conv_weight": N * _KERNEL, "hidden_weight": N + M, "output_weight": H}
        drawn = {n: f**-0.5 * jax.random.normal(keys[n], shapes[n], dtype) for n, f in fan_in.items()}
        biases = {n: 0.1 * jax.random.normal(keys[n], s, dtype) for n, s in shapes.items() if n.endswith("bias")}
        half = jnp.asarray(0.5, dtype)
        biases["hidden_bias"] = biases["hidden_bias"] + half
        return cls(
            D=jnp.eye(N, M, dtype=dtype),
            sigma=jnp.full(N, 0.05, dtype),
            attention_temperature=half,
            expert_temperature=half,
            **drawn,
            **biases,
        )

    def read(self, context: Float[Array, "T N"]) -> Context:
        """Compute frames and features of a context once, for use in every step."""
        windows = jnp.stack([context[:-1], context[1:]], axis=-1)
        features = jnp.einsum("tik,oik->ot", windows, self.conv_weight) + self.conv_bias[:, None]
        return Context(context[:-1].T, features)

    def _attend(
        self, z: Float[Array, " M"], eps: Float[Array, " N"], context: Context
    ) -> tuple[Float[Array, " N"], Float[Array, " K"], Float[Array, " N"]]:
        """Compute q, a and u."""
        q = self.D @ z + self.sigma * eps
        # Written out: a reduction over N would leave the compiler's fused loop, which takes twice as long.
        distance = reduce(jnp.add, [jnp.abs(frame - x) for frame, x in zip(context.frames, q, strict=True)])
        nearest = _least(jax.lax.stop_gradient(distance))  # cancels in the softmax, which it keeps from overflowing
        a = jnp.exp((nearest - distance) / jnp.abs(self.attention_temperature))
        sums = jnp.concatenate([context.features, jnp.ones_like(distance)[None]]) @ a
        return q, a / sums[-1], sums[:-1] / sums[-1]

    def _mix(self, u: Float[Array, " N"], z: Float[Array, " M"]) -> tuple[Float[Array, " H"], Float[Array, " E"]]:
        """Compute the input of the hidden layer's ReLU, and w."""
        hidden = self.hidden_weight @ jnp.concatenate([u, z]) + self.hidden_bias
        scores = self.output_weight @ jax.nn.relu(hidden) + self.output_bias
        return hidden, jax.nn.softmax(-scores / jnp.abs(self.expert_temperature))

    def weights(self, z: Float[Array, " M"], eps: Float[Array, " N"], context: Context) -> Float[Array, " E"]:
        """Compute w(z), which lies on the simplex."""
        _, _, u = self._attend(z, eps, context)
        return self._mix(u, z)[1]

    def linearise(
        self, z: Float[Array, " M"], eps: Float[Array, " N"], context: Context
    ) -> tuple[Float[Array, " E"], Float[Array, "E M"]]:
        """Compute w(z) and dw/dz by hand, with N directions through the attention instead of M.

        du/dz = 1/|tau_1| sum_t a_t (e_t - u) sign(c_t - q)' D
        ds/dz = -1/|tau_2| M_2 1{hidden > 0} M_1 [du/dz; I],    dw/dz = diag(w) (ds/dz - 1 w' ds/dz)
        """
        q, a, u = self._attend(z, eps, context)
        towards = jnp.sign(context.frames - q[:, None])
        centred = (context.features * a) @ towards.T - jnp.outer(u, towards @ a)
        du = centred / jnp.abs(self.attention_temperature) @ self.D
        hidden, w = self._mix(u, z)
        N = len(q)
        inner = self.hidden_weight[:, :N] @ du + self.hidden_weight[:, N:]
        open_ = (hidden > 0).astype(z.dtype)
        ds = -(self.output_weight * open_) @ inner / jnp.abs(self.expert_temperature)
        return w, w[:, None] * (ds - w @ ds)


def _least(values: Float[Array, " K"]) -> Float[Array, ""]:
    """Compute the minimum by overlapping halves, which XLA vectorises on CPUs, unlike a reduction of a long array."""
    while (n := len(values)) > 16:
        half = (n + 1) // 2
        values = jnp.minimum(values[:half], values[n - half :])
    return jnp.min(values)
