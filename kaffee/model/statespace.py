"""The state-space model (section 2.1): core, stochastic shell, observation map, embedding; and its trainable parts."""

from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.errors import ConfigError, DataError, unknown
from kaffee.model.core import Core
from kaffee.model.discrete import Discrete
from kaffee.model.observation import ObservationMap, Projection

PARTS = ("core", "shell", "embedding", "observation")
# Keeps trained standard deviations between 4.5e-5 and 2.2e4 in standardised units. With a bound of 20, variances of one
# model can differ by more than float32 can subtract: 17 of 150 random models had an indefinite innovation covariance.
LOG_STD_BOUND = 10.0


class Shell(eqx.Module):
    """Gamma = diag(exp(2 g)) and Lambda = diag(exp(2 l)) as log standard deviations, in standardised units.

    Attributes:
        bound: Of g and l in absolute value, so that training cannot take them out of the range of single precision.
    """

    log_process_std: Float[Array, " M"]
    log_observation_std: Float[Array, " N"]
    bound: float = eqx.field(static=True, default=LOG_STD_BOUND)

    @classmethod
    def from_std(
        cls, process_std: Any, observation_std: Any, dtype: Any = jnp.float32, *, bound: float | None = None
    ) -> "Shell":
        """Build a shell from standard deviations, which are kept as given.

        Args:
            bound: Of their logarithms; None: `LOG_STD_BOUND`, or a larger one where a given scale needs it.

        >>> f"{float(Shell.from_std([1e-9], [0.5]).process_variance()[0] ** 0.5):.4g}"
        '1e-09'
        """
        process, observation = jnp.asarray(process_std, dtype), jnp.asarray(observation_std, dtype)
        for name, std in (("process", process), ("observation", observation)):
            if not bool(jnp.all(jnp.isfinite(std) & (std > 0))):
                raise ConfigError(f"Every {name} standard deviation must be positive and finite; got {std}.")
            if not bool(jnp.all((std**2 >= jnp.finfo(std.dtype).tiny) & jnp.isfinite(std**2))):
                raise ConfigError(f"The square of a {name} standard deviation does not fit into {std.dtype}: {std}.")
        logs = jnp.log(process), jnp.log(observation)
        needed = max(float(jnp.max(jnp.abs(each), initial=0.0)) for each in logs)
        return cls(*logs, max(LOG_STD_BOUND, float(np.ceil(needed))) if bound is None else bound)

    def process_variance(self) -> Float[Array, " M"]:
        """Compute the diagonal of Gamma."""
        return _variance(self.log_process_std, self.bound)

    def observation_variance(self) -> Float[Array, " N"]:
        """Compute the diagonal of Lambda."""
        return _variance(self.log_observation_std, self.bound)


def _variance(log_std: Float[Array, " K"], bound: float) -> Float[Array, " K"]:
    return jnp.exp(2.0 * jnp.clip(log_std, -bound, bound))


