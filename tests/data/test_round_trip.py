"""Written files give back the same bits; tests/fuzz holds files that do not."""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.data.writing import write_series
from kaffee.errors import ConfigError, DataError, KaffeeError

relaxed = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SUFFIXES = ["csv", "tsv", "txt", "dat", "npz", "parquet"]


def awkward(rng, steps, width):
    values = rng.normal(size=(steps, width)) * 10.0 ** rng.integers(-300, 300, size=(steps, width))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[0] = -0.0
    return values


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("with_times", [False, True])
@pytest.mark.parametrize("lengths", [(7,), (7, 4, 9), (1,)])
def test_round_trip_is_exact(tmp_path, suffix, with_times, lengths):
    rng = np.random.default_rng(0)
    data = [awkward(rng, steps, 3) for steps in lengths]
    times = [17.3 + 0.1 * np.arange(steps) for steps in lengths] if with_times else None
    series = Series.from_arrays(data, columns=["a", "b, c", 'd "e"'], times=times)
    path = write_series(series, tmp_path / f"out.{suffix}")
    back = read_series(path)
    assert back.fingerprint == series.fingerprint
    assert back.columns == series.columns
    assert os.listdir(tmp_path) == [f"out.{suffix}"]


def test_npy_holds_values_only(tmp_path):
    path = tmp_path / "a.npy"
    cube = np.random.default_rng(0).normal(size=(2, 5, 3))
    assert read_series(write_series(cube, path)) == Series.from_arrays(cube)
    assert read_series(write_series(cube[0], path)) == Series.from_arrays(cube[0])  # replaces the file
    with pytest.raises(DataError, match=r"cannot hold times.*\.npz"):
        write_series(cube[0], path, times=np.arange(5))
    with pytest.raises(DataError, match="unequal length"):
        write_series([cube[0], cube[0, :2]], path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("columns", [["1", "2"], ["2020-01-01", "x"], ["#a", "nan"], ["0.5", "b"], ["a b", "c;d"]])
def test_names_that_look_like_data_survive(tmp_path, suffix, columns):
    data = np.arange(6.0).reshape(3, 2)
    back = read_series(write_series(data, tmp_path / f"a.{suffix}", columns=columns))
    assert back == Series.from_arrays(data, columns=columns)


def test_writing_is_refused_with_a_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write '\.xls'"):
        write_series(np.ones(3), tmp_path / "a.xls")
    with pytest.raises(DataError, match="Is the folder there"):
        write_series(np.ones(3), tmp_path / "no" / "a.csv")
    with pytest.raises(ConfigError, match="a Series has its own"):
        write_series(Series.from_arrays([1.0]), tmp_path / "a.csv", columns=["x"])
    with pytest.raises(DataError, match="the name 't' is needed"):
        write_series(np.ones((3, 1)), tmp_path / "a.csv", columns=["t"], times=np.arange(3))
    assert not os.listdir(tmp_path)


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_series(np.ones(3), tmp_path / "a.npy")
    before = path.read_bytes()

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KaffeeError, match="No space left"):
        write_series(np.zeros(9), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.npy"]


cells = st.floats(allow_nan=True, allow_infinity=False)
arrays = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=cells)


@relaxed
@given(data=arrays, suffix=st.sampled_from(["csv", "tsv"]))
def test_values_and_missing_cells_survive_text(tmp_path, data, suffix):
    data[0, np.isnan(data).all(axis=0)] = 0.0
    series = Series.from_arrays(data)
    assert read_series(write_series(series, tmp_path / f"a.{suffix}")) == series


@relaxed
@given(data=arrays, seed=st.integers(0, 2**20))
def test_spelling_of_missing_cells_does_not_matter(tmp_path, data, seed):
    data[0, np.isnan(data).all(axis=0)] = 0.0
    rng = np.random.default_rng(seed)
    words = ["", "NA", "nan", "NaN", " null ", "N/A", "None"]
    if data.shape[1] == 1:
        words.remove("")  # a blank line in a file of one column is refused
    rows = [
        ",".join(str(rng.choice(words)) if np.isnan(value) else repr(value) for value in row) for row in data.tolist()
    ]
    (tmp_path / "a.csv").write_text("\n".join([",".join("abcde"[: data.shape[1]]), *rows]))
    np.testing.assert_array_equal(read_series(tmp_path / "a.csv").recordings[0], data)
