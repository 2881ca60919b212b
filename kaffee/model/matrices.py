"""Matrices with structure, and the few products that a core needs of its weights, dense or not.

A dense W of M latents costs M^2 a step. W = U V' of rank k has 2 M k numbers and costs as much:

    W x = U (V' x),    diag(W diag(d) W') = rowsum(U o (U (V' diag(d) V))),    U-bar = W-bar V,    V-bar = W-bar' U

`kaffee.model.alrnn` is written in these products, so that a structured core is the same class with another W.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError

Vectors = Float[Array, "B M"]


class LowRankMatrix(eqx.Module):
    """W = U V' of rank k; it multiplies arrays from both sides and is never built."""

    U: Float[Array, "M k"]
    V: Float[Array, "M k"]

    @classmethod
    def create(cls, size: int, rank: int, std: float, *, key: Key[Array, ""], dtype: Any) -> "LowRankMatrix":
        """Draw factors whose product has entries of this standard deviation."""
        scale = (std / rank**0.5) ** 0.5
        U, V = scale * jax.random.normal(key, (2, size, rank), dtype)
        return cls(U, V)

    @property
    def T(self) -> "LowRankMatrix":
        """Return W' = V U'."""
        return LowRankMatrix(self.V, self.U)

    def __matmul__(self, x: Float[Array, "M ..."]) -> Float[Array, "M ..."]:
        """Compute W x."""
        return self.U @ (self.V.T @ x)

    def __rmatmul__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Compute x W."""
        return (x @ self.U) @ self.V.T

    def dense(self) -> Float[Array, "M M"]:
        """Build W."""
        return self.U @ self.V.T


Matrix = Float[Array, "M M"] | LowRankMatrix


def parse_structure(text: str | None) -> int | None:
    """Read the rank of "lowrank:16"; None for a dense matrix.

    >>> parse_structure("lowrank:16")
    16
    """
    if text is None:
        return None
    kind, _, rank = text.partition(":")
    if kind != "lowrank" or not rank.isdecimal() or not 1 <= int(rank) <= 10_000:
        raise ConfigError(f"core.structure is lowrank:K, such as lowrank:16 for W = U V' of rank 16; not {text!r:.80}.")
    return int(rank)


def describe_structure(W: Matrix) -> str | None:
    """Return what `parse_structure` reads; None for a dense matrix."""
    return f"lowrank:{W.U.shape[1]}" if isinstance(W, LowRankMatrix) else None


def blank(size: int, structure: str | None) -> Any:
    """Build a matrix of zeros of a structure."""
    rank = parse_structure(structure)
    return jnp.zeros((size, size)) if rank is None else LowRankMatrix(jnp.zeros((size, rank)), jnp.zeros((size, rank)))


def as_dense(W: Matrix) -> Float[Array, "M M"]:
    """Build W as an array."""
    return W.dense() if isinstance(W, LowRankMatrix) else W


def diagonal(W: Matrix) -> Float[Array, " M"]:
    """Return the diagonal of W."""
    return jnp.sum(W.U * W.V, axis=1) if isinstance(W, LowRankMatrix) else jnp.diagonal(W)


def transported_variances(W: Matrix, d: Vectors) -> Vectors:
    """Compute diag(W diag(d) W') for each row of d."""
    if isinstance(W, LowRankMatrix):
        inner = W.V.T @ (d[:, :, None] * W.V)
        return jnp.sum((W.U @ inner) * W.U, axis=2)
    return d @ (W**2).T


def cotangent(W: Matrix, left: Vectors, right: Vectors) -> Any:
    """Compute the cotangent of W for a loss whose derivative by the dense W is sum_b left_b right_b'."""
    if isinstance(W, LowRankMatrix):
        return LowRankMatrix(left.T @ (right @ W.V), right.T @ (left @ W.U))
    return left.T @ right
