"""Files: what is accepted, and what is said about files that are not."""

import io
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from kaffee.data.reading import read_series
from kaffee.data.writing import write_series
from kaffee.errors import ConfigError, DataError

NAN = float("nan")

HEART = Path(__file__).parents[3] / "shared" / "data" / "recordings" / "heart_two_leads.csv"


@pytest.fixture
def write(tmp_path):
    def _write(content, name="lab.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


def refusal(path, *words, **options):
    """The message that refuses a file, which holds all words."""
    with pytest.raises(DataError) as error:
        read_series(path, **options)
    for word in words:
        assert word in str(error.value)
    return str(error.value)


# --- text that is accepted ---


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("a,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("1,2\n3,4", ("x1", "x2"), [[1, 2], [3, 4]]),
        ("a;b\n1;2\n3;4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("a\tb\n1\t2\n3\t4\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("a b\n1   2\n 3 4 \n", ("a", "b"), [[1, 2], [3, 4]]),
        ("1.5\n2.5\n", ("x1",), [[1.5], [2.5]]),
        ("my value\n1.5\n2.5\n", ("my value",), [[1.5], [2.5]]),
        ("\ufeffa,b\r\n1,2\r\n3,4\r\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("a,b\r1,2\r3,4\r", ("a", "b"), [[1, 2], [3, 4]]),
        ("# made by hand\n\na,b\n1,2\n# pause\n\n3,4\n\n", ("a", "b"), [[1, 2], [3, 4]]),
        ('"a, first","b"\n"1","2"\n3,4\n', ("a, first", "b"), [[1, 2], [3, 4]]),
        ("a,b\n1,\n,4\n", ("a", "b"), [[1, NAN], [NAN, 4]]),
        ("a,b\n1,NA\nnull,4\nN/A,NaN\n#N/A,5\nnone,-nan\n", ("a", "b"),
         [[1, NAN], [NAN, 4], [NAN, NAN], [NAN, 5], [NAN, NAN]]),
        ("\t1\n2\t3\n", ("x1", "x2"), [[NAN, 1], [2, 3]]),
        ("a b\n1 NA\n2 3\n", ("a", "b"), [[1, NAN], [2, 3]]),
        ("a,b,\n1,2,\n3,,\n", ("a", "b"), [[1, 2], [3, NAN]]),
        ("1,2,\n3,4,\n", ("x1", "x2"), [[1, 2], [3, 4]]),
        ("a,b\n1,2,\n3,4,\n", ("a", "b"), [[1, 2], [3, 4]]),
        ("# x y\n1 2\n3 4\n", ("x", "y"), [[1, 2], [3, 4]]),
        ("# 2 columns\n1 2\n3 4\n", ("x1", "x2"), [[1, 2], [3, 4]]),
        ("x,1,2\n3,4,5\n", ("x", "1", "2"), [[3, 4, 5]]),
        ('"1","2"\n3,4\n', ("1", "2"), [[3, 4]]),
        ("a,,c\n1,2,3\n", ("a", "x2", "c"), [[1, 2, 3]]),
        ("+1e-3, -.5\n1E5,7.\n", ("x1", "x2"), [[1e-3, -0.5], [1e5, 7]]),
        ('a\n1\n""\n3\n', ("a",), [[1], [NAN], [3]]),
        ("a, b;c\n1,5;2\n-3,25e1; 4,0\nNA;7\n", ("a, b", "c"), [[1.5, 2], [-32.5, 4], [NAN, 7]]),
        ("a,b\n1,\n2,NA\n", ("a", "b"), [[1, NAN], [2, NAN]]),
    ],
)  # fmt: skip
def test_text_variants(write, text, columns, rows):
    series = read_series(write(text))
    assert series.columns == columns
    np.testing.assert_array_equal(series.recordings[0], rows)
    assert series.name == "lab"
    assert series.times is None


def test_header_and_delimiter_can_be_forced(write):
    path = write("1,2\n3,4\n5,6\n")
    assert read_series(path, header=True).columns == ("1", "2")
    assert read_series(path, header=False).lengths == (3,)
    assert read_series(write("1|2\n3|4\n"), delimiter="|").num_coordinates == 2
    with pytest.raises(ConfigError, match="single character"):
        read_series(path, delimiter="::")


def test_index_of_pandas_is_time(write):
    series = read_series(write(",0,1\n0,5.5,6\n1,7,8.5\n"))
    assert series.columns == ("0", "1")
    assert series.times[0].tolist() == [0, 1]
    assert read_series(write(",0,1\n0,5.5,6\n1,7,8.5\n"), time_column=False).columns == ("x1", "0", "1")


def test_unused_text_column_is_no_error(write):
    path = write("site,a,b\nnorth,1,2\nsouth,3,4\n")
    assert read_series(path, columns=["b", "a"]).recordings[0].tolist() == [[2, 1], [4, 3]]
    assert read_series(path, columns="b").columns == ("b",)
    assert read_series(path, columns=[2, "1"]).columns == ("b", "a")
    assert "Unknown column 'c'" in refusal(path, columns=["c"])
    assert "no column 7, there are 3" in refusal(path, columns=[7])
    assert "no column selected" in refusal(path, columns=[])


def test_many_columns(write):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(5, 3000))
    names = ",".join(f"sensor {j}" for j in range(3000))
    body = "\n".join(",".join(map(repr, row)) for row in data.tolist())
    series = read_series(write(f"{names}\n{body}\n"))
    np.testing.assert_array_equal(series.recordings[0], data)
    assert len(refusal(write(f"{names}\n{body}\n"), columns=["zzz"])) < 500


@pytest.mark.parametrize("step", [0.5, 1e-9, 86_400.0])
def test_a_column_that_rises_like_a_time_is_mentioned(write, step):
    rng = np.random.default_rng(0)
    rows = "".join(f"{7 + step * i!r},{x!r}\n" for i, x in enumerate(rng.standard_normal(40).tolist()))
    with pytest.warns(UserWarning, match="'Zeit' rises in equal steps.*time_column='Zeit'; if not, time_column=False"):
        assert read_series(write(f"Zeit,x\n{rows}")).columns == ("Zeit", "x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_series(write(f"Zeit,x\n{rows}"), time_column=False).columns == ("Zeit", "x")
        assert read_series(write(f"Zeit,x\n{rows}"), time_column="Zeit").columns == ("x",)
        read_series(write("rising,x\n" + "".join(f"{i**1.01!r},{i % 3}\n" for i in range(40))))


# --- text that is refused ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n3,oops\n", ["line 3", "column 'b'", "'oops'", "not a number", "columns="]),
        ("# note\n\na,b\n1,2\n\n3,oops\n", ["line 6", "column 'b'"]),
        ("1,2\n3,oops\n", ["line 2", "column 'x2'", "'oops'"]),
        ("0.5,oops\n3,4\n", ["line 1", "column 'x2'", "header=True"]),
        ("a;b\n1,5;2.5\n", ["line 2", "column 'a'", "'1,5'", "with a point"]),
        ("a\tb\n1,5\t2\n", ["line 2", "column 'a'", "'1,5'", "with a point"]),
        ("a,b\n1,2\n3,left\n", ["line 3", "recording_column='b'"]),
        ("a,b\n1,1_000\n", ["line 2", "'1_000'"]),
        ("a,b\n1,2020-01-01\n", ["line 2", "time_column='b'"]),
        ("a,b\n1,2\n3\n", ["line 3", "1 cells", "line 1 has 2", "nan"]),
        ("a,b\n1,2\n3,4,5\n", ["line 3", "3 cells"]),
        ("1,2\n3,4\n5,6,7\n", ["line 3", "3 cells", "line 1 has 2"]),
        ("a,b\n1,2\n3,inf\n", ["line 3", "column 'b'", "infinite", "nan"]),
        ("a,b\n1,2\n3,1e999\n", ["line 3", "column 'b'", "infinite"]),
        ("a,b\n,\nnan,NA\n", ["no value is observed"]),
        ("a,b,a\n1,2,3\n", ["line 1", "columns 1 and 3", "'a'", "Rename"]),
        ("a,b\n", ["only a header", "no data rows"]),
        ("# nothing\n\n", ["no data"]),
        ("", ["empty"]),
        ("1\n\n2\n", ["line 2", "blank line", "nan"]),
        (b"a,b\n1,\xff\n", ["line 2", "UTF-8"]),
        (b"PK\x03\x04\x00\x00", ["not a UTF-8 text"]),
        ("a,b\n1,2\n".encode("utf-16"), ["UTF-16"]),
        ('x,"' + "y" * 200_000 + '"\n1,2\n', ["line 1", "cannot be split"]),
        ("t,x\n0,1\n1,2\n1,3\n", ["line 4", "repeats"]),
        ("t,x\n0,1\n# c\n1,2\n0,3\n", ["line 5", "goes back", "recording_column="]),
        ("t,x\n0,1\n1,2\n2.5,3\n3.5,4\n", ["line 4", "irregular", "off a whole number", "time_tolerance="]),
        ("t,x\n0,1\n,2\n2,3\n", ["line 3", "time is missing"]),
        ("t,x\n0,1\nsoon,2\n2,3\n", ["line 3", "column 't'", "'soon'"]),
        ("t,x\n2024-01-01,1\n,2\n", ["line 3", "time is missing"]),
        ("t,x\n2024-01-01,1\nlater,2\n", ["line 3", "'later'", "ISO 8601"]),
    ],
)
def test_bad_text_names_the_place(write, text, words):
    path = write(text)
    refusal(path, str(path), *words)


