"""The strongest baseline without chaos: a linear state-space model fitted by maximum likelihood.

For a linear core the extended Kalman filter is the Kalman filter, so that kaffee's own objective is the exact
likelihood and its own training loop the maximisation.
"""

from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.certification.regression import RIDGES, Choice, Regression, best_choices, vector_autoregression
from kaffee.checkpoint import Reconstruction
from kaffee.cores import Linear
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.filtering import run_filter
from kaffee.methods import KAFFEE
from kaffee.observation import LinearObservation
from kaffee.shell import Shell
from kaffee.ssm import StateSpaceModel
from kaffee.training.adaptation import Adaptation, adapt
from kaffee.training.loop import Schedule, Watcher
from kaffee.training.optimiser import Optimiser
from kaffee.training.sampling import padded

# A series that stays in its range has no growing mode; a forecast that had one would be a baseline of straw.
STABLE = 0.999
# Noisy readings of a state, or as good as none: a coordinate that repeats another one later (a delay embedding) can be
# predicted exactly, but not by a filter that takes the other one's readings for noisy.
PROCESS_SHARES = (0.5, 0.9, 0.99, 1.0)
# As good as no noise: hardly above what a shell can hold.
LEAST_STD = 5e-5
BURN_IN, SCORED = 8, 56
WARM_UP = 20
VALIDATION = 0.2
MIN_ROWS = 8
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


def companion_model(regression: Regression, process_share: float = 0.5) -> StateSpaceModel:
    """The regression as a state-space model whose state is x_t, in coordinates where Q is u^2 times 1, and its lags.

        z = (L^-1 x_t, x_{t-1}, ..., x_{t-p+1}),   x_t = [L 0 ... 0] z,   Q = u^2 L L'

    So the diagonal Gamma of the shell stands for noise that is correlated between coordinates as the residuals are. The
    lags are in the units of the data, where the least noise that a shell can hold is small.
    `process_share` of the residuals' variance is process noise, the rest observation noise; which of them it is, the
    likelihood decides.
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


def stable(model: StateSpaceModel) -> StateSpaceModel:
    """The model with A scaled down to a spectral radius of `STABLE` if it is larger.

    Scaling the whole companion matrix by s is scaling A_k by s^k, in other units of the lags: all modes decay faster by
    the same factor, and none is bent.
    """
    assert isinstance(model.core, Linear)
    A = np.asarray(model.core.A, np.float64)
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    return model if radius <= STABLE else model.replace(core=Linear(_single(A * STABLE / radius), model.core.h))


class _Best(Watcher):
    """Keeps the iterate that predicts the validation part best; the start is the first candidate."""

    def __init__(self, validation: Series) -> None:
        self.x, self.mask = padded(validation)
        self.skip = min(WARM_UP, self.x.shape[1] // 4)
        self.nll, self.update, self.model = np.inf, 0, None  # type: float, int, StateSpaceModel | None
        self.attempt = self.current = 0

    def score(self, model: StateSpaceModel) -> float:
        terms = np.asarray(run_filter(model, self.x, self.mask).nll, np.float64)[:, self.skip :]
        return float(terms.sum() / max(int(self.mask[:, 1 + self.skip :].sum()), 1))

    def visited(self, update: int, model: StateSpaceModel) -> None:
        candidate = stable(model)
        nll = self.score(candidate)
        if nll < self.nll:
            self.nll, self.update, self.model, self.attempt = nll, update, candidate, self.current


def settings_for(order: int, model: StateSpaceModel, series: Series) -> Adaptation:
    """`SETTINGS` with windows that fit the series, a burn-in that fills all lags, and updates that are affordable."""
    steps = min(order + BURN_IN + SCORED, max(series.lengths) - 1)
    burn_in = min(order + BURN_IN, steps // 2)
    schedule = SETTINGS.schedule
    affordable = schedule.num_updates * min(1.0, (CHEAP_LATENT / model.latent_dim) ** 2)
    num_updates = int(affordable // schedule.report_every) * schedule.report_every
    schedule = replace(schedule, num_updates=num_updates)
    return replace(SETTINGS, burn_in=burn_in, scored=steps - burn_in, schedule=schedule)


def fit_linear(reconstruction: Reconstruction, train: Series, *, seed: int = 0) -> Reconstruction:
    """A linear state-space model of x_t and its lags, in the units and with the columns of `reconstruction`.

    A vector autoregression by least squares is the start; its order, its ridge, its noise, and when maximising the
    likelihood should stop, are chosen by the last fifth of the training data, so that few rows of many coordinates do
    no harm. Then the same is done with all rows. Gaps are interpolated for the start only; the likelihood skips them.

    Args:
        train: In data units.
    """
    if max(train.lengths) < MIN_ROWS:
        raise DataError(
            f"{train.label}: a linear model needs a training recording of {MIN_ROWS} rows; the longest has "
            f"{max(train.lengths)}."
        )
    standard = train.standardised(reconstruction.scaler)
    part, validation = standard.split(1.0 - VALIDATION)
    best = _Best(validation)

    def start_of(series: Series, choice: Choice, share: float) -> StateSpaceModel:
        return stable(companion_model(vector_autoregression(series, choice), share))

    def best_start(choices: list[Choice]) -> tuple[Choice, float]:
        starts = list(product(choices, PROCESS_SHARES))
        scores = [best.score(start_of(part, *each)) for each in starts]
        return starts[int(np.argmin(np.nan_to_num(scores, nan=np.inf)))]

    attempts = [(*best_start(best_choices(standard, part)), SETTINGS.optimiser)]
    if any(np.isnan(x).any() for x in part.recordings):
        attempts.append((*best_start([Choice(SHORT_ORDER, ridge) for ridge in RIDGES]), FAR))
    for best.current, (choice, share, optimiser) in enumerate(attempts):
        start = start_of(part, choice, share)
        settings = replace(settings_for(choice.order, start, part), optimiser=optimiser)
        adapt(start, part, KAFFEE, settings, seed=seed, watcher=best)
    choice, share, optimiser = attempts[best.attempt]
    start = start_of(part, choice, share)
    settings = replace(settings_for(choice.order, start, part), optimiser=optimiser)
    refitted = start_of(standard, choice, share)
    if best.update:
        settings = replace(settings, schedule=replace(settings.schedule, num_updates=best.update))
        refitted = stable(adapt(refitted, standard, KAFFEE, settings, seed=seed).model)
    # The last fifth is now among what it was fitted to: only a failure is worse there.
    model = refitted if best.score(refitted) < best.nll else best.model
    return replace(reconstruction, model=model or start, method="kaffee", provenance={})


def _single(values: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
    return jnp.asarray(values, jnp.float32)
