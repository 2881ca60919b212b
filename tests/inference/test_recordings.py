"""Whole recordings, filtered and imputed: in data units, beside their times, for the model's columns."""

from dataclasses import replace

import numpy as np
import pytest

from inference.problems import COLUMNS, DT, LENGTHS, SCALER, linear_model, reconstruct, recordings
from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.data.windows import padded
from kaffee.data.writing import write_series
from kaffee.errors import ConfigError, DataError
from kaffee.filtering.particles import COLLAPSE_WARNING
from kaffee.filtering.sweep import run_filter
from kaffee.inference.recordings import filter_recordings, impute, smooth


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(linear_model(dtype=np.float32))


@pytest.fixture(scope="module")
def filtered(reconstruction):
    return filter_recordings(reconstruction, recordings())


def test_moments_are_those_of_the_one_filter(reconstruction, filtered):
    series = recordings()
    plain = run_filter(reconstruction.model, *padded(series.standardised(SCALER), np.float32))
    for r, (estimate, length) in enumerate(zip(filtered, series.lengths, strict=True)):
        rows = slice(0, length - 1)
        close = {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(estimate.state_mean[1:], plain.mean[r, rows], **close)
        np.testing.assert_allclose(estimate.state_std[1:], plain.std[r, rows], **close)
        scale = SCALER.scale
        np.testing.assert_allclose(estimate.std[1:] / scale, plain.signal_std[r, rows], **close)
        standard = SCALER.transform(estimate.predicted_mean[1:])
        np.testing.assert_allclose(standard, plain.predicted_mean[r, rows], **close)
        np.testing.assert_allclose(estimate.predicted_std[1:] / scale, plain.predicted_std[r, rows], **close)
        np.testing.assert_allclose(estimate.nis[1:], plain.nis[r, rows], rtol=1e-4, atol=1e-4)
        # a density per data unit instead of one per standard deviation
        seen = ~np.isnan(series.recordings[r])[1:]
        expected = -np.asarray(plain.nll[r, rows]) - seen @ np.log(scale)
        np.testing.assert_allclose(estimate.log_likelihood[1:], expected, rtol=1e-4, atol=1e-4)


def test_the_first_row_anchors_and_is_not_scored(filtered):
    estimate = filtered[0]
    np.testing.assert_allclose(estimate.mean[0], SCALER.mean, rtol=1e-6)
    assert estimate.restarted.tolist() == [True] + [False] * 16
    for values in (estimate.predicted_mean, estimate.predicted_std, estimate.predicted_state_mean):
        assert np.isnan(values[0]).all()
        assert np.isfinite(values[1:]).all()
    assert np.isnan(estimate.log_likelihood[0])
    assert estimate.log_likelihood[4] == 0.0  # nothing was read
    assert estimate.fault == ""


def test_the_table_keeps_times_and_names_its_columns(filtered, tmp_path):
    table = filtered.to_series([0.05, 0.5], latent=True)
    assert table.columns[:8] == (
        "left_mean", "left_std", "left_q05", "left_q50", "right_mean", "right_std", "right_q05", "right_q50",
    )  # fmt: skip
    assert {"right_predicted_std", "z5_mean", "z1_predicted_std", "log_likelihood", "nis"} <= set(table.columns)
    np.testing.assert_array_equal(table.recordings[0][:, 0], table.recordings[0][:, 3])
    for suffix in (".csv", ".npz", ".parquet"):
        write_series(table, tmp_path / f"out{suffix}")
        assert read_series(tmp_path / f"out{suffix}") == table
    np.testing.assert_array_equal(table.times[1], recordings().times[1])


def test_the_summary_adds_up(filtered):
    facts = filtered.describe()
    assert (facts["recordings"], facts["steps"], facts["rejected"], facts["restarts"]) == (3, 50, 0, 0)
    total = sum(np.nansum(estimate.log_likelihood) for estimate in filtered)
    assert facts["log_likelihood"] == pytest.approx(total)


def test_a_gate_keeps_an_outlier_from_moving_the_belief(reconstruction, filtered):
    series = recordings()
    spoiled = [values.copy() for values in series.recordings]
    spoiled[1][12] = SCALER.mean + 50.0 * SCALER.scale
    without = [values.copy() for values in series.recordings]
    without[1][12] = np.nan
    found = filter_recordings(reconstruction, Series(tuple(spoiled), COLUMNS), gate=1 - 1e-9)
    expected = filter_recordings(reconstruction, Series(tuple(without), COLUMNS), gate=1 - 1e-9)
    assert found.describe()["rejected"] == 2
    assert found[1].rejected[12].all()
    np.testing.assert_array_equal(found[1].mean, expected[1].mean)


# --- does the recording fit the model? ---


def test_columns_are_found_by_name_among_others(reconstruction, filtered):
    series = recordings()
    shuffled = tuple(
        np.column_stack([values[:, 1], np.ones(len(values)), values[:, 0]]) for values in series.recordings
    )
    found = filter_recordings(reconstruction, Series(shuffled, ("right", "other", "left"), series.times))
    np.testing.assert_array_equal(found[2].mean, filtered[2].mean)
    assert found[0].columns == COLUMNS


def test_arrays_without_names_are_taken_by_position(reconstruction, filtered):
    found = filter_recordings(reconstruction, Series(recordings().recordings))
    np.testing.assert_array_equal(found[0].mean, filtered[0].mean)
    assert found.to_series().times is None


def test_names_that_say_nothing_to_a_nameless_model_are_taken_by_position_with_a_warning(reconstruction, filtered):
    values = recordings().recordings
    for names in ((), ("x1", "x2"), ("0", "1")):
        nameless = replace(reconstruction, columns=names)
        with pytest.warns(UserWarning, match=r"'left', 'right' are taken for the model's '.*', by their position"):
            found = filter_recordings(nameless, Series(values, COLUMNS))
        np.testing.assert_array_equal(found[0].mean, filtered[0].mean)
        filter_recordings(nameless, Series(values))  # nobody named these


@pytest.mark.parametrize("names", [("x2", "y"), ("x2", "x3"), ("y", "x1")])
def test_names_of_which_the_model_knows_some_are_never_taken_by_position(reconstruction, names):
    nameless = replace(reconstruction, columns=("x1", "x2"))
    with pytest.raises(DataError, match="the model needs 'x1', 'x2', but"):
        filter_recordings(nameless, Series(recordings().recordings, names))
    swapped = Series(recordings().recordings, ("x2", "x1"))
    assert filter_recordings(nameless, swapped)[0].columns == ("x1", "x2")


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (Series.from_arrays(np.ones((5, 2)), columns=["left", "write"]), "'right' is not among 'left', 'write'"),
        (Series.from_arrays(np.ones((5, 3))), "the model needs 'left', 'right'"),
        (
            Series.from_arrays(np.ones((5, 2)), times=np.arange(5) * 0.1),
            "a row every 0.1, but one step of the model is",
        ),
    ],
    ids=["names", "count", "step"],
)
def test_what_does_not_fit_is_refused_with_what_to_do(reconstruction, series, message):
    with pytest.raises(DataError, match=message):
        filter_recordings(reconstruction, series)


