"""Linear state-space models by maximum likelihood: the first rung of a fit, and the baseline of every certificate.

They start from a vector autoregression (`kaffee.training.autoregression`) and keep what held-back rows confirm.
"""

from dataclasses import dataclass, replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from kaffee.data.gaps import evenly
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering.likelihood import KAFFEE
from kaffee.model.alrnn import ALRNN
from kaffee.model.core import Core
from kaffee.model.inputs import Driven, undriven
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation
from kaffee.model.statespace import LOG_STD_BOUND, Climate, Shell, StateSpaceModel
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.autoregression import (
    FARTHEST_REST,
    STABLE,
    WIDE_LATENT,
    Autoregression,
    ForecastScore,
    Structure,
    choose_structures,
    fit_autoregression,
    harmonics,
    interpolate,
)
from kaffee.training.loop import Schedule, Watcher
from kaffee.training.optimiser import Optimiser
from kaffee.training.selection import LARGE_LATENT, HeldBack, Judge, Scored, hold_back, scale_noise

# Nats per entry from the best regression up to which a simpler one is as good, and to which it may be.
# A large one costs so much more that it has to be better by more.
CLOSE, CLOSE_LARGE, MOST_CLOSE = 0.005, 0.03, 0.1
# Noisy readings of a state, or as good as none: a coordinate that repeats another one later (a delay embedding) can be
# predicted exactly, but not by a filter that takes the other one's readings for noisy.
PROCESS_SHARES = (0.5, 0.9, 0.99, 1.0)
# As good as no noise: hardly above what a shell can hold.
LEAST_STD = 5e-5
GATE_STD = 1e-3
KEPT_STATES = 256
BURN_IN, SCORED, MIN_ROWS = 8, 56, 8
SETTINGS = Adaptation(
    scored=SCORED,
    burn_in=BURN_IN,
    # Averaged: a regression is so near the optimum that single iterates are noisier than what there is to gain.
    optimiser=Optimiser("adam", learning_rate=1e-3, averaging=0.98),
    schedule=Schedule(num_updates=400, batch_size=16, report_every=50, save_every=400),
)
# Rows that were interpolated make a poor regression, from which the likelihood has far to go.
FAR = Optimiser("adam", learning_rate=1e-2, final_learning_rate=1e-3)
# Beyond so many latent coordinates there are fewer updates, since each costs more; none from 69 on.
CHEAP_LATENT = 24


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A linear model fitted to all rows, the one fitted without the held-back rows, and how that forecasts them."""

    model: StateSpaceModel
    part: StateSpaceModel
    structure: Structure
    scored: Scored


def build_state_space(regression: Autoregression, series: Series, share: float = 0.5) -> StateSpaceModel:
    """Build a state-space model of a regression: x_t in coordinates where Q is u^2 times 1, its lags, its harmonics.

        z = (L^-1 x_t, x_{t-1}, ..., x_{t-p+1}, U' x_{t-p}, ..., U' x_{t-q+1}, o_{t+1}),
        x_t = [L 0 ... 0] z,  Q = u^2 L L'

    So the diagonal Gamma of the shell stands for noise that is correlated between coordinates as the residuals are.
    `share` of the residuals' variance is process noise, the rest observation noise. The harmonics are oscillators,
    whose phase a filter finds. The climate is that of such states of a standardised series. Inputs act
    on x_t alone, by L^-1 D u_t.
    """
    A, C, U, H = regression.A, regression.C, regression.U, regression.H
    N, J, K = len(regression.c), H.shape[1], U.shape[1]
    A = A if len(A) else np.zeros((1, N, N))
    full, tail = len(A) * N, len(C) * K
    M = full + tail + J
    L = np.linalg.cholesky(regression.Q)
    # In units of the smallest residual, so that no latent coordinate is larger than the data are: one that is counts as
    # diverged in free runs.
    unit = float(np.diag(L).min())
    L = L / unit
    inverse = np.linalg.inv(L)
    F = np.zeros((M, M))
    F[:N] = inverse @ np.hstack([*A, *C, H])
    F[N:full, : full - N] = np.eye(full - N)
    if tail:
        F[full : full + K, full - N : full] = U.T
        F[full + K : full + tail, full : full + tail - K] = np.eye(tail - K)
    if J:
        F[-J:, -J:] = _rotation(regression.structure)
    F[:, :N] = F[:, :N] @ L
    states = _build_states(regression, series, len(A), inverse)
    mean, shrink = states.mean(axis=0), min(1.0, 2.0 * (M + 1) / len(states))
    covariance = np.atleast_2d(np.cov(states.T, ddof=0))
    covariance = (1.0 - shrink) * covariance + shrink * np.diag(np.diag(covariance)) + 1e-8 * np.eye(M)
    embedding = np.vstack([inverse, *[np.eye(N)] * (len(A) - 1), *[U.T] * len(C), np.zeros((J, N))])
    core: Core = Linear(_single(F), _single(np.concatenate([inverse @ regression.c, np.zeros(M - N)])))
    if regression.D.shape[1]:
        core = Driven(core, _single(np.pad(inverse @ regression.D, ((0, M - N), (0, 0)))))
    return StateSpaceModel(
        core=core,
        shell=Shell.from_std(
            np.concatenate([np.full(N, unit * np.sqrt(share)), np.full(M - N, LEAST_STD)]),
            np.maximum(np.sqrt((1.0 - share) * np.diag(regression.Q)), LEAST_STD),
            bound=LOG_STD_BOUND,
        ),
        observation=LinearObservation(_single(np.hstack([L, np.zeros((N, M - N))]))),
        embedding=_single(embedding),
        climate=Climate.from_moments(
            mean, covariance, states=states[evenly(len(states), min(KEPT_STATES, len(states)))]
        ),
    )


def _rotation(structure: Structure) -> Float[np.ndarray, "J J"]:
    """Compute the matrix that takes harmonics (cos, sin) one row further."""
    R = np.zeros((2 * structure.harmonics,) * 2)
    for j in range(structure.harmonics):
        angle = 2.0 * np.pi * (j + 1) / structure.period
        R[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return R


def _build_states(
    regression: Autoregression, series: Series, order: int, inverse: Float[np.ndarray, "N N"]
) -> Float[np.ndarray, "S M"]:
    """Build the latent state of every row of a standardised series that has all its lags; gaps are interpolated."""
    tables, reach = [], order + len(regression.C)
    for x, t in zip(series.recordings, series.row_times, strict=True):
        x = interpolate(x)
        rows = np.arange(min(reach - 1, len(x) - 1), len(x))
        lag = [x[np.maximum(rows - k, 0)] for k in range(reach)]
        blocks = [lag[0] @ inverse.T, *lag[1:order], *(each @ regression.U for each in lag[order:])]
        tables.append(np.hstack([*blocks, harmonics(t[rows] + 1.0, regression.structure)]))
    return np.concatenate(tables)


def _stabilise(model: StateSpaceModel, radius: float, farthest: float) -> StateSpaceModel:
    """Scale A down to a spectral radius if it is larger, and bring its point of rest near if it is farther away."""
    core, found = _linear(model), _spectral_radius(model)
    if found > radius + 1e-6:
        core = Linear(core.A * (radius / found), core.h)
        model = _with_linear(model, core)
    distance = _rest_distance(model) if np.isfinite(farthest) else 0.0
    return model if distance <= farthest else _with_linear(model, Linear(core.A, core.h * (farthest / distance)))


def _linear(model: StateSpaceModel) -> Linear:
    """Return the linear map of a model, without what drives it."""
    core = undriven(model.core)
    assert isinstance(core, Linear)
    return core


def _with_linear(model: StateSpaceModel, core: Linear) -> StateSpaceModel:
    """Put another linear map in place of a model's, driven as before."""
    return model.replace(core=replace(model.core, inner=core) if isinstance(model.core, Driven) else core)


