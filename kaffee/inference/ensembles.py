"""Forecasts and free runs of a trained surrogate, in data units."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.series import Series
from kaffee.data.validation import check_count
from kaffee.errors import DataError, KaffeeError
from kaffee.filtering.beliefs import AnyBelief
from kaffee.filtering.gated import make_gate
from kaffee.filtering.gaussian import Belief
from kaffee.filtering.likelihood import start_state
from kaffee.filtering.rollout import DIVERGENCE_BOUND, describe_divergence, forecast_ensemble, free_run, mask_diverged
from kaffee.filtering.sweep import batch_recordings, sweep
from kaffee.inference.matching import match_inputs, match_series, model_columns
from kaffee.inference.results import Estimate, Estimates
from kaffee.model.inputs import InputRuns
from kaffee.training.autoregression import hold_readings


def forecast(
    reconstruction: Reconstruction | Sequence[Reconstruction],
    series: Series,
    num_steps: int,
    *,
    at: float | None = None,
    members: int = 500,
    seed: int = 0,
    observation_noise: bool = True,
    any_step: bool = False,
    inputs: Series | None = None,
    point: bool = False,
) -> Estimates:
    """Filter each recording, draw states from its last belief and let the surrogate run, process noise and all.

    Args:
        reconstruction: One surrogate; or several of the same recording, such as refits with other seeds, of which each
            gives the same share of the members, so that bands contain the spread between models.
        at: Start after the row at this time instead of the last one; later rows are not used. Without a time column
            the first row is at time 0. Recordings that do not cover it are left out.
        members: Size of the ensemble, for each recording.
        observation_noise: Forecast readings; without it the signal behind them.
        any_step: Accept a time step that is not the model's.
        inputs: Of the forecast rows, for a driven model: one recording for all, or one for each that is forecast. With
            times, rows before the forecast are passed over; without, the first is that of the first step, after those
            that the series itself has beyond `at`. Missing ones are those of the row before.
        point: Add `point`, the trajectory of the (first) model from the mean of its last belief, without any noise.
            The members' mean and median leave the attractor for its centre when members part; this one does not.
    """
    models = (reconstruction,) if isinstance(reconstruction, Reconstruction) else tuple(reconstruction)
    if not models:
        raise DataError("A forecast needs a model, or several in a list; the list is empty.")
    num_steps, members = check_count("num_steps", num_steps, 1), check_count("members", members, max(2, len(models)))
    seed = check_count("seed", seed, 0)
    reconstruction = models[0]
    for each in models[1:]:
        if model_columns(each) != model_columns(reconstruction):
            raise DataError(
                f"Models of {', '.join(model_columns(reconstruction))} and of {', '.join(model_columns(each))} have no "
                "forecast in common. Pass models of the same columns."
            )
    series = match_series(reconstruction, series, any_step=any_step)
    starts = _choose_starts(series, reconstruction.dt, at)
    # One model draws as it would alone, so that a list of one is the same as the model.
    keys = [jax.random.key(seed), *jax.random.split(jax.random.key(seed), len(models))[1:]]
    shares = [len(share) for share in np.array_split(np.arange(members), len(models))]
    ahead = _look_ahead(reconstruction, series, starts, num_steps, inputs)
    parts = [
        _draw_members(each, match_series(each, series, any_step=any_step), starts, num_steps, share, key, how)
        for each, share, key in zip(models, shares, keys, strict=True)
        for how in [{"observation_noise": observation_noise, "inputs": _standardise_inputs(each, ahead)}]
    ]
    values = np.concatenate([part for part, _ in parts])
    away = np.concatenate([part for _, part in parts])
    check_left(away)
    steps = (series.time_step or reconstruction.dt) * np.arange(1, num_steps + 1)
    times = [_read_times(series, r, reconstruction.dt)[row] + steps for r, row in starts.items()]
    runs: Any = [None] * len(times)
    if point:
        runs = _run_means(reconstruction, series, starts, num_steps, _standardise_inputs(reconstruction, ahead))
    samples = zip(times, np.moveaxis(values, 1, 0), runs, strict=True)
    estimates = [summarise_members(series.columns, t, sample, run) for t, sample, run in samples]
    facts = {
        "recordings": list(starts),
        "steps": num_steps,
        "members": members,
        **({"models": len(models)} if len(models) > 1 else {}),
        "diverged": int(away[:, :, -1].sum()),
        "first_times": [float(t[0]) if series.frequency is None else _show(series, t[0]) for t in times],
    }
    return Estimates(tuple(estimates), "forecast", facts, origin=series.origin.of(list(starts)))


def _draw_members(
    reconstruction: Reconstruction,
    series: Series,
    starts: dict[int, int],
    num_steps: int,
    members: int,
    key: Key[Array, ""],
    how: dict[str, Any],
) -> tuple[Float[np.ndarray, "K R H N"], Bool[np.ndarray, "K R H"]]:
    """Draw members from the filtered beliefs of one model, NaN once they left the attractor, and where they did."""
    belief = _last_beliefs(reconstruction, series, starts)
    return run_members(reconstruction, belief, num_steps, members, key, **how)


def run_members(
    reconstruction: Reconstruction,
    belief: AnyBelief,
    num_steps: int,
    members: int,
    key: Key[Array, ""],
    *,
    observation_noise: bool,
    inputs: Float[Array, "R H U"] | None = None,
) -> tuple[Float[np.ndarray, "K R H N"], Bool[np.ndarray, "K R H"]]:
    """Draw states from beliefs and let them run, in data units; NaN once one left the attractor, and where one did."""
    model, scaler = reconstruction.model, reconstruction.scaler
    how: dict[str, Any] = {"observation_noise": observation_noise, "inputs": inputs}
    values = np.asarray(forecast_ensemble(model, belief, num_steps, members, key=key, **how), np.float64)
    away = mask_diverged(values)
    convert = scaler.inverse if observation_noise else scaler.inverse_signal
    return convert(np.where(away[..., None], np.nan, values)), away


def summarise_members(
    columns: tuple[str, ...],
    times: np.ndarray,
    sample: Float[np.ndarray, "K H N"],
    point: Float[np.ndarray, "H N"] | None = None,
) -> Estimate:
    """Compute the moments of the members that are left at every step."""
    moments = {"mean": np.nanmean(sample, axis=0), "std": np.nanstd(sample, axis=0, ddof=1)}
    single = {} if point is None else {"point": point}
    return Estimate(columns, times, {**moments, **single, "members": sample})


def check_left(away: Bool[np.ndarray, "K R H"]) -> None:
    """Raise if fewer than two members are left at some step."""
    if ((~away).sum(axis=0) < 2).any():
        raise DataError(
            f"All {len(away)} members of the forecast left the attractor (beyond {DIVERGENCE_BOUND:g} standard "
            "deviations of the training data) within its horizon. Forecast fewer steps."
        )


def _look_ahead(
    reconstruction: Reconstruction, series: Series, starts: dict[int, int], num_steps: int, inputs: Series | None
) -> Float[np.ndarray, "R H K"] | None:
    """Collect the inputs of the forecast rows, in data units: those that the series still has, then those given."""
    if series.inputs is None:
        return None
    given = None if inputs is None else match_inputs(reconstruction, inputs)
    if given is not None and given.num_recordings not in (1, len(starts)):
        raise DataError(
            f"{given.num_recordings} recordings of inputs for {len(starts)} forecasts. Give one for all, or one each."
        )
    ahead = []
    for i, (r, row) in enumerate(starts.items()):
        rows = series.inputs.recordings[r][row:]
        if given is not None:
            which = i if given.num_recordings > 1 else 0
            skipped = _count_past(series, r, given, which, reconstruction.dt)
            rows = np.concatenate([rows, given.recordings[which][skipped:]])
        if len(rows) - 1 < num_steps:
            raise DataError(
                f"{series.label}: a forecast of {num_steps} steps of a model that is driven by "
                f"{', '.join(reconstruction.inputs)} needs these inputs for every step, but there are {len(rows) - 1} "
                "rows after the start. Give them (--inputs FILE, or inputs= in Python), or forecast fewer steps."
            )
        ahead.append(hold_readings(rows)[1 : num_steps + 1])
    return np.stack(ahead)


def _count_past(series: Series, recording: int, given: Series, which: int, dt: float) -> int:
    """Count the rows of given inputs up to the end of a recording, by their times; 0 if one of them has none."""
    if series.times is None or given.times is None:
        return 0
    end, step = float(series.times[recording][-1]), series.time_step or dt
    later = np.flatnonzero(given.times[which] > end + 0.5 * step)
    if not len(later) or given.times[which][later[0]] > end + 1.5 * step:
        raise DataError(
            f"{given.label}: inputs must begin one step after {_show(series, end)}, where the recording ends, or "
            f"before; they span {_show(given, given.times[which][0])} to {_show(given, given.times[which][-1])}."
        )
    return int(later[0])


def _standardise_inputs(reconstruction: Reconstruction, ahead: Float[np.ndarray, "R H K"] | None) -> Any:
    scaler = reconstruction.scaler.inputs
    return None if ahead is None or scaler is None else jnp.asarray(scaler.transform(ahead), reconstruction.model.dtype)


def _last_beliefs(reconstruction: Reconstruction, series: Series, starts: dict[int, int]) -> Any:
    """Filter recordings up to the rows that forecasts start from."""
    recordings, rows = (np.array(list(numbers)) for numbers in (starts, starts.values()))
    x = batch_recordings(series.standardised(reconstruction.scaler), reconstruction.model.dtype)
    each = (np.arange(len(rows)), rows)
    kept = x[: max(rows) + 1, recordings]
    beliefs = sweep(reconstruction.model, reconstruction.filter, kept, gate=make_gate(), keep=None, starts=each).beliefs
    return _recall_ends(reconstruction, series, starts, beliefs)


def _recall_ends(reconstruction: Reconstruction, series: Series, starts: dict[int, int], beliefs: Any) -> Any:
    """Put in what a model that was read from these very recordings knows of their last states.

    Its map and these states were estimated together: errors of one go with those of the other, which a filter that
    meets the rows again with the finished map cannot know.
    """
    context = reconstruction.provenance.get("context", {})
    if not isinstance(beliefs, Belief) or context.get("fingerprint") != series.fingerprint:
        return beliefs
    mean, covariance = beliefs.mean, beliefs.covariance
    for i, (r, row) in enumerate(starts.items()):
        if row == series.lengths[r] - 1 and context["ends"][r] is not None:
            state, deviation = (jnp.asarray(values, mean.dtype) for values in context["ends"][r])
            mean, covariance = mean.at[i].set(state), covariance.at[i].set(jnp.diag(deviation**2))
    return Belief(mean, covariance)


def _run_means(
    reconstruction: Reconstruction,
    series: Series,
    starts: dict[int, int],
    num_steps: int,
    inputs: Float[Array, "R H U"] | None,
) -> Float[np.ndarray, "R H N"]:
    """Run the bare core from the means of the last beliefs; NaN once it left the attractor."""
    belief = _last_beliefs(reconstruction, series, starts)
    known = None
    if inputs is not None:
        R, H, U = inputs.shape
        known = InputRuns(inputs.reshape(R * H, U), H * jnp.arange(R, dtype=jnp.int32))
    values = np.asarray(free_run(reconstruction.model, belief.mean, num_steps, inputs=known).observations, np.float64)
    return reconstruction.scaler.inverse_signal(np.where(mask_diverged(values)[..., None], np.nan, values))


def _read_times(series: Series, recording: int, dt: float) -> Float[np.ndarray, " T"]:
    return dt * np.arange(series.lengths[recording]) if series.times is None else series.times[recording]


def _show(series: Series, time: float) -> str:
    dates = series.origin.dates
    return f"{time:g}" if dates is None else dates.texts(np.array([time]))[0]


def _choose_starts(series: Series, dt: float, at: float | None) -> dict[int, int]:
    """Choose the recordings to forecast, each with the row it starts from."""
    if at is None:
        return {r: length - 1 for r, length in enumerate(series.lengths)}
    starts, spans = {}, []
    for r in range(series.num_recordings):
        times = _read_times(series, r, dt)
        row = int(np.argmin(np.abs(times - at)))
        if abs(times[row] - at) <= 0.5 * (series.time_step or dt):
            starts[r] = row
        spans.append(f"{_show(series, times[0])} to {_show(series, times[-1])}")
    if not starts:
        raise DataError(
            f"{series.label}: no recording covers the time {_show(series, at)}; they span {', '.join(spans[:5])}"
            f"{', ...' if len(spans) > 5 else ''}."
        )
    return starts


def simulate(
    reconstruction: Reconstruction,
    num_steps: int,
    *,
    shell: bool = True,
    core_noise: bool = True,
    start: Float[np.ndarray, "S N"] | None = None,
    runs: int = 1,
    transient: int = 1000,
    seed: int = 0,
    inputs: Series | None = None,
) -> Estimates:
    """Let a trained surrogate run freely: no observation is assimilated.

    Every run has `values`, missing from where it left the attractor, and the latent `states`; `diverged_at` of the
    summary is the step (from 1, transient included) at which each run left, 0 if it did not, and `clipped` the share of
    steps at which the core held it back at the wall of the data's region.

    Args:
        shell: Process noise at every step and observation noise on the output; without it the bare core runs.
        core_noise: Draw the noise inside the core, where it has any (DynaMix's gate).
        start: Observations to start from, (N,) or one row for each run; by default drawn from a normal distribution
            with the moments of the training data.
        runs: How many, if `start` does not say so.
        transient: Steps before the first that is kept.
        inputs: Of a driven model, from the first step of the transient on; recorded ones, for example. When they end
            they begin again, and runs begin at rows that are spread over them.
    """
    num_steps, runs = check_count("num_steps", num_steps, 1), check_count("runs", runs, 1)
    transient, seed = check_count("transient", transient, 0), check_count("seed", seed, 0)
    model, scaler = reconstruction.model, reconstruction.scaler
    key_start, key_shell, key_core = jax.random.split(jax.random.key(seed), 3)
    if start is None:
        first = jax.random.normal(key_start, (runs, model.num_observed), model.dtype)
    else:
        rows, N = np.atleast_2d(np.asarray(start, np.float64)), model.num_observed
        if rows.ndim != 2 or rows.shape[1] != N or not np.isfinite(rows).all():
            raise DataError(
                f"start has shape {np.shape(start)}; it must be ({N},), or one row of {N} finite numbers for each run."
            )
        first = jnp.asarray(scaler.transform(rows), model.dtype)
    key, core_key = key_shell if shell else None, key_core if core_noise else None
    how: dict[str, Any] = {"key": key, "core_key": core_key, "transient": transient}
    if reconstruction.inputs:
        how["inputs"] = _repeat_inputs(reconstruction, inputs, len(first))
    run = free_run(model, start_state(model, first), num_steps, **how)
    convert, diverged_at = scaler.inverse if shell else scaler.inverse_signal, np.asarray(run.diverged_at)
    values = convert(np.asarray(run.observations, np.float64))
    for run_values, step in zip(values, diverged_at, strict=True):
        if step:
            run_values[max(step - 1 - transient, 0) :] = np.nan
    if np.isnan(values).all():
        raise KaffeeError(
            f"The free run left the attractor (beyond {DIVERGENCE_BOUND:g} standard deviations of the training data) "
            f"at step {diverged_at.max()}, before the first that is kept. Start from an observation, with a shorter "
            "transient."
        )
    columns, times = model_columns(reconstruction), reconstruction.dt * np.arange(1, num_steps + 1)
    states = np.asarray(run.states, np.float64)
    estimates = [Estimate(columns, times, {"values": v, "states": z}) for v, z in zip(values, states, strict=True)]
    facts = {
        "runs": len(values),
        "steps": num_steps,
        "diverged_at": diverged_at.tolist(),
        "clipped": np.asarray(run.clipped, np.float64).round(6).tolist(),
        "divergence": describe_divergence(run.diverged_at, run.clipped, reconstruction.model),
        **({} if inputs is None else {"input_rows": inputs.num_steps}),
    }
    return Estimates(tuple(estimates), "free run", facts)


def _repeat_inputs(reconstruction: Reconstruction, inputs: Series | None, runs: int) -> InputRuns:
    """Make the inputs of free runs of recorded ones."""
    if inputs is None:
        raise DataError(
            f"The model is driven by {', '.join(reconstruction.inputs)}: a free run needs inputs, for example the "
            "recorded ones. Give them (--inputs FILE, or inputs= in Python); when they end they begin again."
        )
    known = match_inputs(reconstruction, inputs)
    scaler = reconstruction.scaler.inputs
    assert scaler is not None
    rows = scaler.transform(np.concatenate([hold_readings(values) for values in known.recordings]))
    return InputRuns.spread(rows, runs, reconstruction.model.dtype)