def test_another_time_step_can_be_accepted(reconstruction):
    series = Series(recordings().recordings, COLUMNS, tuple(10 * DT * np.arange(n) for n in (17, 24, 9)))
    assert filter_recordings(reconstruction, series, any_step=True).to_series().time_step == 10 * DT


def test_absurd_requests_are_one_sentence(reconstruction, filtered):
    for level in (0.0, 1.0, -3.0, float("nan")):
        with pytest.raises(ConfigError, match="quantile level lies between"):
            filtered.to_series([level])
    with pytest.raises(ConfigError, match="The gate is a quantile"):
        filter_recordings(reconstruction, recordings(), gate=9.0)
    with pytest.raises(DataError, match="would be there twice"):
        replace(filtered[0], columns=("x", "x_predicted")).table()
    with pytest.raises(AttributeError, match=r"has no 'members', only mean, std"):
        _ = filtered[0].members


def test_frames_are_the_tables(filtered):
    table, frame = filtered.to_series([0.5]), filtered.to_frame([0.5])
    assert tuple(frame.columns) == table.columns
    np.testing.assert_array_equal(frame.to_numpy(), table.concatenated())
    np.testing.assert_array_equal(frame.loc[1].index, table.times[1])
    np.testing.assert_array_equal(filtered[2].to_frame([0.5]), table.recordings[2])
    assert repr(filtered[0]) == "Estimate(left, right; shape (17, 2))"


# --- gaps ---


@pytest.fixture(scope="module")
def imputed(reconstruction):
    return impute(reconstruction, recordings())


def test_recorded_readings_stay_and_gaps_are_filled(reconstruction, imputed):
    series, smoothed = recordings(), smooth(reconstruction, recordings())
    for r, seen in enumerate(series.mask):
        np.testing.assert_array_equal(imputed[r].values[seen], series.recordings[r][seen])
        np.testing.assert_array_equal(imputed[r].values[~seen], smoothed[r].mean[~seen])
        assert (imputed[r].std[seen] == 0.0).all()
        noise = np.sqrt(np.asarray(reconstruction.model.shell.observation_variance())) * reconstruction.scaler.scale
        least = np.broadcast_to(noise * (1 - 1e-6), seen.shape)
        assert (imputed[r].std[~seen] > least[~seen]).all()
    assert imputed.filled.missing_fraction == 0.0
    assert imputed.filled.lengths == LENGTHS


