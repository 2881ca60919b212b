"""The systems of the paper by name: vector fields, parameters, starting points, measured Lyapunov exponents."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.errors import ConfigError, unknown
from kaffee.systems.system import System, VectorField, as_state

_State = Float[Array, " 3"]

# Vector fields; docstrings list the derivatives of the coordinates. Parameters are plain numbers, so that the dtype of
# the state decides the dtype of the result.


def _lorenz96(z: Float[Array, " M"], *, N: int, F: float) -> Float[Array, " M"]:
    """Return dz_i/dt = (z_{i+1} - z_{i-2}) z_{i-1} - z_i + F on a ring (appendix C.3)."""
    del N  # the length of z; a parameter so that records of the parameters are complete
    return (jnp.roll(z, -1) - jnp.roll(z, 2)) * jnp.roll(z, 1) - z + F


def _aizawa(state: _State, *, a: float, b: float, c: float, d: float, e: float, f: float) -> _State:
    """Return (z-b)x - dy;  dx + (z-b)y;  c + az - z³/3 - (x²+y²)(1+ez) + f z x³."""
    x, y, z = state
    return jnp.stack(
        [(z - b) * x - d * y, d * x + (z - b) * y, c + a * z - z**3 / 3 - (x**2 + y**2) * (1 + e * z) + f * z * x**3]
    )


def _burke_shaw(state: _State, *, s: float, v: float) -> _State:
    """Return -s(x+y);  -y - sxz;  sxy + v."""
    x, y, z = state
    return jnp.stack([-s * (x + y), -y - s * x * z, s * x * y + v])


def _chen(state: _State, *, a: float, b: float, c: float) -> _State:
    """Return a(y-x);  (c-a)x - xz + cy;  xy - bz."""
    x, y, z = state
    return jnp.stack([a * (y - x), (c - a) * x - x * z + c * y, x * y - b * z])


def _chua(state: _State, *, alpha: float, beta: float, m0: float, m1: float) -> _State:
    """Return α(y-x-g(x));  x - y + z;  -βy, with g(x) = m₁x + (m₀-m₁)(|x+1| - |x-1|)/2."""
    x, y, z = state
    diode = m1 * x + 0.5 * (m0 - m1) * (jnp.abs(x + 1) - jnp.abs(x - 1))
    return jnp.stack([alpha * (y - x - diode), x - y + z, -beta * y])


def _dadras(state: _State, *, p: float, q: float, r: float, s: float, e: float) -> _State:
    """Return y - px + qyz;  ry - xz + z;  sxy - ez."""
    x, y, z = state
    return jnp.stack([y - p * x + q * y * z, r * y - x * z + z, s * x * y - e * z])


def _genesio_tesi(state: _State, *, a: float, b: float, c: float) -> _State:
    """Return y;  z;  -cx - by - az + x²."""
    x, y, z = state
    return jnp.stack([y, z, -c * x - b * y - a * z + x**2])


def _hadley(state: _State, *, a: float, b: float, f: float, g: float) -> _State:
    """Return -y² - z² - ax + af;  xy - bxz - y + g;  bxy + xz - z."""
    x, y, z = state
    return jnp.stack([-(y**2) - z**2 - a * x + a * f, x * y - b * x * z - y + g, b * x * y + x * z - z])


def _halvorsen(state: _State, *, a: float) -> _State:
    """Return -ax - 4y - 4z - y², and cyclically."""
    y, z = jnp.roll(state, -1), jnp.roll(state, -2)
    return -a * state - 4 * y - 4 * z - y**2


def _lorenz63(state: _State, *, sigma: float, rho: float, beta: float) -> _State:
    """Return σ(y-x);  x(ρ-z) - y;  xy - βz."""
    x, y, z = state
    return jnp.stack([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


def _nose_hoover(state: _State, *, a: float) -> _State:
    """Return y;  -x + yz;  a - y²."""
    x, y, z = state
    return jnp.stack([y, -x + y * z, a - y**2])


def _qi_chen(state: _State, *, a: float, b: float, c: float) -> _State:
    """Return a(y-x) + yz;  cx + y - xz;  xy - bz."""
    x, y, z = state
    return jnp.stack([a * (y - x) + y * z, c * x + y - x * z, x * y - b * z])


def _rabinovich_fabrikant(state: _State, *, gamma: float, alpha: float) -> _State:
    """Return y(z-1+x²) + γx;  x(3z+1-x²) + γy;  -2z(α+xy)."""
    x, y, z = state
    return jnp.stack([y * (z - 1 + x**2) + gamma * x, x * (3 * z + 1 - x**2) + gamma * y, -2 * z * (alpha + x * y)])


def _sprott_b(state: _State) -> _State:
    """Return yz;  x - y;  1 - xy."""
    x, y, z = state
    return jnp.stack([y * z, x - y, 1 - x * y])


def _van_der_pol(state: Float[Array, " 2"], *, mu: float) -> Float[Array, " 2"]:
    """Return v;  μ(1-x²)v - x."""
    x, v = state
    return jnp.stack([v, mu * (1 - x**2) * v - x])


def _linear_spiral(state: Float[Array, " 2"], *, delta: float, omega: float) -> Float[Array, " 2"]:
    """Return -δx - ωy;  ωx - δy: rotation at rate ω, damping at rate δ."""
    x, y = state
    return jnp.stack([-delta * x - omega * y, omega * x - delta * y])


@dataclass(frozen=True)
class _Entry:
    title: str
    function: VectorField
    parameters: dict[str, float]
    dt: float
    burn_in: int
    initial_state: tuple[float, ...] | None  # None: `_lorenz96_start`
    lambda_1: float | None = None
    reference_scale: tuple[float, ...] | None = None


# Parameters, steps, burn-ins, exponents: the paper's table of benchmark systems; Lorenz-96: appendix C.3; Van der Pol:
# the non-chaotic controls. The paper gives no initial states: these lie on or near the attractors, which matters for
# Rabinovich-Fabrikant (diverges from small ones) and Nose-Hoover (conservative: every start has its own orbit).
_ENTRIES: dict[str, _Entry] = {
    "lorenz96": _Entry("Lorenz-96", _lorenz96, {"N": 20, "F": 8.0}, 0.04, 2500, None),
    "lorenz63": _Entry(
        "Lorenz-63", _lorenz63, {"sigma": 10.0, "rho": 28.0, "beta": 8 / 3}, 0.02, 500, (-9.787, -15.039, 20.534), 0.902
    ),
    "aizawa": _Entry(
        "Aizawa",
        _aizawa,
        {"a": 0.95, "b": 0.7, "c": 0.6, "d": 3.5, "e": 0.25, "f": 0.1},
        0.02,
        1000,
        (-0.7845, -0.6289, -0.1762),
        0.088,
    ),
    "burke_shaw": _Entry(
        "Burke-Shaw", _burke_shaw, {"s": 10.0, "v": 4.272}, 0.005, 1000, (-0.7915, 0.6524, 0.2252), 0.678
    ),
    "chen": _Entry("Chen", _chen, {"a": 35.0, "b": 3.0, "c": 28.0}, 0.005, 2000, (3.269, 5.299, 19.435), 2.042),
    "chua": _Entry(
        "Chua",
        _chua,
        {"alpha": 15.6, "beta": 28.0, "m0": -1.143, "m1": -0.714},
        0.02,
        500,
        (1.1262, -0.1139, -0.7832),
        0.407,
    ),
    "dadras": _Entry(
        "Dadras",
        _dadras,
        {"p": 3.0, "q": 2.7, "r": 1.7, "s": 2.0, "e": 9.0},
        0.02,
        500,
        (1.0284, -3.5349, -0.7208),
        0.367,
    ),
    "genesio_tesi": _Entry(
        "Genesio-Tesi", _genesio_tesi, {"a": 0.44, "b": 1.1, "c": 1.0}, 0.02, 500, (-0.0538, -0.2616, 0.3350), 0.108
    ),
    "hadley": _Entry(
        "Hadley", _hadley, {"a": 0.2, "b": 4.0, "f": 8.0, "g": 1.0}, 0.02, 500, (1.3664, 0.9309, 0.6428), 2e-4
    ),
    "halvorsen": _Entry("Halvorsen", _halvorsen, {"a": 1.89}, 0.01, 1000, (-8.681, -2.474, 0.0708), 0.005),
    "nose_hoover": _Entry("Nose-Hoover", _nose_hoover, {"a": 1.5}, 0.02, 500, (-1.9759, 0.2465, 0.7902), 0.005),
    "qi_chen": _Entry(
        "Qi-Chen", _qi_chen, {"a": 38.0, "b": 8 / 3, "c": 80.0}, 0.005, 2000, (17.421, 5.546, 78.891), 3.677
    ),
    "rabinovich_fabrikant": _Entry(
        "Rabinovich-Fabrikant",
        _rabinovich_fabrikant,
        {"gamma": 0.87, "alpha": 1.1},
        0.01,
        1000,
        (-1.8207, 0.8344, 0.2078),
        0.215,
    ),
    "sprott_b": _Entry("Sprott B", _sprott_b, {}, 0.05, 500, (1.6878, 1.4848, -0.5371), 0.207),
    "van_der_pol": _Entry("Van der Pol", _van_der_pol, {"mu": 1.6}, 0.05, 500, (2.0, 0.0)),
    # The paper gives no numbers. Flow: spectral radius exp(-δ dt) = 0.980, 2π/(ω dt) = 29.9 steps per turn.
    # No burn-in, since the transient is all there is, and a unit scale, since the clean run comes to rest.
    "linear_spiral": _Entry(
        "Linear spiral", _linear_spiral, {"delta": 0.2, "omega": 2.1}, 0.1, 0, (1.0, 0.0), reference_scale=(1.0, 1.0)
    ),
}


def system_names() -> tuple[str, ...]:
    """List the names that `get_system` knows."""
    return tuple(_ENTRIES)


def get_system(
    name: str,
    *,
    dt: float | None = None,
    burn_in: int | None = None,
    initial_state: Sequence[float] | None = None,
    **parameters: float,
) -> System:
    """Build a system of the paper, with any of its parameters, step, burn-in and starting point replaced.

    >>> get_system("Lorenz-63", rho=35.0).parameters["rho"]
    35.0
    >>> get_system("lorenz96", N=40).dim
    40

    Case, spaces, hyphens and underscores of `name` do not matter. Lorenz-96 also takes its size `N`.
    """
    name = _canonical(name)
    entry = _ENTRIES[name]
    values = entry.parameters | {key: _number(name, entry, key, value) for key, value in parameters.items()}
    start = entry.initial_state or _lorenz96_start(int(values["N"]), values["F"])
    if initial_state is not None:
        start = as_state(initial_state, f"The initial state for '{name}'", dim=len(start))
    return System(
        entry.function,
        start,
        entry.dt if dt is None else dt,
        parameters=values,
        burn_in=entry.burn_in if burn_in is None else burn_in,
        name=name,
        title=entry.title,
        # the paper's exponent belongs to the paper's parameters
        lambda_1=entry.lambda_1 if values == entry.parameters else None,
        reference_scale=entry.reference_scale,
    )


def _canonical(name: str) -> str:
    """Find the catalogue's spelling of a name: 'Lorenz-96', 'lorenz_96' and 'LORENZ 96' are 'lorenz96'."""

    def letters(text: str) -> str:
        return "".join(filter(str.isalnum, text.lower()))

    for known in _ENTRIES:
        if letters(known) == letters(name):
            return known
    raise ConfigError(unknown("system", name, _ENTRIES, see="kaffee systems"))


