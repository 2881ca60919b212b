"""Times of a stream: steps that lines leave out are filled in, and times that do not fit are reported."""

import numpy as np
import pytest
from models import make_model

from inference.problems import COLUMNS, DT, reconstruct
from inference.streams import followed_lines, rows
from kaffee.data.series import Series
from kaffee.errors import DataError
from kaffee.inference.lines import MOST_SKIPPED, BrokenLine, Clock
from kaffee.inference.online import OnlineFilter
from kaffee.inference.recordings import filter_recordings


@pytest.fixture(scope="module")
def reconstruction():
    return reconstruct(make_model("straight_through", dtype=np.float32))


def test_a_stream_with_gaps_is_filtered_as_the_recording_is(reconstruction):
    times = DT * np.array([0, 1, 2, 6, 7, 8, 9, 29, 30])
    lines, values = rows(times)
    objects, reports, counts = followed_lines(OnlineFilter(reconstruction), lines)
    found = filter_recordings(reconstruction, Series.from_arrays(values, columns=COLUMNS, times=times)).to_series()
    expected = dict(zip(found.times[0], found.recordings[0][:, 0], strict=True))
    assert [o["t"] for o in objects] == times.tolist()
    np.testing.assert_allclose([o["left_mean"] for o in objects], [expected[t] for t in times], rtol=1e-5)
    assert [o.get("skipped") for o in objects] == [None, None, None, 3, None, None, None, 19, None]
    assert reports == []
    assert (counts.lines, counts.steps, counts.skipped, counts.broken) == (10, 31, 22, 0)


def test_what_is_filled_in_does_not_depend_on_how_lines_arrive_or_on_a_pause(reconstruction, tmp_path):
    lines, _ = rows(DT * np.array([0, 3, 4, 4.5, 8, 2, 9, 5000, 5001]))
    whole = followed_lines(OnlineFilter(reconstruction), lines)[0]
    first = OnlineFilter(reconstruction)
    parts = followed_lines(first, lines[:5])[0]
    second = OnlineFilter(reconstruction).restore(first.save(tmp_path))
    assert second.time == 8 * DT
    parts += followed_lines(second, lines[5:])[0]
    without_numbers = [[{k: v for k, v in o.items() if k != "line"} for o in found] for found in (whole, parts)]
    assert without_numbers[0] == without_numbers[1]


def test_a_time_that_does_not_fit_breaks_its_line_which_is_no_step(reconstruction):
    lines, _ = rows(DT * np.array([0, 1, 1, 2, 0.5, 3, 3.4, 4, 1e9, 5]))
    objects, reports, counts = followed_lines(OnlineFilter(reconstruction), lines)
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


def test_readings_without_a_time_are_one_step_each(reconstruction):
    lines = ["0,10,11", "nan,10,11", "[10, 11]", "oops", "2,10,11"]
    found = followed_lines(OnlineFilter(reconstruction), lines)
    objects, _, counts = found
    assert objects[-1]["skipped"] == 5
    assert (counts.steps, counts.broken) == (9, 1)
    assert found == followed_lines(OnlineFilter(reconstruction), lines, skip_broken=True)


def test_times_may_have_a_unit_another_name_or_no_meaning(reconstruction):
    lines = ["0,10,11", "1,10,11"]
    for header, options in (("Time [s],left,right", {}), ("when,left,right", {"time_column": "when"})):
        objects, _, _ = followed_lines(OnlineFilter(reconstruction), lines, header=header, **options)
        assert [o.get("skipped") for o in objects] == [None, 3]
    objects, _, counts = followed_lines(OnlineFilter(reconstruction), lines, any_step=True)
    assert (counts.steps, objects[1]["t"]) == (2, 1.0)
    with pytest.raises(DataError, match="the header has no 'when'"):
        followed_lines(OnlineFilter(reconstruction), lines, time_column="when")


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


def test_long_gaps_take_no_memory(reconstruction, monkeypatch):
    sizes = []
    run = OnlineFilter.run
    monkeypatch.setattr(OnlineFilter, "run", lambda self, x: sizes.append(len(x)) or run(self, x))
    lines, _ = rows(DT * 3000 * np.arange(8))
    _, _, counts = followed_lines(OnlineFilter(reconstruction), lines)
    assert counts.steps == 21001
    assert max(sizes) <= 4096 + MOST_SKIPPED
