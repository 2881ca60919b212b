"""The series class: shapes, checks, split, selection, fingerprint."""

import json

import numpy as np
import pytest

from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.timeaxis import regularise_time
from kaffee.errors import ConfigError, DataError


@pytest.fixture
def series():
    a = np.arange(12.0).reshape(6, 2)
    b = 100 + np.arange(8.0).reshape(4, 2)
    b[1, 0] = np.nan
    return Series.from_arrays([a, b], columns=["u", "v"], name="demo")


@pytest.mark.parametrize(
    ("data", "lengths", "width"),
    [
        (np.arange(5), (5,), 1),
        ([1.0, 2.0, 3.0], (3,), 1),
        ([[1, 2], [3, 4], [5, 6]], (3,), 2),
        (np.ones((4, 3), np.float32), (4,), 3),
        (np.ones((2, 4, 3)), (4, 4), 3),
        ([np.ones((4, 3)), np.ones((7, 3), np.int16)], (4, 7), 3),
        ((np.ones((4, 1)),), (4,), 1),
    ],
)
def test_accepted_shapes(data, lengths, width):
    series = Series.from_arrays(data)
    assert series.lengths == lengths
    assert series.num_coordinates == width
    assert series.num_steps == sum(lengths)
    assert series.columns == tuple(f"x{j + 1}" for j in range(width))
    assert all(values.dtype == np.float64 for values in series.recordings)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.float64(3.0), ["0 dimensions", "(T, N)"]),
        (np.ones((2, 2, 2, 2)), ["4 dimensions"]),
        ([], ["holds no values"]),
        (np.ones((0, 3)), ["holds no values"]),
        (np.ones((3, 0)), ["holds no values"]),
        (np.ones((0, 3, 2)), ["holds no values"]),
        ([np.ones((3, 2)), np.ones((0, 2))], ["recording 1", "holds no values"]),
        (np.array([1, None]), ["object", "nan for missing"]),
        (np.array(["a", "b"]), ["not real numbers"]),
        (np.ones(3, complex), ["complex", "imaginary"]),
        (np.array([True, False]), ["bool", "astype"]),
        (np.array(["2020-01-01"], "datetime64[s]"), ["times="]),
        ([np.ones((3, 2)), np.ones((3, 4))], ["recording 1", "4 coordinates", "recording 0 has 2"]),
        ([np.ones(3), np.ones(4)], ["recording 0", "np.stack", "[a[:, None]"]),
        ([[1.0, 2.0], [3.0]], ["unequal lengths"]),
        ([[1.0, float("inf")], [1.0, 2.0]], ["row 0", "'x2'", "infinite", "nan"]),
        ([np.ones((2, 2)), np.array([[1, 2], [3, -np.inf]])], ["recording 1", "row 1", "'x2'", "infinite"]),
        (np.full((2, 2), np.nan), ["no value is observed"]),
    ],
)
def test_refused_arrays_say_why(data, words):
    with pytest.raises(DataError) as error:
        Series.from_arrays(data, name="trial")
    assert "trial" in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["a", "b", "c"], "3 column names for 2 coordinates"),
        (["a", "a "], "columns 0 and 1 are both named 'a'"),
        (["a", ""], "column 1 has an empty name"),
    ],
)
def test_column_names_are_checked(columns, words):
    with pytest.raises(DataError, match=words):
        Series.from_arrays(np.ones((3, 2)), columns=columns)


def test_masked_entries_are_missing():
    data = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])
    series = Series.from_arrays(data)
    assert series.mask[0].tolist() == [[True, False], [True, True]]
    assert series.missing_fraction == 0.25


