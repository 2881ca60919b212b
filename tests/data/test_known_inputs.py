"""Series with known inputs: columns that are not coordinates, their gaps, their scaler, windows and forms."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from kaffee.data.frames import read_data
from kaffee.data.reading import read_series
from kaffee.data.scaler import Scaler
from kaffee.data.series import Series
from kaffee.data.windows import padded, training_windows
from kaffee.data.writing import write_series
from kaffee.errors import DataError

TABLE = np.column_stack([np.arange(8.0), np.arange(8.0) ** 2, [np.nan, 5.0, np.nan, 7.0, 7.0, 1.0, 0.0, np.nan]])


def driven():
    return Series.from_arrays(TABLE, columns=["a", "b", "stim"], name="demo").with_inputs(["stim"])


def test_columns_become_inputs_and_gaps_are_filled_by_the_value_before():
    series = driven()
    assert series.columns == ("a", "b")
    assert series.inputs.columns == ("stim",)
    assert series.inputs.recordings[0].ravel().tolist() == [5.0, 5.0, 5.0, 7.0, 7.0, 1.0, 0.0, 0.0]
    assert series.notes == ("3 missing values of inputs filled by the value before",)
    assert "driven by stim" in repr(series)
    assert series.describe()["inputs"] == ["stim"]
    assert series.driven_by(None) == Series.from_arrays(TABLE[:, :2], columns=["a", "b"])
    assert series != series.driven_by(None)


def test_parts_of_a_series_have_their_inputs():
    train, test = driven().split(0.75)
    assert (train.inputs.lengths, test.inputs.lengths) == ((6,), (2,))
    assert test.rows_with_inputs(0).tolist() == [[6.0, 36.0, 0.0], [7.0, 49.0, 0.0]]
    assert driven().pieces(3).inputs.lengths == (3, 3, 2)
    assert driven().select(["b"]).inputs.columns == ("stim",)


def test_inputs_have_a_scaler_of_their_own():
    scaler = Scaler.fit(driven())
    assert scaler.inputs.mean.tolist() == [3.75]
    assert Scaler.from_dict(scaler.to_dict()) == scaler
    assert scaler != Scaler(scaler.mean, scaler.scale)
    assert "inputs" not in Scaler.identity(2).to_dict()
    assert Scaler.identity(2, 1).inputs == Scaler.identity(1)
    standard = driven().standardised(scaler)
    assert standard.inputs.concatenated().mean() == pytest.approx(0.0)
    assert driven().standardised(Scaler.identity(2)).inputs is None  # of a model that takes none


def test_rows_of_models_have_inputs_after_the_coordinates():
    series = driven().take([(0, slice(0, 5)), (0, slice(5, 8))])
    x, mask = padded(series)
    assert x.shape == (2, 5, 3)
    assert x[1, :, 2].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert mask[1, :, 0].tolist() == [True, True, True, False, False]
    assert bool(mask[:, :, 2].all())
    batch = training_windows(series, 4, jnp.float32).take([1])
    assert batch.observations[0, :, 2].tolist() == [5.0, 5.0, 7.0, 7.0]
    assert bool(batch.mask.all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: driven().driven_by(Series.from_arrays(np.ones((7, 1)), columns=["u"])), "inputs have 7 rows"),
        (lambda: driven().driven_by(Series.from_arrays(np.ones((8, 1)), columns=["a"])), "'a' is both an input and"),
        (lambda: Series.from_arrays(TABLE[:, :2]).with_inputs(["x1", "x2"]), "nothing is left to model"),
        (lambda: driven().with_inputs(["rain"]), "rain"),
        (lambda: driven().take([(0, slice(0, 1))]).driven_by(nothing()), "'u' has no value in a whole recording"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()


def nothing():
    return Series.from_arrays([[[np.nan]], [[1.0]]], columns=["u"]).take([(0, slice(0, 1)), (1, slice(0, 1))])


def test_a_file_names_its_inputs(tmp_path):
    file = tmp_path / "demo.csv"
    file.write_text("t,a,stim,b\n0,1,9,2\n1,3,,4\n3,5,7,6\n")
    series = read_series(file, inputs=["stim"])
    assert series.columns == ("a", "b")
    assert series.inputs.recordings[0].ravel().tolist() == [9.0, 9.0, 9.0, 7.0]  # a row was inserted in time
    assert read_series(file, columns=["b"], inputs=["stim"]).inputs.columns == ("stim",)
    write_series(series, tmp_path / "again.csv")
    assert read_series(tmp_path / "again.csv", inputs=["stim"]) == series


def test_data_in_memory_have_inputs_in_any_form():
    table = pd.DataFrame(TABLE, columns=["a", "b", "stim"])
    by_name = read_data(table, fitting=True, inputs=["stim"])
    assert by_name.series.inputs.columns == ("stim",)
    assert list(by_name.frames[0].columns) == ["a", "b"]
    beside = read_data(table[["a", "b"]], fitting=True, inputs=table[["stim"]])
    assert beside.series == by_name.series
    arrays = read_data(TABLE[:, :2], fitting=True, inputs=TABLE[:, 2])
    assert arrays.series.inputs.columns == ("u1",)
    found = read_data(table.assign(other=1.0), wanted=("a", "b"), inputs=("stim",))  # as a model asks for them
    assert found.series == by_name.series
    same = read_data(driven(), wanted=("a", "b"), inputs=("stim",))
    assert same.series.inputs.columns == ("stim",)
    assert read_data(driven(), inputs="b").frames[0].columns == ("a",)


def test_the_future_follows_the_rows_of_data_without_inputs():
    data, future = read_data(TABLE[:6, :2]).with_future(TABLE[:, 2], ("u1",))
    assert data.series.inputs.lengths == (6,)
    assert future.recordings[0][0] == 0.0
    own, future = read_data(driven()).with_future(np.ones((3, 1)), ("stim",))
    assert own.series == driven()
    assert future.lengths == (3,)
    assert read_data(driven()).with_future(None, ("stim",))[1] is None
    with pytest.raises(DataError, match="needs the rows of X and then those of the forecast"):
        read_data(TABLE[:, :2]).with_future(np.ones((3, 1)), ("u1",))
