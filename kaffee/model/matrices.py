"""Matrices with structure, and the few products that a core needs of its weights, dense or not.

A dense W of M latents costs M^2 a step. W = U V' of rank k has 2 M k numbers and costs as much:

    W x = U (V' x),    diag(W diag(d) W') = rowsum(U o (U (V' diag(d) V))),    U-bar = W-bar V,    V-bar = W-bar' U

A banded W couples neighbours only, W_ij = 0 for |i - j| > k. It has 2 k + 1 diagonals b_o, and costs as many times M:

    (W x)_i = sum_o b_oi x_{i+o},    diag(W diag(d) W') = (W o W) d,    b-bar_oi = W-bar_{i,i+o}

`kaffee.model.alrnn` is written in these products, so that a structured core is the same class with another W.
"""

from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError

Vectors = Float[Array, "B M"]

# Kinds of structure, and the largest number of each: a band is a loop that is written out.
_LARGEST = {"lowrank": 10_000, "banded": 64}


class LowRankMatrix(eqx.Module):
    """W = U V' of rank k; it multiplies arrays from both sides and is never built."""

    U: Float[Array, "M k"]
    V: Float[Array, "M k"]

    @property
    def structure(self) -> str:
        """Return what `parse_structure` reads."""
        return f"lowrank:{self.U.shape[1]}"

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

    def diagonal(self) -> Float[Array, " M"]:
        """Return the diagonal of W."""
        return jnp.sum(self.U * self.V, axis=1)

    def transported_variances(self, d: Vectors) -> Vectors:
        """Compute diag(W diag(d) W') for each row of d."""
        inner = self.V.T @ (d[:, :, None] * self.V)
        return jnp.sum((self.U @ inner) * self.U, axis=2)

    def cotangent(self, left: Vectors, right: Vectors) -> "LowRankMatrix":
        """Compute the cotangent for a loss whose derivative by the dense W is sum_b left_b right_b'."""
        return LowRankMatrix(left.T @ (right @ self.V), right.T @ (left @ self.U))


class BandedMatrix(eqx.Module):
    """W of bandwidth k, by diagonals: bands[k + o, i] = W_{i, i+o}; it multiplies from both sides and is never built.

    Entries of the bands beyond the ends of the matrix count for nothing, and their gradient is 0.
    """

    bands: Float[Array, "2*k+1 M"]

    @property
    def structure(self) -> str:
        """Return what `parse_structure` reads."""
        return f"banded:{self._reach}"

    @property
    def _reach(self) -> int:
        return len(self.bands) // 2

    def _shift(self, x: Float[Array, "M ..."]) -> list[Float[Array, "M ..."]]:
        """Return x_{i+o} for o from -k to k, 0 beyond the ends."""
        k, M = self._reach, len(x)
        padded = jnp.pad(x, ((k, k), *((0, 0) for _ in x.shape[1:])))
        return [padded[place : place + M] for place in range(2 * k + 1)]

    @property
    def T(self) -> "BandedMatrix":
        """Return W', whose band at o is that at -o, moved by o."""
        moved = self._shift(self.bands.T)
        return BandedMatrix(jnp.stack([each[:, -1 - place] for place, each in enumerate(moved)]))

    def __matmul__(self, x: Float[Array, "M ..."]) -> Float[Array, "M ..."]:
        """Compute W x."""
        tail = (1,) * (x.ndim - 1)
        terms = (b.reshape(-1, *tail) * moved for b, moved in zip(self.bands, self._shift(x), strict=True))
        return reduce(jnp.add, terms)

    def __rmatmul__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        """Compute x W, (x W)_j = sum_o (x b_o)_{j-o}."""
        k, M = self._reach, x.shape[-1]
        # Moved along the last axis, so that no array is transposed.
        sides = (*((0, 0) for _ in x.shape[:-1]), (k, k))
        terms = (jnp.pad(x * b, sides)[..., 2 * k - o : 2 * k - o + M] for o, b in enumerate(self.bands))
        return reduce(jnp.add, terms)

    def dense(self) -> Float[Array, "M M"]:
        """Build W."""
        return self @ jnp.eye(self.bands.shape[1], dtype=self.bands.dtype)

    def diagonal(self) -> Float[Array, " M"]:
        """Return the diagonal of W."""
        return self.bands[self._reach]

    def transported_variances(self, d: Vectors) -> Vectors:
        """Compute diag(W diag(d) W') for each row of d."""
        return d @ BandedMatrix(self.bands**2).T

    def cotangent(self, left: Vectors, right: Vectors) -> "BandedMatrix":
        """Compute the cotangent for a loss whose derivative by the dense W is sum_b left_b right_b'."""
        k, M = self._reach, left.shape[1]
        padded = jnp.pad(right, ((0, 0), (k, k)))
        return BandedMatrix(jnp.stack([jnp.sum(left * padded[:, o : o + M], axis=0) for o in range(2 * k + 1)]))