def _number(name: str, entry: _Entry, key: str, value: Any) -> float:
    """Convert and check the value of a parameter."""
    if key not in entry.parameters:
        allowed = [*entry.parameters, "dt", "burn_in", "initial_state"]
        raise ConfigError(unknown(f"parameter of {name}", key, allowed, see="kaffee systems"))
    whole = isinstance(entry.parameters[key], int)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Parameter '{key}' of {name} must be a number, not {value!r}.") from error
    if not math.isfinite(number) or (whole and (number != int(number) or number < 4)):
        allowed_values = "an integer >= 4" if whole else "a finite number"
        raise ConfigError(f"Parameter '{key}' of {name} must be {allowed_values}, not {value!r}.")
    return int(number) if whole else number


def _lorenz96_start(N: int, F: float) -> tuple[float, ...]:
    """Perturb the unstable rest state z_i = F by a ripple without any symmetry of the ring."""
    return tuple(F + 0.01 * math.cos(i) for i in range(N))


def measure_system(system: System, num_steps: int) -> dict[str, Any]:
    """Measure the Lyapunov spectrum of a system's flow along its own attractor; JSON values."""
    # Imported here, because listing the names of systems should not load the code for spectra.
    from kaffee.metrics.lyapunov import lyapunov_spectrum

    spectrum = lyapunov_spectrum(system, num_steps=num_steps)
    dimension = spectrum.kaplan_yorke_dimension
    return {
        "exponents": [round(float(x), 5) for x in spectrum.exponents],
        "standard_errors": [round(float(x), 5) for x in spectrum.standard_errors],
        "sum_positive": round(spectrum.sum_positive, 5),
        "kaplan_yorke_dimension": round(dimension, 4) if dimension == dimension else None,
        "num_steps": spectrum.num_steps,
    }


def stored_measurements() -> dict[str, dict[str, Any]]:
    """Load the measurements of `kaffee systems --measure --json`, by system name."""
    return json.loads(files("kaffee.systems").joinpath("measured.json").read_text(encoding="utf-8"))
