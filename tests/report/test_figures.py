"""Figures are drawn whatever is in the data, and names are shown as they are."""

import json

import matplotlib as mpl
import numpy as np
import pytest

from kaffee.certification.certificate import Losses, Withheld
from kaffee.report import figures
from kaffee.report.stills import _draw_attractors, _draw_losses, _draw_withheld
from kaffee.report.style import COLOURS, encode_png, figure_style

PNG = b"\x89PNG\r\n"
HOSTILE = ("$\\frac{", "a_b^$ <script>")
T = np.arange(50.0)
CIRCLE = np.stack([np.sin(T), np.cos(T)], axis=1)
POOR = {
    "nan": np.full((50, 2), np.nan),
    "inf": np.full((50, 2), np.inf),
    "huge": CIRCLE * 1e300 * (-1.0) ** np.arange(50)[:, None],
    "gaps": np.where(np.arange(100).reshape(50, 2) % 3, CIRCLE, np.nan),
    "constant": np.ones((50, 2)),
    "one row": CIRCLE[:1],
}


def labels(figure):
    return {text for axis in figure.axes for text in (axis.get_xlabel(), axis.get_ylabel())}


def withheld(**changes):
    used = (T < 20) | (T > 30)
    observed = np.where(T == 5, np.nan, np.sin(T))
    return Withheld("x", T, observed, used, np.sin(T), np.full(50, 1e6), 20.0, 30.0, None)._replace(**changes)


# --- interactive figures ---


def test_what_has_a_name_looks_the_same_everywhere_and_others_differ_without_colour():
    curves = dict.fromkeys(("truth", "kaffee", "run 1", "run 2"), (T, T))
    looks = {
        trace.name: (trace.line.color, trace.line.dash) for trace in figures.plot_curves({"p": curves}, x="x").data
    }
    assert looks["truth"] == (COLOURS["truth"], "dash")
    assert looks["kaffee"] == (COLOURS["kaffee"], "solid")
    assert len({dash for _, dash in looks.values()}) == 4


def test_a_menu_chooses_the_panel_and_its_axis():
    quantiles = {level: np.full((3, 2), level) for level in (0.05, 0.5, 0.95)}
    truth = np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0]])
    figure = figures.plot_forecast([1, 2, 3], quantiles, HOSTILE, truth=truth, history=truth, history_times=[-2, -1, 0])
    first, second = figure.layout.updatemenus[0].buttons
    assert second.label == "a_b^$ &lt;script&gt;"
    assert first.args[0]["visible"] == [True] * 5 + [False] * 5
    assert second.args[1]["yaxis.range"] == pytest.approx([-11.3, 41.8])  # the median starts at 0.5
    assert [trace.name for trace in figure.data[:5]] == ["90 % band, low", "90 % band", "median", "history", "truth"]
    assert figure.layout.yaxis.title.text == HOSTILE[0]
    assert json.loads(figure.to_json())["data"][0]["visible"] is True


@pytest.mark.parametrize("values", POOR.values(), ids=POOR)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_attractors_of_any_dimension_are_drawn(values, dim):
    wide = np.hstack([values, values])[:, :dim]
    circle = np.hstack([CIRCLE, CIRCLE])[:, :dim]
    for runs in ({"data": circle, "kaffee core": wide}, {"data": wide, "kaffee core": circle}):
        figure = figures.plot_attractor(runs, "xyz"[:dim])
        assert len(figure.data) == 2
        assert "NaN" not in figure.to_json()


def test_neighbouring_coordinates_of_many_are_chosen_and_pages_stay_small():
    runs = {name: np.zeros((20_000, 8)) for name in ("data", "prior core", "kaffee core")}
    figure = figures.plot_attractor(runs, [f"x{i}" for i in range(8)])
    assert [button.label for button in figure.layout.updatemenus[0].buttons][-1] == "x5, x0, x1"
    assert len(figure.data) == 3 * 6
    assert sum(3 * len(trace.x) for trace in figure.data) <= figures.MAX_NUMBERS
    assert len(figures.plot_attractor({"data": np.zeros((9000, 3))}, "xyz").data[0].x) == 9000


