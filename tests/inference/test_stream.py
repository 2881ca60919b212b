"""Streams of lines: every line in is accounted for, in order, whatever is in it and however it arrives."""

import io
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import PROPERTY, make_model

from inference.problems import COLUMNS, SCALER, reconstruct
from inference.streams import Dripping, followed
from kaffee.errors import DataError
from kaffee.inference._lines import BrokenLine, LineReader
from kaffee.inference.online import OnlineFilter
from kaffee.inference.stream import LONGEST_LINE, Interruptible, _read_batches, follow

# The acceptance run: KAFFEE_FOLLOW_LINES=1000000 pytest tests/inference/test_stream.py -k none_lost
LINES = int(os.environ.get("KAFFEE_FOLLOW_LINES", "5000"))


@pytest.fixture(scope="module")
def online():
    """A new filter of the same, compiled model."""
    reconstruction = reconstruct(make_model("straight_through", dtype=np.float32))
    return lambda **options: OnlineFilter(reconstruction, **options)


def test_every_kind_of_line_is_understood(online):
    head = b"\xef\xbb\xbft,right,left\r\n0.5,-210,11\r\n0.75,nan,\n\n"
    content = head + b'{"left": 9, "time": "noon"}\n[11.5, null]\n1.75,-190,12'
    objects, reports, counts = followed(online(), content)
    assert reports == []
    assert [o["line"] for o in objects] == [2, 3, 4, 5, 6, 7]
    assert [o.get("t") for o in objects] == [0.5, 0.75, None, "noon", None, 1.75]
    assert (counts.lines, counts.steps, counts.broken, counts.restarts) == (7, 6, 0, 0)
    values = [[11, -210], [np.nan, np.nan], [9, np.nan], [11.5, np.nan], [np.nan, np.nan], [12, -190]]
    expected = online().run(np.array(values))
    means = [[o["left_mean"], o["right_mean"]] for o in objects if o["line"] != 4]
    np.testing.assert_allclose(means, np.delete(expected.mean, 4, axis=0), rtol=1e-8)
    assert objects[2] == {"line": 4}
    assert objects[-1]["skipped"] == 1
    assert objects[0]["restarted"] is True
    assert objects[0]["log_likelihood"] is None
    np.testing.assert_allclose(objects[-1]["log_likelihood"], expected.log_likelihood[-1], rtol=1e-8)


def test_no_header_is_needed_and_bad_readings_are_named(online):
    objects, _, counts = followed(online(gate=0.999), b"10;-200\n11\t-201\n10 -199\n1e999,-200\n10,50000\n")
    assert [o.get("rejected") for o in objects] == [None, None, None, ["left"], ["right"]]
    assert (counts.lines, counts.rejected, counts.broken) == (5, 2, 0)


def test_none_lost_each_broken_line_reported(online):
    """Every hundredth line is broken, in one of several ways."""
    rng = np.random.default_rng(0)
    values = SCALER.inverse(rng.standard_normal((LINES, 2)))
    garbage = ["oops", "1,2,3", "{", "[1]", '{"up": 3}', "\x00\x01", "1,two", '{"left": "x"}', "1_0,2", "," * 50]
    lines = [f"{a:.6g},{b:.6g}" for a, b in values]
    lines[99::100] = [garbage[i % len(garbage)] for i in range(len(lines[99::100]))]
    objects, reports, counts = followed(online(), "\n".join(lines).encode())
    broken = list(range(100, LINES + 1, 100))
    assert [o["line"] for o in objects] == list(range(1, LINES + 1))
    assert [o["line"] for o in objects if "error" in o] == broken
    assert [int(r.split(":")[0].removeprefix("line ")) for r in reports] == broken
    assert counts.broken == len(broken)
    assert counts.steps == LINES
    assert all(np.isfinite(o["left_mean"]) for o in objects)  # a broken line is a step without a reading
    assert objects[99]["log_likelihood"] == 0.0


def test_how_lines_arrive_does_not_matter(online):
    content = b"left,right\n" + b"10,-200\nbroken\n\n12,nan\n" * 30
    at_once, dripping = (followed(online(), content, stream=stream)[0] for stream in (io.BytesIO, Dripping))
    assert at_once == dripping


