"""Figures are drawn whatever is in the data, and names are shown as they are."""

import matplotlib as mpl
import numpy as np
import pytest

from kaffee.report.page import png
from kaffee.report.stills import attractors, loss_curves, withheld_coordinate
from kaffee.report.style import COLOURS, figure_style

PNG = b"\x89PNG\r\n"
HOSTILE = ("$\\frac{", "a_b^$ <script>")
T = np.arange(50.0)
CIRCLE = np.stack([np.sin(T), np.cos(T)], axis=1)


def labels(figure):
    return {text for axis in figure.axes for text in (axis.get_xlabel(), axis.get_ylabel())}


def test_attractors_share_the_limits_of_the_reference():
    figure = attractors({"truth": CIRCLE, "prior": 100.0 * CIRCLE}, ("x", "y"))
    assert png(figure).startswith(PNG)
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[1] < 2.0
    assert [axis.get_title() for axis in figure.axes] == ["truth", "prior"]
    assert second.lines[0].get_color() == COLOURS["prior"]


def test_one_coordinate_is_shown_as_its_delay_plot():
    figure = attractors({"data": CIRCLE[:, :1]}, ("x",))
    assert labels(figure) == {"x(t)", "x(t+1)"}
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), CIRCLE[1:, 0])


@pytest.mark.parametrize(
    "generated",
    [np.full((50, 2), np.nan), np.full((50, 2), np.inf), CIRCLE * 1e38 * (-1.0) ** np.arange(50)[:, None], CIRCLE[:0]],
    ids=["nan", "inf", "huge", "empty"],
)
def test_diverged_runs_are_drawn(generated):
    assert png(attractors({"truth": CIRCLE, "kaffee": generated}, ("x", "y"))).startswith(PNG)


@pytest.mark.parametrize(
    "reference",
    [
        np.where(np.arange(100).reshape(50, 2) % 3, CIRCLE, np.nan),
        np.full((50, 2), np.nan),
        np.ones((50, 2)),
        CIRCLE[:1],
    ],
    ids=["gaps", "nan", "constant", "one row"],
)
def test_poor_references_are_drawn(reference):
    assert png(attractors({"data": reference, "prior": CIRCLE}, ("x", "y"))).startswith(PNG)


def test_names_are_not_read_as_formulas():
    figure = attractors({"data": CIRCLE}, HOSTILE)
    assert png(figure).startswith(PNG)
    assert labels(figure) == set(HOSTILE)


@pytest.mark.parametrize("truth", [None, np.sin(T)])
def test_a_withheld_coordinate_has_its_band_gap_and_observations(truth):
    used = (T < 20) | (T > 30)
    observed = np.where(T == 5, np.nan, np.sin(T))
    figure = withheld_coordinate(
        T, observed, used, np.sin(T), np.full(50, 1e6), column=HOSTILE[0], withheld=(20.0, 30.0), truth=truth
    )
    assert png(figure).startswith(PNG)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    expected = ["no observations", "90 % band", "mean", *(["truth"] if truth is not None else []), "observation"]
    assert names == expected
    assert figure.axes[0].get_ylim()[1] < 3.0  # an unbounded band does not hide the data


def test_a_constant_coordinate_is_drawn():
    ones = np.ones(50)
    figure = withheld_coordinate(T, ones, ones > 0, ones, ones, column="x", withheld=(20.0, 30.0))
    assert png(figure).startswith(PNG)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (np.exp(-T), "log"),
        (-T, "linear"),
        (np.where(T % 2 == 0, np.nan, 1.0 + T), "log"),
        (np.full(50, np.nan), "linear"),
        (np.zeros(0), "linear"),
        (np.ones(1), "log"),
    ],
    ids=["falling", "negative", "skipped", "all skipped", "none", "one"],
)
def test_losses_are_drawn(values, scale):
    figure = loss_curves({"Pretraining": values.astype(np.float32)}, {"Pretraining": "squared error"})
    assert png(figure).startswith(PNG)
    assert figure.axes[0].get_yscale() == scale
    assert labels(figure) == {"update", "squared error"}


def test_the_style_of_the_user_is_left_alone():
    before = mpl.rcParams["font.size"]
    with figure_style():
        assert mpl.rcParams["font.size"] == 9
    assert mpl.rcParams["font.size"] == before
