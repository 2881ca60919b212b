"""Cores made of a context: delay registers, and a linear map with kernels around rows of data.

    x' = b + A u + sum_k a_k k(|u - c_k| / l),    z' = (x', z without its last N coordinates)

The state is a register: a reading and those before it. u are the coordinates of it that the map reads. Weights come
from a regression (`kaffee.training.kernel_regression`); the Jacobian is a closed form. Far from all centres u is first
moved towards the nearest, so that the map is bounded by construction.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from kaffee.errors import ConfigError
from kaffee.model.core import Core, Covariances, Jacobian, State, States

_ROOT5, _ROOT3 = 5.0**0.5, 3.0**0.5
# Keeps derivatives of the distance finite at a centre.
_TINY = 1e-12


class Kernel(NamedTuple):
    """k(r), and k'(r) / r; the second argument is NumPy or its like."""

    profile: Callable[..., Any]
    slope: Callable[..., Any]


KERNELS = {
    "matern32": Kernel(
        lambda r, np=jnp: (1.0 + _ROOT3 * r) * np.exp(-_ROOT3 * r), lambda r, np=jnp: -3.0 * np.exp(-_ROOT3 * r)
    ),
    "matern52": Kernel(
        lambda r, np=jnp: (1.0 + _ROOT5 * r + 5.0 / 3.0 * r**2) * np.exp(-_ROOT5 * r),
        lambda r, np=jnp: -5.0 / 3.0 * (1.0 + _ROOT5 * r) * np.exp(-_ROOT5 * r),
    ),
    "gaussian": Kernel(lambda r, np=jnp: np.exp(-0.5 * r**2), lambda r, np=jnp: -np.exp(-0.5 * r**2)),
}


def _sum_squares(parts: list[Float[Array, "... K"]]) -> Float[Array, "... K"]:
    return reduce(jnp.add, [part**2 for part in parts])


class Register(Core):
    """A map to the next reading from a register of readings, newest first.

    Attributes:
        num_observed: Coordinates of a reading, N.
        lags: Which readings the map reads: 0 is the newest. The register is as long as the largest asks for.
    """

    num_observed: eqx.AbstractVar[int]
    lags: eqx.AbstractVar[tuple[int, ...]]

    @property
    def latent_dim(self) -> int:
        return self.num_observed * (self.lags[-1] + 1)

    @property
    def read(self) -> tuple[int, ...]:
        """Coordinates of the state that the map reads."""
        return read_coordinates(self.num_observed, self.lags)

    @abstractmethod
    def _map(self, u: Float[Array, "W D"]) -> tuple[Float[Array, "W N"], Float[Array, "W N D"]]:
        """Compute the next reading and its derivatives."""

    def __call__(self, z: State) -> State:
        return self.predict_mean(z[None])[0]

    def jacobian(self, z: State) -> Jacobian:
        return self.linearise(z[None])[1][0]

    def predict_mean(self, z: States) -> States:
        return jnp.concatenate([self._map(z[:, jnp.array(self.read)])[0], z[:, : -self.num_observed]], axis=1)

    def linearise(self, z: States) -> tuple[States, Covariances]:
        mean, slopes = self._map(z[:, jnp.array(self.read)])
        W, N, M = z.shape[0], self.num_observed, self.latent_dim
        top = jnp.zeros((W, N, M), z.dtype).at[:, :, jnp.array(self.read)].set(slopes)
        shift = jnp.broadcast_to(jnp.eye(M - N, M, dtype=z.dtype), (W, M - N, M))
        return jnp.concatenate([mean, z[:, : M - N]], axis=1), jnp.concatenate([top, shift], axis=1)

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        """Transport by the structure of the register: O(M^2) instead of O(M^3).

        J = [S; I 0],    J P J' = [S P S'  S P_; P_ S'  P__],    _ without the last N coordinates
        """
        read, kept = jnp.array(self.read), self.latent_dim - self.num_observed
        mean, S = self._map(z[:, read])
        SP = S @ covariance[:, read]
        top = jnp.concatenate([SP[:, :, read] @ S.mT, SP[:, :, :kept]], axis=2)
        rest = jnp.concatenate([SP[:, :, :kept].mT, covariance[:, :kept, :kept]], axis=2)
        return jnp.concatenate([mean, z[:, :kept]], axis=1), jnp.concatenate([top, rest], axis=1)


def read_coordinates(num_observed: int, lags: tuple[int, ...]) -> tuple[int, ...]:
    """List the coordinates of a register that stand at some lags."""
    return tuple(lag * num_observed + j for lag in lags for j in range(num_observed))


class Tangents(Register):
    """x' = F + J u with another F and J at every step, which come in the place of the core's noise: [F, J]."""

    num_observed: int = eqx.field(static=True)
    lags: tuple[int, ...] = eqx.field(static=True)
    now: Float[Array, "W K"] | None = None

    @property
    def noise_dim(self) -> int:
        return self.num_observed * (1 + len(self.read))

    def with_noise(self, noise: Float[Array, "W K"]) -> "Tangents":
        return replace(self, now=noise)

    def _map(self, u: Float[Array, "W D"]) -> tuple[Float[Array, "W N"], Float[Array, "W N D"]]:
        assert self.now is not None
        N = self.num_observed
        F, J = self.now[:, :N], self.now[:, N:].reshape(-1, N, u.shape[1])
        return F + jnp.einsum("wnd,wd->wn", J, u), J


