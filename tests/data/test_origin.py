"""What a file calls its times and recordings comes back in what is written."""

import numpy as np
import pytest

from kaffee.data.reading import read_series
from kaffee.data.series import Series
from kaffee.data.timeaxis import Dates, Origin
from kaffee.data.writing import write_series

LABELLED = """rec;timestamp;a;b
<b>A</b>;2024-03-30 12:00:00.020;1;2
<b>A</b>;2024-03-30 12:00:00.040;3;4
<b>A</b>;2024-03-30 12:00:00.080;5;6
B, left;2024-03-31 02:30:00.000;1;2
B, left;2024-03-31 02:30:00.020;3;4
"""


@pytest.fixture
def labelled(tmp_path):
    (tmp_path / "in.csv").write_text(LABELLED)
    return read_series(tmp_path / "in.csv", recording_column="rec")


def test_dates_labels_and_names_are_written_as_they_were(labelled, tmp_path):
    path = write_series(labelled, tmp_path / "out.csv")
    lines = path.read_text().splitlines()
    assert lines[0] == "rec,timestamp,a,b"
    assert lines[1] == "<b>A</b>,2024-03-30 12:00:00.020,1.0,2.0"
    assert lines[3] == "<b>A</b>,2024-03-30 12:00:00.060,nan,nan"  # a row that was missing
    assert lines[5] == '"B, left",2024-03-31 02:30:00.000,1.0,2.0'
    assert read_series(path, recording_column="rec") == labelled


def test_parquet_holds_dates_and_labels(labelled, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write_series(labelled, tmp_path / "out.parquet")
    table = parquet.read_table(path)
    assert [str(kind) for kind in table.schema.types] == ["string", "timestamp[us]", "double", "double"]
    again = read_series(path, recording_column="rec")
    assert again == labelled
    assert again.origin.labels == ("<b>A</b>", "B, left")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2024-05-31", "2024-06-01"),
        ("2024-05-31T12:00:00", "2024-05-31T12:00:01"),
        ("2024-05-31 12:00:00.000250", "2024-05-31 12:00:00.000500"),
        ("2024-05-31T12:00:00Z", "2024-05-31T12:30:00Z"),
        ("1969-12-31T23:00:00+02:00", "1969-12-31T23:00:01+02:00"),
    ],
)
def test_dates_of_every_form_come_back(tmp_path, first, second):
    (tmp_path / "in.csv").write_text(f"when,x\n{first},1\n{second},2\n")
    series = read_series(tmp_path / "in.csv", time_column="when")
    lines = write_series(series, tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["when", first, second]


def test_zones_by_name_and_times_beyond_the_calendar():
    assert Dates(zone="Europe/Berlin").texts(np.array([0.0, 1.5e7])) == [
        "1970-01-01T01:00:00+01:00",
        "1970-06-23T15:40:00+01:00",
    ]
    assert Dates(" ", "+02:00").texts(np.array([0.0, 0.5]))[1] == "1970-01-01 02:00:00.500+02:00"
    assert Dates.like("2024-05-31 12:00+02:00") == Dates(" ", "+02:00")
    assert Dates(zone="No/Where").texts(np.array([0.0])) == ["1970-01-01T00:00:00+00:00"]
    assert Dates().texts(np.array([0.0, 1e15])) == ["0.0", "1000000000000000.0"]


def test_files_are_told_apart_by_their_names(tmp_path):
    for name in ("left", "right"):
        (tmp_path / f"{name}.csv").write_text("x,y\n1,2\n3,4\n")
    series = read_series([tmp_path / "left.csv", tmp_path / "right.csv"])
    assert series.origin.labels == ("left", "right")
    assert write_series(series, tmp_path / "out.tsv").read_text().startswith("recording\tx\ty\nleft\t1.0\t2.0\n")
    twice = read_series([tmp_path / "left.csv", tmp_path / "left.csv"])
    assert twice.origin.labels == ()


def test_labels_follow_their_recordings():
    values = [np.ones((length, 1)) for length in (10, 1, 10)]
    series = Series(tuple(values), origin=Origin(labels=("a", "b", "c")))
    train, test = series.split(0.8)
    assert (train.origin.labels, test.origin.labels) == (("a", "b", "c"), ("a", "c"))
    assert series.pieces(5).origin.labels == ()


def test_labels_that_do_not_fit_on_a_line_become_numbers(tmp_path):
    series = Series((np.ones((2, 1)),) * 2, origin=Origin(labels=("a\nb", "c")))
    assert write_series(series, tmp_path / "out.csv").read_text() == "recording,x1\n0,1.0\n0,1.0\n1,1.0\n1,1.0\n"


def test_a_label_that_looks_like_a_comment_is_quoted(tmp_path):
    series = Series((np.full((2, 1), 0.5),) * 2, origin=Origin(labels=("#1", 'say "a"')))
    path = write_series(series, tmp_path / "out.csv")
    assert path.read_text().splitlines()[1:4:2] == ['"#1",0.5', '"say ""a""",0.5']
    assert read_series(path) == series