def test_the_table_has_bands_that_meet_where_a_reading_was_recorded(imputed):
    table = imputed.to_series([0.05, 0.95])
    assert table.columns == ("left", "right", "left_std", "left_q05", "left_q95", "right_std", "right_q05", "right_q95")
    left, low, high = (table.select([name]).recordings[0][:, 0] for name in ("left", "left_q05", "left_q95"))
    seen = recordings().mask[0][:, 0]
    np.testing.assert_array_equal(low[seen], left[seen])
    assert (low[~seen] < left[~seen]).all()
    assert (high[~seen] > left[~seen]).all()
    np.testing.assert_array_equal(table.times[2], recordings().times[2])
    assert imputed.describe()["imputed"] == sum(int((~seen).sum()) for seen in recordings().mask)


def test_nine_in_ten_of_the_withheld_readings_lie_in_their_bands(reconstruction):
    """Data of the model itself, 30 % withheld at random and a block of 5 % of the time."""
    model, rng = reconstruction.model, np.random.default_rng(3)
    A, h = np.asarray(model.core.A), np.asarray(model.core.h)
    process, noise = (
        np.sqrt(np.asarray(v())) for v in (model.shell.process_variance, model.shell.observation_variance)
    )
    z, rows = np.zeros(5), []
    for _ in range(1500):
        z = A @ z + h + process * rng.standard_normal(5)
        rows.append(z[:2] + noise * rng.standard_normal(2))
    truth = reconstruction.scaler.inverse(np.array(rows[300:]))
    withheld = rng.uniform(size=truth.shape) < 0.3
    withheld[600:660] = True
    found = impute(reconstruction, Series.from_arrays(np.where(withheld, np.nan, truth), columns=COLUMNS))
    inside = np.abs(truth - found[0].values)[withheld] < 1.6448536 * found[0].std[withheld]
    spread = 3.0 * np.sqrt(0.9 * 0.1 / inside.size)  # three standard errors of a share
    assert abs(inside.mean() - 0.9) < spread < 0.05


def test_noise_of_every_reading_takes_the_place_of_the_models(reconstruction, filtered):
    """The model's own noise changes nothing, NaN is the model's own, and a reading without noise is the signal."""
    series = recordings()
    own = SCALER.scale * np.sqrt(np.asarray(reconstruction.model.shell.observation_variance()))

    def filter_with(std):
        noise = Series.from_arrays([np.broadcast_to(std, x.shape) for x in series.recordings], times=series.times)
        return filter_recordings(reconstruction, series, observation_std=noise)

    same = filter_with(own)
    for ours, theirs in zip(same, filtered, strict=True):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-4)
        np.testing.assert_allclose(ours.predicted_std[1:], theirs.predicted_std[1:], rtol=1e-4)
    half = filter_with([own[0], np.nan])
    np.testing.assert_allclose(half[1].mean, filtered[1].mean, rtol=1e-4)
    sharp = filter_with(1e-3 * own)
    seen = ~np.isnan(series.recordings[1])[1:]
    np.testing.assert_allclose(sharp[1].mean[1:][seen], series.recordings[1][1:][seen], rtol=1e-4)
    with pytest.raises(DataError, match="positive"):
        filter_with(0.0)
    with pytest.raises(DataError, match="standard deviations of 1 columns"):
        filter_recordings(reconstruction, series, observation_std=series.select(["left"]))


def test_covariances_are_kept_on_request(reconstruction):
    series = recordings()
    for run in (filter_recordings, smooth):
        estimate = run(reconstruction, series, covariances=True)[1]
        variances = np.diagonal(estimate.state_covariance, axis1=1, axis2=2)
        np.testing.assert_allclose(np.sqrt(variances), estimate.state_std, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(estimate.state_covariance, estimate.state_covariance.swapaxes(1, 2), atol=1e-6)


def test_particles_say_how_many_of_them_count(reconstruction):
    """By the fewest there are, of which one wins, and by many; other filters have no weights to speak of."""
    few, many = (
        filter_recordings(reconstruction.with_filter(f"particle:{size}"), recordings()).facts for size in (2, 2000)
    )
    assert few["collapsed_fraction"] > COLLAPSE_WARNING
    assert 1.0 <= few["effective_particles"] < 2.0
    assert many["collapsed_fraction"] < COLLAPSE_WARNING
    assert 20.0 < many["effective_particles"] <= 2000.0
    assert "effective_particles" not in filter_recordings(reconstruction, recordings()).facts