def split_residuals(residual_std: Float[Array, " N"], latent_dim: int, alpha: float = 0.9) -> Shell:
    """Split residual scales r into process and observation noise, 90/10 by default (appendix B.2).

    Lambda_0 = diag(alpha r^2),    Gamma_0 = q^2 I,    q = mean_j sqrt(1 - alpha) r_j
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha, the share of the residual variance given to Lambda, lies in (0, 1), not {alpha}.")
    q = jnp.mean((1.0 - alpha) ** 0.5 * residual_std)
    scales = jnp.full(latent_dim, q), alpha**0.5 * residual_std
    return Shell.from_std(*scales, residual_std.dtype, bound=LOG_STD_BOUND)


class Climate(eqx.Module):
    """N(mean, factor factor'): the latent states of the training data, which a belief starts from before it has read.

    The factor is lower triangular; a covariance of latents that are nearly functions of each other would not stay
    positive in float32. It describes training data and is no parameter: gradients and optimisers take it as constant.
    `states` are some of them, for free runs that have left them to go on from.
    """

    mean: Float[Array, " M"]
    factor: Float[Array, "M M"]
    states: Float[Array, "K M"]

    @classmethod
    def from_moments(
        cls, mean: Any, covariance: Any, dtype: Any = jnp.float32, *, states: Any | None = None
    ) -> "Climate":
        """Build a climate from moments in float64; correlations keep a millionth of variance in every direction."""
        P = np.asarray(covariance, np.float64)
        std = np.sqrt(np.maximum(np.diag(P), 1e-300))
        values, vectors = np.linalg.eigh((P + P.T) / (2.0 * np.outer(std, std)))
        # QR of a root: Cholesky fails where P is singular up to rounding.
        R: Any = np.linalg.qr((vectors * np.sqrt(np.maximum(values, 1e-6))).T, mode="r")
        factor = std[:, None] * (R.T * np.where(np.diag(R) < 0, -1.0, 1.0))
        some = np.asarray(mean)[None] if states is None else states
        return cls(jnp.asarray(mean, dtype), jnp.asarray(factor, dtype), jnp.asarray(some, dtype))

    def moments(self) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
        """Return mean and covariance, without gradients."""
        mean, factor = jax.lax.stop_gradient((self.mean, self.factor))
        return mean, factor @ factor.T


class StateSpaceModel(eqx.Module):
    """z_{t+1} = F(z_t) + Gamma^{1/2} xi_t,  x_t = B z_t + Lambda^{1/2} eta_t  (section 2.1).

    The model works in standardised coordinates; a `Reconstruction` holds the scaler beside it, since statistics of the
    data inside the model would make every data set a new program to compile. The initial state of an observation x is
    E x, by the embedding E, with the observed part overwritten; or, with a climate, that of training data given x
    (`kaffee.filtering.likelihood.start_belief`). With `discrete`, readings are counts or binary ones of B z, encoded
    (`kaffee.model.discrete`), and Lambda is only the width of their noise as the prior saw it. Map, shell and embedding
    may have a leading axis of groups that share the core; `select` takes one of them, or one for each window.
    """

    core: Core
    shell: Shell
    observation: ObservationMap
    embedding: Float[Array, "M N"]
    climate: Climate | None = None
    discrete: Discrete | None = None

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
        states = getattr(self.climate, "states", None)
        if self.core.latent_dim != M:
            raise ConfigError(f"The core has {self.core.latent_dim} latent coordinates but B expects {M}.")
        for name, array, shape in (
            ("log_process_std", self.shell.log_process_std, (M,)),
            ("log_observation_std", self.shell.log_observation_std, (N,)),
            ("embedding", self.embedding, (M, N)),
            ("climate.mean", getattr(self.climate, "mean", None), (M,)),
            ("climate.factor", getattr(self.climate, "factor", None), (M, M)),
            ("climate.states", states, (*getattr(states, "shape", ())[:1], M)),
            ("discrete.offset", getattr(self.discrete, "offset", None), (N,)),
            ("discrete.gain", getattr(self.discrete, "gain", None), (N,)),
        ):
            given = getattr(array, "shape", shape)
            if given[-len(shape) :] != shape:  # leading axes are windows, each with its own map and shell
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

    @property
    def input_dim(self) -> int:
        return self.core.input_dim

    def split(self, rows: Float[Array, "... D"]) -> tuple[Float[Array, "... N"], Float[Array, "... K"] | None]:
        """Split rows into readings and the inputs after them; a core without inputs leaves those unread: None."""
        N, K = self.num_observed, self.core.input_dim
        if rows.shape[-1] == N and not K:
            return rows, None
        if rows.shape[-1] < N + K:
            raise DataError(
                f"The model takes {K} input{'s' * (K > 1)} beside {N} readings, but rows have {rows.shape[-1]} "
                "numbers. Give the inputs: columns of the recording, or inputs= in Python."
            )
        return rows[..., :N], rows[..., N : N + K] if K else None

    def embed(self, x: Float[Array, "... N"]) -> Float[Array, "... M"]:
        """Embed an observation: E x, with the observed part overwritten by x (appendix C.1)."""
        E = self.embedding
        return self.observation.overwrite(x @ E.T if E.ndim == 2 else jnp.einsum("wmn,wn->wm", E, x), x)

    def replace(self, **parts: Any) -> "StateSpaceModel":
        """Copy the model with some parts replaced."""
        return StateSpaceModel(**{name: getattr(self, name) for name in (*PARTS, "climate", "discrete")} | parts)

    @property
    def num_groups(self) -> int:
        """Count the groups that share the core, each with its own map, shell and embedding; 0 for a single model."""
        return self.embedding.shape[0] if self.embedding.ndim == 3 else 0

    def select(self, groups: Any) -> "StateSpaceModel":
        """Take the parts of one group, or those of the group of every window; the core is that of all of them."""
        own = {name: jax.tree.map(lambda a: a[groups], getattr(self, name)) for name in PARTS if name != "core"}
        return self.replace(**own)

    @staticmethod
    def share(models: Sequence["StateSpaceModel"]) -> "StateSpaceModel":
        """Stack the maps, shells and embeddings of models of groups around the core and the climate of the first."""
        own = {
            name: jax.tree.map(lambda *a: jnp.stack(a), *(getattr(model, name) for model in models))
            for name in PARTS
            if name != "core"
        }
        return models[0].replace(**own)

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
    marks = [
        jax.tree.map(eqx.is_inexact_array if name in chosen else lambda _: False, getattr(model, name))
        for name in PARTS
    ]
    none = jax.tree.map(lambda _: False, model)
    return eqx.tree_at(lambda m: [getattr(m, name) for name in PARTS], none, marks)