# --- time and recordings ---


@pytest.mark.parametrize("name", ["t", "Time", "TIMESTAMP", "date", "datetime", "time [s]", "time (ms)"])
def test_time_column_is_found_by_name(write, name):
    series = read_series(write(f"x,{name}\n1,0.0\n2,0.5\n3,1.5\n"))
    assert series.columns == ("x",)
    assert series.times[0].tolist() == [0.0, 0.5, 1.0, 1.5]
    np.testing.assert_array_equal(series.recordings[0].ravel(), [1, 2, NAN, 3])
    notes = " ".join(series.describe()["notes"])
    assert f"'{name}' is kept as time" in notes
    assert "1 missing rows inserted" in notes


def test_time_column_can_be_chosen_or_refused(write):
    path = write("t,x\n0,1\n1,2\n2,4\n")
    assert read_series(path, time_column=False).columns == ("t", "x")
    assert read_series(path, columns=["t", "x"]).times is None
    assert read_series(path, time_column=1).columns == ("t",)
    assert read_series(write("0,1\n1,2\n2,4\n"), time_column=0).columns == ("x2",)
    assert "time_column=True is not a column" in refusal(path, time_column=True)
    assert "no coordinate is left beside 't'" in refusal(write("t\n0\n1\n"))
    assert "'date', 'time' all look like a time" in refusal(write("date,time,x\n0,1,2\n"))


