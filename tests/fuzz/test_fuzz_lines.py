"""Lines of `kaffee filter --follow`: a reading, or what is wrong with the line."""

import json
import math

from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.damage import JSON, fuzz, result_or_advice
from fuzz.test_fuzz_text import CELLS
from kaffee.inference._lines import BrokenLine, LineReader, Reading

COLUMNS = ("x", "y")
HEADERS = ["", "x,y", "t,y,x", '"time";"x";"y"', "y x z", "x\ty\tx", "T,x,y,t"]
KEYS = st.sampled_from(["x", "y", "t", "time", "T", "TIMESTAMP", "z"])
JSON_LINES = st.one_of(
    st.dictionaries(KEYS, JSON, max_size=4).map(json.dumps),
    st.lists(JSON, max_size=3).map(json.dumps),
    st.sampled_from(["[" * 5_000, '{"x":' * 5_000, "[1,2", "{}", "[]", '{"x": 1, "x": 2}', "[1, 1e999]", "[NaN, 2]"]),
    st.sampled_from(["9" * 400, "9" * 5000, "-" + "9" * 400]).map('{{"x": 1, "t": {}}}'.format),
    st.sampled_from(["9" * 400, "9" * 5000]).map("[{}, 1]".format),
)
LINES = st.one_of(
    st.text(max_size=30),
    st.tuples(st.sampled_from([",", ";", "\t", " "]), st.lists(CELLS, max_size=5)).map(lambda p: p[0].join(p[1])),
    JSON_LINES,
)


@fuzz(200)
@given(header=st.sampled_from(HEADERS) | LINES, line=LINES)
@example(header="", line='{"x": 1, "t": ' + "9" * 400 + "}")
@example(header="", line='{"x": ' + "9" * 400 + "}")
def test_every_line_is_a_reading_or_says_why_not(header, line):
    reader = LineReader(COLUMNS)
    result_or_advice(lambda: reader.is_header(header), "Line 1")
    try:
        reading = reader.read(line)
    except BrokenLine as error:
        reading = str(error)
    if isinstance(reading, str):
        assert 0 < len(reading) < 400
        return
    assert isinstance(reading, Reading)
    assert len(reading.values) == len(COLUMNS)
    assert all(type(value) is float for value in reading.values)
    # what comes back as the time can be written as JSON again
    assert reading.time is None or isinstance(reading.time, str) or math.isfinite(reading.time)
    json.dumps(reading.time, allow_nan=False)
