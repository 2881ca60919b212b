"""Dynamical systems: a vector field and its discrete flow by one Runge-Kutta step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from kaffee.errors import ConfigError

VectorField = Callable[..., Float[Array, " M"]]


def rk4_step(f: VectorField, z: Float[Array, " M"], dt: float) -> Float[Array, " M"]:
    """Take one step of the classical fourth-order Runge-Kutta scheme for dz/dt = f(z).

    z' = z + dt/6 (k1 + 2 k2 + 2 k3 + k4)
    """
    k1 = f(z)
    k2 = f(z + (dt / 2) * k1)
    k3 = f(z + (dt / 2) * k2)
    k4 = f(z + dt * k3)
    return z + (dt / 6) * (k1 + 2 * k2 + 2 * k3 + k4)


@final
class System(eqx.Module):
    """A ground-truth system dz/dt = f(z), sampled with one RK4 step per sample (appendix C.3).

    `system(z)` is the next state and `system.jacobian(z)` its derivative, as for a core: what works on a trained core
    (spectra, rollouts, diagnostics) also works on the truth. Methods work inside `jit` and `vmap` and keep the dtype
    of `z`. Any function of the state becomes a system in one line:

    >>> import jax.numpy as jnp
    >>> def rotor(z):
    ...     return jnp.stack([z[1], -z[0]])
    >>> system = System(rotor, initial_state=[1.0, 0.0], dt=0.1)
    >>> system.name, system.dim
    ('rotor', 2)
    >>> print(system(jnp.array([1.0, 0.0])))
    [ 0.9950042  -0.09983333]

    Attributes:
        function: `f(z, **parameters)`, the vector field; `parameters` are its keyword arguments.
        initial_state: State at the start of the burn-in.
        dt: The step of the flow, in units of time.
        burn_in: Steps after which a trajectory is on the attractor.
        name, title: Short name, lower case with underscores, and that for figures and tables.
        lambda_1: Leading Lyapunov exponent per unit time as stated in the paper, if it is.
        reference_scale: s_ref of appendix C.3, the unit of the process noise per coordinate. None: measured on a long
            clean run, which is impossible for systems that come to rest.
    """

    function: VectorField
    parameter_values: tuple[Any, ...]
    parameter_names: tuple[str, ...] = eqx.field(static=True)
    initial_state: tuple[float, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    burn_in: int = eqx.field(static=True)
    name: str = eqx.field(static=True)
    title: str = eqx.field(static=True)
    lambda_1: float | None = eqx.field(static=True)
    reference_scale: tuple[float, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        function: VectorField,
        initial_state: ArrayLike | Sequence[float],
        dt: float,
        *,
        parameters: Mapping[str, Any] | None = None,
        burn_in: int = 1000,
        name: str | None = None,
        title: str | None = None,
        lambda_1: float | None = None,
        reference_scale: ArrayLike | Sequence[float] | None = None,
    ):
        self.name = name or _function_name(function)
        self.function = function
        # Not a dict, so that a system is immutable and hashable: `jax.jit(system)` works as for a function.
        self.parameter_names = tuple(parameters or ())
        self.parameter_values = tuple((parameters or {}).values())
        self.initial_state = as_state(initial_state, f"The initial state of '{self.name}'")
        self.dt = float(dt)
        self.burn_in = burn_in
        self.title = title or self.name
        self.lambda_1 = lambda_1
        self.reference_scale = None
        if reference_scale is not None:
            self.reference_scale = as_state(reference_scale, f"The reference scale of '{self.name}'", self.dim)

    def __check_init__(self) -> None:
        if not (math.isfinite(self.dt) and self.dt > 0):
            raise ConfigError(f"'{self.name}' got dt = {self.dt}. The step must be a positive number.")
        if not isinstance(self.burn_in, int) or self.burn_in < 0:
            raise ConfigError(f"'{self.name}' got burn_in = {self.burn_in!r}. It counts steps: give an integer >= 0.")
        if self.reference_scale is not None and min(self.reference_scale) <= 0:
            raise ConfigError(f"'{self.name}' got reference_scale = {self.reference_scale}: all must be > 0.")
        # Traced in float64, the dtype of every simulation, without running the function.
        with jax.enable_x64(True):
            out = jax.eval_shape(self.vector_field, jax.ShapeDtypeStruct((self.dim,), jnp.float64))
        if getattr(out, "shape", None) != (self.dim,):
            given = f"an array of shape {out.shape}" if hasattr(out, "shape") else f"a {type(out).__name__}"
            raise ConfigError(
                f"The vector field of '{self.name}' returned {given} for a state of shape ({self.dim},). "
                "It must return one array of the state's shape: end it with "
                "`return jnp.stack([dx, dy, ...])`, or give an initial state of the right length."
            )

    @property
    def parameters(self) -> dict[str, Any]:
        """Keyword arguments of the vector field, as a new dictionary."""
        return dict(zip(self.parameter_names, self.parameter_values, strict=True))

    @property
    def dim(self) -> int:
        """Number of coordinates of the state."""
        return len(self.initial_state)

    def vector_field(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        """Compute the time derivative f(z)."""
        return self.function(jnp.asarray(z), **self.parameters)

    def flow(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        """Compute the state one step `dt` later, by one RK4 step."""
        return rk4_step(self.vector_field, jnp.asarray(z), self.dt)

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        """Compute `flow(z)`."""
        return self.flow(z)

    def jacobian(self, z: Float[Array, " M"]) -> Float[Array, "M M"]:
        """Compute the exact derivative of `flow` at z, not the linearisation I + dt Df."""
        return jax.jacfwd(self.flow)(jnp.asarray(z))


def as_state(values: ArrayLike | Sequence[float], what: str, dim: int | None = None) -> tuple[float, ...]:
    """Convert a vector of finite numbers to a tuple; anything else is a ConfigError."""
    try:
        state = tuple(float(v) for v in values)  # type: ignore[union-attr]
    except TypeError as error:
        raise ConfigError(f"{what} must be a vector of numbers such as [1.0, 0.5], not {values!r}.") from error
    if not state:
        raise ConfigError(f"{what} is empty. Give one number per coordinate.")
    if dim is not None and len(state) != dim:
        raise ConfigError(f"{what} has {len(state)} coordinates, the system has {dim}.")
    if not all(map(math.isfinite, state)):
        raise ConfigError(f"{what} is not finite: {list(state)}. Give finite numbers.")
    return state


def _function_name(function: VectorField) -> str:
    """Return the name of a function, or of its class for modules and partial functions."""
    name = getattr(function, "__name__", type(function).__name__)
    return "system" if name == "<lambda>" else name