def test_timestamps_become_seconds(write):
    text = "when,x\n2024-01-01T00:00:00Z,1\n2024-01-01 01:01:00+01:00,2\n2024-01-01T00:03,4\n"
    series = read_series(write(text), time_column="when")
    assert np.diff(series.times[0]).tolist() == [60, 60, 60]
    assert series.times[0][0] == 1704067200
    assert np.isnan(series.recordings[0][2, 0])
    assert read_series(write("2024-01-01,1\n2024-01-02,2\n"), time_column=0).time_step == 86400


def test_recording_column(write):
    path = write("run,t,x\nb,0,1\nb,1,2\na,5,3\na,7,4\na,8,5\n")
    series = read_series(path, recording_column="run")
    assert series.lengths == (2, 4)
    assert series.times[1].tolist() == [5, 6, 7, 8]
    assert series.columns == ("x",)
    automatic = read_series(write("recording,x\n0,1\n0,2\n1,3\n"))
    assert automatic.lengths == (2, 1)
    assert "separates recordings" in automatic.notes[0]
    assert read_series(write("recording,x\n0,1\n0,2\n1,3\n"), recording_column=False).lengths == (3,)
    assert "line 3, column 'recording': no recording label" in refusal(write("recording,x\n0,1\n,2\n"))
    assert "line 3, column 'recording': no recording label" in refusal(write("recording,x\na,1\n,2\n"))
    assert "line 6" in refusal(write("run,t,x\na,0,1\nb,0,1\na,1,2\nb,1,4\nb,1,9\n"), recording_column="run")
    assert "both time and recording" in refusal(path, time_column="t", recording_column="t", columns=["x"])


