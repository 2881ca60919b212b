"""The vector fields of the paper: each docstring lists the derivatives of the coordinates.

Parameters are plain numbers, so that the dtype of the state decides the dtype of the result. Their values, steps and
starting points are in `catalogue`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

_State = Float[Array, " 3"]


def lorenz96(z: Float[Array, " M"], *, N: int, F: float) -> Float[Array, " M"]:
    """Return dz_i/dt = (z_{i+1} - z_{i-2}) z_{i-1} - z_i + F on a ring (appendix C.3)."""
    del N  # the length of z; a parameter so that records of the parameters are complete
    return (jnp.roll(z, -1) - jnp.roll(z, 2)) * jnp.roll(z, 1) - z + F


def aizawa(state: _State, *, a: float, b: float, c: float, d: float, e: float, f: float) -> _State:
    """Return (z-b)x - dy;  dx + (z-b)y;  c + az - z³/3 - (x²+y²)(1+ez) + f z x³."""
    x, y, z = state
    return jnp.stack(
        [
            (z - b) * x - d * y,
            d * x + (z - b) * y,
            c + a * z - z**3 / 3 - (x**2 + y**2) * (1 + e * z) + f * z * x**3,
        ]
    )


def burke_shaw(state: _State, *, s: float, v: float) -> _State:
    """Return -s(x+y);  -y - sxz;  sxy + v."""
    x, y, z = state
    return jnp.stack([-s * (x + y), -y - s * x * z, s * x * y + v])


def chen(state: _State, *, a: float, b: float, c: float) -> _State:
    """Return a(y-x);  (c-a)x - xz + cy;  xy - bz."""
    x, y, z = state
    return jnp.stack([a * (y - x), (c - a) * x - x * z + c * y, x * y - b * z])


def chua(state: _State, *, alpha: float, beta: float, m0: float, m1: float) -> _State:
    """Return α(y-x-g(x));  x - y + z;  -βy, with g(x) = m₁x + (m₀-m₁)(|x+1| - |x-1|)/2."""
    x, y, z = state
    diode = m1 * x + 0.5 * (m0 - m1) * (jnp.abs(x + 1) - jnp.abs(x - 1))
    return jnp.stack([alpha * (y - x - diode), x - y + z, -beta * y])


def dadras(state: _State, *, p: float, q: float, r: float, s: float, e: float) -> _State:
    """Return y - px + qyz;  ry - xz + z;  sxy - ez."""
    x, y, z = state
    return jnp.stack([y - p * x + q * y * z, r * y - x * z + z, s * x * y - e * z])


def genesio_tesi(state: _State, *, a: float, b: float, c: float) -> _State:
    """Return y;  z;  -cx - by - az + x²."""
    x, y, z = state
    return jnp.stack([y, z, -c * x - b * y - a * z + x**2])


def hadley(state: _State, *, a: float, b: float, f: float, g: float) -> _State:
    """Return -y² - z² - ax + af;  xy - bxz - y + g;  bxy + xz - z."""
    x, y, z = state
    return jnp.stack([-(y**2) - z**2 - a * x + a * f, x * y - b * x * z - y + g, b * x * y + x * z - z])


def halvorsen(state: _State, *, a: float) -> _State:
    """Return -ax - 4y - 4z - y², and cyclically."""
    y, z = jnp.roll(state, -1), jnp.roll(state, -2)
    return -a * state - 4 * y - 4 * z - y**2


def lorenz63(state: _State, *, sigma: float, rho: float, beta: float) -> _State:
    """Return σ(y-x);  x(ρ-z) - y;  xy - βz."""
    x, y, z = state
    return jnp.stack([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


def nose_hoover(state: _State, *, a: float) -> _State:
    """Return y;  -x + yz;  a - y²."""
    x, y, z = state
    return jnp.stack([y, -x + y * z, a - y**2])


def qi_chen(state: _State, *, a: float, b: float, c: float) -> _State:
    """Return a(y-x) + yz;  cx + y - xz;  xy - bz."""
    x, y, z = state
    return jnp.stack([a * (y - x) + y * z, c * x + y - x * z, x * y - b * z])


def rabinovich_fabrikant(state: _State, *, gamma: float, alpha: float) -> _State:
    """Return y(z-1+x²) + γx;  x(3z+1-x²) + γy;  -2z(α+xy)."""
    x, y, z = state
    return jnp.stack(
        [
            y * (z - 1 + x**2) + gamma * x,
            x * (3 * z + 1 - x**2) + gamma * y,
            -2 * z * (alpha + x * y),
        ]
    )


def sprott_b(state: _State) -> _State:
    """Return yz;  x - y;  1 - xy."""
    x, y, z = state
    return jnp.stack([y * z, x - y, 1 - x * y])


def van_der_pol(state: Float[Array, " 2"], *, mu: float) -> Float[Array, " 2"]:
    """Return v;  μ(1-x²)v - x."""
    x, v = state
    return jnp.stack([v, mu * (1 - x**2) * v - x])


def linear_spiral(state: Float[Array, " 2"], *, delta: float, omega: float) -> Float[Array, " 2"]:
    """Return -δx - ωy;  ωx - δy: rotation at rate ω, damping at rate δ."""
    x, y = state
    return jnp.stack([-delta * x - omega * y, omega * x - delta * y])
