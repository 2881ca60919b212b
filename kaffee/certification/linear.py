"""The strongest baseline without chaos: a linear state-space model fitted by maximum likelihood.

It starts from a vector autoregression by ridge regression, whose order is chosen by the end of the training data.
"""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from kaffee.certification.forecasts import hold_readings
from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.data.windows import padded
from kaffee.errors import DataError
from kaffee.filtering.likelihood import KAFFEE
from kaffee.filtering.sweep import run_filter
from kaffee.metrics.scores import gaussian_nll
from kaffee.model.maps import Linear
from kaffee.model.observation import LinearObservation
from kaffee.model.statespace import Shell, StateSpaceModel
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.climate import with_climate
from kaffee.training.loop import Schedule, Watcher
from kaffee.training.optimiser import Optimiser

Recordings = list[Float[np.ndarray, "T N"]]
Choice = tuple[int, float]
"""An order and a ridge."""

ORDERS = (1, 2, 3, 5, 8, 13, 20, 32)
# A Kalman filter costs the cube of its latent size, which is order times N.
MOST_LATENT = 100
ROWS_PER_COEFFICIENT = 5
# In units of the data's variance. The smallest is for coordinates that repeat others, the largest is the climate.
RIDGES = (1e-9, 1e-6, 1e-3, 1e-1, 10.0)
# Nats per entry from the best order: the shortest order so close is worth a filter.
CLOSE, VERY_CLOSE = 0.05, 0.005
CHUNK = 10_000
# A series that stays in its range has no growing mode; a forecast that had one would be a baseline of straw.
STABLE = 0.999
# Noisy readings of a state, or as good as none: a coordinate that repeats another one later (a delay embedding) can be
# predicted exactly, but not by a filter that takes the other one's readings for noisy.
PROCESS_SHARES = (0.5, 0.9, 0.99, 1.0)
# As good as no noise: hardly above what a shell can hold.
LEAST_STD = 5e-5
BURN_IN, SCORED, WARM_UP = 8, 56, 20
VALIDATION, MIN_ROWS = 0.2, 8
SETTINGS = Adaptation(
    scored=SCORED,
    burn_in=BURN_IN,
    # Averaged: a regression is so near the optimum that single iterates are noisier than what there is to gain.
    optimiser=Optimiser("adam", learning_rate=1e-3, averaging=0.98),
    schedule=Schedule(num_updates=400, batch_size=16, report_every=50, save_every=400),
)
# Rows that were interpolated make a poor regression, from which the likelihood has far to go.
FAR = Optimiser("adam", learning_rate=1e-2, final_learning_rate=1e-3)
SHORT_ORDER = 2
# Beyond so many latent coordinates there are fewer updates, since each costs more; none from 69 on.
CHEAP_LATENT = 24


