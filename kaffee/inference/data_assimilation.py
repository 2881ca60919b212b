"""Data assimilation without training: a known flow as the model, any filter, readings that may be missing.

>>> import jax.numpy as jnp
>>> import numpy as np
>>> from kaffee.inference.data_assimilation import assimilate
>>> readings = np.random.default_rng(0).normal(size=(50, 1)) + 2.0
>>> run = assimilate(lambda z: z, readings, start=[0.0], start_std=10.0, observation_std=1.0)
>>> round(float(run.mean[-1, 0]), 1), round(float(run.std[-1, 0]), 2)
(2.1, 0.14)
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from kaffee.data.scaler import GAUSSIAN, encode_discrete
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.beliefs import Filter
from kaffee.filtering.filters import parse_filter
from kaffee.filtering.particles import COLLAPSED, count_effective, describe_collapse
from kaffee.filtering.recursion import Dynamics, Recursion, decode_outcome, locate_fault, step
from kaffee.metrics.calibration import bin_spread_and_error, histogram_density, relative_ranks
from kaffee.model.core import Core
from kaffee.model.discrete import Discrete
from kaffee.model.observation import LinearObservation, NonlinearObservation, ObservationMap
from kaffee.model.wrappers import Custom


class TwinScores(NamedTuple):
    """How far an assimilation is from the truth.

    Attributes:
        rmse, spread: Over the coordinates, at every row; the same size if the filter is honest.
        spread_skill: (B, 2), root mean square spread and error in bins of rows by spread.
        rank_histogram: Density of the truth's rank among members, (B,), 1 everywhere if they are alike; None without
            members.
    """

    rmse: Float[np.ndarray, " T"]
    spread: Float[np.ndarray, " T"]
    spread_skill: Float[np.ndarray, "B 2"]
    rank_histogram: Float[np.ndarray, " B"] | None


class Assimilation(NamedTuple):
    """The filtered states of a recording, in the units of the flow; row t is after reading t.

    Attributes:
        mean, std: Of the state given all readings so far.
        predicted_mean, predicted_std: Of the state before the reading of its row.
        nll: -log p of the reading given all before it; 0 where nothing was read.
        covariances: Of the state given all readings so far, if asked for.
        members: Of an ensemble or of particles, if asked for and there are any.
        final: The last belief, for another run to start from or for forecasts.
        effective_particles: How many particles count after the reading of a row, 1 / sum w^2; NaN where nothing was
            read, and None for filters that weigh none.
    """

    mean: Float[np.ndarray, "T M"]
    std: Float[np.ndarray, "T M"]
    predicted_mean: Float[np.ndarray, "T M"]
    predicted_std: Float[np.ndarray, "T M"]
    nll: Float[np.ndarray, " T"]
    covariances: Float[np.ndarray, "T M M"] | None
    members: Float[np.ndarray, "T K M"] | None
    final: Any
    effective_particles: Float[np.ndarray, " T"] | None = None

    @property
    def collapsed_fraction(self) -> float | None:
        """Share of the rows with readings after which fewer than two particles count; None if none are weighed."""
        if self.effective_particles is None or np.isnan(self.effective_particles).all():
            return None
        return float(np.mean(self.effective_particles[~np.isnan(self.effective_particles)] < COLLAPSED))

    def rmse(self, truth: ArrayLike) -> Float[np.ndarray, " T"]:
        """Compute the root mean square error of the mean over the coordinates, at every row."""
        return np.sqrt(np.mean((self.mean - np.asarray(truth, np.float64)) ** 2, axis=1))

    def spread(self) -> Float[np.ndarray, " T"]:
        """Compute the root mean variance over the coordinates, at every row; of an honest filter it is the RMSE."""
        return np.sqrt(np.mean(self.std**2, axis=1))

    def ranks(self, truth: ArrayLike) -> np.ndarray:
        """Count how many members lie below the truth, (T, M): uniform on 0..K if truth and members are alike."""
        if self.members is None:
            raise ConfigError(
                "Ranks need members: pass keep_members=True with a filter that has them, such as etkf:24."
            )
        return np.sum(self.members < np.asarray(truth, np.float64)[:, None], axis=1)

    def compare(self, truth: ArrayLike, *, skip: int = 0, bins: int = 10) -> TwinScores:
        """Compare with the truth of a twin experiment, (T, M), after the first `skip` rows."""
        states = np.asarray(truth, np.float64)
        if states.shape != self.mean.shape or not 0 <= skip < len(states):
            raise DataError(
                f"The truth has shape {states.shape}; it must be {self.mean.shape}, with more rows than skip = {skip}."
            )
        rmse, spread, histogram = self.rmse(states)[skip:], self.spread()[skip:], None
        if self.members is not None:
            members = np.swapaxes(self.members[skip:], 0, 1)
            ranks = relative_ranks(members, states[skip:], np.random.default_rng(0))
            histogram = histogram_density(ranks, min(bins, len(members) + 1))
        return TwinScores(rmse, spread, bin_spread_and_error(spread, rmse, bins), histogram)


class _Timed(eqx.Module):
    """A flow f(z, t) as a map of (z, t) that counts its time."""

    function: Callable[..., Array]
    dt: float = eqx.field(static=True)

    def __call__(self, z: Float[Array, " M"]) -> Float[Array, " M"]:
        return jnp.append(self.function(z[:-1], z[-1]), z[-1] + self.dt)


def _build_core(flow: Any, latent_dim: int, dt: float) -> tuple[Core, bool]:
    """Make a core of a flow, and tell whether its last coordinate is time."""
    if isinstance(flow, Core):
        return flow, False
    if not callable(flow):
        raise ConfigError(f"The flow is a function of the state, a System or a Core, not {type(flow).__name__}.")
    try:
        given = inspect.signature(flow).parameters.values()
        needed = sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in given)
    except (TypeError, ValueError):
        needed = 1
    if needed == 2:
        return Custom(_Timed(flow, dt), latent_dim + 1), True
    return Custom(flow, latent_dim), False


def _build_map(observed: Any, num_observed: int, latent_dim: int, size: int) -> ObservationMap:
    """Make an observation map of coordinates, a matrix or a function of the state, for a state of `size` numbers."""
    if isinstance(observed, ObservationMap):
        return observed
    if callable(observed):
        return NonlinearObservation(lambda z: observed(z[:latent_dim]), num_observed, size)
    chosen = np.arange(num_observed) if observed is None else np.asarray(observed)
    if chosen.ndim == 1:
        if len(chosen) != num_observed or (num_observed and not 0 <= chosen.min() <= chosen.max() < latent_dim):
            raise DataError(
                f"{num_observed} coordinates are read, but `observed` names {len(chosen)} of {latent_dim}: {chosen}."
            )
        chosen = np.eye(latent_dim)[chosen]
    if chosen.shape != (num_observed, latent_dim):
        raise DataError(f"`observed` has shape {chosen.shape}; as a matrix it is ({num_observed}, {latent_dim}).")
    return LinearObservation(jnp.asarray(np.pad(chosen, ((0, 0), (0, size - latent_dim)))))


def _read_variances(name: str, std: ArrayLike, shape: Any, *, seen: Any = False) -> np.ndarray:
    """Square standard deviations of this shape, or one number for all; positive where something is `seen`."""
    values, shape = np.asarray(std, np.float64), np.broadcast_shapes(shape)
    if values.shape not in ((), shape):
        raise DataError(f"{name} must be one number, or {' x '.join(map(str, shape))} of them; got {std!r:.80}.")
    values = np.broadcast_to(values, shape)
    matters = np.broadcast_to(seen, shape)
    if (
        (~np.isfinite(values) & (matters | (np.ndim(values) < 2))).any()
        or (values < 0).any()
        or (values == 0)[matters].any()
    ):
        raise DataError(f"{name} must be {'positive ' * bool(np.any(seen))}numbers; got {std!r:.80}.")
    return values**2


def assimilate(
    flow: Any,
    readings: ArrayLike,
    *,
    start: ArrayLike,
    observation_std: ArrayLike | None = None,
    likelihood: str = GAUSSIAN,
    start_std: ArrayLike = 1.0,
    process_std: ArrayLike = 0.0,
    observed: Any = None,
    filter: str | Filter = "ekf",
    time: float = 0.0,
    dt: float = 1.0,
    keep_covariances: bool = False,
    keep_members: bool = False,
) -> Assimilation:
    """Assimilate a recording into a known flow by any filter; nothing is trained.

    A particle filter whose particles have collapsed is a warning.

    Args:
        flow: The state one row later, as a function of the state or of state and time, a `System` or a `Core`.
        readings: (T, N), one row for each step of the flow; NaN is missing, also whole rows.
        start, start_std: Mean and standard deviations of the state one step before the first row.
        observation_std, process_std: Of the noise; a number, or one for each reading or coordinate. That of readings
            may also be given row by row, (T, N): one for each of them.
        likelihood: "gaussian"; or "poisson" for counts and "bernoulli" for zeros and ones, whose log rates or log odds
            are what `observed` returns (see `kaffee.model.discrete`); particles weigh by it exactly, other filters by
            Laplace's approximation, and there is no observation_std.
        observed: Which coordinates are read, by default the first N; or a matrix (N, M), or a function of the state.
        filter: A name with options such as "etkf:24,inflation=1.013", or a filter.
        time, dt: Of the start and of a row, for flows that depend on time.
        keep_covariances, keep_members: Keep those of every row; otherwise they are dropped as the filter goes on.
    """
    x, first = np.asarray(readings, np.float64), np.atleast_1d(np.asarray(start, np.float64))
    if x.ndim != 2 or not x.size:
        raise DataError(f"Readings have shape {x.shape}; they must be (T, N) with at least one row and column.")
    if first.ndim != 1 or not np.isfinite(first).all():
        raise DataError(f"start has shape {first.shape}; it must be one finite number for each coordinate.")
    M, N = len(first), x.shape[1]
    core, timed = _build_core(flow, M, dt)
    size = M + timed
    if core.latent_dim != size:
        raise DataError(f"start has {M} coordinates, the flow has {core.latent_dim}.")
    dtype = jnp.zeros(0).dtype

    P = np.pad(_read_variances("start_std", start_std, M), (0, timed))
    Q = np.pad(_read_variances("process_std", process_std, M), (0, timed))
    discrete, R, own = None, np.ones(N), None
    if likelihood != GAUSSIAN:
        if observation_std is not None:
            raise ConfigError(f"Readings of the likelihood {likelihood} have no observation_std; leave it out.")
        discrete = Discrete(jnp.zeros(N, dtype), jnp.ones(N, dtype), likelihood)  # type: ignore[arg-type]
        x = encode_discrete(x, likelihood)
    elif observation_std is None:
        raise ConfigError("Gaussian readings need observation_std: a number, one for each column, or one for each.")
    elif np.ndim(observation_std) == 2:
        own = _read_variances("observation_std", observation_std, x.shape, seen=~np.isnan(x))
    else:
        R = _read_variances("observation_std", observation_std, N, seen=True)
    mean = np.append(first, time) if timed else first
    by = parse_filter(filter) if isinstance(filter, str) else filter
    belief: Any = by.start(jnp.asarray(mean, dtype)[None], jnp.asarray(np.diag(P), dtype)[None])
    observation = _build_map(observed, N, M, size)
    observation = jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, observation)
    dynamics = Dynamics(core, jnp.asarray(Q, dtype), jnp.asarray(R, dtype), belief, discrete=discrete)
    rows = jnp.asarray(x, dtype), None if own is None else jnp.asarray(own, dtype)
    faults, kept, final = _run(Recursion(filter=by), dynamics, observation, rows, (keep_covariances, keep_members))
    outcome = decode_outcome(locate_fault(faults))
    if not outcome.ok:
        raise DataError(f"The filter broke down at row {(outcome.step or 1) - 1}: {outcome}.")
    means, stds, before, before_std, nll, covariances, members, effective = (
        None if each is None else np.asarray(each, np.float64)[:, 0] for each in kept
    )
    assert means is not None
    assert stds is not None
    assert before is not None
    assert before_std is not None
    assert nll is not None
    done = Assimilation(
        means[:, :M],
        stds[:, :M],
        before[:, :M],
        before_std[:, :M],
        nll,
        None if covariances is None else covariances[:, :M, :M],
        None if members is None else members[..., :M],
        final,
        None if effective is None else np.where(np.isnan(x).all(axis=1), np.nan, effective),
    )
    if sentence := describe_collapse(done.collapsed_fraction):
        warnings.warn(sentence, stacklevel=2)
    return done


def _take_members(belief: Any) -> Any:
    """Return equally likely members of a belief; weighted ones are drawn by their weights."""
    members = getattr(belief, "members", None)
    if members is None or not hasattr(belief, "log_weights"):
        return members
    return jnp.swapaxes(belief.draw(jax.random.wrap_key_data(belief.seeds[0]), members.shape[1]), 0, 1)


@eqx.filter_jit
def _run(
    recursion: Recursion,
    dynamics: Dynamics,
    observation: ObservationMap,
    rows: tuple[Float[Array, "T N"], Float[Array, "T N"] | None],
    keep: tuple[bool, bool],
) -> tuple[Array, Any, Any]:
    def body(belief: Any, inputs: tuple[Float[Array, " N"], Float[Array, " N"] | None]) -> tuple[Any, Any]:
        row, own = inputs
        x, seen = jnp.nan_to_num(row)[None], ~jnp.isnan(row)[None]
        given = None if own is None else own[None]
        now: Any = step(recursion, dynamics, observation, belief, x, seen, variance=given)
        after, before = now.filtered, now.predicted
        moments = (after.mean, jnp.sqrt(after.variances()), before.mean, jnp.sqrt(before.variances()))
        covariance = after.moments().covariance if keep[0] else None
        members = _take_members(after) if keep[1] else None
        effective = count_effective(now.innovation)
        return after, (now.fault, (*moments, now.innovation.nll, covariance, members, effective))

    final, (faults, kept) = jax.lax.scan(body, dynamics.initial, rows)
    return faults, kept, final
