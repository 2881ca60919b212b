"""Times of a stream: steps that lines leave out are filled in, lines without a time cost no reading and no step."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import PROPERTY, make_model

from inference.problems import COLUMNS, DT, reconstruct
from inference.streams import Dripping, followed_lines, rows
from kaffee.checkpoint.reconstruction import named_arrays
from kaffee.data.series import Series
from kaffee.errors import CheckpointError, DataError
from kaffee.inference._lines import MOST_SKIPPED, BrokenLine, Clock
from kaffee.inference.online import _FORMAT, OnlineFilter
from kaffee.inference.online import _fingerprint as fingerprint
from kaffee.inference.recordings import filter_recordings
from kaffee.records import write_record

GARBAGE = "### still here"


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(make_model("straight_through", dtype=np.float32))


@pytest.fixture
def online(reconstruction):
    """A new filter of the same, compiled model."""
    return lambda: OnlineFilter(reconstruction)


def test_a_stream_with_gaps_is_filtered_as_the_recording_is(online, reconstruction):
    times = DT * np.array([0, 1, 2, 6, 7, 8, 9, 29, 30])
    lines, values = rows(times)
    objects, reports, counts = followed_lines(online(), lines)
    found = filter_recordings(reconstruction, Series.from_arrays(values, columns=COLUMNS, times=times)).to_series()
    expected = dict(zip(found.times[0], found.recordings[0][:, 0], strict=True))
    assert [o["t"] for o in objects] == times.tolist()
    np.testing.assert_allclose([o["left_mean"] for o in objects], [expected[t] for t in times], rtol=1e-5)
    assert [o.get("skipped") for o in objects] == [None, None, None, 3, None, None, None, 19, None]
    assert reports == []
    assert (counts.lines, counts.steps, counts.skipped, counts.broken) == (10, 31, 22, 0)


def test_what_is_filled_in_does_not_depend_on_how_lines_arrive_or_on_a_pause(online, tmp_path):
    lines, _ = rows(DT * np.array([0, 3, 4, 4.5, 8, 2, 9, 5000, 5001]))
    whole = followed_lines(online(), lines)[0]
    first = online()
    parts = followed_lines(first, lines[:5])[0]
    second = online().restore(first.save(tmp_path))
    assert second.time == 8 * DT
    parts += followed_lines(second, lines[5:])[0]
    without_numbers = [[{k: v for k, v in o.items() if k != "line"} for o in found] for found in (whole, parts)]
    assert without_numbers[0] == without_numbers[1]


def test_a_time_that_does_not_fit_breaks_its_line_which_is_no_step(online):
    lines, _ = rows(DT * np.array([0, 1, 1, 2, 0.5, 3, 3.4, 4, 1e9, 5]))
    objects, reports, counts = followed_lines(online(), lines)
    assert {o["line"]: o["error"].split(":")[0].split(",")[0] for o in objects if "error" in o} == {
        4: "time repeats",
        6: "time goes back",
        8: "time goes on by 0.4 steps",
        10: "time jumps by 1e+09 steps",
    }
    assert "10000 can be filled in" in objects[8]["error"]
    assert len(reports) == counts.broken == 4
    assert (counts.steps, counts.skipped) == (6, 0)
    assert all(("left_mean" in o) == ("error" not in o) for o in objects)


def test_readings_without_a_time_are_one_step_each(online):
    lines = ["0,10,11", "nan,10,11", "[10, 11]", "oops", "2,10,11"]
    found = followed_lines(online(), lines)
    objects, _, counts = found
    assert objects[-1]["skipped"] == 5
    assert (counts.steps, counts.broken) == (9, 1)
    assert found == followed_lines(online(), lines, skip_broken=True)


def test_times_may_have_a_unit_another_name_or_no_meaning(online):
    lines = ["0,10,11", "1,10,11"]
    for header, options in (("Time [s],left,right", {}), ("when,left,right", {"time_column": "when"})):
        objects, _, _ = followed_lines(online(), lines, header=header, **options)
        assert [o.get("skipped") for o in objects] == [None, 3]
    objects, _, counts = followed_lines(online(), lines, any_step=True)
    assert (counts.steps, objects[1]["t"]) == (2, 1.0)
    with pytest.raises(DataError, match="the header has no 'when'"):
        followed_lines(online(), lines, time_column="when")


def counted(clock, times):
    """Steps left out before each time; a word where it is broken."""
    found = []
    for time in times:
        try:
            found.append(clock.count_skipped(time))
        except BrokenLine as error:
            found.append(str(error).split()[1].strip(":"))
    return found


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0.0, 1.04, 2.0, 3.0], [0, 0, 0, 0]),
        ([0.0, 1.2, 2.0], [0, "goes", 1]),
        ([0.0, 20.3], [0, "goes"]),
        ([0.0, 20.19], [0, 19]),
        ([0.0, float(MOST_SKIPPED + 1)], [0, MOST_SKIPPED]),
        ([0.0, float(MOST_SKIPPED + 2), 1.0], [0, "jumps", 0]),
        ([0.0, 1e300, -1e300, 1.0], [0, "jumps", "goes", 0]),
        ([5.0, 5.0, 5.0, 5.0], [0, "repeats", "repeats", "repeats"]),
        ([0.0, "later", 1.0, 2.0], [0, 0, 0, 0]),
        ([1.7e9, 1.7e9 + 1, 1.7e9 + 3], [0, 0, 1]),
        (["2024-05-31T12:00:00", "2024-05-31T12:00:01Z", "2024-05-31 14:00:03+02:00"], [0, 0, 1]),
    ],
)
def test_steps_are_counted_by_the_clock(times, expected):
    assert counted(Clock(1.0), times) == expected


def test_a_clock_that_was_set_is_believed_at_the_second_line():
    assert counted(Clock(1.0), [100.0, 0.0, 1.0, 2.0]) == [0, "goes", 0, 0]
    assert counted(Clock(1.0), [0.0, 1e9, 1e9 + 1, 1e9 + 2]) == [0, "jumps", MOST_SKIPPED, 0]
    assert counted(Clock(1.0), [0.0, 1.5, 2.5, 3.5]) == [0, "goes", 1, 0]


def test_long_gaps_take_no_memory(online, monkeypatch):
    sizes = []
    run = OnlineFilter.run
    monkeypatch.setattr(OnlineFilter, "run", lambda self, x, u=None: sizes.append(len(x)) or run(self, x, u))
    lines, _ = rows(DT * 3000 * np.arange(8))
    _, _, counts = followed_lines(online(), lines)
    assert counts.steps == 21001
    assert max(sizes) <= 4096 + MOST_SKIPPED


# --- lines without a time ---


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
    arrays, model = named_arrays(online()._track), fingerprint(reconstruction)
    for name, more in (("old", {}), ("damaged", {"steps_since_time": -1})):
        write_record(tmp_path / name, "online", arrays, {**_FORMAT, "model": model, "facts": {**facts, **more}})
    restored = online().restore(tmp_path / "old")
    assert (restored.time, restored.steps_since_time) == (0.5, 0)
    with pytest.raises(CheckpointError, match="Start again"):
        online().restore(tmp_path / "damaged")


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