def test_several_files_are_several_recordings(write):
    a, b = write("x,y\n1,2\n3,4\n", "a.csv"), write("y,x\n6,5\n", "b.csv")
    series = read_series([a, b])
    assert series.recordings[1].tolist() == [[5, 6]]  # columns are matched by name
    assert series.source.endswith("a.csv and 1 more")
    assert "c.csv: columns 'x', 'z' differ" in refusal([a, write("x,z\n1,2\n", "c.csv")])
    assert "No file given" in refusal([])
    timed = [write("t,x\n0,1\n1,2\n", "d.csv"), write("t,x\n0,1\n3,2\n", "e.csv")]
    assert "e.csv: the time step is 3, but 1 in" in refusal(timed)
    assert "no times, but other recordings" in refusal([timed[0], write("x\n1\n", "f.csv")])


# --- NumPy ---


def numpy_bytes(save, *args, **kwargs):
    buffer = io.BytesIO()
    save(buffer, *args, **kwargs)
    return buffer.getvalue()


def test_npy(write):
    data = np.arange(6.0).reshape(3, 2)
    assert read_series(write(numpy_bytes(np.save, data), "a.npy")).recordings[0].tolist() == data.tolist()
    assert read_series(write(numpy_bytes(np.save, data[:, 0]), "b.npy")).num_coordinates == 1
    assert read_series(write(numpy_bytes(np.save, np.ones((4, 3, 2), "i2")), "c.npy")).lengths == (3,) * 4
    timed = read_series(write(numpy_bytes(np.save, data), "d.npy"), time_column=0)
    assert timed.times[0].tolist() == [0, 2, 4]


