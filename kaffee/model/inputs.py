"""Known external inputs: a stimulus, a control, a calendar, which act on the state and are not predicted.

    z_t = F(z_{t-1}) + C u_t,    x_t = B z_t + noise

The inputs of row t act on the step to row t, so that a forecast of rows needs the inputs of the same rows. In standard
units, like readings: u = 0 is the mean input of the training data, and F alone is the system at that input.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kaffee.errors import ConfigError
from kaffee.model.core import Core, Covariances, Jacobian, MomentCotangents, State, States


class Driven(Core):
    """Any core with inputs that are added to its step: F(z) + C u; its Jacobian is that of F.

    `u` holds the inputs of one step while the recursion takes it (`with_inputs`); None is u = 0.
    """

    inner: Core
    C: Float[Array, "M K"]
    u: Float[Array, "... K"] | None = None

    def __check_init__(self) -> None:
        if getattr(self.C, "ndim", 2) != 2 or getattr(self.C, "shape", (self.inner.latent_dim,))[0] != self.latent_dim:
            raise ConfigError(
                f"C has shape {self.C.shape}; with {self.inner.latent_dim} latent coordinates it must be "
                f"({self.inner.latent_dim}, K), a column for each input."
            )

    @property
    def latent_dim(self) -> int:
        return self.inner.latent_dim

    @property
    def input_dim(self) -> int:
        return self.C.shape[1]

    def with_inputs(self, inputs: Float[Array, "... K"]) -> "Driven":
        if inputs.shape[-1] != self.input_dim:
            raise ConfigError(f"The core takes {self.input_dim} inputs; {inputs.shape[-1]} are given.")
        return replace(self, u=inputs)

    def without_inputs(self) -> "Driven":
        return self if self.u is None else replace(self, u=None)

    def _push(self, z: Float[Array, "*W M"]) -> Float[Array, "*W M"]:
        """Compute z + C u."""
        return z if self.u is None else z + self.u @ self.C.T

    def __call__(self, z: State) -> State:
        return self._push(self.inner(z))

    def jacobian(self, z: State) -> Jacobian:
        return self.inner.jacobian(z)

    @property
    def noise_dim(self) -> int:
        return self.inner.noise_dim

    def with_noise(self, noise: Float[Array, "... K"]) -> "Driven":
        return replace(self, inner=self.inner.with_noise(noise))

    def without_noise(self) -> "Driven":
        return replace(self, inner=self.inner.without_noise())

    def exact(self) -> "Driven":
        return replace(self, inner=self.inner.exact())

    def with_hard_gates(self) -> "Driven":
        return replace(self, inner=self.inner.with_hard_gates())

    def surrogate(self) -> "Driven":
        return replace(self, inner=self.inner.surrogate())

    def contains(self, z: Float[Array, "... M"]) -> Bool[Array, "..."]:
        return self.inner.contains(z)

    def noise_scale(self, z: States) -> Float[Array, " W"] | None:
        return self.inner.noise_scale(z)

    def predict_mean(self, z: States) -> States:
        return self._push(self.inner.predict_mean(z))

    def stepper(self) -> Callable[[States], States]:
        step = self.inner.stepper()
        return lambda z: self._push(step(z))

    def predict_moments(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        mean, transported = self.inner.predict_moments(z, covariance)
        return self._push(mean), transported

    def linearise(self, z: States) -> tuple[States, Covariances]:
        mean, J = self.inner.linearise(z)
        return self._push(mean), J

    def linearise_products(self, z: States) -> tuple[States, Any]:
        mean, tangent = self.inner.linearise_products(z)
        return self._push(mean), tangent

    def propagate_gaussian(self, z: States, covariance: Covariances) -> tuple[States, Covariances]:
        mean, moved = self.inner.propagate_gaussian(z, covariance)
        return self._push(mean), moved

    def pull_back_mean(self, z: States, mean_bar: States, *, with_core: bool) -> tuple[Any, States]:
        inner_bar, z_bar = self.inner.pull_back_mean(z, mean_bar, with_core=with_core)
        return self._around(inner_bar, mean_bar), z_bar

    def pull_back_moments(
        self, z: States, covariance: Covariances, mean_bar: States, covariance_bar: Covariances, *, with_core: bool
    ) -> MomentCotangents:
        """Pull back through F; C moves the mean alone: C_bar = sum_b mean_bar u'."""
        inner = self.inner.pull_back_moments(z, covariance, mean_bar, covariance_bar, with_core=with_core)
        return inner._replace(core=self._around(inner.core, mean_bar))

    def _around(self, inner_bar: Any, mean_bar: States) -> Any:
        """Wrap the inner core's cotangents; inputs are data and have none."""
        if inner_bar is None:
            return None
        if self.u is None:
            return replace(self, inner=inner_bar, C=jnp.zeros_like(self.C))
        u = jnp.broadcast_to(self.u, (*mean_bar.shape[:-1], self.input_dim))
        return replace(self, inner=inner_bar, C=mean_bar.T @ u, u=None)


def drive(core: Core, num_inputs: int, dtype: Any = jnp.float32) -> Core:
    """Let a core take inputs, with C = 0 to begin with; one that takes as many already, or none to take, stays."""
    if num_inputs in (0, core.input_dim):
        return core
    if core.input_dim:
        raise ConfigError(f"The core takes {core.input_dim} inputs, but {num_inputs} are given.")
    return Driven(core, jnp.zeros((core.latent_dim, num_inputs), dtype))


def undriven(core: Core) -> Core:
    """Return the core inside a driven one, which is the system at the mean input; others as they are."""
    return core.inner if isinstance(core, Driven) else core


class InputRuns(eqx.Module):
    """Inputs for free runs: standardised rows, and the row at which each run begins; after the last comes the first.

    A free run of a driven system needs inputs for as long as it goes. Recorded rows are used again from their beginning
    when they end, so that they stay what they were but for one jump.
    """

    rows: Float[Array, "T K"]
    first: Int[Array, " S"]

    def at(self, step: Int[Array, ""] | int) -> Float[Array, "S K"]:
        """Return the inputs of step 0, 1, ... of every run."""
        return self.rows[(self.first + jnp.asarray(step, jnp.int32)) % self.rows.shape[0]]

    @classmethod
    def spread(cls, rows: Float[np.ndarray, "T K"], num_runs: int, dtype: Any = jnp.float32) -> "InputRuns":
        """Begin runs at rows that are spread evenly over the recorded inputs."""
        first = np.linspace(0, len(rows), num_runs, endpoint=False).astype(np.int32)
        return cls(jnp.asarray(rows, dtype), jnp.asarray(first))
