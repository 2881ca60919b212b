"""Arrays, tables and labelled arrays become series, and results take their form again."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from kaffee.data.frames import read_data
from kaffee.data.series import Series
from kaffee.errors import ConfigError, DataError
from kaffee.inference.results import Estimate

NAN = np.nan
VALUES = np.array([[1.0, 10.0], [NAN, 20.0], [3.0, NAN], [4.0, 40.0]])
DATES = pd.date_range("2024-01-01", periods=4, freq="h", name="when")
LEVELS = (0.05, 0.95)


def table(values=VALUES, index=DATES, columns=("a", "b")):
    return pd.DataFrame(values, index=index, columns=list(columns))


def labelled(values=VALUES):
    return xr.DataArray(
        values, coords={"time": DATES.rename("time"), "sensor": ["a", "b"]}, dims=("time", "sensor"), name="lab"
    )


def bands(columns, times, rows=4):
    mean = np.arange(rows * len(columns), dtype=float).reshape(rows, len(columns))
    return Estimate(columns, times, {"mean": mean, "std": np.ones_like(mean)})


def forecast_of(data, num_steps=3, recording=0):
    """A made-up forecast with the right times."""
    series = data.series
    start = 3.0 if series.times is None else series.times[recording][-1]
    times = start + (series.time_step or 1.0) * np.arange(1, num_steps + 1)
    members = np.random.default_rng(0).normal(size=(50, num_steps, series.num_coordinates))
    moments = {"mean": members.mean(axis=0), "std": members.std(axis=0, ddof=1)}
    return Estimate(series.columns, times, {**moments, "members": members})


def test_every_kind_is_the_same_series():
    named = Series.from_arrays(VALUES, columns=["a", "b"], times=DATES.to_numpy())
    for X in (table(), labelled(), labelled().transpose(), labelled().to_dataset("sensor")):
        assert read_data(X).series == named
    assert read_data(VALUES).series == Series.from_arrays(VALUES)
    assert read_data(VALUES, times=DATES.to_numpy()).series.times[0][0] == 1704067200
    assert read_data(named).series is named


def test_values_come_back_in_the_form_that_they_had():
    for X in (table(), labelled(), labelled().transpose(), labelled().to_dataset("sensor"), table()["b"]):
        data = read_data(X)
        back = data.frames[0].values(data.series.recordings[0], data.series.times[0])
        if isinstance(X, pd.DataFrame):
            pd.testing.assert_frame_equal(back, X)
        elif isinstance(X, pd.Series):
            pd.testing.assert_series_equal(back, X)
        else:
            xr.testing.assert_identical(back, X)


def test_vectors_stay_vectors():
    line = labelled()[:, 1].drop_vars("sensor").rename("pressure")
    data = read_data(line)
    assert data.series.columns == ("pressure",)
    xr.testing.assert_identical(data.frames[0].values(VALUES[:, 1:], data.series.times[0]), line)
    found = data.frames[0].rows(bands(("pressure",), data.series.times[0]), LEVELS)
    assert found["q05"].dims == ("time",)
    data = read_data(VALUES[:, 1])
    plain = data.frames[0].rows(bands(("x1",), None), LEVELS)
    assert plain.mean.shape == plain.quantile(0.5).shape == (4,)
    assert data.frames[0].ahead(forecast_of(data), LEVELS, 4).members.shape == (50, 3)
    nameless = read_data(pd.Series([1.0, 2.0, 3.0]))
    assert nameless.series.columns == ("x1",)


def test_columns_of_tables_say_what_they_are():
    data = read_data(table())
    found = data.frames[0].rows(bands(("a", "b"), data.series.times[0]), LEVELS)
    assert found.columns.tolist() == [f"{x}_{kind}" for x in "ab" for kind in ("mean", "std", "q05", "q95")]
    assert found.index.equals(DATES)
    assert found.index.name == "when"
    np.testing.assert_allclose(found["b_q95"] - found["b_mean"], 1.6449, atol=1e-4)
    ahead = data.frames[0].ahead(forecast_of(data), (0.5,), 4)
    assert ahead.columns.tolist() == ["a_mean", "a_std", "a_q50", "b_mean", "b_std", "b_q50"]
    assert ahead.index.equals(pd.date_range("2024-01-01 04:00", periods=3, freq="h"))
    assert data.frames[0].free(VALUES, np.arange(4.0)).index.tolist() == [0, 1, 2, 3]


def test_labelled_results_have_a_variable_for_each_band():
    for X, variable in ((labelled(), "sensor"), (labelled().to_dataset("sensor"), "variable")):
        data = read_data(X)
        found = data.frames[0].rows(bands(("a", "b"), data.series.times[0]), LEVELS)
        assert set(found.data_vars) == {"mean", "std", "q05", "q95"}
        assert found["mean"].dims == ("time", variable)
        assert found[variable].values.tolist() == ["a", "b"]
        ahead = data.frames[0].ahead(forecast_of(data), (0.5,), 4)
        assert ahead.indexes["time"].equals(pd.date_range("2024-01-01 04:00", periods=3, freq="h"))


def test_a_labelled_array_without_times_counts_rows():
    X = xr.DataArray(VALUES, dims=("row", "channel"))
    data = read_data(X)
    assert data.series.times is None
    assert data.series.columns == ("x1", "x2")
    assert data.frames[0].ahead(forecast_of(data), (0.5,), 4)["row"].values.tolist() == [4, 5, 6]


def test_rows_that_belong_to_no_coordinate_stand_beside():
    names = ("mean", "std", "predicted_mean", "predicted_std")
    rows = {"log_likelihood": np.arange(4.0), "nis": np.arange(4.0)}
    found = Estimate(("a",), None, dict.fromkeys(names, np.ones((4, 1))) | rows)
    assert list(found.table((0.05,))) == [
        *("a_mean", "a_std", "a_q05", "a_predicted_mean", "a_predicted_std", "log_likelihood", "nis")
    ]
    frame = read_data(xr.DataArray(VALUES[:, 1], dims=("time",))).frames[0]
    assert frame.rows(found, ())["log_likelihood"].dims == ("time",)
    assert found.as_vector().nis.shape == found.as_vector().predicted_std.shape == (4,)


def test_a_list_is_several_recordings_of_one_kind():
    short = table(VALUES[:3], DATES[:3])
    assert read_data([table(), short]).series.lengths == (4, 3)
    assert read_data([table()["a"], short["a"]]).series.num_coordinates == 1
    assert read_data([labelled(), labelled()[:3]]).join([1, 2]) == [1, 2]
    assert read_data([VALUES, VALUES[:3]]).join([1, 2]) == [1, 2]
    assert read_data([VALUES]).join([1]) == read_data(VALUES[None]).join([1]) == [1]
    assert read_data(VALUES).join([1]) == read_data(VALUES.tolist()).join([1]) == 1
    for wrong, words in (
        ([table(), VALUES], r"a list of different kinds \(DataFrame, ndarray\)"),
        ([table(), table(columns=("a", "c"))], "recording 1: columns a, c, but a, b"),
        ([table(), table(index=None)], "indices of the recordings are of different kinds"),
    ):
        with pytest.raises(DataError, match=words):
            read_data(wrong)


def test_a_model_takes_its_columns_and_leaves_others():
    wide = table().assign(comment="text", c=1.0)[["comment", "b", "c", "a"]]
    data = read_data(wide, wanted=("a", "b"))
    np.testing.assert_array_equal(data.series.recordings[0], VALUES)
    dataset = labelled().to_dataset("sensor").assign(comment=("time", list("abcd")), level=3.0)
    assert read_data(dataset, wanted=("b",)).series.columns == ("b",)
    assert read_data(labelled(), wanted=("b",)).series.columns == ("b",)


@pytest.mark.parametrize("dtype", ["Int64", "Float32", "int16", "uint8", "double[pyarrow]"])
def test_all_kinds_of_numbers_are_numbers(dtype):
    X = pd.DataFrame({"a": pd.Series([1, 2, 3], dtype=dtype)})
    assert read_data(X).series.recordings[0][:, 0].tolist() == [1, 2, 3]


def test_missing_entries_of_nullable_types_are_missing():
    X = pd.DataFrame({"a": pd.Series([1, None, 3], dtype="Int64"), "b": [1.0, 2.0, 3.0]})
    assert np.isnan(read_data(X).series.recordings[0][1, 0])


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (table().assign(b=["x", "y", "z", "w"]), r"X, column 'b': values of type .* are not numbers.*drop"),
        (table().assign(b=DATES), "column 'b': values of type datetime64"),
        (table() > 2, "column 'a': values of type bool"),
        (pd.DataFrame(), r"shape \(0, 0\) is empty"),
        (table()[:0], r"shape \(0, 2\) is empty"),
        (table().assign(a=NAN, b=NAN), "no value is observed, all are missing"),
        (table().assign(b=np.inf), "column 'b': infinite value"),
        (table(columns=("a", "a")), "columns 0 and 1 are both named 'a'"),
        (labelled().expand_dims("recording"), "dimensions .*Several recordings go in a list"),
        (labelled().astype(str), "values of type <U"),
        (labelled().to_dataset("sensor").assign(c=2.0), r"must all be over time and nothing else.*a \('time',\)"),
        (xr.Dataset(), "without variables"),
        (labelled()[:0], "holds no values"),
        ([], "holds no values"),
        ({"a": [1.0]}, "not real numbers"),
        ("lab.csv", r"X is a path. Read the file first: kaffee.read_series\('lab.csv'\)"),
        (None, "not real numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(X, words):
    with pytest.raises(DataError, match=words):
        read_data(X)


def test_times_belong_to_arrays():
    for X in (table(), labelled(), Series.from_arrays(VALUES)):
        with pytest.raises(ConfigError, match="times= is for arrays"):
            read_data(X, times=np.arange(4))


def test_times_of_arrays_come_back_as_dates_if_they_were():
    data = read_data(VALUES, times=DATES.to_numpy())
    found = data.frames[0].rows(bands(("x1", "x2"), data.series.times[0]), LEVELS)
    np.testing.assert_array_equal(found.times, DATES.to_numpy())


def test_neither_pandas_nor_xarray_is_imported():
    code = "import sys, kaffee.data.frames; print({'pandas', 'xarray'} & set(sys.modules) or 'ok')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ok\n"
