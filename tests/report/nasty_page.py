"""A page with everything that can go wrong."""

from types import SimpleNamespace

import numpy as np

from kaffee.report.interactive.attractor import Attractor
from kaffee.report.interactive.calibration import coverage, estimates, pit_histogram
from kaffee.report.interactive.fan import Forecast, fan
from kaffee.report.interactive.marks import Band, Bars, Curve, Points, Span
from kaffee.report.interactive.plot import Axis, Panel, Plot
from kaffee.report.page import Report, Section
from kaffee.tables import Table

EVIL = "<script>alert(1)</script> & \"x\" </script><!-- \u2028 ü → λ₁ 'y' <img src=x onerror=alert(1)>"


def verdict(axis, check, name, status, value, rule, sentence):
    """What the report needs of a verdict, from anywhere."""
    return SimpleNamespace(axis=axis, check=check, name=name, status=status, value=value, rule=rule, sentence=sentence)


def nasty_page() -> Report:
    """Hostile names, missing and infinite values, single points, nothing at all, many coordinates, many points."""
    t = np.arange(20_000) / 100.0
    wave = np.sin(t) + 0.1 * np.sin(40.0 * t)
    broken = wave.copy()
    broken[100:200], broken[300], broken[400] = np.nan, np.inf, -np.inf
    lines = Plot(
        EVIL,
        EVIL,
        {
            EVIL: [
                Span("no observations", 50.0, 60.0),
                Band("band", t, broken - 0.3, broken + 1e300),
                Curve(EVIL, t, broken),
                Points("observation", t, wave, size=1.5),
            ],
            "empty": [Curve("none", [], []), Points("no points", [], []), Curve("only NaN", [0, 1], [np.nan, np.nan])],
            "single": [Curve("one", [3.0], [5.0]), Points("one point", [3.0], [5.0], low=[4.0], high=[np.inf])],
            "constant": [Curve("same", [0.0, 1.0], [7.0, 7.0])],
            "huge": [
                Curve("huge", [0, 1, 2, 3], [-1e299, 0.0, 1e299, 1e308]),
                Band("b", [0, 1, 2], [0, 1, 2], [1, 2, np.inf]),
            ],
            "tiny": [Curve("tiny", [0, 1e-300], [1e-308, 3e-308])],
            "offset": [Curve("stamp", 1.7e9 + np.arange(5.0), 1e9 + np.arange(5.0) / 8)],
            "nothing": [],
        },
        Axis(EVIL, "s"),
        Axis(EVIL),
    )
    f = np.linspace(0.0, 50.0, 500)
    power = 1.0 / (1.0 + f**4)
    spectra = {
        f"coordinate {i}": [Curve("data", f, power * (1 + i)), Curve("kaffee", f, np.where(f > 40, -1.0, power))]
        for i in range(20)
    }
    rng = np.random.default_rng(0)
    many = rng.normal(size=(20_000, 20)).cumsum(axis=0)
    wild = many * 1e300
    samples = rng.normal(size=(50, 30, 2)).cumsum(axis=1)
    samples[:, 20:, 1] = np.inf
    forecasts = [
        Forecast.from_samples(label, np.arange(30.0), samples, truth=samples[0], history_times=[-2.0, -1.0], history=h)
        for label, h in (("first", np.ones((2, 2))), (EVIL, np.full((2, 2), np.nan)))
    ]
    counts = {"x": rng.integers(80, 120, 10), EVIL: np.eye(10)[0]}
    shares = np.linspace(0.1, 0.9, 9)
    inside = {"x": {"kaffee": shares**1.2, "prior": np.full(9, np.nan)}}
    exponents = {"truth": [0.9, 0.0, -14.6], "kaffee": [0.88, np.nan, -14.0]}
    figures = [
        lines,
        Plot("spectra", "log", spectra, Axis("f", log=True), Axis("power", log=True), choices=("coordinate",)),
        Plot(
            "log zero", "No positive value.", [Curve("z", [-1, 0], [0, -1])], Axis("x", log=True), Axis("y", log=True)
        ),
        Plot("bars", "Bars.", {"a": Panel([Bars("n", [0, 1, 3], [2, np.nan])], y=Axis("own"))}, Axis("x"), Axis("y")),
        Attractor(
            EVIL, EVIL, {EVIL: many, "prior": wild, "kaffee": np.full((5, 20), np.nan)}, [f"x{i}" for i in range(20)]
        ),
        Attractor("one", "Delay plot.", {"data": np.sin(t[:2000])[:, None]}, [EVIL]),
        Attractor(
            "two", "Two coordinates.", {"data": many[:500, :2], "point": many[:1, :2], "none": many[:0, :2]}, "xy"
        ),
        fan("fan", "A fan.", forecasts, ["x", EVIL], units=["m", EVIL]),
        pit_histogram("pit", "PIT.", counts),
        coverage("coverage", "Coverage.", shares, inside, bands={"x": (shares - 0.1, shares + 0.1)}),
        estimates("exponents", "Exponents.", ["λ₁", EVIL, "λ₃"], exponents, {"kaffee": [0.02, 0.1, np.nan]}),
    ]
    verdicts = [verdict(EVIL, EVIL, EVIL, status, EVIL, EVIL, EVIL) for status in ("pass", "warn", "fail", "unknown")]
    tables = [Table(EVIL, (EVIL, "a", "b"), [[EVIL, 1.0, float("nan")]], note=EVIL)]
    sections = [
        Section(EVIL, EVIL, interactive=figures[:1]),
        Section("Everything", interactive=figures[1:], tables=tables),
    ]
    return Report(EVIL, sections, subtitle=EVIL, verdicts=verdicts, provenance={EVIL: EVIL, "seed": 0})
