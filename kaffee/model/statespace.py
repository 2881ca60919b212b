"""The probabilistic state-space model: core, shell, observation map and embedding; and its trainable parts."""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError, unknown
from kaffee.model.core import Core
from kaffee.model.observation import ObservationMap, Projection
from kaffee.model.shell import Shell

PARTS = ("core", "shell", "embedding", "observation")


class StateSpaceModel(eqx.Module):
    """z_{t+1} = F(z_t) + Gamma^{1/2} xi_t,  x_t = B z_t + Lambda^{1/2} eta_t  (section 2.1).

    The model works in standardised coordinates; a `Reconstruction` holds the scaler beside it, since statistics of the
    data inside the model would make every data set a new program to compile.

    Attributes:
        core: F.
        shell: Gamma and Lambda.
        observation: B.
        embedding: E, (M, N): the initial state of an observation is E x with the observed part overwritten.
    """

    core: Core
    shell: Shell
    observation: ObservationMap
    embedding: Float[Array, "M N"]

    @classmethod
    def create(
        cls,
        core: Core,
        num_observed: int,
        *,
        key: Key[Array, ""],
        observation: ObservationMap | None = None,
        noise_std: float = 0.1,
        dtype: Any = jnp.float32,
    ) -> "StateSpaceModel":
        """Build a model around `core` with E ~ U(-1/sqrt(N), 1/sqrt(N)) and a provisional shell of `noise_std`."""
        bound = num_observed**-0.5
        embedding = jax.random.uniform(key, (core.latent_dim, num_observed), dtype, minval=-bound, maxval=bound)
        return cls(
            core=core,
            shell=Shell.from_std(jnp.full(core.latent_dim, noise_std), jnp.full(num_observed, noise_std), dtype),
            observation=observation or Projection(num_observed, core.latent_dim),
            embedding=embedding,
        )

    def __check_init__(self) -> None:
        M, N = self.observation.latent_dim, self.observation.num_observed
        if self.core.latent_dim != M:
            raise ConfigError(f"The core has {self.core.latent_dim} latent coordinates but B expects {M}.")
        for name, array, shape in (
            ("log_process_std", self.shell.log_process_std, (M,)),
            ("log_observation_std", self.shell.log_observation_std, (N,)),
            ("embedding", self.embedding, (M, N)),
        ):
            given = getattr(array, "shape", shape)
            if given != shape:
                raise ConfigError(f"{name} has shape {given}; with M = {M} and N = {N} it must be {shape}.")

    @property
    def latent_dim(self) -> int:
        return self.observation.latent_dim

    @property
    def num_observed(self) -> int:
        return self.observation.num_observed

    @property
    def dtype(self) -> Any:
        return self.embedding.dtype

    def embed(self, x: Float[Array, "... N"]) -> Float[Array, "... M"]:
        """Embed an observation: E x, with the observed part overwritten by x (appendix C.1)."""
        return self.observation.overwrite(x @ self.embedding.T, x)

    def replace(self, **parts: Any) -> "StateSpaceModel":
        """Copy the model with some parts replaced."""
        fields = {name: getattr(self, name) for name in PARTS}
        return StateSpaceModel(**{**fields, **parts})

    def exact(self) -> "StateSpaceModel":
        """Return the model with the core's exact Jacobian (`Core.exact`)."""
        return self.replace(core=self.core.exact())


def trainable(model: StateSpaceModel, parts: Iterable[str]) -> Any:
    """Mark the arrays of `model` that an optimiser may move, as a tree of booleans.

    Use it as `eqx.partition(model, trainable(model, ["core", "shell"]))`.
    """
    chosen = set(parts)
    for part in chosen - set(PARTS):
        raise ConfigError(unknown("trainable part", part, PARTS))
    parts_spec = {
        name: jax.tree.map(eqx.is_inexact_array if name in chosen else lambda _: False, getattr(model, name))
        for name in PARTS
    }
    none = jax.tree.map(lambda _: False, model)
    return eqx.tree_at(lambda m: [getattr(m, name) for name in PARTS], none, list(parts_spec.values()))