def _rest_distance(model: StateSpaceModel) -> float:
    """Compute |B (1 - A)^-1 h|, the root mean square: how far from 0, the mean of standardised data, a run rests."""
    A, h = (np.asarray(each, np.float64) for each in (_linear(model).A, _linear(model).h))
    rest = model.observation.observe(_single(np.linalg.solve(np.eye(len(A)) - A, h)[None]))
    return float(np.sqrt(np.mean(np.asarray(rest, np.float64) ** 2)))


def _spectral_radius(model: StateSpaceModel) -> float:
    return float(np.abs(np.linalg.eigvals(np.asarray(_linear(model).A, np.float64))).max())


def with_gates(model: StateSpaceModel, num_gates: int, *, key: Key[Array, ""]) -> StateSpaceModel:
    """Turn a linear model with a climate into an AL-RNN that does the same, with gates that are silent at first.

    Its linear units carry the linear dynamics. A gate is a random direction of the climate beyond a random threshold,
    both in units of its spread; what gates give back begins at zero, so that training starts no worse than linear.
    """
    linear = _linear(model)
    assert isinstance(model.observation, LinearObservation)
    assert model.climate is not None
    mean, covariance = (np.asarray(each, np.float64) for each in model.climate.moments())
    directions, thresholds = (
        jax.random.normal(k, shape)
        for k, shape in zip(jax.random.split(key), ((num_gates, model.latent_dim), (num_gates,)), strict=True)
    )
    V = np.asarray(directions, np.float64)
    V /= np.sqrt(np.einsum("pi,ij,pj->p", V, covariance, V))[:, None]
    A, M = np.asarray(linear.A, np.float64), model.latent_dim
    W = np.zeros((M + num_gates,) * 2)
    W[:M, :M], W[M:, :M] = A - np.diag(np.diag(A)), V
    shift = -V @ mean - np.asarray(thresholds, np.float64)
    silent, E = np.zeros(num_gates), np.asarray(model.embedding, np.float64)
    process = np.exp(np.asarray(model.shell.log_process_std, np.float64))
    B = np.asarray(model.observation.B, np.float64)
    core: Core = ALRNN(
        _single(np.concatenate([np.diag(A), silent])),
        _single(W),
        _single(np.concatenate([np.asarray(linear.h), shift])),
        num_gates=num_gates,
    )
    if isinstance(model.core, Driven):
        core = Driven(core, jnp.pad(model.core.C, ((0, num_gates), (0, 0))))
    return StateSpaceModel(
        core=core,
        shell=Shell.from_std(
            np.concatenate([process, np.full(num_gates, GATE_STD)]),
            jnp.exp(model.shell.log_observation_std),
            bound=model.shell.bound,
        ),
        observation=LinearObservation(_single(np.hstack([B, np.zeros((len(B), num_gates))]))),
        embedding=_single(np.vstack([E, V @ E])),
        # A gate follows the state of the row before, whose covariance with this row is about that of the row itself.
        climate=Climate.from_moments(
            np.concatenate([mean, V @ mean + shift]),
            np.vstack([both := np.hstack([covariance, covariance @ V.T]), V @ both]),
            states=np.hstack([states := np.asarray(model.climate.states, np.float64), states @ V.T + shift]),
        ),
    )