def test_npz(write):
    a, b = np.ones((3, 2)), 2 * np.ones((4, 2))
    series = read_series(write(numpy_bytes(np.savez, run10=b, run9=a, columns=["u", "v"]), "a.npz"))
    assert series.lengths == (3, 4)  # 9 before 10
    assert series.columns == ("u", "v")
    timed = read_series(write(numpy_bytes(np.savez, x=a, t=np.array([0.0, 1.0, 3.0])), "b.npz"))
    assert timed.lengths == (4,)
    both = read_series(write(numpy_bytes(np.savez, x=a, y=b, times_0=range(3), times_1=range(4)), "c.npz"))
    assert both.times[1].tolist() == [0, 1, 2, 3]
    cube = numpy_bytes(np.savez, x=np.ones((2, 3, 1)), times=np.arange(3))
    assert read_series(write(cube, "d.npz")).num_recordings == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"not numpy at all", ["cannot be read", "np.save"]),
        ("a.npy", numpy_bytes(np.save, np.ones((50, 3)))[:-7], ["damaged, cut off"]),
        ("a.npy", numpy_bytes(np.save, np.ones((50, 3))).replace(b"3), }", b"3(, }"), ["damaged, cut off"]),
        ("a.npy", numpy_bytes(np.save, np.array([{}], dtype=object)), ["not loaded for safety"]),
        ("a.npy", numpy_bytes(np.save, np.array(["a"])), ["not real numbers"]),
        ("a.npy", numpy_bytes(np.save, np.array(3.0)), ["shape ()", "(T, N)"]),
        ("a.npy", numpy_bytes(np.save, np.ones((0, 2))), ["shape (0, 2)"]),
        ("a.npy", numpy_bytes(np.save, np.ones((1, 1, 1, 2))), ["shape (1, 1, 1, 2)"]),
        ("a.npy", numpy_bytes(np.save, np.array([[1.0], [np.inf]])), ["row 1", "'x1'", "infinite"]),
        ("a.npy", numpy_bytes(np.savez, x=np.ones(3)), ["Rename it to .npz"]),
        ("a.npz", numpy_bytes(np.save, np.ones(3)), ["Rename it to .npy"]),
        ("a.npz", numpy_bytes(np.savez, x=np.ones((99, 3)))[:-30], ["cannot be read"]),
        ("a.npz", numpy_bytes(np.savez, x=np.array([None])), ["not loaded for safety"]),
        ("a.npz", numpy_bytes(np.savez, t=np.ones(3)), ["no recording"]),
        ("a.npz", numpy_bytes(np.savez), ["no recording"]),
        ("a.npz", numpy_bytes(np.savez, x=np.ones((3, 2)), dt=np.array(0.1)), ["array 'dt'", "shape ()"]),
        ("a.npz", numpy_bytes(np.savez, x=np.ones((3, 2)), y=np.array([[1, np.inf]])), ["'y', row 0, "]),
        ("a.npz", numpy_bytes(np.savez, x=np.ones((3, 2)), t=np.arange(4)), ["times of shape (4,) for 3"]),
        ("a.npz", numpy_bytes(np.savez, x=np.ones(3), y=np.ones(3), z=np.ones(3), t_0=range(3), t_1=range(3)),
         ["2 arrays of times for 3 recordings"]),
        ("a.npz", numpy_bytes(np.savez, x=np.ones((3, 2)), columns=["a"]), ["1 column names for 2"]),
    ],
)  # fmt: skip
def test_bad_numpy_files(write, name, content, words):
    path = write(content, name)
    refusal(path, str(path), *words)


# --- parquet ---


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_types(tmp_path):
    stamps = np.array(["2020-01-01T00:00", "2020-01-01T00:01", "2020-01-01T00:03"], "datetime64[ns]")
    path = parquet(
        tmp_path / "a.parquet",
        time=pyarrow.array(stamps),
        whole=pyarrow.array([1, None, 3], pyarrow.int32()),
        single=pyarrow.array([0.5, NAN, 1.5], pyarrow.float32()),
        half=pyarrow.array(np.array([0.5, 1, 1.5], np.float16)),
        site=["a", "b", "c"],
    )
    series = read_series(path, columns=["whole", "single", "half"])
    np.testing.assert_array_equal(series.recordings[0], [[1, 0.5, 0.5], [NAN, NAN, 1], [NAN] * 3, [3, 1.5, 1.5]])
    assert series.time_step == 60
    refusal(path, str(path), "column 'site'", "string", "columns=")
    text_time = parquet(tmp_path / "b.parquet", t=["2020-01-01", "2020-01-02"], x=[1.0, 2.0])
    assert read_series(text_time).time_step == 86400
    labelled = parquet(tmp_path / "c.parquet", run=["u", "v", "u"], x=[1.0, 2.0, 3.0])
    assert read_series(labelled, recording_column="run").lengths == (2, 1)


