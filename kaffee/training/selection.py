"""Model selection inside a fit: rows held back from training, forecasts of them, noise scales calibrated on them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.optimize import minimize

from kaffee.data.series import Series
from kaffee.filtering.gated import make_gate
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.recursion import Recursion, predict
from kaffee.filtering.rollout import DIVERGENCE_BOUND, forecast_ensemble
from kaffee.filtering.sweep import batch_recordings, sweep
from kaffee.metrics.scores import gaussian_nll
from kaffee.model.inputs import undriven
from kaffee.model.maps import Linear
from kaffee.model.statespace import Shell, StateSpaceModel

HELD_BACK = 0.2
"""Share of the training rows that no gradient sees."""
BLOCK_ROWS, MOST_BLOCKS = 1_000, 4
"""A recording has one block of held-back rows for so many rows, the last at its end."""
LEAD = 64
"""Rows before each block from which a filter finds the state."""
MOST_HELD, WIDE, MOST_HELD_WIDE = 500, 24, 100
"""Rows of a block at most; of many coordinates fewer rows say as much, and each costs more."""
HORIZONS, WEIGHTS = (1, 4, 16), (0.5, 0.25, 0.25)
"""Steps ahead at which forecasts of held-back rows are scored, and what each counts."""
MAX_STARTS, MEMBERS = 256, 64
SCALES = (-1.5, 3.0)
"""Bounds of the logarithm of calibrated noise scales: what is calibrated is not rebuilt."""
MEMORY = 8.0
"""Rows over which errors of forecasts stay alike at most, however slow the data: a filter learns of them."""
NUM_BLOCKS = 16
LARGE_LATENT, EVALUATIONS = 64, (24, 10)
"""Latents beyond which every score takes seconds; and how many of them a calibration takes, up to there and beyond."""
LEAST_STD, HALF_WIDTH = 1e-3, 1.6448536269514722
_SEED = 0


class HeldBack(NamedTuple):
    """Rows to train on, and blocks of rows that are held back, each after `leads` rows of what came before it."""

    part: Series
    blocks: Series
    leads: tuple[int, ...]


def hold_back(series: Series, share: float = HELD_BACK, *, num_coordinates: int | None = None) -> HeldBack:
    """Hold back the end of every recording, and of every stretch of `BLOCK_ROWS` rows of a long one.

    Recordings too short to be cut are trained on as they are. The rows are those of a series of so many coordinates.
    """
    if series.times is None:
        series = replace(series, times=series.row_times)  # blocks must know where in a period they are
    train, blocks, leads = [], [], []
    most = MOST_HELD if (num_coordinates or series.num_coordinates) < WIDE else MOST_HELD_WIDE
    for r, T in enumerate(series.lengths):
        count = min(max(T // BLOCK_ROWS, 1), MOST_BLOCKS)
        edges = np.linspace(0, T, count + 1).astype(int)
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            cut = last - min(int(share * (last - first) + 1e-9), most)
            train.append((r, slice(first, cut)))
            if cut < last:
                blocks.append((r, slice(max(cut - LEAD, 0), last)))
                leads.append(cut - max(cut - LEAD, 0))
    return HeldBack(series.take(train), series.take(blocks), tuple(leads))


def choose_starts(held: HeldBack) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " S"]]:
    """Choose the block and the row of up to `MAX_STARTS` forecasts of held-back rows."""
    pairs = zip(held.blocks.lengths, held.leads, strict=True)
    rows = np.array([(r, row) for r, (T, lead) in enumerate(pairs) for row in range(max(lead - 1, 0), T - 1)])
    some = np.unique(np.linspace(0, len(rows) - 1, min(MAX_STARTS, len(rows))).round().astype(int))
    return rows[some, 0], rows[some, 1]


def inputs_ahead(
    series: Series, recordings: Int[np.ndarray, " S"], rows: Int[np.ndarray, " S"], num_steps: int
) -> Float[np.ndarray, "S H K"] | None:
    """Take the inputs of the rows after each start, 0 beyond the end of a recording; None without inputs."""
    if series.inputs is None:
        return None
    ahead = np.zeros((len(rows), num_steps, series.num_inputs))
    for s, (r, row) in enumerate(zip(recordings, rows, strict=True)):
        known = series.inputs.recordings[r][row + 1 : row + 1 + num_steps]
        ahead[s, : len(known)] = known
    return ahead


class Scored(NamedTuple):
    """NLL per entry of forecasts at each start and horizon, NaN if nothing was read, and shares inside 90 % bands."""

    nll: Float[np.ndarray, "S H"]
    coverage: Float[np.ndarray, " H"] | None = None

    @classmethod
    def from_entries(
        cls, entries: Float[np.ndarray, "S H N"], inside: Bool[np.ndarray, "S H N"] | None = None
    ) -> "Scored":
        """Average the NLL over coordinates that were read, NaN where they were not."""
        seen = ~np.isnan(entries)
        nll = np.where(seen, entries, 0.0).sum(axis=2) / np.maximum(seen.sum(axis=2), 1)
        nll[~seen.any(axis=2)] = np.nan
        if inside is None:
            return cls(nll)
        return cls(nll, np.where(seen, inside, 0).sum(axis=(0, 2)) / np.maximum(seen.sum(axis=(0, 2)), 1))

    @property
    def mean(self) -> float:
        """The mean over starts, weighted over horizons; infinite if a forecast failed."""
        read = ~np.isnan(self.nll).all(axis=0)
        weights = read * np.array(WEIGHTS[: self.nll.shape[1]])
        value = float(weights[read] @ np.nanmean(self.nll[:, read], axis=0) / weights.sum()) if read.any() else 0.0
        return value if np.isfinite(value) else np.inf

    def gain_over(self, other: "Scored") -> tuple[float, float]:
        """Compute how many nats per entry better this is than another on the same starts, and the standard error.

        The error is that of means of blocks of neighbouring starts, whose forecasts have much in common.
        """
        if not (np.isfinite(self.mean) and np.isfinite(other.mean)):
            return np.inf if self.mean < other.mean else -np.inf, 0.0
        weights = np.array(WEIGHTS[: self.nll.shape[1]])
        difference = other.nll - self.nll
        read = ~np.isnan(difference)
        each = np.where(read, difference, 0.0) @ weights / np.maximum(read @ weights, 1e-12)
        each = each[read.any(axis=1)]
        if len(each) < 2:
            return other.mean - self.mean, 0.0
        means = np.array([block.mean() for block in np.array_split(each, min(NUM_BLOCKS, len(each)))])
        return other.mean - self.mean, float(means.std(ddof=1) / np.sqrt(len(means)))


class Judge:
    """Scores state-space models by forecasts of held-back rows from filtered beliefs.

    `num_independent` is how many of these rows are as good as independent.
    """

    def __init__(self, held: HeldBack, horizons: Sequence[int] = HORIZONS) -> None:
        lengths = [T - lead for T, lead in zip(held.blocks.lengths, held.leads, strict=True)]
        # Rows that err together tell about noise no more than one of them.
        self.num_independent = sum(lengths) / max(2.0 * min(held.part.decorrelation_time, MEMORY), 1.0)
        self.horizons = tuple(h for h in horizons if h == 1 or h <= max(lengths) // 3)
        self._starts = choose_starts(held)
        recordings, rows = self._starts
        self._x = batch_recordings(held.blocks, jnp.float32)
        known = np.asarray(self._x, np.float64)[..., : held.part.num_coordinates]
        beyond = np.full((max(self.horizons), *known.shape[1:]), np.nan)
        padded = np.concatenate([known, beyond])
        ahead = inputs_ahead(held.blocks, recordings, rows, max(self.horizons))
        self._inputs = None if ahead is None else jnp.asarray(ahead, jnp.float32)
        self._later = np.stack([padded[rows + h, recordings] for h in self.horizons], axis=1)

    def score(self, model: StateSpaceModel) -> Scored:
        """Score forecasts: exact moments of a linear model, those of an ensemble of any other."""
        mean, std = (np.asarray(a, np.float64) for a in self._forecast(model))
        std, later = np.maximum(std, LEAST_STD), self._later
        with np.errstate(all="ignore"):
            nll = np.where(np.isfinite(mean) & np.isfinite(std), gaussian_nll(later, mean, std), np.inf)
            inside = np.abs(later - mean) <= HALF_WIDTH * std
        return Scored.from_entries(np.where(np.isnan(later), np.nan, nll), inside)

    def _forecast(self, model: StateSpaceModel) -> tuple[Array, Array]:
        beliefs = sweep(model, Recursion(), self._x, gate=make_gate(), keep=None, starts=self._starts).beliefs
        # Moments of a linear model are exact.
        ahead = _carry if isinstance(undriven(model.core), Linear) else _spread
        inputs = self._inputs if model.input_dim else None
        mean, std = ahead(model, beliefs, max(self.horizons), inputs)
        chosen = np.array(self.horizons) - 1
        return mean[:, chosen], std[:, chosen]

    def calibrate(self, model: StateSpaceModel, most: int | None = None) -> tuple[StateSpaceModel, tuple[float, float]]:
        """Scale all process noise and all observation noise so that forecasts of held-back rows are most likely.

        What n independent rows say about a variance is uncertain; predictions are wider by 1 + 2 / n for it.
        Returns the model, and the logarithms of the two factors of standard deviations. `most` bounds the evaluations.
        """

        def objective(scales: np.ndarray) -> float:
            outside = float(np.sum(np.maximum(np.abs(scales - np.clip(scales, *SCALES)), 0.0)))
            score = self.score(scale_noise(model, *np.clip(scales, *SCALES))).mean
            # A weak pull to what training found: few rows hardly know better.
            return min(score, 1e6) + outside + 1e-3 * float(np.sum(scales**2))

        simplex = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]])
        most = most or EVALUATIONS[int(model.latent_dim > LARGE_LATENT)]
        options = {"initial_simplex": simplex, "maxfev": most, "xatol": 0.02, "fatol": 1e-4}
        found = minimize(objective, np.zeros(2), method="Nelder-Mead", options=options)
        scales = np.clip(found.x, *SCALES)
        if not found.fun < objective(np.zeros(2)):
            scales = np.zeros(2)
        scales = scales + 0.5 * np.log1p(2.0 / max(self.num_independent, 1.0))
        return scale_noise(model, *scales), (float(scales[0]), float(scales[1]))


def scale_noise(model: StateSpaceModel, process: float, observation: float) -> StateSpaceModel:
    """Multiply standard deviations of process and observation noise by exp of these numbers."""
    shell = model.shell
    scaled = Shell(shell.log_process_std + process, shell.log_observation_std + observation, shell.bound)
    return model.replace(shell=scaled)


@eqx.filter_jit
def _carry(
    model: StateSpaceModel, beliefs: Belief, num_steps: int, inputs: Float[Array, "S H K"] | None = None
) -> tuple[Array, Array]:
    """Carry Gaussian beliefs ahead: means and standard deviations of readings, (S, H, N)."""
    noise = model.shell.observation_variance()

    def body(belief: Belief, u: Array | None) -> tuple[Belief, tuple[Array, Array]]:
        belief = predict(model.core.given(inputs=u), model.shell.process_variance(), belief, transport=True)
        variance = belief.signal_variance(model.observation)
        return belief, (model.observation.observe(belief.mean), jnp.sqrt(variance + noise))

    driven_by = None if inputs is None else jnp.swapaxes(inputs, 0, 1)
    _, later = jax.lax.scan(body, beliefs, driven_by, length=num_steps)
    return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), later)


@eqx.filter_jit
def _spread(
    model: StateSpaceModel, beliefs: Belief, num_steps: int, inputs: Float[Array, "S H K"] | None = None
) -> tuple[Array, Array]:
    """Forecast by an ensemble; the observation noise is added to its variance exactly."""
    key = jax.random.key(_SEED)
    members = forecast_ensemble(model, beliefs, num_steps, MEMBERS, key=key, observation_noise=False, inputs=inputs)
    members = jnp.clip(members, -DIVERGENCE_BOUND, DIVERGENCE_BOUND)
    variance = jnp.var(members, axis=0, ddof=1) + model.shell.observation_variance()
    return jnp.mean(members, axis=0), jnp.sqrt(variance)
