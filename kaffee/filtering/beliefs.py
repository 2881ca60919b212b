"""The belief protocol: what a filter must say so that training, inference and certificate can use it.

A belief is a batch of distributions of the latent state in some representation (dense Gaussian, diagonal plus low rank,
ensemble). It is a tree of arrays whose first axis is the window, and answers five questions: `mean`, `moments`,
`variances`, `signal_variance`, `draw`. A filter moves beliefs: `start`, `predict`, `score`, `assimilate`. Nothing else
knows how a belief is represented, so that a new filter is one file: these two classes and a name in `filters.FILTERS`.
`square_root` is the shortest that has both, and docs/filters.md ("A filter of your own") goes through it.
"""

from abc import abstractmethod
from math import pi
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from kaffee.filtering.gaussian import Belief, Readings, Seen, Variances, assimilate, innovate
from kaffee.model.core import Core, Covariances, States
from kaffee.model.discrete import Discrete
from kaffee.model.observation import ObservationMap

# Of Newton's method to the mode of a belief given counts; what is left after them is below 1e-6 nats in our tests.
NEWTON_STEPS = 3


@runtime_checkable
class AnyBelief(Protocol):
    """A batch of distributions of the latent state; every array of it has the window as its first axis."""

    @property
    def mean(self) -> States:
        """Return E z."""

    def moments(self) -> Belief:
        """Return the dense Gaussian with the same mean and covariance."""

    def variances(self) -> States:
        """Return the variance of every latent coordinate."""

    def signal_variance(self, observation: ObservationMap) -> Readings:
        """Return the variance of every coordinate of the signal B z."""

    def draw(self, key: Key[Array, ""], num_members: int) -> Float[Array, "K W M"]:
        """Draw states."""


class Scored(Protocol):
    """A comparison of a reading with a predicted belief: v, numbers whose squares add up to the NIS, and -log p(x)."""

    @property
    def residual(self) -> Readings: ...

    @property
    def whitened(self) -> Readings: ...

    @property
    def nll(self) -> Float[Array, " W"]: ...