def test_content_is_copied_and_read_only():
    data = np.ones((3, 2))
    series = Series.from_arrays(data)
    data[0, 0] = 7
    assert series.recordings[0][0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        series.recordings[0][0, 0] = 7


def test_split_is_by_time_within_each_recording(series):
    train, test = series.split(0.5)
    assert train.lengths == (3, 2)
    assert test.lengths == (3, 2)
    for whole, early, late in zip(series.recordings, train.recordings, test.recordings, strict=True):
        np.testing.assert_array_equal(np.concatenate([early, late]), whole)
    train, test = series.split(test_steps=4)
    assert train.lengths == (2, 4)  # the second recording is too short to be cut
    assert test.lengths == (4,)
    assert Series.from_arrays(np.arange(10.0)).split(0.8)[0].lengths == (8,)
    assert Series.from_arrays(np.arange(10.0)).split(0.7)[0].lengths == (7,)


def test_split_keeps_times_and_refuses_nonsense(series):
    timed = Series.from_arrays(np.arange(5.0), times=np.arange(5) * 0.1)
    assert timed.split(0.6)[1].times[0].tolist() == [0.1 * 3, 0.4]
    with pytest.raises(ConfigError, match="between 0 and 1"):
        series.split(1.0)
    with pytest.raises(ConfigError, match="test_steps=0"):
        series.split(test_steps=0)
    with pytest.raises(DataError, match="longest recording has 6 steps"):
        series.split(test_steps=6)
    late = Series.from_arrays([[1.0, 1.0], [2.0, 2.0], [3.0, np.nan]])
    assert np.isnan(late.split(test_steps=1)[1].recordings[0]).tolist() == [[False, True]]
    with pytest.raises(DataError, match=r"test part.*no value is observed"):
        late.select(["x2"]).split(test_steps=1)


def test_select_by_name_and_index(series):
    assert series.select(["v"]).columns == ("v",)
    swapped = series.select([1, "u"])
    np.testing.assert_array_equal(swapped.recordings[0], series.recordings[0][:, ::-1])
    for columns, words in (
        (["w"], "Unknown column 'w'"),
        ([2], "no column 2, there are 2"),
        ([], "no column selected"),
    ):
        with pytest.raises(DataError, match=words):
            series.select(columns)


def test_standardised_has_mean_zero_and_variance_one(series):
    rows = series.standardised(Scaler.fit(series)).concatenated()
    np.testing.assert_allclose(np.nanmean(rows, axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(np.nanstd(rows, axis=0), 1, rtol=1e-14)
    np.testing.assert_array_equal(np.isnan(rows), np.isnan(series.concatenated()))


def test_locate_inverts_concatenation(series):
    rows = series.concatenated()
    for row in range(series.num_steps):
        recording, local = series.locate(row)
        np.testing.assert_array_equal(series.recordings[recording][local], rows[row])
    with pytest.raises(ConfigError, match="Row 10"):
        series.locate(10)


def test_describe_is_json_and_repr_is_short(series):
    summary = json.loads(json.dumps(series.describe()))
    assert summary["num_recordings"] == 2
    assert summary["longest"] == 6
    assert summary["columns"] == ["u", "v"]
    assert repr(series) == "Series('demo': 2 recordings, 10 steps, 2 coordinates: u, v; 5 % missing)"


# --- fingerprint ---


def test_fingerprint_is_stable_across_releases():
    series = Series.from_arrays([[1.0, np.nan], [3.0, 4.0]], columns=["a", "b"], times=[0.0, 0.5])
    assert series.fingerprint == "0adba75bbff421a376ca015bf0af6aa1162e0a31b8ec63091d1557e1473633e4"


def test_fingerprint_sees_content_only():
    data = np.arange(12.0).reshape(6, 2)
    reference = Series.from_arrays(data)
    same = [
        Series.from_arrays(np.asfortranarray(data), name="other"),
        Series.from_arrays(data.astype(np.float32), source="elsewhere.csv"),
        Series.from_arrays(data.astype(">f8")),
        Series.from_arrays(np.repeat(data, 2, axis=0)[::2]),
    ]
    assert all(other == reference and hash(other) == hash(reference) for other in same)
    bit = data.copy()
    bit[3, 1] = np.nextafter(bit[3, 1], 9)
    different = [
        Series.from_arrays(bit),
        Series.from_arrays(data.reshape(4, 3)),
        Series.from_arrays(data.reshape(2, 3, 2)),
        Series.from_arrays(data, columns=["a", "b"]),
        Series.from_arrays(data, times=np.arange(6)),
        Series.from_arrays(np.where(data == 3, np.nan, data)),
    ]
    assert len({other.fingerprint for other in [reference, *different]}) == 7


def test_fingerprint_has_one_nan():
    odd = np.array([[1.0], [0.0]])
    odd.view(np.uint64)[1, 0] = 0xFFF8000000000001  # a NaN with sign and payload
    assert Series.from_arrays(odd) == Series.from_arrays([[1.0], [np.nan]])


# --- time axis ---


def test_gaps_of_whole_steps_become_missing_rows():
    times, values = regularise_time([0.0, 0.1, 0.2, 0.5, 0.6], np.arange(5.0)[:, None])
    np.testing.assert_allclose(times, np.arange(7) * 0.1, atol=1e-12)
    np.testing.assert_array_equal(values.ravel(), [0, 1, 2, np.nan, np.nan, 3, 4])
    assert times[5] == 0.5  # observed times keep their bits


def test_step_is_found_when_most_samples_are_missing():
    keep = np.array([0, 1, 4, 8, 11, 15, 20])
    jitter = np.array([0, 1, -1, 1, 0, -1, 1]) * 1e-3
    times, values = regularise_time(keep + jitter, keep[:, None].astype(float))
    assert len(times) == 21
    np.testing.assert_array_equal(np.flatnonzero(~np.isnan(values[:, 0])), keep)


@pytest.mark.parametrize(
    ("form", "step", "length"),
    [("%.5g", 1 / 120, 20_000), ("%.2f", 1 / 120, 200), ("%.2f", 1 / 30, 9), ("%.0f", 0.7, 99)],
)
@pytest.mark.parametrize("start", [0.3, 1.7e9])
def test_an_even_clock_is_found_behind_rounded_times(form, step, length, start):
    """Written to five digits, 120 Hz repeat from 100 s on; to two places, 30 Hz are 3 and 4 hundredths in turn."""
    if start > 1 and form != "%.0f":
        form = "%.2f"  # seconds since 1970 have ten digits before the point
    clock = start + step * np.arange(length)
    written = np.array([float(form % t) for t in clock])
    times, values = regularise_time(written, np.arange(float(length))[:, None])
    np.testing.assert_array_equal(values.ravel(), np.arange(length))
    unit = 10.0 ** -int(form[2]) if form[-1] == "f" else 1e-5
    assert np.abs(times - clock).max() <= unit
    np.testing.assert_allclose(np.diff(times), step, rtol=2 * unit / (step * length) + 1e-9)
    with pytest.raises(DataError, match="one time for each row"):
        regularise_time(written, values[1:])
    with pytest.raises(DataError):
        regularise_time(written + (np.arange(length) == length // 2) * 10 * step, values)


@pytest.mark.parametrize(
    "times",
    [
        np.sort(np.append(np.arange(100), 40)),  # a row that is there twice
        np.repeat(np.arange(30), 3),  # three rows for every time
        np.delete(np.repeat(np.arange(30), 2), [7, 20, 31, 50]),  # or most of them
        np.sort(np.append(0.1 * np.arange(99), 0.1 * np.arange(0, 99, 9))),  # computed, not written
    ],
)
def test_repeats_that_need_not_be_rounding_are_refused(times):
    with pytest.raises(DataError, match=r"repeats .*--time-column none"):
        regularise_time(times, np.zeros((len(times), 1)))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([0, 1, 1, 2], ["row 2", "repeats", "remove duplicates"]),
        ([0, 1, 0.5, 2], ["row 2", "goes back", "recording_column="]),
        ([0, 1, 2.5, 3.5, 4.5], ["row 2", "irregular", "off a whole number", "Resample"]),
        ([0, 1, np.nan, 3], ["row 2", "missing or infinite"]),
        ([0, 1, 2, 1e9], ["row 3", "gap of 1e+09 steps", "Split"]),
        ([0, 1, 2], ["3", "4 rows", "one time for each row"]),
    ],
)
def test_bad_times_name_the_row(times, words):
    length = max(len(times), 4)
    with pytest.raises(DataError) as error:
        Series.from_arrays(np.arange(float(length)), times=times, name="clock")
    for word in ["clock", "recording 0", *words]:
        assert word in str(error.value)


def test_times_per_recording_and_shared():
    data = np.random.default_rng(0).normal(size=(2, 4, 1))
    shared = Series.from_arrays(data, times=[0.0, 0.5, 1.0, 1.5])
    assert shared.time_step == 0.5
    assert len(shared.times) == 2
    own = Series.from_arrays(list(data), times=[np.arange(4), 7 + np.arange(4)])
    assert own.times[1][0] == 7
    with pytest.raises(DataError, match=r"recording 1: the time step is 2, but 1 in"):
        Series.from_arrays(list(data), times=[np.arange(4), 2 * np.arange(4)])
    with pytest.raises(DataError, match="3 arrays of times for 2 recordings"):
        Series.from_arrays(list(data), times=[np.arange(4)] * 3)


def test_datetimes_become_seconds():
    stamps = np.array(["2020-01-01T00:00", "2020-01-01T00:01", "2020-01-01T00:03"], "datetime64[s]")
    series = Series.from_arrays([1.0, 2.0, 3.0], times=stamps)
    assert series.lengths == (4,)
    assert series.time_step == 60
    assert series.notes == ("1 missing rows inserted at gaps in time",)
