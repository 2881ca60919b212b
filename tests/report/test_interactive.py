"""Figures as data: what the page gets, and what is refused."""

import json

import numpy as np
import pytest
from nasty_page import EVIL, nasty_page

from kaffee.errors import ConfigError, DataError
from kaffee.report.interactive.attractor import Attractor
from kaffee.report.interactive.calibration import coverage, estimates, pit_histogram
from kaffee.report.interactive.embed import plain, script_json
from kaffee.report.interactive.fan import Forecast, fan
from kaffee.report.interactive.marks import Band, Bars, Curve, Points, Span
from kaffee.report.interactive.markup import SCRIPTS, asset, figure_html, script
from kaffee.report.interactive.plot import Axis, Plot

X = Axis("x")


def one(*marks, **options):
    return Plot("title", "caption", list(marks), X, X, **options).to_data()


def test_every_figure_is_json_that_cannot_leave_its_element():
    for section in nasty_page().sections:
        for figure in section.interactive:
            text = figure_html(figure)
            assert text.count("<script") == text.count("</script>") == 1
            data = text.partition("<script type='application/json'>")[2].partition("</script>")[0]
            assert not set("<>&\u2028") & set(data)
            assert json.loads(data)["title"] == figure.title


def test_halves_of_surrogate_pairs_can_be_written():
    assert script_json("\udc80").encode() == b'"\\udc80"'


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1 / 3, 1e-9 / 3, 2e20 / 3], [0.333333, 3.33333e-10, 6.66667e19]),
        ([1e9 + 0.125, 1e9 + 0.25], [1000000000.125, 1000000000.25]),
        ([np.nan, np.inf, -np.inf], [None, None, None]),
        ([-1.7e308, 1.7e308], [-1.7e308, 1.7e308]),
        ([5.0, 5.0], [5, 5]),
        ([], []),
        (np.float32([0.1]), [0.1]),
    ],
)
def test_numbers_are_short_and_stay_apart(given, expected):
    assert plain(given) == expected


def test_shared_samples_are_stored_once():
    t = np.arange(100.0)
    data = one(Curve("a", t, np.sin(t)), Curve("b", t, np.cos(t)), Band("c", t, np.sin(t), np.cos(t)))
    assert len(data["arrays"]) == 3


def test_series_differ_without_colour_and_look_the_same_in_all_panels():
    t = [0.0, 1.0]
    panels = {
        "first": [Curve(name, t, t) for name in ("truth", "kaffee", "run 1", "run 2")],
        "second": [Curve(name, t, t) for name in ("run 2", "kaffee")],
    }
    first, second = Plot("t", "c", panels, X, X).to_data()["panels"]
    looks = {mark["name"]: (mark["colour"], mark["dash"]) for mark in first["marks"]}
    assert looks["truth"] == ("truth", "dashed")
    assert looks["kaffee"] == ("kaffee", "solid")
    assert len({dash for _, dash in looks.values()}) == 4
    assert all(looks[mark["name"]] == (mark["colour"], mark["dash"]) for mark in second["marks"])