class Filter(eqx.Module):
    """A way to carry a belief through predictions and readings.

    Attributes of filters are numbers; as Python numbers they are constants of a program, as arrays they can be trained.
    """

    @property
    def adjoint(self) -> bool:
        """Whether the hand-derived gradient is that of this filter; if not, it is differentiated automatically."""
        return False

    @abstractmethod
    def start(self, mean: States, covariance: Covariances) -> AnyBelief:
        """Represent N(mean, covariance)."""

    def start_independent(self, mean: States, variance: States) -> AnyBelief:
        """Represent N(mean, diag(variance)); worth an own method where no belief of size M^2 is needed."""
        return self.start(mean, jax.vmap(jnp.diag)(variance))

    @abstractmethod
    def predict(self, core: Core, process_variance: Float[Array, "#W M"], belief: Any, *, transport: bool) -> AnyBelief:
        """Predict the next belief; without transport the spread around the mean is not moved by the dynamics.

        Gamma's diagonal has one row for all windows, or one for each; it may be 0.
        """

    @abstractmethod
    def score(
        self, predicted: Any, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> Scored:
        """Compare a predicted belief with a reading; entries outside `mask` count for nothing, whatever x has there.

        The map may be nonlinear: `observe` is it, `tangent` the linear map at a state. Lambda's diagonal is (N,), or
        (W, N) where readings have their own. What `assimilate` needs belongs into the result.
        """

    @abstractmethod
    def assimilate(self, predicted: Any, scored: Any) -> AnyBelief:
        """Condition the predicted belief on the reading that was scored."""

    def is_definite(self, scored: Any) -> Array:
        """Tell for each window whether what the score was computed from is finite."""
        return jnp.isfinite(jnp.sum(scored.whitened, axis=1))

    def score_discrete(
        self, predicted: Any, y: Readings, mask: Seen, observation: ObservationMap, likelihood: Discrete
    ) -> "DiscreteScore":
        """Compare a predicted belief with counts or binary readings, by Laplace's approximation.

        The reading is replaced by a Gaussian pseudo-reading of the signal, the second-order expansion of log p(x | s)
        at the mode of the filtered belief, which a few steps of Newton's method find:

            -log p(x) = -log int N(y~; s, R~) p(s) ds - sum_i [log p(x_i | s_i*) - log N(y~_i; s_i*, R~_i)]

        Each step is an update of the filter itself, so that this holds for any Gaussian or ensemble filter.
        """
        signal = observation.observe(predicted.mean)
        pseudo, variance = likelihood.site(y, signal)
        first: Any = self.score(predicted, jnp.where(mask, pseudo, 0.0), mask, observation, variance)

        def newton(at: Readings, _: None) -> tuple[Readings, None]:
            pseudo, variance = likelihood.site(y, at)
            now = self.score(predicted, jnp.where(mask, pseudo, 0.0), mask, observation, variance)
            return likelihood.damp(at, observation.observe(self.assimilate(predicted, now).mean)), None

        at = likelihood.mode(y, signal, predicted.signal_variance(observation))
        at, _ = jax.lax.scan(newton, at, None, length=NEWTON_STEPS)
        pseudo, variance = likelihood.site(y, at)
        now: Any = self.score(predicted, jnp.where(mask, pseudo, 0.0), mask, observation, variance)
        normal = -0.5 * ((pseudo - at) ** 2 / variance + jnp.log(2.0 * pi * variance))
        excess = jnp.where(mask, likelihood.log_density(y, at) - normal, 0.0)
        return DiscreteScore(first.residual, first.whitened, now.nll - jnp.sum(excess, axis=1), now)


class DiscreteScore(NamedTuple):
    """A comparison with counts or binary readings: numbers linearised at the prediction, -log p(x), and the update.

    `by` is the score of the last pseudo-readings, which the filter assimilates.
    """

    residual: Readings
    whitened: Readings
    nll: Float[Array, " W"]
    by: Any


class Dense(Filter):
    """The extended Kalman filter: dense covariances, moved by the core's Jacobian (the paper's, and the default).

    Attributes:
        inflation: Factor of the spread that was transported, before Gamma is added: P = inflation^2 J P J' + Gamma.
    """

    inflation: Float[Array, ""] | float = 1.0

    @property
    def adjoint(self) -> bool:
        return isinstance(self.inflation, float) and self.inflation == 1.0

    def start(self, mean: States, covariance: Covariances) -> Belief:
        return Belief(mean, covariance)

    def transport_moments(self, core: Core, belief: Belief) -> tuple[States, Covariances]:
        """Compute mean and covariance of F(z), without process noise."""
        return core.predict_moments(*belief)

    def predict(self, core: Core, process_variance: Float[Array, "#W M"], belief: Belief, *, transport: bool) -> Belief:
        if transport:
            mean, covariance = self.transport_moments(core, belief)
        else:
            mean, covariance = core.predict_mean(belief.mean), belief.covariance
        if not self.adjoint:
            covariance = self.inflation**2 * covariance
        # Rounding leaves an antisymmetric part, which no update corrects and an expanding core amplifies: without this
        # line, a rotation that expands by 2 % per step broke after 395 steps in float32 and 897 in float64.
        return Belief(mean, 0.5 * (covariance + covariance.mT) + jax.vmap(jnp.diag)(process_variance))

    def score(
        self, predicted: Belief, x: Readings, mask: Seen, observation: ObservationMap, observation_variance: Variances
    ) -> Any:
        return innovate(predicted, x, mask, observation, observation_variance)

    def assimilate(self, predicted: Belief, scored: Any) -> Belief:
        return assimilate(predicted, scored)

    def is_definite(self, scored: Any) -> Array:
        return jnp.isfinite(jnp.sum(scored.inverse_factor, axis=(1, 2)))
