"""An index of pandas as times, with gaps and calendars, and how it goes on."""

import numpy as np
import pandas as pd
import pytest

from kaffee.data._timeindex import read_index
from kaffee.data.series import Series
from kaffee.errors import DataError


def same(found, expected):
    """The same labels of the same type under the same name; whether a frequency is noted beside them or not."""
    assert found.equals(expected)
    assert found.name == expected.name
    assert str(found.dtype) == str(expected.dtype)


def clock_of(index, **options):
    """The clock, and the times of a series with a row for each step."""
    clock = read_index(index, "X", **options)
    times, values = clock.place(np.ones((len(index), 1)))
    series = Series.from_arrays(values, times=times)
    return clock, None if series.times is None else series.times[0], series


def future_of(index, num_steps=3, **options):
    clock, times, series = clock_of(index, **options)
    step = series.time_step or 1.0
    start = 0.0 if times is None else times[-1]
    return clock.future(start + step * np.arange(1, num_steps + 1), series.num_steps)


@pytest.mark.parametrize("freq", ["h", "15min", "D", "250ms"])
@pytest.mark.parametrize("tz", [None, "UTC", "Europe/Berlin"])
def test_dates_of_equal_steps_go_on(freq, tz):
    whole = pd.date_range("2024-01-01", periods=23, freq=freq, tz=tz, name="when")
    past, expected = whole[:20], whole[20:]
    same(future_of(past), expected)
    clock, times, _ = clock_of(past)
    assert clock.frequency is None
    same(clock.labels(times), past)


@pytest.mark.parametrize("freq", ["MS", "ME", "B", "QS", "W-WED"])
def test_calendars_are_found_and_go_on(freq):
    whole = pd.date_range("2023-01-02", periods=33, freq=freq)
    unaware = pd.DatetimeIndex(whole[:30].to_numpy())  # without the attribute freq
    clock, times, series = clock_of(unaware, infer=True)
    assert series.lengths == (30,)
    same(clock.labels(times), unaware)
    same(future_of(unaware, infer=True), whole[30:])


def test_days_over_a_change_of_clocks_are_days():
    whole = pd.date_range("2024-03-25", periods=13, freq="D", tz="Europe/Berlin")
    same(future_of(whole[:10], infer=True), whole[10:])


def test_a_calendar_that_is_known_is_not_guessed_again():
    """July, August, September: equal steps of 31 days, but months all the same; one of them is left out."""
    index = pd.DatetimeIndex(["2024-07-01", "2024-09-01"])
    clock, times, series = clock_of(index, frequency="MS")
    assert series.lengths == (3,)
    np.testing.assert_array_equal(series.recordings[0][:, 0], [1, np.nan, 1])
    assert clock.labels(times).strftime("%m").tolist() == ["07", "08", "09"]
    with pytest.raises(DataError, match=r"X: the dates should follow the frequency 'MS', but 2024-09-02.*asfreq"):
        read_index(index.insert(2, pd.Timestamp("2024-09-02")), "X", frequency="MS")
    with pytest.raises(DataError, match="not in order"):
        read_index(index[::-1], "X", frequency="MS")


def test_periods_are_steps_of_their_calendar():
    index = pd.period_range("2024-01", periods=6, freq="M")[[0, 1, 3, 4, 5]]
    clock, times, series = clock_of(index)
    assert series.lengths == (6,)
    assert [str(p) for p in clock.labels(times)][2] == "2024-03"
    assert [str(p) for p in future_of(index, 2)] == ["2024-07", "2024-08"]


def test_gaps_in_dates_become_rows_with_dates():
    whole = pd.date_range("2024-01-01", periods=12, freq="10min", tz="Asia/Kolkata", name="when")
    index = whole.delete([3, 4, 8])
    clock, times, series = clock_of(index)
    assert series.lengths == (12,)
    assert np.isnan(series.recordings[0][[3, 4, 8], 0]).all()
    same(clock.labels(times), whole)


def test_inserted_dates_stay_between_their_neighbours_where_a_clock_drifts():
    rng = np.random.default_rng(0)
    seconds = np.delete(np.arange(2000.0) * 1.0004 + rng.uniform(-0.02, 0.02, 2000), [500, 501, 1800])
    index = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(1e6 * seconds).astype(int), unit="us")
    clock, times, _ = clock_of(index)
    labels = clock.labels(times)
    assert len(labels) == 2000
    assert labels.is_monotonic_increasing
    assert index.isin(labels).all()


def test_numbers_are_times_and_whole_numbers_stay_whole():
    index = pd.Index([3, 4, 6, 7], name="n")
    clock, times, _ = clock_of(index)
    same(clock.labels(times), pd.Index([3, 4, 5, 6, 7], name="n"))
    same(future_of(index, 2), pd.Index([8, 9], name="n"))
    clock, times, series = clock_of(pd.Index([0.0, 0.5, 1.5]))
    assert series.time_step == 0.5
    assert clock.labels(times).tolist() == [0.0, 0.5, 1.0, 1.5]


def test_durations_are_times():
    index = pd.to_timedelta([0, 2, 4, 8], unit="s")
    clock, times, series = clock_of(index)
    assert series.time_step == 2.0
    assert clock.labels(times)[3] == pd.Timedelta("6s")
    assert future_of(index, 1)[0] == pd.Timedelta("10s")


def test_row_numbers_are_no_times_and_are_counted_on():
    index = pd.RangeIndex(5, 9)
    clock, times, _ = clock_of(index)
    assert times is None
    same(clock.labels(None), index)
    same(future_of(index), pd.RangeIndex(9, 12))


def test_one_date_goes_on_by_the_step_of_the_forecast():
    clock = read_index(pd.DatetimeIndex(["2024-01-01"]), "X")
    assert clock.future(np.array([60.0, 120.0]), 1)[1] == pd.Timestamp("2024-01-01 00:02")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (pd.Index(["a", "b", "c"]), r"X: an index of .* \('a', \.\.\.\) is not a time\. Set it .*reset_index"),
        (pd.MultiIndex.from_product([["a"], [1, 2, 3]]), "an index of 2 levels. Pass a list"),
        (pd.DatetimeIndex(["2024-01-01", "2024-01-03", "2024-01-02"]), "time goes back"),
        (pd.DatetimeIndex(["2024-01-01", "2024-01-02", "2024-01-02"]), "time repeats"),
        (pd.DatetimeIndex(["2024-01-01", None, "2024-01-02"]), "time is missing"),
        (pd.Index([0.0, np.nan, 1.0]), "time is missing"),
        (pd.DatetimeIndex(["2024-01-01", "2024-01-02", "2024-01-02 14:00"]), "irregular sampling.*Resample"),
    ],
)
def test_an_index_that_is_no_time_is_a_clear_error(index, words):
    with pytest.raises(DataError, match=words):
        clock_of(index, infer=True)
