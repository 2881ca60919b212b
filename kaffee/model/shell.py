"""The stochastic shell: diagonal process and observation noise (section 2.1, appendix B.2)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from kaffee.errors import ConfigError

# Keeps standard deviations between 4.5e-5 and 2.2e4 in standardised units. With a bound of 20, variances of one model
# can differ by more than float32 can subtract: 17 of 150 random models had an indefinite innovation covariance.
LOG_STD_BOUND = 10.0


class Shell(eqx.Module):
    """Gamma = diag(exp(2 g)) and Lambda = diag(exp(2 l)), both as log standard deviations.

    Attributes:
        log_process_std: g, (M,), in the model's (standardised) units per step.
        log_observation_std: l, (N,), in standardised units.
    """

    log_process_std: Float[Array, " M"]
    log_observation_std: Float[Array, " N"]

    @classmethod
    def from_std(cls, process_std: Any, observation_std: Any, dtype: Any = jnp.float32) -> "Shell":
        """Build a shell from standard deviations.

        >>> shell = Shell.from_std([0.1, 0.1], [0.5])
        >>> [round(float(v), 3) for v in shell.process_variance()]
        [0.01, 0.01]
        """
        process, observation = jnp.asarray(process_std, dtype), jnp.asarray(observation_std, dtype)
        for name, std in (("process", process), ("observation", observation)):
            if not bool(jnp.all(jnp.isfinite(std) & (std > 0))):
                raise ConfigError(f"Every {name} standard deviation must be positive and finite; got {std}.")
        return cls(jnp.log(process), jnp.log(observation))

    def process_variance(self) -> Float[Array, " M"]:
        """Compute the diagonal of Gamma."""
        return _variance(self.log_process_std)

    def observation_variance(self) -> Float[Array, " N"]:
        """Compute the diagonal of Lambda."""
        return _variance(self.log_observation_std)


def _variance(log_std: Float[Array, " K"]) -> Float[Array, " K"]:
    return jnp.exp(2.0 * jnp.clip(log_std, -LOG_STD_BOUND, LOG_STD_BOUND))


def split_residuals(residual_std: Float[Array, " N"], latent_dim: int, alpha: float = 0.9) -> Shell:
    """Split residual scales r into process and observation noise, 90/10 by default (appendix B.2).

    Lambda_0 = diag(alpha r^2),    Gamma_0 = q^2 I,    q = mean_j sqrt(1 - alpha) r_j
    """
    if not 0.0 < alpha < 1.0:
        raise ConfigError(f"alpha, the share of the residual variance given to Lambda, lies in (0, 1), not {alpha}.")
    q = jnp.mean((1.0 - alpha) ** 0.5 * residual_std)
    return Shell.from_std(jnp.full(latent_dim, q), alpha**0.5 * residual_std, residual_std.dtype)
