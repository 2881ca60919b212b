"""Months, quarters and years in files: dates are counted in their own steps, and written as they were."""

import numpy as np
import pandas as pd
import pytest

from kaffee.data._calendars import Calendar
from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.data.timeaxis import read_compact_dates
from kaffee.data.writing import write_series
from kaffee.errors import ConfigError, DataError


def write_dates(folder, dates, name="lab.csv", column="date"):
    path = folder / name
    lines = [f"{date},{row}.5" for row, date in enumerate(dates)]
    path.write_text("\n".join([f"{column},x", *lines]) + "\n")
    return path


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y%m%d", "%Y-%m-%dT06:00:00Z", "%Y-%m-%d 06:00:00+02:00"])
@pytest.mark.parametrize("freq", ["MS", "ME", "QS", "QE-JAN", "YS", "YE", "7MS", "BMS"])
def test_steps_of_a_calendar_are_steps(tmp_path, freq, form):
    whole = pd.date_range("1999-01-01", periods=31, freq=freq).strftime(form)
    path = write_dates(tmp_path, whole[:30])
    series = read_series(path)
    assert series.lengths == (30,)
    assert series.time_step == 1.0
    assert series.frequency is not None
    back = write_series(series, tmp_path / "back.csv")
    assert [line.split(",")[0] for line in back.read_text().splitlines()[1:]] == list(whole[:30])
    assert read_series(back) == series
    assert series.origin.dates.texts(series.times[0][-1:] + 1.0) == [whole[30]]
    if freq != "BMS":  # what pandas finds, it finds without gaps
        gaps = read_series(write_dates(tmp_path, whole[:30].delete([4, 5, 20])))
        assert gaps.lengths == (30,)
        assert np.isnan(gaps.recordings[0][[4, 5, 20], 0]).all()


@pytest.mark.parametrize("freq", ["D", "W", "h"])
def test_equal_steps_are_counted_in_seconds(tmp_path, freq):
    series = read_series(write_dates(tmp_path, pd.date_range("2024-01-01", periods=20, freq=freq)))
    assert series.frequency is None
    assert series.time_step == {"D": 86400.0, "W": 604800.0, "h": 3600.0}[freq]


def test_months_alone_and_days_in_their_middle(tmp_path):
    months = pd.date_range("2020-11-01", periods=20, freq="MS")
    for form in (months.strftime("%Y-%m"), (months + pd.Timedelta("14D")).strftime("%Y-%m-%d")):
        series = read_series(write_dates(tmp_path, form))
        assert series.frequency == "MS"
        assert series.origin.dates.texts(series.times[0]) == list(form)


def test_a_frequency_that_is_known_is_not_guessed(tmp_path):
    path = write_dates(tmp_path, ["2024-07-01", "2024-09-01"])
    assert read_series(path).lengths == (2,)
    assert read_series(path, frequency="MS").lengths == (3,)
    months = write_dates(tmp_path, pd.date_range("2000-01-01", periods=9, freq="YS"))
    assert read_series(months, frequency=False).time_step == pytest.approx(365.25 * 86400, rel=1e-3)
    with pytest.raises(DataError, match=r"should follow the frequency 'MS', but 2024-07-15"):
        read_series(write_dates(tmp_path, ["2024-07-01", "2024-07-15"]), frequency="MS")
    with pytest.raises(ConfigError, match="'XX' is no frequency of pandas"):
        read_series(months, frequency="XX")


def test_recordings_of_one_file_share_a_calendar(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text(
        "recording,date,x\nb,2001-01-01,1\nb,2001-02-01,2\nb,2001-04-01,3\na,2000-11-01,1\na,2000-12-01,2\n"
    )
    series = read_series(path)
    assert series.lengths == (4, 2)
    assert [times.tolist() for times in series.times] == [[0, 1, 2, 3], [-2, -1]]
    again = read_series(write_series(series, tmp_path / "back.npz"), frequency="MS")
    assert again.frequency == "MS"
    assert again.recordings[1].tolist() == [[1], [2]]


def test_steps_and_dates_are_inverse_also_before_the_start():
    calendar = Calendar("QE", pd.Timestamp("2024-06-30 12:00"))
    dates = calendar.dates(np.arange(-5.0, 6.0))
    assert str(dates[0]) == "2023-03-31 12:00:00"
    np.testing.assert_array_equal(calendar.count(dates, "X"), np.arange(-5.0, 6.0))


@pytest.mark.parametrize("name", ["date", "t", "Time", ""])
def test_numbers_that_are_all_dates_are_dates(tmp_path, name):
    series = read_series(write_dates(tmp_path, ["20240130", "20240131", "20240201", "20240204"], column=name))
    assert series.lengths == (6,)
    assert series.time_step == 86400.0
    assert any("written as 20240130" in note for note in series.notes)
    assert write_series(series, tmp_path / "o.csv").read_text().splitlines()[3].startswith("20240201,")


@pytest.mark.parametrize(
    ("days", "column"),
    [
        (["20240130", "20240131", "20240132"], "t"),  # not a day
        (["20230228", "20230229", "20230230"], "t"),
        (["17990101", "17990102", "17990103"], "t"),
        (["20240130.5", "20240131.5"], "t"),
        (["20240130", "20240131"], "t [ms]"),  # a unit says that they are numbers
        (["2024", "2025", "2026"], "t"),
    ],
)
def test_other_numbers_are_numbers(tmp_path, days, column):
    series = read_series(write_dates(tmp_path, days, column=column))
    assert series.origin.dates is None
    assert series.times[0][0] == float(days[0])


def test_dates_as_numbers_in_other_files(tmp_path):
    days = np.array([20240228, 20240229, 20240301])
    pd.DataFrame({"date": days, "x": [1.0, 2.0, 3.0]}).to_parquet(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=np.arange(3.0), dates=days)
    np.savez(tmp_path / "b.npz", x=np.stack([days, np.arange(3)], axis=1), columns=["date", "x"])
    for name in ("a.parquet", "a.npz", "b.npz"):
        series = read_series(tmp_path / name)
        assert series.columns[-1:] == (("x",) if name != "a.npz" else ("x1",))
        assert series.time_step == 86400.0
    assert read_compact_dates(np.array([])) is None
    assert read_compact_dates(np.array([19700102.0])).tolist() == [86400.0]


def test_a_series_may_count_months_for_python_too(tmp_path):
    series = read_series(write_dates(tmp_path, pd.date_range("2000-01-01", periods=6, freq="MS").strftime("%Y-%m-%d")))
    assert Series.from_arrays([1.0, 2.0]).frequency is None
    assert series.frequency == series.split(0.5)[1].frequency == "MS"
    assert series.split(0.5)[1].origin.dates.texts(series.split(0.5)[1].times[0])[0] == "2000-04-01"
