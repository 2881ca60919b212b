"""Filter, smooth and impute whole recordings, in data units."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kaffee.checkpoint.reconstruction import Reconstruction
from kaffee.data.scaler import GAUSSIAN
from kaffee.data.series import Series
from kaffee.data.validation import check_count
from kaffee.errors import DataError
from kaffee.filtering.gated import Row, Track, make_gate
from kaffee.filtering.particles import COLLAPSED
from kaffee.filtering.recursion import Step
from kaffee.filtering.smoother import smooth_rows
from kaffee.filtering.sweep import batch_recordings, keep_row, split_recordings, sweep
from kaffee.inference.matching import match_series
from kaffee.inference.results import Estimate, Estimates, RowArrays
from kaffee.metrics.scores import NLL_UNIT
from kaffee.model.discrete import reading_noise


def filter_recordings(
    reconstruction: Reconstruction,
    series: Series,
    *,
    gate: float | None = None,
    patience: int = 10,
    any_step: bool = False,
    covariances: bool = False,
    observation_std: Series | None = None,
) -> Estimates:
    """Filter recordings by the recursion of the model's own method (Eqs. kf_predict_mean to kf_update_cov).

    The summary has the `nll` in the unit of certificates; log-likelihoods are in data units. That of a particle filter
    has `effective_particles`, the median of 1 / sum w^2 after a reading, and the share of rows where fewer than two
    count, `collapsed_fraction`.

    Args:
        series: In data units; several recordings of unequal length, missing entries and gaps are fine.
        gate: Reject readings whose squared normalised innovation exceeds this chi-square quantile, such as 0.9999.
        patience: Rejections in a row after which a coordinate is believed again.
        any_step: Accept a time step that is not the model's.
        covariances: Keep `state_covariance`, (T, M, M), that of the latent state given all readings so far.
        observation_std: Of the noise of every reading, in data units: rows and columns as those of the model's in
            `series`. It takes the place of the model's own observation noise; NaN: that.
    """
    series = match_series(reconstruction, series, any_step=any_step)
    model, scaler = reconstruction.model, reconstruction.scaler
    x = batch_recordings(series.standardised(scaler), model.dtype)
    keep = _keep_covariance if covariances else keep_row
    variance = _read_noise(reconstruction, series, observation_std)
    rows = sweep(model, reconstruction.filter, x, gate=make_gate(gate, patience), keep=keep, variance=variance).rows
    each_row = split_recordings(rows, series.lengths)
    arrays: list[Any] = [RowArrays(row[0] if covariances else row, scaler) for row in each_row]
    if covariances:
        pairs = zip(arrays, each_row, strict=True)
        arrays = [{**known, "state_covariance": np.asarray(row[1], np.float64)} for known, row in pairs]
    counts = sum(each["accepted"][~np.isnan(each["log_likelihood"])].sum(axis=0) for each in arrays)
    entries, units = int(np.sum(counts)), float(counts @ scaler.log_scale)
    total = sum(float(np.nansum(each["log_likelihood"])) for each in arrays)
    facts = {
        "nll": -(total + units) / entries if entries else None,
        "nll_unit": NLL_UNIT,
        "log_likelihood": total,
        "log_likelihood_per_entry": total / entries if entries else None,
        "rejected": sum(int(each["rejected"].sum()) for each in arrays),
        "restarts": sum(int(each["restarted"][1:].sum()) for each in arrays),
    }
    if "effective_particles" in arrays[0]:
        read = [each["accepted"].any(axis=1) & ~each["restarted"] for each in arrays]
        effective = np.concatenate([each["effective_particles"][seen] for each, seen in zip(arrays, read, strict=True)])
        facts |= {
            "effective_particles": float(np.median(effective)) if len(effective) else None,
            "collapsed_fraction": float(np.mean(effective < COLLAPSED)) if len(effective) else None,
        }
    return _collect(series, "filtered", arrays, facts, scaler.likelihood)


def _read_noise(reconstruction: Reconstruction, series: Series, std: Series | None) -> Float[Array, "T R N"] | None:
    """Convert standard deviations of readings in data units to variances in standard ones, time first."""
    if std is None:
        return None
    if std.lengths != series.lengths or std.num_coordinates != series.num_coordinates:
        raise DataError(
            f"{std.label}: standard deviations of {std.num_coordinates} columns and {std.lengths} rows; readings have "
            f"{series.num_coordinates} columns and {series.lengths} rows."
        )
    scale = reconstruction.scaler.scale
    values = np.full((max(series.lengths), series.num_recordings, series.num_coordinates), np.nan)
    for r, each in enumerate(std.recordings):
        if (each <= 0).any():
            raise DataError(f"{std.label}: standard deviations are positive; recording {r} has {np.nanmin(each):g}.")
        values[: len(each), r] = (each / scale) ** 2
    return jnp.asarray(values, reconstruction.model.dtype)


def _keep_covariance(track: Track, row: Row, step: Step) -> tuple[Row, Any]:
    return row, track.belief.moments().covariance


def draw_filtered(
    reconstruction: Reconstruction, series: Series, *, members: int = 100, seed: int = 0, any_step: bool = False
) -> Estimates:
    """Draw the signal B z of every row from its filtered belief, z ~ N(z_{t|t}, Sigma_{t|t}), in data units.

    Coordinates of one draw belong together, rows do not: a draw is no trajectory. For those, forecast.
    """
    series = match_series(reconstruction, series, any_step=any_step)
    members, seed = check_count("members", members, 2), check_count("seed", seed, 0)
    model, scaler = reconstruction.model, reconstruction.scaler
    x = batch_recordings(series.standardised(scaler), model.dtype)
    places = [(np.full(length, r), np.arange(length)) for r, length in enumerate(series.lengths)]
    starts = (np.concatenate([r for r, _ in places]), np.concatenate([row for _, row in places]))
    beliefs = sweep(model, reconstruction.filter, x, gate=make_gate(), keep=None, starts=starts).beliefs
    states = beliefs.draw(jax.random.key(seed), members)
    signal = np.asarray(jax.vmap(model.observation.observe)(states), np.float64)
    parts = np.split(scaler.inverse_signal(signal), np.cumsum(series.lengths)[:-1], axis=1)
    arrays = [{"mean": part.mean(axis=0), "std": part.std(axis=0, ddof=1), "members": part} for part in parts]
    return _collect(series, "filtered draws", arrays, {"members": members})


def smooth(
    reconstruction: Reconstruction,
    series: Series,
    *,
    any_step: bool = False,
    covariances: bool = False,
    observation_std: Series | None = None,
) -> Estimates:
    """Smooth recordings: the state at every row given all readings before and after it.

    A Rauch-Tung-Striebel pass back over the filter of the model's own method; see `kaffee.filtering.smoother`. With
    `covariances`, results have the `state_covariance` of the latent state, (T, M, M); `observation_std` is as in
    `filter_recordings`.
    """
    series = match_series(reconstruction, series, any_step=any_step)
    variance = _read_noise(reconstruction, series, observation_std)
    smoothed = _smooth(reconstruction, series, covariances=covariances, variance=variance)
    return _collect(series, "smoothed", smoothed, {}, reconstruction.scaler.likelihood)


def impute(reconstruction: Reconstruction, series: Series, *, any_step: bool = False) -> Estimates:
    """Fill gaps with the smoothed mean and the band of the reading that is missing.

        x_missing ~ N(B z_s, B P_s B' + Lambda) given all readings of the recording

    Readings that are there stay as they are, bit for bit, with `std` 0; `filled` is the series without gaps.
    """
    series = match_series(reconstruction, series, any_step=any_step)
    smoothed = zip(series.recordings, series.mask, _smooth(reconstruction, series), strict=True)
    filled = [
        {"values": np.where(seen, x, known["mean"]), "std": np.where(seen, 0.0, known["reading_std"])}
        for x, seen, known in smoothed
    ]
    missing = sum(int(np.isnan(values).sum()) for values in series.recordings)
    return _collect(series, "imputed", filled, {"imputed": missing, "imputed_fraction": series.missing_fraction})


def _smooth(
    reconstruction: Reconstruction,
    series: Series,
    *,
    covariances: bool = False,
    variance: Float[Array, "T R N"] | None = None,
) -> list[dict[str, np.ndarray]]:
    model, scaler = reconstruction.model, reconstruction.scaler
    x = batch_recordings(series.standardised(scaler), model.dtype)
    rows = smooth_rows(
        model, reconstruction.filter, x, jnp.asarray(series.lengths), variance=variance, covariances=covariances
    )
    smoothed = []
    for row in split_recordings(rows, series.lengths):
        state_mean, state_std, signal_mean, signal_std, *whole = (np.asarray(moment, np.float64) for moment in row)
        mean, std = scaler.signal_moments(signal_mean, signal_std)
        noise = reading_noise(model.discrete, model.shell.observation_variance(), jnp.asarray(signal_mean))
        reading_std = np.sqrt(signal_std**2 + np.asarray(noise, np.float64))
        arrays = {"mean": mean, "std": std, "reading_std": scaler.reading_moments(signal_mean, reading_std)[1]}
        arrays |= {"state_mean": state_mean, "state_std": state_std}
        smoothed.append(arrays | ({"state_covariance": whole[0]} if whole else {}))
    return smoothed


def _collect(
    series: Series,
    kind: str,
    arrays: Sequence[Mapping[str, np.ndarray]],
    facts: dict[str, Any],
    likelihood: str = GAUSSIAN,
) -> Estimates:
    """Put the arrays of every recording beside its times."""
    times = series.times or (None,) * series.num_recordings
    estimates = tuple(Estimate(series.columns, t, each, likelihood) for t, each in zip(times, arrays, strict=True))
    facts = {"recordings": series.num_recordings, "steps": series.num_steps, **facts}
    return Estimates(estimates, kind, facts, series.name, series.origin)
