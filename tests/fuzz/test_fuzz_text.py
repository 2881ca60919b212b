"""Text files of every kind of brokenness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import damaged, fuzz, result_or_advice
from kaffee.data.reading import read_series
from kaffee.data.series import Series

NUMBERS = "\n".join(f"{0.1 * t:.1f},{np.sin(t):.6f},{np.cos(t):.6f}" for t in range(12))
FILES = [
    f"t,a,b\n{NUMBERS}\n".encode(),
    f"{NUMBERS}\n".replace(",", "\t").encode(),
    f"# made by hand\n# t a b\n{NUMBERS}\n".replace(",", "  ").encode(),
    f"\ufefft;a;b\r\n{NUMBERS}".replace(",", ";").replace("\n", "\r\n").encode(),
    b'"time [s]","a, first","b ""x"""\n0,"1.5",\n1,NA,3\n2,nan,"4"\n',
    b"date,recording,x\n2024-01-01T00:00:00+01:00,r1,1\n2024-01-01T00:00:01+01:00,r1,2\n2024-01-01,r2,3\n",
    b",0,1\n0,1.0,2.0\n1,3.0,4.0\n",
]
ODD = """
    0 1 -1.5 nan NA #N/A inf -inf 1e308 1.7e308 -1.7e308 1e-320 1e999 1_000 0x1f 1,5 １２ ² 1+2j 1d5 +nan true None
    2024-05-31 2024-05-31T12:00:00Z 0001-01-01T00:00+14:00 9999-12-31T23:59:59-14:00 2024-W01-1
    " "" "a a"b "1","2" # t x recording
"""
CELLS = st.one_of(
    st.sampled_from([*ODD.split(), "", "9" * 400, "- 1", "\t", "\x1f", "\x85", "\u2028", "\ufeff", "\x0b", "\\", "'"]),
    st.floats().map(repr),
    st.text(max_size=6),
)
HEADERS = st.lists(
    st.sampled_from(
        ["t", "time", "T", "a", "b", "", "x1", "x2", "recording", "date", "1", "nan", '"a"', "#c", " a ", "é"]
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def tables(draw):
    """Rows of odd cells; mostly of equal length, mostly with one delimiter, mostly with a header."""
    delimiter = draw(st.sampled_from([",", ";", "\t", " ", "|"]))
    header = draw(HEADERS)
    rows = draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), min_size=0, max_size=6))
    rows = [draw(st.lists(CELLS, max_size=5)) if draw(st.integers(0, 9)) == 0 else row for row in rows]
    lines = [delimiter.join(row) for row in ([header] if draw(st.booleans()) else []) + rows]
    lines = [
        draw(st.sampled_from([",", ";", " "])).join(line.split(delimiter)) if draw(st.integers(0, 9)) == 0 else line
        for line in lines
    ]
    text = draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"])).join(lines)
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "cp1252", "utf-7"]))
    return text.encode(encoding, errors="replace")


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "time_column": st.sampled_from([False, 0, 1, -1, 7, "t", "a", "nothing", "9" * 5000, "0"]),
        "columns": st.sampled_from([[], [0], ["a"], ["a", "b"], "a", [0, 0], ["b", "a"], [-1], ["nothing"]]),
        "recording_column": st.sampled_from([False, 0, "recording", "a", "nothing"]),
        "delimiter": st.sampled_from([",", ";", "\t", " ", "|", "", ",,", '"', "\n", "e", "1", "\\", "é", "\x00"]),
        "header": st.booleans(),
        "time_tolerance": st.sampled_from([0.0, 0.49]),
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("text")


def read(folder, content, suffix=".csv", **options):
    path = folder / f"lab{suffix}"
    path.write_bytes(content)
    names = [] if options else [str(path)]
    series = result_or_advice(lambda: read_series(path, **options), *names)
    if series is not None:
        check(series)


def check(series):
    """What is read can be used: finite or missing, named, standardised without a warning."""
    assert isinstance(series, Series)
    assert all(not np.isinf(values).any() for values in series.recordings)
    assert series.describe()["fingerprint"] == series.fingerprint


@fuzz(150)
@given(content=st.binary(max_size=300), suffix=st.sampled_from([".csv", ".tsv", ".txt", ".dat"]))
def test_any_bytes(folder, content, suffix):
    read(folder, content, suffix)


@fuzz(150)
@given(content=st.text(max_size=200).map(lambda text: text.encode("utf-8", errors="surrogatepass")))
def test_any_text(folder, content):
    read(folder, content)


@fuzz(200)
@given(content=st.sampled_from(FILES).flatmap(damaged))
def test_damaged_files(folder, content):
    read(folder, content)


@fuzz(200)
@given(content=tables())
def test_odd_tables(folder, content):
    read(folder, content)


@fuzz(200)
@given(content=tables() | st.sampled_from(FILES), options=OPTIONS)
def test_odd_tables_with_options(folder, content, options):
    read(folder, content, **options)