class _Best(Watcher):
    """Keep the iterate that forecasts held-back rows best; the start is the first candidate."""

    def __init__(self, judge: Judge, radius: float, farthest: float) -> None:
        self.judge, self.radius, self.farthest = judge, radius, farthest
        self.score, self.model = np.inf, None  # type: float, StateSpaceModel | None

    def visited(self, update: int, model: StateSpaceModel) -> None:
        candidate = _stabilise(model, self.radius, self.farthest)
        score = self.judge.score(candidate).mean
        if self.model is None or score < self.score:
            self.score, self.model = score, candidate


def _adapt_settings(memory: int, model: StateSpaceModel, series: Series) -> Adaptation:
    """Fit the windows of `SETTINGS` to the series, the burn-in to all lags, and updates to what is affordable."""
    steps = min(memory + BURN_IN + SCORED, max(series.lengths) - 1)
    burn_in = min(memory + BURN_IN, steps // 2)
    schedule = SETTINGS.schedule
    affordable = schedule.num_updates * min(1.0, (CHEAP_LATENT / model.latent_dim) ** 2)
    schedule = replace(schedule, num_updates=int(affordable // schedule.report_every) * schedule.report_every)
    return replace(SETTINGS, burn_in=burn_in, scored=steps - burn_in, schedule=schedule)


def fit_linear(
    standard: Series,
    held: HeldBack | None = None,
    judge: Judge | None = None,
    *,
    most_latent: int = WIDE_LATENT,
    seasons: bool = True,
    seed: int = 0,
) -> LinearFit:
    """Fit a linear state-space model of x_t, its lags and its season to a standardised series.

    A vector autoregression is the start; its structure and ridge, its noise, and when maximising the likelihood should
    stop, are chosen by forecasts of held-back rows, so that few rows of many coordinates do no harm. Then the
    regression is done again with all rows, moved by what the likelihood had changed, and its noise scaled by what
    held-back rows asked for.

    Args:
        most_latent: Bound on the number of latent coordinates.
        seasons: Whether to try harmonics of a period.
    """
    if max(standard.lengths) < MIN_ROWS:
        raise DataError(
            f"{standard.label}: a linear model needs a training recording of {MIN_ROWS} rows; the longest has "
            f"{max(standard.lengths)}."
        )
    held = held or hold_back(standard)
    judge = judge or Judge(held)
    score = ForecastScore(held, judge.horizons)
    ranked = choose_structures(standard, held.part, score, most_latent, seasons=seasons)
    best, large = ranked[0][0], ranked[0][1].latent_dim > LARGE_LATENT

    def is_close(other: Scored, share: float) -> bool:
        gain, error = best.gain_over(other)
        return gain <= max(min(share * error, MOST_CLOSE), CLOSE_LARGE if large else CLOSE)

    def simplest(share: float) -> Autoregression:
        return min((model for scored, model in ranked if is_close(scored, share)), key=lambda model: model.latent_dim)

    # No worse than the best within a standard error, or by a hair; a filter judges both.
    candidates = {id(model): model for model in (simplest(1.0), simplest(0.0))}.values()
    large = min(model.latent_dim for model in candidates) > LARGE_LATENT
    starts = [
        (regression, share, build_state_space(regression, held.part, share))
        for regression, share in product(candidates, PROCESS_SHARES[-2:] if large else PROCESS_SHARES)
    ]
    scores = [judge.score(model).mean for _, _, model in starts]
    regression, share, start = starts[int(np.argmin(scores))]
    structure = regression.structure
    radius = max(STABLE, _spectral_radius(start))
    # Of differences every level is a point of rest.
    farthest = np.inf if structure.differenced else max(FARTHEST_REST, _rest_distance(start))
    settings = _adapt_settings(structure.memory, start, held.part)
    if any(np.isnan(x).any() for x in held.part.recordings):
        settings = replace(settings, optimiser=FAR)
    watcher = _Best(judge, radius, farthest)
    if settings.schedule.num_updates:
        adapt(start, held.part, KAFFEE, settings, seed=seed, watcher=watcher)
    part, scales = judge.calibrate(watcher.model or start)
    again = build_state_space(fit_autoregression(standard, structure), standard, share)
    # The change that the likelihood made, on top of the regression of all rows.
    moved = jax.tree.map(
        lambda a, b, c: a + (b - c), *((m.core, m.shell) for m in (again, watcher.model or start, start))
    )
    model = _stabilise(scale_noise(again.replace(core=moved[0], shell=moved[1]), *scales), radius, farthest)
    scored = judge.score(part)
    # Held-back rows are now among what it was fitted to: only a failure is worse there.
    model = model if judge.score(model).mean < scored.mean + MOST_CLOSE else part
    return LinearFit(model, part, structure, scored)


def _single(values: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
    return jnp.asarray(values, jnp.float32)