def test_bad_parquet(tmp_path, write):
    good = parquet(tmp_path / "good.parquet", x=np.arange(1000.0))
    for content in (good.read_bytes()[:-20], b"PAR1 nothing here PAR1", b"x"):
        assert "cannot be read as parquet" in refusal(write(content, "bad.parquet"))
    assert "row 1, column 'x': infinite" in refusal(parquet(tmp_path / "i.parquet", x=[1.0, np.inf]))
    assert "0 rows" in refusal(parquet(tmp_path / "e.parquet", x=pyarrow.array([], pyarrow.float64())))
    assert "bool values are not numbers" in refusal(parquet(tmp_path / "b.parquet", x=[True, False]))
    labels = parquet(tmp_path / "l.parquet", recording=["a", None], x=[1.0, 2.0])
    assert "row 1, column 'recording': no recording label" in refusal(labels)
    times = parquet(tmp_path / "t.parquet", t=pyarrow.array([1.0, None]), x=[1.0, 2.0])
    assert "row 1: the time is missing" in refusal(times)


def test_missing_pyarrow_tells_how_to_install(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'kaffee[parquet]'" in refusal(write(b"PAR1", "a.parquet"))


# --- paths ---


def test_paths(tmp_path, write):
    write("1\n", "lorenz.csv")
    assert "Did you mean 'lorenz.csv'?" in refusal(tmp_path / "lorens.csv")
    assert "no such file" in refusal(tmp_path / "nowhere" / "x.csv")
    refusal(tmp_path, "this is a folder", "lorenz.csv")
    refusal(write("x", "a.xlsx"), "'.xlsx' cannot be read", ".parquet")
    assert "not a usable path" in refusal("a" * 5000 + ".csv")
    assert read_series(str(write("1\n2\n", "UPPER.CSV"))).lengths == (2,)


def test_time_tolerance_is_checked(write):
    with pytest.raises(ConfigError, match=r"between 0 and 0\.5"):
        read_series(write("1\n"), time_tolerance=0.7)


def test_reading_needs_no_jax_and_pandas_only_for_files(write):
    path = write("a,b\n1,2\n")
    code = "import sys, kaffee.data as d; f = d.read_series; print({'jax', 'pandas'} & {*sys.modules}); f(sys.argv[1])"
    code += "; print({'jax'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "set()"]


@pytest.mark.parametrize("checksums", [True, False])
def test_damaged_pages_are_no_numbers(write, checksums):
    """With checksums every change is found; without, values beyond the range that the file states."""
    values = np.random.default_rng(0).normal(size=500)
    buffer = io.BytesIO()
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": checksums}
    pyarrow.parquet.write_table(pyarrow.table({"x": values}), buffer, **options)
    content = bytearray(buffer.getvalue())
    start = bytes(content).index(values.tobytes())
    content[start + 100 * 8 + (0 if checksums else 7)] ^= 0x40
    message = refusal(write(bytes(content), "a.parquet"), "cannot be read as parquet", "damaged")
    assert ("outside its own range" in message) != checksums


def test_parquet_is_written_with_checksums(tmp_path):
    values = np.random.default_rng(0).normal(size=(500, 1))
    path = write_series(values, tmp_path / "a.parquet")
    content = bytearray(path.read_bytes())
    place = bytes(content).find(values[100].tobytes())
    content[place if place > 0 else 900] ^= 1
    path.write_bytes(bytes(content))
    refusal(path, "cannot be read as parquet")


def test_rounded_times_are_an_even_clock_and_a_note_says_so(write):
    rows = "".join(f"{i / 120:.2f},{i}\n" for i in range(200))
    series = read_series(write(f"time,x\n{rows}"))
    assert series.lengths == (200,)
    assert series.time_step == pytest.approx(1 / 120, rel=1e-4)
    assert series.notes[-1].endswith("times were rounded as they were written; the step is 0.00833333")


@pytest.mark.skipif(not HEART.exists(), reason="the recording of two leads is not part of the repository")
def test_two_leads_of_a_heart_are_read_with_their_own_times():
    series = read_series(HEART)
    assert series.lengths == (20_000,)
    assert series.columns == ("MLII", "V5")
    assert series.time_step == pytest.approx(1 / 120, rel=1e-6)