class _Regression(NamedTuple):
    """x_t = sum_k A_k x_{t-k} + c + noise of covariance Q, standardised."""

    A: Float[np.ndarray, "p N N"]
    c: Float[np.ndarray, " N"]
    Q: Float[np.ndarray, "N N"]

    def predict(self, x: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
        """Predict every row from those before it; before the first row there is the first row."""
        order = len(self.A)
        before = np.concatenate([np.repeat(x[:1], order, axis=0), x])
        return self.c + sum(before[order - k : len(before) - k] @ A_k.T for k, A_k in enumerate(self.A, 1))


def _sum_products(recordings: Recordings, order: int) -> tuple[int, Float[np.ndarray, "K K"]]:
    """Count the rows of complete recordings after the first p, and sum products of (x_{t-1}, ..., x_{t-p}, 1, x_t)."""
    N = recordings[0].shape[1]
    rows, products = 0, np.zeros((order * N + 1 + N,) * 2)
    for x in recordings:
        for first in range(order, len(x), CHUNK):
            last = min(first + CHUNK, len(x))
            lags = [x[first - k : last - k] for k in range(1, order + 1)]
            table = np.hstack([*lags, np.ones((last - first, 1)), x[first:last]])
            products += table.T @ table
            rows += last - first
    return rows, products


def _solve_ridge(rows: int, products: Float[np.ndarray, "K K"], order: int, ridge: float) -> _Regression:
    """Solve min_W |x - f W|^2 / rows + ridge |W|^2 for f = (x_{t-1}, ..., x_{t-p}, 1), the constant without penalty."""
    N = (len(products) - 1) // (order + 1)
    K = order * N + 1
    ff, fx, xx = products[:K, :K], products[:K, K:], products[K:, K:]
    W = np.linalg.solve(ff + rows * np.diag([ridge] * (K - 1) + [1e-9]), fx)
    S = (xx - W.T @ fx - fx.T @ W + W.T @ ff @ W) / rows
    S = 0.5 * (S + S.T) + 1e-6 * np.eye(N)
    # Correlations of few rows are chance; without them Q is positive definite however few there are.
    shrink = min(1.0, 2.0 * (N + 1) / rows)
    A = W[:-1].T.reshape(N, order, N).swapaxes(0, 1)
    return _Regression(A, W[-1], (1.0 - shrink) * S + shrink * np.diag(np.diag(S)))


def _fit_autoregression(series: Series, choice: Choice) -> _Regression:
    """Fit a vector autoregression to a standardised series; gaps are filled by straight lines."""
    return _solve_ridge(*_sum_products([_interpolate(x) for x in series.recordings], choice[0]), *choice)


def _one_step_nll(regression: _Regression, series: Series, part: Series) -> float:
    """Return the mean NLL of the readings of `series` after those of `part`, with the std of each coordinate alone.

    A missing lag is the reading before it, so that nothing is predicted with what comes after.
    """
    std = np.sqrt(np.diag(regression.Q))
    pairs = zip(series.recordings, part.recordings, strict=True)
    terms = [gaussian_nll(x, regression.predict(hold_readings(x)), std)[len(before) :] for x, before in pairs]
    each = np.concatenate(terms)
    seen = each[~np.isnan(each)]
    return float(seen.mean()) if len(seen) else 0.0


def _possible_orders(series: Series) -> list[int]:
    """List the orders with enough rows for their coefficients and a moderate latent size; 1 always."""
    N, lengths = series.num_coordinates, np.array(series.lengths)
    rows = {order: np.maximum(lengths - order, 0).sum() for order in ORDERS if 1 < order <= MOST_LATENT / N}
    return [1, *(order for order in rows if rows[order] >= ROWS_PER_COEFFICIENT * (order * N + 1))]


def _choose_orders(series: Series, part: Series) -> list[Choice]:
    """Choose the shortest orders that predict what comes after `part` about as well as any: one or two, short first.

    Each with its best ridge, fitted to `part`, the beginning of each recording of `series`.
    """
    complete = [_interpolate(x) for x in part.recordings]
    best: dict[int, tuple[float, Choice]] = {}
    for order in _possible_orders(part):
        sums = _sum_products(complete, order)
        scores = [_one_step_nll(_solve_ridge(*sums, order, ridge), series, part) for ridge in RIDGES]
        best[order] = min(scores), (order, RIDGES[int(np.argmin(scores))])
    lowest = min(nll for nll, _ in best.values())
    close = [next(choice for nll, choice in best.values() if nll <= lowest + margin) for margin in (CLOSE, VERY_CLOSE)]
    return list(dict.fromkeys(close))


def _interpolate(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Fill gaps by straight lines, ends by the nearest reading, columns without any by 0."""
    return pd.DataFrame(values).interpolate(limit_direction="both").fillna(0.0).to_numpy()


def _build_companion(regression: _Regression, process_share: float = 0.5) -> StateSpaceModel:
    """Build a state-space model of a regression: its state is x_t, in coordinates where Q is u^2 times 1, and its lags.

        z = (L^-1 x_t, x_{t-1}, ..., x_{t-p+1}),   x_t = [L 0 ... 0] z,   Q = u^2 L L'

    So the diagonal Gamma of the shell stands for noise that is correlated between coordinates as the residuals are.
    `process_share` of the residuals' variance is process noise, the rest observation noise.
    """
    A, c, Q = regression
    order, N = A.shape[:2]
    hidden = (order - 1) * N
    L = np.linalg.cholesky(Q)
    # In units of the smallest residual, so that no latent coordinate is larger than the data are: one that is counts as
    # diverged in free runs.
    unit = float(np.diag(L).min())
    L = L / unit
    inverse = np.linalg.inv(L)
    companion = np.eye(order * N, k=-N)
    companion[:N] = inverse @ np.hstack(list(A))
    companion[:, :N] = companion[:, :N] @ L
    return StateSpaceModel(
        core=Linear(_single(companion), _single(np.concatenate([inverse @ c, np.zeros(hidden)]))),
        shell=Shell.from_std(
            np.concatenate([np.full(N, unit * np.sqrt(process_share)), np.full(hidden, LEAST_STD)]),
            np.maximum(np.sqrt((1.0 - process_share) * np.diag(Q)), LEAST_STD),
        ),
        observation=LinearObservation(_single(np.hstack([L, np.zeros((N, hidden))]))),
        embedding=_single(np.vstack([inverse, *[np.eye(N)] * (order - 1)])),
    )


def _stabilise(model: StateSpaceModel) -> StateSpaceModel:
    """Scale A down to a spectral radius of `STABLE` if it is larger; that scales every A_k by s^k and bends no mode."""
    assert isinstance(model.core, Linear)
    A = np.asarray(model.core.A, np.float64)
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    return model if radius <= STABLE else model.replace(core=Linear(_single(A * STABLE / radius), model.core.h))


class _Best(Watcher):
    """Keep the iterate that predicts the validation part best; the start is the first candidate."""

    def __init__(self, validation: Series) -> None:
        self.x, self.mask = padded(validation)
        self.skip = min(WARM_UP, self.x.shape[1] // 4)
        self.nll, self.update, self.model = np.inf, 0, None  # type: float, int, StateSpaceModel | None
        self.attempt = self.current = 0

    def score(self, model: StateSpaceModel) -> float:
        terms = np.asarray(run_filter(model, self.x, self.mask).nll, np.float64)[:, self.skip :]
        return float(terms.sum() / max(int(self.mask[:, 1 + self.skip :].sum()), 1))

    def visited(self, update: int, model: StateSpaceModel) -> None:
        candidate = _stabilise(model)
        nll = self.score(candidate)
        if nll < self.nll:
            self.nll, self.update, self.model, self.attempt = nll, update, candidate, self.current


def _adapt_settings(order: int, model: StateSpaceModel, series: Series) -> Adaptation:
    """Fit the windows of `SETTINGS` to the series, the burn-in to all lags, and updates to what is affordable."""
    steps = min(order + BURN_IN + SCORED, max(series.lengths) - 1)
    burn_in = min(order + BURN_IN, steps // 2)
    schedule = SETTINGS.schedule
    affordable = schedule.num_updates * min(1.0, (CHEAP_LATENT / model.latent_dim) ** 2)
    schedule = replace(schedule, num_updates=int(affordable // schedule.report_every) * schedule.report_every)
    return replace(SETTINGS, burn_in=burn_in, scored=steps - burn_in, schedule=schedule)


def fit_linear(reconstruction: Reconstruction, train: Series, *, seed: int = 0) -> Reconstruction:
    """Fit a linear state-space model of x_t and its lags, in the units and with the columns of `reconstruction`.

    A vector autoregression by least squares is the start; its order, its ridge, its noise, and when maximising the
    likelihood should stop, are chosen by the last fifth of the training data (in data units), so that few rows of many
    coordinates do no harm. Then the same is done with all rows. Gaps are interpolated for the start only.
    """
    if max(train.lengths) < MIN_ROWS:
        raise DataError(
            f"{train.label}: a linear model needs a training recording of {MIN_ROWS} rows; the longest has "
            f"{max(train.lengths)}."
        )
    standard = train.standardised(reconstruction.scaler)
    part, validation = standard.split(1.0 - VALIDATION)
    best = _Best(validation)

    def build_start(series: Series, choice: Choice, share: float) -> StateSpaceModel:
        return _stabilise(_build_companion(_fit_autoregression(series, choice), share))

    def choose_start(choices: list[Choice]) -> tuple[Choice, float]:
        starts = list(product(choices, PROCESS_SHARES))
        scores = [best.score(build_start(part, *each)) for each in starts]
        return starts[int(np.argmin(np.nan_to_num(scores, nan=np.inf)))]

    attempts = [(*choose_start(_choose_orders(standard, part)), SETTINGS.optimiser)]
    if any(np.isnan(x).any() for x in part.recordings):
        attempts.append((*choose_start([(SHORT_ORDER, ridge) for ridge in RIDGES]), FAR))
    tried = []
    for best.current, (choice, share, optimiser) in enumerate(attempts):
        start = build_start(part, choice, share)
        settings = replace(_adapt_settings(choice[0], start, part), optimiser=optimiser)
        adapt(start, part, KAFFEE, settings, seed=seed, watcher=best)
        tried.append((start, settings))
    start, settings = tried[best.attempt]
    refitted = build_start(standard, *attempts[best.attempt][:2])
    if best.update:
        settings = replace(settings, schedule=replace(settings.schedule, num_updates=best.update))
        refitted = _stabilise(adapt(refitted, standard, KAFFEE, settings, seed=seed).model)
    # The last fifth is now among what it was fitted to: only a failure is worse there.
    model = refitted if best.score(refitted) < best.nll else best.model
    model = with_climate(model or start, standard, KAFFEE.filter)
    return replace(reconstruction, model=model, method="kaffee", provenance={})


def _single(values: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
    return jnp.asarray(values, jnp.float32)
