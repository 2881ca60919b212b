"""Runs beside each other."""

import numpy as np
import pytest

from kaffee.errors import ConfigError
from kaffee.report.compare import Metric, overlay, side_by_side
from kaffee.report.interactive.marks import Band, Curve, Span
from kaffee.report.interactive.plot import Axis, Panel, Plot

T = np.arange(3.0)


def run(shift):
    marks = [
        Span("no observations", 0.0, 1.0),
        Band("90 %", T, T - 1, T + shift, "kaffee"),
        Curve("mean", T, T + shift, "kaffee", "solid"),
        Curve("truth", T, T),
    ]
    return Plot("belief", "c", {"x": Panel(marks, y=Axis("x"))}, Axis("t"), Axis("y"))


def test_the_better_run_is_named():
    metrics = [
        Metric("nll", [0.5, 0.4]),
        Metric("skill", [3.0, 2.0], best="high"),
        Metric("cover 90", [0.95, 0.89], best=0.9),
        Metric("alike", [1.0, 1.1], error=0.1),
        Metric("seconds", [1.0, 2.0], best=None),
        Metric("lost", [None, 2.0]),
        Metric("both lost", [None, float("nan")]),
    ]
    rows = side_by_side("Runs", ["a", "b"], metrics).to_json()
    assert [row["better"] for row in rows] == ["b", "a", "b", "–", "–", "–", "–"]


def test_wrong_metrics_are_refused():
    with pytest.raises(ConfigError, match="1 values for 2 runs"):
        side_by_side("Runs", ["a", "b"], [Metric("nll", [1.0])])
    with pytest.raises(ConfigError, match="Allowed: low, high or a number"):
        Metric("nll", [1.0, 2.0], best="lowest").winner()


def test_an_overlay_shows_what_is_shared_once():
    data = overlay({"a": run(1.0), "b": run(2.0)}).to_data()
    marks = data["panels"][0]["marks"]
    names = [mark["name"] for mark in marks]
    assert names == ["no observations", "a: 90 %", "a: mean", "truth", "b: 90 %", "b: mean"]
    looks = {mark["name"]: (mark["colour"], mark.get("dash")) for mark in marks}
    assert looks["a: mean"][0] == looks["a: 90 %"][0] != looks["b: mean"][0]
    assert len({looks[name][1] for name in ("a: mean", "b: mean", "truth")}) == 3


def test_plots_without_a_common_panel_are_refused():
    other = Plot("belief", "c", {"y": [Curve("mean", T, T)]}, Axis("t"), Axis("y"))
    with pytest.raises(ConfigError, match="no panel in common"):
        overlay({"a": run(1.0), "b": other})
    single = Plot("belief", "c", [Curve("mean", T, T)], Axis("t"), Axis("y"))
    assert len(overlay({"a": single, "b": single}, title="both").to_data()["panels"][0]["marks"]) == 2