Structured = LowRankMatrix | BandedMatrix
Matrix = Float[Array, "M M"] | Structured


def parse_structure(text: str | None) -> tuple[str, int] | None:
    """Read the kind and the number of "lowrank:16" or "banded:3"; None for a dense matrix.

    >>> parse_structure("lowrank:16"), parse_structure("banded:3")
    (('lowrank', 16), ('banded', 3))
    """
    if text is None:
        return None
    kind, _, number = text.partition(":")
    if kind not in _LARGEST or not number.isdecimal() or not 1 <= int(number) <= _LARGEST[kind]:
        raise ConfigError(
            "core.structure is lowrank:K, such as lowrank:16 for W = U V' of rank 16 (at most 10000), or banded:K, as "
            f"in banded:3 for a W that couples coordinates with three on either side (at most 64); not {text!r:.80}."
        )
    return kind, int(number)


def describe_structure(W: Matrix) -> str | None:
    """Return what `parse_structure` reads; None for a dense matrix."""
    return W.structure if isinstance(W, Structured) else None


def _check_width(size: int, reach: int) -> None:
    if reach >= size:
        raise ConfigError(
            f"core.structure = banded:{reach} reaches beyond {size} latent coordinates; K is at most {size - 1}, and "
            "that is a dense matrix: leave core.structure out for it."
        )


def blank(size: int, structure: str | None) -> Any:
    """Build a matrix of zeros of a structure."""
    match parse_structure(structure):
        case "lowrank", rank:
            return LowRankMatrix(jnp.zeros((size, rank)), jnp.zeros((size, rank)))
        case "banded", reach:
            return BandedMatrix(jnp.zeros((2 * reach + 1, size)))
    return jnp.zeros((size, size))


def draw_matrix(size: int, structure: str | None, std: float, *, key: Key[Array, ""], dtype: Any) -> Any:
    """Draw a matrix of a structure whose entries have this standard deviation, those of a band within it."""
    match parse_structure(structure):
        case "lowrank", rank:
            U, V = (std / rank**0.5) ** 0.5 * jax.random.normal(key, (2, size, rank), dtype)
            return LowRankMatrix(U, V)
        case "banded", reach:
            _check_width(size, reach)
            column, offset = jnp.arange(size), jnp.arange(-reach, reach + 1)[:, None]
            inside = (column + offset >= 0) & (column + offset < size)
            return BandedMatrix(jnp.where(inside, std * jax.random.normal(key, (2 * reach + 1, size), dtype), 0.0))
    return std * jax.random.normal(key, (size, size), dtype)


def as_dense(W: Matrix) -> Float[Array, "M M"]:
    """Build W as an array."""
    return W.dense() if isinstance(W, Structured) else W


def diagonal(W: Matrix) -> Float[Array, " M"]:
    """Return the diagonal of W."""
    return W.diagonal() if isinstance(W, Structured) else jnp.diagonal(W)


def transported_variances(W: Matrix, d: Vectors) -> Vectors:
    """Compute diag(W diag(d) W') for each row of d."""
    return W.transported_variances(d) if isinstance(W, Structured) else d @ (W**2).T


def cotangent(W: Matrix, left: Vectors, right: Vectors) -> Any:
    """Compute the cotangent of W for a loss whose derivative by the dense W is sum_b left_b right_b'."""
    return W.cotangent(left, right) if isinstance(W, Structured) else left.T @ right
