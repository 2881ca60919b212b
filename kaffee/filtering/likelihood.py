"""Innovation NLL and open-loop NLL from the same recursion (Eq. filtered_likelihood, appendices B.2 and C.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from kaffee.errors import ConfigError, unknown
from kaffee.filtering.adjoint import adjoint_terms
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Dynamics, Observations, Recursion, Terms, core_noise, observations_of, scan_terms
from kaffee.model.statespace import StateSpaceModel

Gradient = Literal["adjoint", "autodiff"]


class Score(NamedTuple):
    """The value of an objective on a batch of windows.

    Attributes:
        loss: Mean NLL per scored, observed entry; 1/(|B| L N) sum l_t on complete data.
        faults: (T, W) codes of `kaffee.filtering.outcome`, 0 where all is finite.
    """

    loss: Float[Array, ""]
    faults: Int[Array, "T W"]


def initial_belief(
    model: StateSpaceModel,
    mean: Float[Array, "W M"],
    anchored: Bool[Array, "W N"] | None = None,
    *,
    certain: bool = False,
) -> Belief:
    """N(mean, Gamma): where a window starts (algorithm 1).

    Args:
        anchored: Which entries of the first row were observed. What was not is only known to lie where the data lie: it
            gets their variance, 1 in standardised units, on top.
        certain: N(mean, 0) instead: the mean is taken for the state (appendix A.2).
    """
    Gamma = jnp.diag(model.shell.process_variance())
    Gamma = jnp.zeros_like(Gamma) if certain else Gamma
    covariance = jnp.broadcast_to(Gamma, (mean.shape[0], *Gamma.shape))
    if anchored is not None:
        covariance = covariance + model.observation.spread(1.0 - anchored.astype(mean.dtype))
    return Belief(mean, covariance)


def dynamics_of(model: StateSpaceModel, initial: Belief) -> Dynamics:
    """What the recursion needs of a model."""
    return Dynamics(model.core, model.shell.process_variance(), model.shell.observation_variance(), initial)


def run_terms(
    model: StateSpaceModel,
    initial: Belief,
    observations: Observations,
    recursion: Recursion,
    *,
    gradient: Gradient = "adjoint",
    segment: int | None = None,
) -> Terms:
    """The NLL terms of a batch of windows.

    Args:
        segment: Keep the belief only every `segment` steps and recompute the rest in the backward pass: memory
            O(T / segment + segment) instead of O(T). Must divide the number of steps.
    """
    if gradient == "adjoint":
        observations = observations._replace(observation=jax.lax.stop_gradient(observations.observation))
        run: Callable[[Dynamics, Recursion, Observations], Terms] = adjoint_terms
    else:
        run = _autodiff_terms
    if segment is None:
        return run(dynamics_of(model, initial), recursion, observations)
    num_steps = observations.x.shape[0]
    if num_steps % segment:
        raise ConfigError(f"segment = {segment} does not divide the window of {num_steps} steps.")

    @jax.checkpoint
    def one(belief: Belief, part: tuple[Array, Array, Array | None]) -> tuple[Belief, tuple[Array, Array]]:
        x, mask, noise = part
        chunk = Observations(x, mask, observations.observation, noise)
        terms = run(dynamics_of(model, belief), recursion, chunk)
        return terms.final, (terms.nll, terms.faults)

    parts = jax.tree.map(
        lambda a: a.reshape(num_steps // segment, segment, *a.shape[1:]),
        (observations.x, observations.mask, observations.noise),
    )
    final, (nll, faults) = jax.lax.scan(one, initial, parts)
    return Terms(nll.reshape(num_steps, -1), faults.reshape(num_steps, -1), final)


def _autodiff_terms(dynamics: Dynamics, recursion: Recursion, observations: Observations) -> Terms:
    return scan_terms(recursion, dynamics, observations)


def window_nll(
    model: StateSpaceModel,
    x: Float[Array, "W L N"],
    mask: Bool[Array, "W L N"],
    recursion: Recursion,
    *,
    burn_in: int = 8,
    start: Float[Array, "W M"] | None = None,
    certain_start: bool = False,
    gradient: Gradient = "adjoint",
    segment: int | None = None,
    key: Key[Array, ""] | None = None,
) -> Score:
    """The training loss of algorithm 1 on a batch of windows.

        L = 1/(|B| L N) sum_{t > L_burn} 1/2 [log det Omega_t + v_t' Omega_t^-1 v_t + N log 2 pi]

    The first row of each window only anchors the mean; the following `burn_in` rows are propagated but not scored.

    Args:
        start: Latent states zbar_{t0}; the embedding of the first row by default.
        certain_start: Begin with covariance 0 instead of Gamma, as if the start were the state (appendix A.2).
        gradient: "adjoint" is hand-derived and does not reach B nor the data; "autodiff" reaches everything.
        key: Of the core's internal noise, one realisation per window and step; None: without it.
    """
    if not 0 <= burn_in < x.shape[1] - 1:
        raise ConfigError(
            f"A window of {x.shape[1]} rows has {x.shape[1] - 1} steps after its first row; burn_in = {burn_in} must "
            "not be negative and must leave at least one of them to score."
        )
    if gradient == "adjoint":
        # The adjoint is exact in all but B, which the paper holds fixed; train B through "autodiff".
        model = model.replace(observation=jax.lax.stop_gradient(model.observation))
    anchor = model.observation
    first, first_mask = jnp.where(mask[:, 0], x[:, 0], 0.0), mask[:, 0]
    if start is None:
        start = model.embed(first)
    else:
        start = anchor.overwrite(start, jnp.where(first_mask, first, anchor.observe(start)))
    noise = core_noise(model.core, key, x.shape[1] - 1, x.shape[0], start.dtype)
    observations = observations_of(x[:, 1:], mask[:, 1:], anchor, noise)
    initial = initial_belief(model, start, anchored=first_mask, certain=certain_start)
    terms = run_terms(model, initial, observations, recursion, gradient=gradient, segment=segment)
    count = jnp.sum(observations.mask[burn_in:]).astype(terms.nll.dtype)
    return Score(jnp.sum(terms.nll[burn_in:]) / jnp.maximum(count, 1.0), terms.faults)


# The probabilistic rows of the paper as values: an objective, a covariance recursion, what is trained.


@dataclass(frozen=True)
class Method:
    """One row of Table 1.

    Attributes:
        objective: "filtered" scores innovations, "open_loop" scores the free run of the window.
        transport: Covariance by the core's Jacobian (tied) or state-invariant (none).
        train_core: Whether the core moves; the shell always does.
    """

    objective: Literal["filtered", "open_loop"]
    transport: bool
    train_core: bool

    @property
    def recursion(self) -> Recursion:
        """The switches of the one recursion."""
        return Recursion(assimilate=self.objective == "filtered", transport=self.transport)

    @property
    def filter(self) -> Recursion:
        """The recursion that filters with a model trained by this method: its own covariance, always assimilating."""
        return Recursion(assimilate=True, transport=self.transport)

    @property
    def trainable_parts(self) -> tuple[str, ...]:
        """Names for `kaffee.model.statespace.trainable`."""
        return ("core", "shell") if self.train_core else ("shell",)


KAFFEE = Method("filtered", transport=True, train_core=True)
BLIND = Method("filtered", transport=False, train_core=True)
CORE_COLLAPSE = Method("open_loop", transport=True, train_core=True)
NOISE_MASKING = Method("open_loop", transport=False, train_core=True)
FROZEN_CORE = Method("filtered", transport=True, train_core=False)

METHODS: dict[str, Method] = {
    "kaffee": KAFFEE,
    "blind": BLIND,
    "core_collapse": CORE_COLLAPSE,
    "noise_masking": NOISE_MASKING,
    "frozen_core": FROZEN_CORE,
}


def get_method(name: str) -> Method:
    """The method of that name.

    >>> get_method("blind").transport
    False
    """
    try:
        return METHODS[name.lower().replace("-", "_")]
    except KeyError:
        raise ConfigError(unknown("method", name, METHODS)) from None
