"""A surrogate of a recording without training: a kernel map in context, denoised by its own smoother.

    standardise > choose delays > estimate states and map together > regress > smooth the context by its tangents

The result is a state-space model like any other: it filters, smooths, forecasts and runs freely.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.smoother import smooth_rows
from kaffee.filtering.sweep import batch_recordings
from kaffee.foundation.denoising import (
    CLEAN,
    LEAST_STD,
    Pairs,
    Smoothed,
    make_pairs,
    pad_process,
    smooth_context,
    smooth_states,
)
from kaffee.foundation.dispersion import FOLDS, choose_factor
from kaffee.foundation.embedding import ENOUGH, choose_lags, extend_lags, propose_lags
from kaffee.model.kernel import KERNELS, KernelMap
from kaffee.model.observation import Projection
from kaffee.model.statespace import Climate, Shell, StateSpaceModel
from kaffee.training.gaussian_process import CENTRES, JointEstimate, estimate_jointly
from kaffee.training.kernel_regression import LENGTHS, KernelRegression, refit, regress

FEWEST_PAIRS = 8
"""Complete pairs of neighbouring rows below which a context defines no map."""
MOST_STATES = 500
"""States of the context that free runs start from."""
RADIUS = 0.3
"""How far from the nearest row of the context the map is taken as it is, in root mean square distances of rows."""
WIDER = 1.5
"""The same at least, in distances of the row that is farthest from a centre."""
NOISY_CENTRES = 400
"""Kernels that a map with noise needs at most: noise hides what more of them could tell."""
EVERY_ROW = 600
"""Rows up to which each has a kernel, and has one in the search, too. On 28 contexts of discovered systems, 512 rows
with 10 % noise, the mean VPT was 1.88 so, and 1.73 with 400 kernels and 300 in the search."""
PROCESS = 1.5
"""Least factor of the process noise that the context's likelihood finds: errors of a map are alike in successive steps,
which white noise is not. Forecasts inside the context may ask for more, but not for less: denoised rows have been told
what was left out, and a jump is in few of the pieces. On 191 recordings of discovered systems 90 % bands cover 83 %
with 1, 90 % with 2; a trained network was no better than a constant (`python -m benchmarks.incontext_training`)."""
JOINT_PROCESS = 0.5
"""The same where states and map were estimated together: their posterior knows how large the errors are, but a filter
that takes them for white would be too unsure of its states with all of them."""
GAIN, CLEAN_GAIN = 0.02, 1.0
"""Nats per reading by which a context must be more likely with another delay, with noise and without: there, errors of
one step differ by factors that longer forecasts do not show."""
FIRST_LENGTHS = (1.0, 2.0)
"""Lengths of the regression on raw readings whose tangents a joint estimate begins with."""
DOUBTFUL, UNEQUAL = 0.03, 5.0
"""Noise below which, or ratio of that of two coordinates above which, it is asked whether it is noise at all."""
EXTENDING = 2
"""Times that new rows are denoised before they join a context."""
NEIGHBOURS = 12
"""Rows over which the size of errors is averaged."""


@dataclass(frozen=True)
class ContextSettings:
    """How a context is read.

    Attributes:
        lags: Which readings the map reads, 0 is the newest; None: by the data.
        passes: Times that the context is denoised where states and map are not estimated together; 0: not at all.
        kernels, lengths, block: Of the regression, see `regress`.
        process, observation: Factors of the standard deviations of the noise; None: by forecasts of left-out pieces of
            the context (`kaffee.foundation.dispersion`).
        max_centres: Rows of a context without noise that have a kernel; with noise `NOISY_CENTRES` are enough.
    """

    lags: tuple[int, ...] | None = None
    passes: int = 2
    kernels: tuple[str, ...] = tuple(KERNELS)
    lengths: tuple[float, ...] = LENGTHS
    block: int = 10
    process: float | None = None
    observation: float = 1.0
    max_centres: int = 1000

    def __post_init__(self) -> None:
        if self.passes < 0 or self.block < 1 or self.max_centres < FEWEST_PAIRS:
            raise ConfigError(
                f"passes = {self.passes}, block = {self.block}, max_centres = {self.max_centres}: at least 0, 1 and "
                f"{FEWEST_PAIRS} are needed."
            )


@dataclass(frozen=True, eq=False)
class ContextReading:
    """A context as it was read, standardised: what its model is made of.

    Attributes:
        states: Denoised readings.
        regression: On the pairs of these states.
        smoothed: The last pass over the context, whose noise levels are the model's.
        joint: The estimate that states and map are of, if they were estimated together.
    """

    scaler: Scaler
    lags: tuple[int, ...]
    passes: int
    states: list[Float[np.ndarray, "T N"]]
    pairs: Pairs
    regression: KernelRegression
    smoothed: Smoothed
    joint: JointEstimate | None = None

    def learn_without(self, places: Any) -> KernelMap | None:
        """Learn the core without some of the pairs."""
        regression, pairs = self.regression, self.pairs
        if self.joint is not None:
            fewer = self.joint.without(places)
            return None if fewer is None else build_core(fewer, self)
        rest = np.setdiff1d(np.arange(len(pairs.features)), places)
        # The same number of kernels whatever is left out, so that all share one compiled program.
        kernels = min(len(regression.centres), len(pairs.features) - -(-len(pairs.features) // FOLDS))
        return build_core(refit(regression, pairs.features[rest], pairs.targets[rest], kernels), self)


def read_context(
    series: Series, settings: ContextSettings = ContextSettings(), *, scaler: Scaler | None = None
) -> Reconstruction:
    """Make a surrogate of recordings, without training.

    Args:
        series: In data units; several recordings and missing entries are fine.
        scaler: The units of the model; by default those of the series.
    """
    refuse_inputs(series)
    # Matrices are small: on a machine with other work, threads that wait for one another take ten times as long.
    with threadpool_limits(1, "blas"):
        *_, reading = denoise(series, settings, scaler)
        model = build_model(reading, settings)
    regression = reading.regression
    facts = {"rows": series.num_steps, "passes": reading.passes, "lags": list(reading.lags)}
    facts |= {"kernel": regression.kernel, "length": regression.length, "ridge": regression.ridge}
    if reading.joint is not None:
        facts |= {"fingerprint": series.fingerprint, "ends": _last_states(reading)}
    return Reconstruction(
        model, reading.scaler, series.columns, series.time_step or 1.0, "zero_shot", {"context": facts}
    )


def _last_states(reading: ContextReading) -> list[list[list[float]] | None]:
    """List the last register of every recording and its standard deviations; None if it is too short for one."""
    ends: list[list[list[float]] | None] = []
    for mean, variance in zip(reading.smoothed.mean, reading.smoothed.variance, strict=True):
        rows = slice(-1, -2 - reading.lags[-1], -1)
        whole = len(mean) > reading.lags[-1]
        ends.append([mean[rows].ravel().tolist(), np.sqrt(variance[rows]).ravel().tolist()] if whole else None)
    return ends


def refuse_inputs(series: Series) -> None:
    """Refuse a series with known inputs, which models that read their context do not take."""
    if series.inputs is not None:
        raise ConfigError(
            f"{series.label}: a model that reads its context takes no inputs ({', '.join(series.inputs.columns)}). Fit "
            "one (kaffee fit --inputs, or Surrogate.fit(X, inputs=...)), or leave the inputs out."
        )


def denoise(series: Series, settings: ContextSettings, scaler: Scaler | None = None) -> Iterator[ContextReading]:
    """Choose delays, and denoise the context by the model that it defines; yield it as it is, then after each pass.

    With noise, states and map are estimated together, and the delays are those with most evidence. Contexts without
    noise, and those for which that costs too much, are regressed and smoothed in turn (`settings.passes`).
    """
    scaler = scaler or Scaler.fit(series)
    readings = [np.asarray(x, np.float64) for x in series.standardised(scaler).recordings]
    usable: list[Any] = [np.isfinite(x).all(axis=1) for x in readings]
    states = [_interpolate(x) for x in readings]
    context = _Context(scaler, readings, usable, states)
    few = readings[0].shape[1] < ENOUGH
    proposed = propose_lags(states) if few else extend_lags(states, usable)
    if settings.lags is not None:
        proposed = [settings.lags]
    best: tuple[tuple[int, ...], JointEstimate] | None = None
    for lags in proposed:
        joint = _estimate(context, lags, settings, None if best is None else best[1])
        if joint is None and (best is None or not few):
            break
        if joint is not None and (best is None or joint.evidence > best[1].evidence + GAIN):
            best = lags, joint
        elif not few:
            break  # each set of lags extends the one before
    if best is not None:
        yield _read_jointly(context, *best)
        return
    if few and settings.lags is None:
        proposed = [choose_lags(states, block=settings.block)]
    yield from _take_turns(context, proposed, settings)


def _estimate(
    context: "_Context", lags: tuple[int, ...], settings: ContextSettings, rival: JointEstimate | None = None
) -> JointEstimate | None:
    """Estimate states and map together; None if there is no noise, if it costs too much or looks unlikely at first."""
    pairs = make_pairs(context.states, lags, context.usable)
    if settings.passes == 0 or len(pairs.features) < FEWEST_PAIRS:
        return None
    first = regress(pairs.features, pairs.targets, lengths=FIRST_LENGTHS, max_centres=CENTRES, max_trial=CENTRES,
                    block=settings.block, measured=False)  # fmt: skip
    # Of a left-out error about half is noise of the reading before.
    variance = 0.5 * np.mean(first.left_out**2, axis=0)
    joint = estimate_jointly(context.readings, context.states, lags, first.jacobian, variance, rival)
    if joint is None:
        return None
    std = np.sqrt(joint.observation_variance)
    if std.max() >= CLEAN and (std.max() < DOUBTFUL or std.max() > UNEQUAL * std.min()):
        # Errors of few kernels may pass for noise; but readings cannot be forecast better than their noise.
        _, plain = _learn(context.states, context.usable, lags, settings, settings.max_centres)
        if np.any(np.mean(plain.left_out**2, axis=0) < joint.observation_variance):
            return None
    return None if std.max() < CLEAN else joint


def _read_jointly(context: "_Context", lags: tuple[int, ...], joint: JointEstimate) -> ContextReading:
    """Take map, states and levels of noise from a joint estimate."""
    z = joint.states
    places = list(zip(joint.recording, joint.row, strict=True))
    features = np.array([np.concatenate([z[r][t - lag] for lag in lags]) for r, t in places])
    pairs = Pairs(features, np.array([z[r][t + 1] for r, t in places]), joint.recording, joint.row)
    smoothed = smooth_states(context.readings, joint, lags)
    return ContextReading(context.scaler, lags, 1, z, pairs, joint.regression, smoothed, joint)


def _take_turns(
    context: "_Context", proposed: list[tuple[int, ...]], settings: ContextSettings
) -> Iterator[ContextReading]:
    """Regress and smooth in turn, with the delays under which the context is likeliest by more than `GAIN`."""
    best: tuple[float, list[ContextReading], Iterator[ContextReading]] | None = None
    for lags in proposed:
        passes = _denoise(context, lags, settings)
        # Likelihoods of the second reading: later ones find the same levels of noise.
        begun = list(islice(passes, 2))
        nll = begun[-1].smoothed.nll
        least = CLEAN_GAIN if begun[-1].smoothed.observation_std.max() < CLEAN else GAIN
        if best is not None and not nll < best[0] - least:
            break
        best = nll, begun, passes
    assert best is not None, "the reading alone is the first choice"
    yield from best[1]
    yield from best[2]


class _Context(NamedTuple):
    """Standardised readings, which of their rows are complete, and a first estimate of the states."""

    scaler: Scaler
    readings: list[Float[np.ndarray, "T N"]]
    usable: list[Bool[np.ndarray, " T"]]
    states: list[Float[np.ndarray, "T N"]]


def _denoise(context: _Context, lags: tuple[int, ...], settings: ContextSettings) -> Iterator[ContextReading]:
    scaler, readings, usable, states = context
    noise: Float[np.ndarray, " N"] | None = None
    for number in range(settings.passes + 1):
        pairs, regression = _learn(states, usable, lags, settings, NOISY_CENTRES)
        if number < 2 or number < settings.passes:
            smoothed = smooth_context(readings, states, lags, regression, pairs, noise)
        clean = smoothed.observation_std.max() < CLEAN and all(map(np.all, usable))
        if clean and len(pairs.features) > EVERY_ROW:
            same = regression.kernel, regression.length
            pairs, regression = _learn(states, usable, lags, settings, settings.max_centres, same)
            smoothed = smooth_context(readings, states, lags, regression, pairs, noise)
        yield ContextReading(scaler, lags, number, states, pairs, regression, smoothed)
        if clean:
            return
        states, noise = smoothed.mean, smoothed.observation_std


def _learn(
    states: list[np.ndarray],
    usable: list[Bool[np.ndarray, " T"]],
    lags: tuple[int, ...],
    settings: ContextSettings,
    most: int,
    same: tuple[str, float] | None = None,
) -> tuple[Pairs, KernelRegression]:
    pairs = make_pairs(states, lags, usable)
    if len(pairs.features) < FEWEST_PAIRS:
        raise DataError(
            f"The context has {len(pairs.features)} complete pairs of neighbouring rows; at least {FEWEST_PAIRS} are "
            "needed to continue it. Give more rows, or rows with fewer gaps."
        )
    how: dict[str, Any] = {name: getattr(settings, name) for name in ("kernels", "lengths", "block")}
    if len(pairs.features) <= EVERY_ROW:
        most, how["max_trial"] = EVERY_ROW, EVERY_ROW
    return pairs, regress(pairs.features, pairs.targets, max_centres=min(most, settings.max_centres), same=same, **how)


def _interpolate(x: Float[np.ndarray, "T N"]) -> Float[np.ndarray, "T N"]:
    """Fill gaps by straight lines, for a first estimate of the states."""
    t, filled = np.arange(len(x)), x.copy()
    for column in filled.T:
        seen = np.isfinite(column)
        column[~seen] = np.interp(t[~seen], t[seen], column[seen]) if seen.any() else 0.0
    return filled


def build_model(reading: ContextReading, settings: ContextSettings) -> StateSpaceModel:
    """Put the regression into a core, and noise levels and denoised states around it."""
    regression, smoothed, lags = reading.regression, reading.smoothed, reading.lags
    N, dtype = reading.pairs.targets.shape[1], jnp.float32
    core = build_core(regression, reading)
    noise = np.maximum(smoothed.process_std, LEAST_STD)
    factor = settings.process
    if factor is None:
        by = (reading.pairs, reading.smoothed.mean, reading.smoothed.variance)
        found = choose_factor(reading.learn_without, *by, pad_process(noise, core))
        least = PROCESS if reading.joint is None else JOINT_PROCESS
        factor = least if found is None else max(found, least)
    process = pad_process(np.maximum(factor * noise, LEAST_STD), core)
    shell = Shell.from_std(process, np.maximum(settings.observation * smoothed.observation_std, LEAST_STD))
    M = core.latent_dim
    registers = _fill_registers(reading.states, lags[-1])
    some = registers[np.unique(np.linspace(0, len(registers) - 1, MOST_STATES).round().astype(int))]
    covariance = np.cov(registers.T).reshape(M, M) if len(registers) > 1 else np.eye(M)
    climate = Climate.from_moments(registers.mean(axis=0), covariance, states=some)
    embedding = jnp.tile(jnp.eye(N, dtype=dtype), (lags[-1] + 1, 1))
    return StateSpaceModel(core, shell, Projection(N, M), embedding, climate)


def build_core(regression: KernelRegression, reading: ContextReading) -> KernelMap:
    """Put a regression on the context, or on a part of it, into a core."""
    features, left_out = reading.pairs.features, reading.regression.left_out
    relative = _relate(left_out, np.mean(left_out**2, axis=0))
    learnt = _learnt(regression) | _localise_errors(regression.centres, features, relative)
    # Rows of the context are inside, however few of them are centres.
    farthest = float(cKDTree(regression.centres).query(features)[0].max())
    learnt["radius"] = max(RADIUS * np.sqrt(2.0 * features.var(axis=0).sum()), WIDER * farthest) + LEAST_STD
    arrays: Any = {name: jnp.asarray(value, jnp.float32) for name, value in learnt.items()}
    return KernelMap(**arrays, kernel=regression.kernel, num_observed=left_out.shape[1], lags=reading.lags)


def _learnt(regression: KernelRegression | KernelMap) -> dict[str, Any]:
    return {name: getattr(regression, name) for name in ("centres", "weights", "linear", "offset", "length")}


def _relate(errors: Float[np.ndarray, "P N"], squares: Float[np.ndarray, " N"]) -> Float[np.ndarray, " P"]:
    """Compute the squared errors of rows over their mean, averaged over coordinates."""
    return np.mean(errors**2 / np.maximum(squares, 1e-30), axis=1)


def _localise_errors(
    centres: Float[np.ndarray, "K D"], features: Float[np.ndarray, "P D"], relative: Float[np.ndarray, " P"]
) -> dict[str, Any]:
    """Assign the relative squared errors of rows to the nearest centres."""
    tree, K = cKDTree(centres), len(centres)
    distances, near = tree.query(features, k=min(NEIGHBOURS, K))
    near = near.reshape(len(features), -1)[:, 0]
    # Half of what all rows have on average: single rows say little.
    sums, counts = np.bincount(near, relative, K), np.bincount(near, minlength=K)
    bandwidth = float(np.median(distances.reshape(len(features), -1)[:, -1])) + LEAST_STD
    return {"spread": (sums + 1.0) / (counts + 1.0), "bandwidth": bandwidth}


def _fill_registers(states: list[np.ndarray], longest: int) -> Float[np.ndarray, "T M"]:
    """Stack every row with those before it, newest first."""
    parts = [
        np.concatenate([x[longest - lag : len(x) - lag] for lag in range(longest + 1)], axis=1)
        for x in states
        if len(x) > longest
    ]
    return np.concatenate(parts)


def extend_context(reconstruction: Reconstruction, series: Series) -> Reconstruction:
    """Let new rows join the context of a surrogate that `read_context` made: its memory grows.

        minimise |F - f(c)|^2 + |y - f(u)|^2 + ridge a' K a    over the old centres c and the new pairs (u, y)

    New rows are denoised by the smoother of the surrogate. The map F that it had so far stands for the rows that it
    was learnt from, so that nothing but the model itself is needed. Delays, kernel, length, ridge, units and noise
    levels stay, and there are never more than `ContextSettings.max_centres` kernels.

    Args:
        series: In data units, with the columns of the surrogate; several recordings and missing entries are fine.
    """
    model, facts = reconstruction.model, reconstruction.provenance.get("context")
    core: Any = model.core
    if not isinstance(core, KernelMap) or facts is None:
        raise ConfigError(
            f"Only a surrogate that was read from a context can be extended; this one has a {type(core).__name__}. "
            "Make it by kaffee.zero_shot."
        )
    learnt: Any = {name: np.asarray(value, np.float64) for name, value in _learnt(core).items()}
    none = np.zeros((0, core.num_observed))
    old = KernelRegression(kernel=core.kernel, ridge=facts["ridge"], left_out=none, score=float("nan"), **learnt)
    x = batch_recordings(series.standardised(reconstruction.scaler), model.dtype)
    usable = [np.isfinite(values).all(axis=1) for values in series.recordings]
    squares = np.asarray(model.shell.process_variance(), np.float64)[: core.num_observed]
    # Again, since what new rows teach the map, it tells the smoother of these rows.
    for _ in range(EXTENDING):
        smoothed = np.asarray(smooth_rows(model, reconstruction.filter, x, jnp.array(series.lengths))[2], np.float64)
        states = [smoothed[:length, r] for r, length in enumerate(series.lengths)]
        pairs = make_pairs(states, core.lags, usable)
        if not len(pairs.features):
            raise DataError(
                f"The new rows have no complete pair: {core.lags[-1] + 2} complete rows after one another are needed."
            )
        features = np.concatenate([old.centres, pairs.features])
        targets = np.concatenate([old(old.centres), pairs.targets])
        found = refit(old, features, targets, ContextSettings().max_centres)
        # Errors of rows that the map had not seen.
        relative = np.concatenate([np.asarray(core.spread), _relate(pairs.targets - old(pairs.features), squares)])
        changed = _learnt(found) | _localise_errors(found.centres, features, relative)
        arrays: Any = {name: jnp.asarray(value, model.dtype) for name, value in changed.items()}
        model = model.replace(core=replace(core, **arrays))
    rows = {"rows": facts["rows"] + series.num_steps, "extended": facts.get("extended", 0) + series.num_steps}
    provenance = {**reconstruction.provenance, "context": {**facts, **rows}}
    return replace(reconstruction, model=model, provenance=provenance)
