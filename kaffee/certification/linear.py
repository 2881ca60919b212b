"""The strongest baseline without chaos: a linear state-space model fitted by maximum likelihood.

For a linear core the extended Kalman filter is the Kalman filter, so that kaffee's own objective is the exact
likelihood and its own training loop the maximisation.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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

ORDER = 2
# A series that stays in its range has no growing mode; a forecast that had one would be a baseline of straw.
STABLE = 0.999
# In units of the data's variance; validation chooses. The last is the climate.
RIDGES = (1e-6, 1e-3, 1e-1, 10.0)
# Noisy readings of a state, or as good as none: a coordinate that repeats another one later (a delay embedding) can be
# predicted exactly, but not by a filter that takes the other one's readings for noisy.
PROCESS_SHARES = (0.5, 1.0 - 1e-6)
BURN_IN, SCORED = 8, 56
VALIDATION = 0.2
MIN_ROWS = 8
SETTINGS = Adaptation(
    scored=SCORED,
    burn_in=BURN_IN,
    optimiser=Optimiser("adam", learning_rate=1e-2, final_learning_rate=1e-3),
    schedule=Schedule(num_updates=400, batch_size=16, report_every=50, save_every=400),
)


class Regression(NamedTuple):
    """x_t = A_1 x_{t-1} + A_2 x_{t-2} + c + noise of covariance Q, standardised."""

    A: Float[np.ndarray, "2 N N"]
    c: Float[np.ndarray, " N"]
    Q: Float[np.ndarray, "N N"]


def vector_autoregression(recordings: list[Float[np.ndarray, "T N"]], ridge: float) -> Regression:
    """VAR(2) by ridge regression on complete recordings."""
    past = np.concatenate([np.hstack([x[1:-1], x[:-2]]) for x in recordings])
    target = np.concatenate([x[2:] for x in recordings])
    rows, N = target.shape
    features = np.hstack([past, np.ones((rows, 1))])
    penalty = rows * np.diag([ridge] * (ORDER * N) + [1e-9])
    W = np.linalg.solve(features.T @ features + penalty, features.T @ target)
    residual = target - features @ W
    A = W[:-1].T.reshape(N, ORDER, N).swapaxes(0, 1)
    S = residual.T @ residual / rows + 1e-6 * np.eye(N)
    # Correlations of few rows are chance; without them Q is positive definite however few there are.
    shrink = min(1.0, 2.0 * (N + 1) / rows)
    return Regression(A, W[-1], (1.0 - shrink) * S + shrink * np.diag(np.diag(S)))


def companion_model(regression: Regression, process_share: float = 0.5) -> StateSpaceModel:
    """The regression as a state-space model with the state (x_t, x_{t-1}), in coordinates where Q is u^2 times 1.

        z = (L^-1 x_t, L^-1 x_{t-1}),   x_t = [L 0] z,   Q = u^2 L L'

    So the diagonal Gamma of the shell stands for noise that is correlated between coordinates as the residuals are.
    `process_share` of the residuals' variance is process noise, the rest observation noise; which of them it is, the
    likelihood decides.
    """
    (A1, A2), c, Q = regression
    N = len(c)
    L = np.linalg.cholesky(Q)
    # In units of the smallest residual, so that no latent coordinate is larger than the data are: one that is counts as
    # diverged in free runs.
    unit = float(np.diag(L).min())
    L = L / unit
    inverse = np.linalg.inv(L)
    A = np.block([[inverse @ A1 @ L, inverse @ A2 @ L], [np.eye(N), np.zeros((N, N))]])
    return StateSpaceModel(
        core=Linear(_single(A), _single(np.concatenate([inverse @ c, np.zeros(N)]))),
        shell=Shell.from_std(
            unit * np.repeat([np.sqrt(process_share), min(0.1, np.sqrt(1.0 - process_share))], N),
            np.sqrt((1.0 - process_share) * np.diag(Q)),
        ),
        observation=LinearObservation(_single(np.hstack([L, np.zeros((N, N))]))),
        embedding=_single(np.vstack([inverse, inverse])),
    )


def stable(model: StateSpaceModel) -> StateSpaceModel:
    """The model with A scaled down to a spectral radius of `STABLE` if it is larger."""
    assert isinstance(model.core, Linear)
    A = np.asarray(model.core.A, np.float64)
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    return model if radius <= STABLE else model.replace(core=Linear(_single(A * STABLE / radius), model.core.h))


class _Best(Watcher):
    """Keeps the iterate that predicts the validation part best; the start is the first candidate."""

    def __init__(self, validation: Series) -> None:
        self.x, self.mask = padded(validation)
        self.skip = min(BURN_IN, self.x.shape[1] // 4)
        self.nll, self.model = np.inf, None  # type: float, StateSpaceModel | None

    def score(self, model: StateSpaceModel) -> float:
        terms = np.asarray(run_filter(model, self.x, self.mask).nll, np.float64)[:, self.skip :]
        return float(terms.sum() / max(int(self.mask[:, 1 + self.skip :].sum()), 1))

    def visited(self, update: int, model: StateSpaceModel) -> None:
        candidate = stable(model)
        nll = self.score(candidate)
        if nll < self.nll:
            self.nll, self.model = nll, candidate


def fit_linear(reconstruction: Reconstruction, train: Series, *, seed: int = 0) -> Reconstruction:
    """A linear state-space model of 2 N latent coordinates, in the units and with the columns of `reconstruction`.

    A VAR(2) by least squares is the start; its ridge, its noise, and when maximising the likelihood should stop, are
    chosen by the likelihood of the last fifth of the training data, so that few rows of many coordinates do no harm.
    Gaps are interpolated for the start only; the likelihood skips them.

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
    complete = [interpolated(values) for values in part.recordings if len(values) > ORDER]
    regressions = [vector_autoregression(complete, ridge) for ridge in RIDGES]
    models = [stable(companion_model(each, share)) for each in regressions for share in PROCESS_SHARES]
    start = models[int(np.argmin([best.score(model) for model in models]))]
    steps = min(BURN_IN + SCORED, max(part.lengths) - 1)
    burn_in = min(BURN_IN, steps // 2)
    settings = replace(SETTINGS, burn_in=burn_in, scored=steps - burn_in)
    adapt(start, part, KAFFEE, settings, seed=seed, watcher=best)
    return replace(reconstruction, model=best.model or start, method="kaffee", provenance={})


def interpolated(values: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Gaps filled by straight lines, ends by the nearest reading, columns without any by 0."""
    filled, t = np.zeros_like(values), np.arange(len(values))
    for j, column in enumerate(values.T):
        seen = ~np.isnan(column)
        if seen.any():
            filled[:, j] = np.interp(t, t[seen], column[seen])
    return filled


def _single(values: Float[np.ndarray, "..."]) -> Float[Array, "..."]:
    return jnp.asarray(values, jnp.float32)
