"""The Kuramoto-Sivashinsky equation on a ring: a field whose chaos grows with the length of the ring.

    u_t = -u u_x - u_xx - u_xxxx,    u(x + L) = u(x)

Its fourth derivative is too stiff for explicit steps, so that it is no `System` (one Runge-Kutta step of a vector
field): the linear part is solved exactly and the rest by ETDRK4 (Cox and Matthews 2002, with the contour integrals of
Kassam and Trefethen 2005). Functions of the linear part are circulant matrices on the grid, which for a few hundred
points are as fast as Fourier transforms and differentiate as any product does.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.errors import ConfigError


class _Scheme(NamedTuple):
    """Matrices of ETDRK4: exp(hL), exp(hL/2), Q, the three weights of slopes, and -1/2 d/dx without aliasing."""

    E: Float[np.ndarray, "n n"]
    half: Float[np.ndarray, "n n"]
    Q: Float[np.ndarray, "n n"]
    f1: Float[np.ndarray, "n n"]
    f2: Float[np.ndarray, "n n"]
    f3: Float[np.ndarray, "n n"]
    derivative: Float[np.ndarray, "n n"]


def _scheme(num_points: int, length: float, h: float) -> _Scheme:
    modes = np.fft.fftfreq(num_points, 1.0 / num_points)
    k = 2.0 * np.pi * modes / length
    linear = k**2 - k**4
    # Means over a circle around each h * linear, where the differences below do not cancel.
    circle = np.exp(1j * np.pi * (np.arange(1, 65) - 0.5) / 64)
    w = h * linear[:, None] + circle
    e = np.exp(w)
    Q = h * np.real(np.mean((np.exp(w / 2) - 1) / w, axis=1))
    f1 = h * np.real(np.mean((-4 - w + e * (4 - 3 * w + w**2)) / w**3, axis=1))
    f2 = h * np.real(np.mean((2 + w + e * (-2 + w)) / w**3, axis=1))
    f3 = h * np.real(np.mean((-4 - 3 * w - w**2 + e * (4 - w)) / w**3, axis=1))
    # Products of two modes below a third of the grid's have no alias among these.
    slope = np.where(np.abs(modes) < num_points / 3, -0.5j * k, 0.0)

    def circulant(symbol: np.ndarray) -> Float[np.ndarray, "n n"]:
        return np.real(np.fft.ifft(symbol[:, None] * np.fft.fft(np.eye(num_points), axis=0), axis=0))

    symbols = (np.exp(h * linear), np.exp(h * linear / 2), Q, f1, f2, f3, slope)
    return _Scheme(*(circulant(symbol) for symbol in symbols))


class KuramotoSivashinsky(eqx.Module):
    """The flow of the equation over a time `dt`; the state is u at `num_points` equally spaced points.

    As a core it has a step and a Jacobian, so that spectra, filters and assimilation take it.

    >>> KuramotoSivashinsky(num_points=32).trajectory(10, transient=100).shape
    (10, 32)

    Attributes:
        length: L; 22 is the smallest ring with well-studied chaos (leading exponent 0.043 to 0.048 per unit time).
        dt: Time of a step, in `substeps` of ETDRK4.
    """

    num_points: int = eqx.field(static=True, default=64)
    length: float = eqx.field(static=True, default=22.0)
    dt: float = eqx.field(static=True, default=0.5)
    substeps: int = eqx.field(static=True, default=2)

    def __check_init__(self) -> None:
        if self.num_points < 8 or self.substeps < 1:
            raise ConfigError(
                f"Kuramoto-Sivashinsky needs 8 points and 1 substep or more, not {self.num_points} and {self.substeps}."
            )
        if not (self.length > 0 and self.dt > 0):
            raise ConfigError(f"length and dt must be positive, not {self.length} and {self.dt}.")

    def __call__(self, u: Float[Array, " n"]) -> Float[Array, " n"]:
        """Compute u a time `dt` later."""
        u = jnp.asarray(u)
        scheme = _scheme(self.num_points, self.length, self.dt / self.substeps)
        E, half, Q, f1, f2, f3, derivative = (jnp.asarray(matrix, u.dtype) for matrix in scheme)

        def slope(v: Array) -> Array:
            return derivative @ v**2

        def step(u: Array, _: None) -> tuple[Array, None]:
            n0, eu = slope(u), half @ u
            a = eu + Q @ n0
            na = slope(a)
            b = eu + Q @ na
            nb = slope(b)
            c = half @ a + Q @ (2.0 * nb - n0)
            return E @ u + f1 @ n0 + 2.0 * (f2 @ (na + nb)) + f3 @ slope(c), None

        return jax.lax.scan(step, u, None, length=self.substeps)[0]

    def jacobian(self, u: Float[Array, " n"]) -> Float[Array, "n n"]:
        """Compute the derivative of the step."""
        return jax.jacfwd(self.__call__)(u)

    def trajectory(self, num_steps: int, *, transient: int = 2000, seed: int = 0) -> Float[np.ndarray, "T n"]:
        """Simulate states of the attractor in float64, from a random field of zero mean."""
        start = np.random.default_rng(seed).standard_normal(self.num_points)
        with jax.enable_x64(True):
            first = jnp.asarray(start - start.mean())

            @jax.jit
            def run(u: Array) -> Array:
                begin = jax.lax.scan(lambda v, _: (self(v), None), u, None, length=transient)[0]
                return jax.lax.scan(lambda v, _: (self(v), v), begin, None, length=num_steps)[1]

            return np.asarray(run(first))
