"""Filters with a dense Gaussian that is not linearised at the mean once: exact moments, cubature, iterations."""

from math import sqrt

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kaffee.errors import ConfigError
from kaffee.filtering.beliefs import Dense
from kaffee.filtering.gaussian import (
    Belief,
    Innovation,
    Readings,
    Seen,
    Variances,
    assimilate,
    innovate,
    relative_jitter,
)
from kaffee.model.core import Core, Covariances, States
from kaffee.model.observation import ObservationMap


class Moments(Dense):
    """Assumed density filter: mean and covariance of F(z) for Gaussian z in closed form (`Core.propagate_gaussian`).

    For cores of ReLUs, whose moments are known: AL-RNNs, DynaMix with the experts' weights at the mean, and linear
    maps. Others take "ukf".
    """

    @property
    def adjoint(self) -> bool:
        return False

    def transport_moments(self, core: Core, belief: Belief) -> tuple[States, Covariances]:
        try:
            return core.propagate_gaussian(*belief)
        except NotImplementedError as error:
            raise ConfigError(f"{error} Use the filter 'ukf' (cubature points), which takes any core.") from error


def cubature_points(mean: States, covariance: Covariances) -> Float[Array, "K W M"]:
    """Compute the 2 M points m +- sqrt(M) chol(P)_j, of equal weights, exact for polynomials of degree three.

    Arasaratnam and Haykin (2009); the unscented transform with kappa = 0.
    """
    M = mean.shape[1]
    variances = jnp.diagonal(covariance, axis1=1, axis2=2)
    jitter = relative_jitter(mean.dtype) * variances + jnp.finfo(mean.dtype).tiny ** 0.5
    root = lax.linalg.cholesky(covariance + jax.vmap(jnp.diag)(jitter), symmetrize_input=True)
    steps = sqrt(M) * jnp.moveaxis(root, 2, 0)
    return jnp.concatenate([mean + steps, mean - steps])


class Cubature(Dense):
    """The unscented (cubature) Kalman filter: 2 M points through the core, for any core.

    Points pass the core's exact step, so that no Jacobian is needed.
    """

    @property
    def adjoint(self) -> bool:
        return False

    def transport_moments(self, core: Core, belief: Belief) -> tuple[States, Covariances]:
        points = cubature_points(*belief)
        # A core may hold noise for each window, which its points share.
        moved = jax.vmap(core.predict_mean)(points)
        mean = jnp.mean(moved, axis=0)
        away = (moved - mean) / sqrt(len(points))
        return mean, jnp.einsum("kwi,kwj->wij", away, away)

    def score(
        self, predicted: Belief, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> Innovation:
        return innovate(predicted, x, mask, observation, observation_variance)


class Iterated(Dense):
    """The iterated extended Kalman filter: the observation is linearised again at the filtered mean.

        z_0 = z_pred,   z_{i+1} = z_pred + K_i (x - h(z_i) - B_i (z_pred - z_i)),   B_i = dh/dz at z_i

    Gauss-Newton steps to the mode (Bell and Cathey 1993). With a linear observation it is the extended Kalman filter.
    """

    iterations: int = 3

    def __check_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"An iterated filter needs at least one iteration, as in iekf:3; not {self.iterations}.")

    @property
    def adjoint(self) -> bool:
        return False

    def score(
        self, predicted: Belief, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> Innovation:
        # The likelihood is that of the prediction, the update that of the last linearisation.
        first = innovate(predicted, x, mask, observation, observation_variance)
        if observation.tangent(predicted.mean) is observation:
            return first
        now, z = first, assimilate(predicted, first).mean
        for _ in range(self.iterations - 1):
            B = observation.tangent(z)
            pseudo = x - observation.observe(z) + B.observe(z)
            now = innovate(predicted, pseudo, mask, B, observation_variance)
            z = assimilate(predicted, now).mean
        return now._replace(nll=first.nll, residual=first.residual)