def test_broken_lines_can_be_no_step_at_all(online):
    objects, reports, counts = followed(online(), b"oops\n10,-200\n?\n11,-201\n", skip_broken=True)
    assert [sorted(o) for o in objects if "error" in o] == [["error", "line"]] * 2
    assert (counts.steps, counts.broken, counts.restarts, len(reports)) == (2, 2, 0, 2)
    expected = online().run(np.array([[10.0, -200.0], [11.0, -201.0]]))
    np.testing.assert_allclose(objects[3]["left_mean"], expected.mean[1, 0], rtol=1e-8)


def test_a_header_that_lacks_a_column_ends_at_once(online):
    with pytest.raises(DataError, match="the model needs 'right' as well"):
        followed(online(), b"t,left\n0,10\n")


def test_a_line_without_end_takes_no_memory(online):
    long = b"1" * (LONGEST_LINE + 200_000)
    objects, reports, _ = followed(online(), b"10,-200\n" + long + b"\n11,-200\n" + long)
    assert [o["line"] for o in objects] == [1, 2, 3, 4]
    assert reports == [f"line {n}: longer than {LONGEST_LINE} bytes" for n in (2, 4)]


def test_a_closed_pipe_ends_quietly(online):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    counts = follow(online(), io.BytesIO(b"10,-200\n"), Closed(), print)
    assert counts.closed


def test_ctrl_c_is_the_end_of_the_input():
    class Waiting(io.BytesIO):
        def read1(self, size=-1):
            part = super().read1(size)
            if not part:
                raise KeyboardInterrupt
            return part

    source = Interruptible(Waiting(b"1,2\n3,4\n5,"))
    assert [bytes(line) for lines in _read_batches(source) for line in lines] == [b"1,2", b"3,4"]  # not half a line
    assert source.interrupted


@PROPERTY
@given(st.lists(st.one_of(st.text(max_size=30), st.from_regex(r'[-0-9.,;e\[\]{}" a-z]{0,20}')), max_size=5))
def test_no_line_ends_in_a_traceback(lines):
    reader = LineReader(COLUMNS)
    for line in lines:
        try:
            reading = reader.read(line)
        except BrokenLine:
            continue
        assert len(reading.values) == 2
        assert all(isinstance(value, float) for value in reading.values)
        json.dumps(reading.time, allow_nan=False)


def test_particles_that_collapsed_are_told_once_and_early():
    """As soon as there are enough readings, since a stream may have no end; of a shorter one at its end."""
    reconstruction = reconstruct(make_model("straight_through", dtype=np.float32))
    rows = SCALER.inverse(np.random.default_rng(0).standard_normal((300, 2)))
    lines = [f"{left},{right}\n".encode() for left, right in rows]
    for size, length, expected in ((2, 300, 1), (2, 20, 1), (2000, 300, 0)):
        filtered = OnlineFilter(reconstruction.with_filter(f"particle:{size}"))
        whole = OnlineFilter(reconstruction.with_filter(f"particle:{size}")).run(rows[:length])
        _, reports, counts = followed(filtered, b"".join(lines[:length]))
        assert counts.read == length - 1
        assert counts.collapsed == np.sum(whole.effective_particles[1:] < 2.0)
        assert len(reports) == expected
        assert all("warning: the particles collapsed: in " in report for report in reports)
        assert whole.effective_particles.max() <= size * (1.0 + 1e-5)
    said, first, rest = [], b"".join(lines[:150]), b"".join(lines[150:])
    source = Telling([first, rest], said)
    follow(OnlineFilter(reconstruction.with_filter("particle:2")), source, io.StringIO(), said.append)
    assert source.before == [0, 1, 1]


class Telling:
    """A stream that counts what was reported before each of its parts is asked for."""

    def __init__(self, parts, said):
        self.parts, self.said, self.before = [*parts, b""], said, []

    def read1(self, size):
        self.before.append(len(self.said))
        return self.parts.pop(0)


def test_other_filters_have_no_particles_to_count(online):
    _, _, counts = followed(online(), b"10;-200\n11;-201\n")
    assert (counts.read, counts.collapsed) == (1, None)
    assert "effective_particles" not in online().run(np.zeros((2, 2))).arrays