def test_points_are_sorted_with_their_error_bars():
    data = one(Points("p", [2.0, 1.0], [20.0, 10.0], [19.0, 9.0], [21.0, 11.0]))
    mark = data["panels"][0]["marks"][0]
    assert [data["arrays"][mark[key]] for key in ("x", "y", "low", "high")] == [[1, 2], [10, 20], [9, 19], [11, 21]]


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (Curve("c", [0, 1], [0]), "'c' has 2 x and 1 y"),
        (Curve("c", [1, 0], [0, 1]), "must not decrease; sort"),
        (Curve("c", [0, np.nan], [0, 1]), "must be finite"),
        (Curve("c", [0], [0], colour="kafee"), "Did you mean 'kaffee'"),
        (Curve("c", [0], [0], dash="wavy"), "Unknown dash 'wavy'"),
        (Points("p", [0], [0], symbol="star"), "Unknown symbol 'star'"),
        (Points("p", [0], [0], low=[0]), "Give low and high, or neither"),
        (Points("p", [0, 1], [0]), "'p' has 2 x and 1 y"),
        (Bars("b", [0, 1], [1, 2]), "2 edges and 2 heights"),
        (Span("s", 2.0, 1.0), "must not decrease"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(mark, message):
    with pytest.raises((DataError, ConfigError), match=message):
        one(mark)


def test_panels_form_a_grid_of_choices():
    curve = [Curve("c", [0], [0])]
    with pytest.raises(ConfigError, match=r"no panel \('b', '1'\)"):
        Plot("t", "c", {("a", "1"): curve, ("a", "2"): curve, ("b", "2"): curve}, X, X, ("p", "q")).to_data()
    with pytest.raises(ConfigError, match="2 choices"):
        Plot("t", "c", {"a": curve}, X, X, ("p", "q")).to_data()
    with pytest.raises(ConfigError, match="no panel"):
        Plot("t", "c", {}, X, X).to_data()


@pytest.mark.parametrize(
    "axis", [Axis("a", limits=(1, 1)), Axis("a", limits=(0, np.nan)), Axis("a", "s", True, (0, 1))]
)
def test_limits_that_cannot_be_drawn_are_refused(axis):
    with pytest.raises(ConfigError, match="The axis 'a' has limits"):
        Plot("t", "c", [], axis, X).to_data()


def test_an_attractor_keeps_the_page_small():
    runs = {name: np.zeros((20_000, 20)) for name in ("data", "prior", "kaffee")}
    data = Attractor("t", "c", runs, [f"x{i}" for i in range(20)]).to_data()
    assert sum(len(column) for run in data["trajectories"] for column in run["values"]) <= 120_000
    small = Attractor("t", "c", {"data": np.zeros((9000, 3))}, "xyz").to_data()
    assert len(small["trajectories"][0]["values"][0]) == 6000
    assert small["delay"] == 1


@pytest.mark.parametrize("values", [np.zeros(5), np.zeros((5, 2)), np.zeros((5, 0))])
def test_a_trajectory_of_another_shape_is_refused(values):
    with pytest.raises(DataError, match=r"give \(steps, 3\)"):
        Attractor("t", "c", {"data": values}, "xyz").to_data()


def test_a_fan_has_a_panel_for_every_coordinate_and_start():
    rng = np.random.default_rng(0)
    starts = [Forecast.from_samples(name, [1.0, 2.0], rng.normal(size=(9, 2, 3))) for name in ("early", "late")]
    data = fan("t", "c", starts, ["x", "y", "z"]).to_data()
    assert [choice["options"] for choice in data["choices"]] == [["x", "y", "z"], ["early", "late"]]
    assert [mark["name"] for mark in data["panels"][0]["marks"]] == ["95 %", "80 %", "50 %", "median"]
    opacities = [mark["opacity"] for mark in data["panels"][0]["marks"][:3]]
    assert opacities == sorted(opacities)
    with pytest.raises(ConfigError, match="no forecast"):
        fan("t", "c", [], ["x"])
    with pytest.raises(DataError, match="members, steps, coordinates"):
        Forecast.from_samples("s", [1.0], np.zeros((2, 1)))


def test_a_pit_histogram_is_relative_to_uniform():
    plot = pit_histogram("t", "c", {"x": [10, 30]}, band=(0.5, [1.5, 1.6]))
    data = plot.to_data()
    bars, band, ideal = data["panels"][0]["marks"]
    assert data["arrays"][bars["y"]] == [0.5, 1.5]
    assert data["arrays"][band["high"]] == [1.5, 1.5, 1.6, 1.6]
    assert data["arrays"][ideal["y"]] == [1, 1]
    with pytest.raises(DataError, match="no values"):
        pit_histogram("t", "c", {"x": [0, 0]})


def test_coverage_and_estimates_name_every_model():
    data = coverage("t", "c", [0.5, 0.9], {"x": {"prior": [0.4, 0.8], "kaffee": [0.5, 0.9]}}).to_data()
    assert {mark["name"] for mark in data["panels"][0]["marks"]} == {"ideal", "prior", "kaffee"}
    data = estimates("t", "c", ["a", "b"], {"m": [1.0, 2.0], "n": [1.0, 2.0]}, {"m": 0.5}).to_data()
    first, second = data["panels"][0]["marks"]
    assert data["arrays"][first["low"]] == [0.5, 1.5]
    assert "low" not in second
    assert data["panels"][0]["x"]["categories"] == ["a", "b"]


def test_the_script_is_complete_and_asks_for_nothing():
    text = script()
    assert all(asset(f"{name}.js") in text for name in SCRIPTS)
    for word in ("http:", "https:", "eval(", "innerHTML", "fetch(", "XMLHttpRequest", "import ", "document.write"):
        assert word not in text
    assert "</" not in text
    assert "<!--" not in text
    assert EVIL not in text
