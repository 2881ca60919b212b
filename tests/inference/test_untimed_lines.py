"""Lines without a time in a stream that has times: none of them costs a reading, or a step that did not pass."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import PROPERTY, make_model

from inference.problems import DT, reconstruct
from inference.streams import Dripping, followed_lines, rows
from kaffee.errors import CheckpointError
from kaffee.inference.lines import MOST_SKIPPED, BrokenLine, Clock
from kaffee.inference.online import OnlineFilter, _write_track

GARBAGE = "### still here"


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(make_model("straight_through", dtype=np.float32))


@pytest.fixture
def online(reconstruction):
    """A new filter of the same, compiled model."""
    return lambda: OnlineFilter(reconstruction)


def beliefs(objects):
    """Objects of the lines that are steps, without the numbers of the lines."""
    return [{key: o[key] for key in o if key != "line"} for o in objects if "left_mean" in o]


def with_extra(lines, extra, every):
    """Lines with another one after every so many."""
    found = []
    for i, line in enumerate(lines, start=1):
        found += [line, extra] if i % every == 0 else [line]
    return found


@pytest.mark.parametrize("stream", [io.BytesIO, Dripping])
def test_garbage_between_rows_costs_no_row(online, stream):
    lines, _ = rows(DT * np.arange(40))
    whole = followed_lines(online(), lines)[0]
    objects, reports, counts = followed_lines(online(), with_extra(lines, GARBAGE, 5), stream=stream)
    assert beliefs(objects) == beliefs(whole)
    assert [o["line"] for o in objects] == list(range(2, 50))
    broken = [o for o in objects if "error" in o]
    assert [o["line"] for o in broken] == [int(r.split(":")[0].removeprefix("line ")) for r in reports]
    assert [o["line"] for o in broken] == list(range(7, 50, 6))
    assert all(sorted(o) == ["error", "line"] for o in broken)
    assert (counts.steps, counts.skipped, counts.broken, counts.restarts) == (40, 0, 8, 0)


@pytest.mark.parametrize("stream", [io.BytesIO, Dripping])
def test_garbage_in_the_place_of_rows_leaves_their_steps(online, stream):
    lines, _ = rows(DT * np.arange(41))
    kept = [line for i, line in enumerate(lines, start=1) if i % 5]
    left_out = followed_lines(online(), kept)[0]
    replaced = [line if i % 5 else GARBAGE for i, line in enumerate(lines, start=1)]
    objects, reports, counts = followed_lines(online(), replaced, stream=stream)
    assert beliefs(objects) == beliefs(left_out)
    assert len(objects) == 41
    assert len(reports) == 8
    assert (counts.steps, counts.skipped, counts.broken) == (41, 8, 8)


@pytest.mark.parametrize("stream", [io.BytesIO, Dripping])
@pytest.mark.parametrize("blank", ["", "  ", ",,", "nan,nan,NA", "[null, null]", '{"left": null, "t": "later"}'])
def test_blank_lines_between_rows_are_no_steps(online, blank, stream):
    lines, _ = rows(DT * np.array([0, 1, 2, 5, 6]))
    whole = followed_lines(online(), lines)[0]
    objects, reports, counts = followed_lines(online(), with_extra(lines, blank, 1), stream=stream)
    assert beliefs(objects) == beliefs(whole)
    assert reports == []
    assert len(objects) == 10
    assert all(set(o) <= {"line", "t"} for o in objects[1::2])
    assert (counts.steps, counts.skipped, counts.broken) == (7, 2, 0)


@pytest.mark.parametrize("stream", [io.BytesIO, Dripping])
@pytest.mark.parametrize("untimed", ["[10, 11]", "nan,10,11", '{"left": 10, "right": 11}', "soon,10,11"])
@pytest.mark.parametrize(("ahead", "skipped"), [(1, 0), (2, 0), (3, 1)])
def test_a_reading_without_a_time_is_a_step_and_costs_none_of_those_that_follow(
    online, untimed, ahead, skipped, stream
):
    lines, values = rows(DT * np.array([0, ahead, ahead + 1]))
    objects, reports, counts = followed_lines(online(), [lines[0], untimed, *lines[1:]], stream=stream)
    expected = online().run(np.vstack([values[0], [10, 11], np.full((skipped, 2), np.nan), values[1:]]))
    means = np.delete(expected.mean[:, 0], range(2, 2 + skipped))
    np.testing.assert_allclose([o["left_mean"] for o in objects], means, rtol=1e-8)
    assert reports == []
    assert (counts.steps, counts.skipped) == (4 + skipped, skipped)


def test_before_the_first_time_every_line_is_one_step(online):
    lines, _ = rows(DT * np.arange(3))
    _, reports, counts = followed_lines(online(), [GARBAGE, "", "[10, 11]", *lines])
    assert (counts.steps, counts.skipped, counts.broken, len(reports)) == (6, 0, 1, 1)


def test_with_any_step_every_line_is_one_step(online):
    lines, _ = rows(DT * np.arange(3))
    objects, _, counts = followed_lines(online(), ["", *with_extra(lines, GARBAGE, 1)], any_step=True)
    assert (counts.steps, counts.broken) == (7, 3)
    assert all("left_mean" in o for o in objects)


@pytest.mark.parametrize("at", range(1, 7))
def test_a_pause_changes_nothing(online, tmp_path, at):
    lines, _ = rows(DT * np.array([0, 1, 2, 5]))
    lines = [lines[0], "[10, 11]", GARBAGE, lines[1], "", "[9, 10]", *lines[2:]]
    whole = followed_lines(online(), lines)[0]
    first = online()
    parts = followed_lines(first, lines[:at])[0]
    parts += followed_lines(online().restore(first.save(tmp_path)), lines[at:])[0]
    assert beliefs(parts) == beliefs(whole)
    assert len(beliefs(whole)) == 6


def test_a_state_of_before_steps_since_a_time_were_counted_is_read(online, reconstruction, tmp_path):
    facts = {"gate": None, "patience": 10, "num_steps": 1, "time": 0.5}
    track = online()._track
    restored = online().restore(_write_track(tmp_path / "old", reconstruction, track, facts))
    assert (restored.time, restored.steps_since_time) == (0.5, 0)
    damaged = _write_track(tmp_path / "damaged", reconstruction, track, {**facts, "steps_since_time": -1})
    with pytest.raises(CheckpointError, match="Start anew"):
        online().restore(damaged)


@PROPERTY
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8))
def test_no_number_of_untimed_readings_breaks_a_time(gaps):
    """Of so many steps, and so many readings without a time meanwhile."""
    clock = Clock(DT, 0.0)
    for steps, untimed in gaps:
        for _ in range(untimed):
            clock.tick()
        before = clock.time
        assert clock.count_skipped(before + steps * DT) == max(steps - 1 - untimed, 0)
        assert clock.time == before + steps * DT


def test_a_clock_that_is_set_counts_readings_without_a_time():
    clock = Clock(1.0, 100.0, steps_since_time=MOST_SKIPPED)
    assert clock.count_skipped(100.0 + 2 * MOST_SKIPPED) == MOST_SKIPPED - 1
    for odd, now, skipped in ((0.0, 3.0, 1), (1000.0 + 2 * MOST_SKIPPED, 1001.0 + 2 * MOST_SKIPPED, MOST_SKIPPED)):
        with pytest.raises(BrokenLine, match="time"):
            clock.count_skipped(odd)
        clock.tick()
        assert clock.count_skipped(now) == skipped
