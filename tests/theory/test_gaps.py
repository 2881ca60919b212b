"""Definition 1: what counts as a gap, what does not, and what people read of it."""

import math

import pytest

from kaffee.report.consistency import describe_gaps as describe
from kaffee.report.consistency import log_table, tradeoff_figure
from kaffee.report.style import COLOURS, encode_png
from kaffee.theory.dpc import Entry, Measured, find_gaps, overall_gaps


def entry(update, score, d, se=0.0, **more):
    return Entry(update, score, {"D": Measured(d, se), **more})


@pytest.mark.parametrize(
    ("score", "loss", "is_gap"),
    [(0.9, 2.0, True), (1.1, 2.0, False), (0.9, 0.5, False), (1.0, 2.0, False), (0.9, 1.0, False), (1.1, 0.5, False)],
)
def test_a_gap_is_a_better_score_with_a_worse_loss(score, loss, is_gap):
    gaps = find_gaps([entry(0, 1.0, 1.0), entry(5, score, loss)])
    assert bool(gaps) == is_gap
    if is_gap:
        assert (gaps[0].before, gaps[0].after, gaps[0].loss) == (0, 5, "D")
        assert gaps[0].score_change == pytest.approx(score - 1.0)
        assert gaps[0].loss_change == pytest.approx(loss - 1.0)


def test_a_loss_must_rise_by_more_than_its_error():
    pair = [entry(0, 1.0, 1.0, se=0.3), entry(5, 0.9, 1.9, se=0.4)]  # combined error 0.5, rise 0.9
    assert find_gaps(pair, significance=1.7)
    assert not find_gaps(pair, significance=1.9)


def test_divergence_is_the_worst_loss_and_stays_one_gap():
    entries = [entry(0, 1.0, 1.0, se=0.1), entry(5, 0.9, math.inf), entry(10, 0.8, math.inf)]
    assert [(g.before, g.after) for g in find_gaps(entries)] == [(0, 5)]


def test_a_score_that_is_not_finite_opens_no_gap():
    assert not find_gaps([entry(0, 1.0, 1.0), entry(5, math.nan, 3.0)])


def test_every_loss_is_judged_for_itself():
    first = Entry(0, 1.0, {"a": Measured(1.0), "b": Measured(1.0)})
    second = Entry(5, 0.5, {"a": Measured(2.0), "b": Measured(0.5)})
    assert [g.loss for g in find_gaps([first, second])] == ["a"]


def test_the_whole_run_is_its_first_and_last_entry():
    entries = [entry(0, 1.0, 1.0), entry(5, 0.9, 3.0), entry(10, 0.8, 1.0)]
    assert [(g.before, g.after) for g in find_gaps(entries)] == [(0, 5)]
    assert overall_gaps(entries) == []
    assert overall_gaps(entries[:2])[0].loss_change == 2.0
    assert overall_gaps(entries[:1]) == []


def test_an_entry_survives_json():
    given = entry(7, 1.25, math.inf, se=0.5).to_dict()
    assert given == {"update": 7, "score": 1.25, "losses": {"D": {"value": "inf", "se": 0.5}}}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry(0, 1.0, 1.0), entry(9, 0.5, 2.0)], "gap over the whole run: S_H fell while these rose: D by 1.000."),
        ([entry(0, 1.0, 1.0), entry(9, 0.5, 0.9)], "no certification loss rose by more than 2 standard errors."),
        ([entry(0, 1.0, 1.0), entry(9, 1.5, 2.0)], "the score itself did not improve although D rose"),
        ([entry(0, 1.0, 1.0)], "log more often"),
    ],
)
def test_people_are_told_what_happened(entries, says):
    assert says in " ".join(describe(entries))


def test_the_table_has_a_row_per_entry():
    table = log_table([entry(0, 1.0, 1.0), entry(9, 0.5, 2.0)])
    assert table.columns == ("update", "S_H", "D")
    assert [row[0] for row in table.rows] == ["0", "9"]


def test_the_figure_shades_the_gap_and_colours_its_arrow():
    figure = tradeoff_figure([entry(0, 1.0, 1.0), entry(5, 0.9, 3.0), entry(10, 0.8, 2.0)])
    above, below = figure.axes[0], figure.axes[2]
    assert above.get_title() == "D"
    assert len(above.patches) == 1
    assert above.patches[0].get_x() == 0
    assert above.patches[0].get_width() == 5
    assert list(above.lines[0].get_ydata()) == [1.0, 3.0, 2.0]
    colours = [text.arrow_patch.get_edgecolor() for text in below.texts]
    assert len(colours) == 2
    assert colours[0] != colours[1]
    red = tuple(int(COLOURS["core_collapse"][i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert colours[0][:3] == pytest.approx(red)


def test_a_run_that_does_not_move_can_be_drawn():
    still = [entry(0, 1.0, 1.0), entry(5, 1.0, 1.0)]
    assert encode_png(tradeoff_figure(still)).startswith(b"\x89PNG")


def test_a_diverged_entry_leaves_a_hole_in_the_figure():
    figure = tradeoff_figure([entry(0, 1.0, 1.0), entry(5, 0.9, math.inf)])
    assert math.isnan(figure.axes[0].lines[0].get_ydata()[1])