def test_one_coordinate_is_shown_against_its_past():
    values = np.sin(np.arange(1000.0) / 20)[:, None]
    (trace,) = figures.plot_attractor({"data": values}, ["x"]).data
    np.testing.assert_allclose(trace.y[:-24], trace.x[24:], atol=1e-6)


def test_an_unbounded_band_does_not_hide_the_readings():
    figure = figures.plot_withheld(withheld(truth=np.sin(T)))
    assert figure.layout.yaxis.range[1] < 3.0
    assert [trace.name for trace in figure.data][2:] == ["mean", "truth", "reading"]
    assert figure.layout.shapes[0].x0 == 20.0


def test_calibration_is_shown_beside_what_is_expected():
    figure = figures.plot_pit(np.ones(10), 1000)
    low, high = figure.data[1].y[0], figure.data[2].y[0]
    assert (round(float(low), 2), round(float(high), 2)) == (0.81, 1.19)
    both = figures.plot_calibration([0.5, 0.9], [0.4, 0.8], np.ones(10), 1000)
    assert [trace.xaxis for trace in both.data] == ["x"] * 2 + ["x2"] * 4


def test_spread_of_zero_is_drawn():
    assert len(figures.plot_spread({"1 step": (np.zeros(3), np.zeros(3))}).data) == 2


def test_exponents_have_bars_of_two_standard_errors():
    figure = figures.plot_exponents({"a": ([1.0, 0.0], [0.1, np.nan]), "b": ([0.9], [0.2])}, truth=0.95)
    assert figure.data[0].error_y.array[0] == pytest.approx(0.2)
    assert figure.data[0].x[0] != figure.data[1].x[0]
    assert figure.data[2].y[0] == np.float32(0.95)


@pytest.mark.parametrize(("values", "kind"), [(np.exp(-T), "log"), (-T, "linear"), (np.full(50, np.nan), "linear")])
def test_losses_are_logarithmic_if_they_can_be(values, kind):
    losses = [Losses("Pretraining", "squared error", T, values)]
    assert (figures.plot_losses(losses).layout.yaxis.type or "linear") == kind
    still = _draw_losses(losses)
    assert encode_png(still).startswith(PNG)
    assert still.axes[0].get_yscale() == kind
    assert labels(still) == {"update", "squared error"}
    assert figures.plot_losses([Losses("a", "b", T[:0], T[:0])]).layout.yaxis.type is None


# --- still figures ---


def test_still_attractors_share_the_limits_of_the_first():
    figure = _draw_attractors({"truth": CIRCLE, "prior": 100.0 * CIRCLE}, ("x", "y"))
    assert encode_png(figure) == encode_png(_draw_attractors({"truth": CIRCLE, "prior": 100.0 * CIRCLE}, ("x", "y")))
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[1] < 2.0
    assert second.lines[0].get_color() == COLOURS["prior"]
    assert labels(_draw_attractors({"data": CIRCLE[:, :1]}, ("x",))) == {"x(t)", "x(t+1)"}
    assert labels(_draw_attractors({"data": CIRCLE}, HOSTILE)) == set(HOSTILE)


@pytest.mark.parametrize("values", POOR.values(), ids=POOR)
def test_poor_data_are_drawn_still(values):
    values = np.where(np.abs(values) > 1e38, np.nan, values)
    assert encode_png(_draw_attractors({"data": values, "prior": CIRCLE}, ("x", "y"))).startswith(PNG)


@pytest.mark.parametrize("truth", [None, np.sin(T)])
def test_a_withheld_coordinate_has_its_band_gap_and_readings(truth):
    figure = _draw_withheld(withheld(truth=truth, column=HOSTILE[0]))
    assert encode_png(figure).startswith(PNG)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["withheld", "90 % band", "mean", *(["truth"] if truth is not None else []), "reading"]
    assert figure.axes[0].get_ylim()[1] < 3.0
    assert encode_png(_draw_withheld(withheld(observed=np.ones(50), mean=np.ones(50)))).startswith(PNG)


def test_the_style_of_the_user_is_left_alone():
    before = mpl.rcParams["font.size"]
    with figure_style():
        assert mpl.rcParams["font.size"] == 9
    assert mpl.rcParams["font.size"] == before