class KernelMap(Register):
    """The map of the equation above.

    Attributes:
        centres, weights: c_k and a_k.
        linear, offset: A and b.
        length: l.
        radius: Distance from the nearest centre beyond which u is moved back to that distance.
        spread: Of every centre: the squared errors of the regression there over their mean.
        bandwidth: Distance over which `spread` is averaged.
    """

    centres: Float[Array, "K D"]
    weights: Float[Array, "K N"]
    linear: Float[Array, "N D"]
    offset: Float[Array, " N"]
    length: Float[Array, ""]
    radius: Float[Array, ""]
    spread: Float[Array, " K"]
    bandwidth: Float[Array, ""]
    kernel: str = eqx.field(static=True)
    num_observed: int = eqx.field(static=True)
    lags: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise ConfigError(f"The kernel must be one of {', '.join(KERNELS)}, not {self.kernel!r:.80}.")
        if not self.lags or list(self.lags) != sorted(set(self.lags)) or self.lags[0] != 0:
            raise ConfigError(f"Lags must rise from 0, not {self.lags!r:.80}.")

    def hyperparameters(self) -> dict[str, Any]:
        sizes = {"num_centres": self.centres.shape[0], "num_observed": self.num_observed}
        return {"kernel": self.kernel, "lags": list(self.lags), **sizes}

    @classmethod
    def skeleton(cls, *, kernel: str, lags: list[int], num_centres: int, num_observed: int) -> Self:  # type: ignore[override]
        N, D = num_observed, num_observed * len(lags)
        arrays: Any = {
            "centres": jnp.zeros((num_centres, D)),
            "weights": jnp.zeros((num_centres, N)),
            "linear": jnp.zeros((N, D)),
            "offset": jnp.zeros(N),
            "spread": jnp.zeros(num_centres),
            **{name: jnp.zeros(()) for name in ("length", "radius", "bandwidth")},
        }
        return cls(**arrays, kernel=kernel, num_observed=N, lags=tuple(lags))

    def _differences(self, u: Float[Array, "... D"]) -> list[Float[Array, "... K"]]:
        """Compute u - c_k, coordinate by coordinate: a table whose last axis is short takes XLA ten times as long."""
        return [u[..., j, None] - self.centres[:, j] for j in range(self.centres.shape[1])]

    def _squares(self, u: Float[Array, "... D"]) -> Float[Array, "... K"]:
        return _sum_squares(self._differences(u))

    def _nearest(self, u: Float[Array, "W D"]) -> Float[Array, "W D"]:
        """Return the nearest centre; numbers of rows as floats, since XLA finds no minimum of integers quickly."""
        squares = jax.lax.stop_gradient(self._squares(u))
        numbers = jnp.arange(squares.shape[1], dtype=squares.dtype)
        least = jnp.min(squares, axis=1, keepdims=True)
        first = jnp.min(jnp.where(squares <= least, numbers, numbers[-1]), axis=1)
        return self.centres[first.astype(jnp.int32)]

    def _map(self, u: Float[Array, "W D"]) -> tuple[Float[Array, "W N"], Float[Array, "W N D"]]:
        away = u - (centre := self._nearest(u))
        least = jnp.sqrt(jnp.sum(away**2, axis=1, keepdims=True) + _TINY)
        share = jnp.minimum(1.0, self.radius / least)
        inside = centre + share * away
        differences = self._differences(inside)
        kernel, r = KERNELS[self.kernel], jnp.sqrt(_sum_squares(differences) + _TINY) / self.length
        slope = kernel.slope(r) / self.length**2
        mean = self.offset + inside @ self.linear.T + kernel.profile(r) @ self.weights
        slopes = self.linear + jnp.stack([(each * slope) @ self.weights for each in differences], axis=2)
        # d inside / d u = share (I - e e') outside, I inside; e is the direction away from the centre.
        e = away / least
        outside = (share < 1.0).astype(u.dtype)
        along = jnp.einsum("wnd,wd->wn", slopes, e) * outside
        # No reading is predicted farther outside of the data than states are taken as they are.
        newest = self.centres[:, : self.num_observed]
        low, high = jnp.min(newest, axis=0) - self.radius, jnp.max(newest, axis=0) + self.radius
        inside_data = ((mean >= low) & (mean <= high)).astype(u.dtype)
        slopes = share[:, :, None] * (slopes - along[:, :, None] * e[:, None, :])
        return jnp.clip(mean, low, high), inside_data[:, :, None] * slopes

    def contains(self, z: Float[Array, "... M"]) -> Bool[Array, "..."]:
        return jnp.min(self._squares(z[..., jnp.array(self.read)]), axis=-1) <= self.radius**2

    def noise_scale(self, z: States) -> Float[Array, " W"]:
        """Average the squared errors of the regression around a state; they grow outside of the data."""
        squares = self._squares(z[:, jnp.array(self.read)])
        least = jnp.min(squares, axis=1, keepdims=True)
        weights = jnp.exp(0.5 * (least - squares) / self.bandwidth**2)
        # Not without limit: noise that grows with the distance would carry a run away for good.
        beyond = jnp.clip(jnp.sqrt(least[:, 0]) / self.radius - 1.0, 0.0, 1.0)
        return weights @ self.spread / jnp.sum(weights, axis=1) * (1.0 + beyond) ** 2
