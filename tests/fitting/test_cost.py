"""Estimates of time and memory, and what is said of a recording before the work."""

import numpy as np
import pytest

from kaffee.data.series import Series
from kaffee.fitting.cost import describe_traits, estimate_cost, find_risks, measure_product
from kaffee.fitting.defaults import settings_for
from kaffee.fitting.settings import FitSettings


def test_larger_models_cost_more_time_and_memory():
    small, large = (estimate_cost(settings_for(series), N) for N in (2, 30) for series in [noise(2000, N)])
    assert small.megabytes < large.megabytes
    assert 0 < small.seconds < 3600
    assert "GB of memory" in small.describe()
    assert measure_product(4, 8) > 0


def noise(rows, N):
    return Series.from_arrays(np.random.default_rng(0).standard_normal((rows, N)))


def test_few_rows_and_many_coordinates_are_named():
    assert find_risks(noise(5000, 3), settings_for(noise(5000, 3))) == []
    [few] = find_risks(noise(120, 3), settings_for(noise(120, 3)))
    assert "96 training rows for 20 latent coordinates" in few
    assert few.endswith("else the linear model is.")
    [alone] = find_risks(noise(120, 3), settings_for(noise(120, 3), {"rung": "scratch"}))
    assert alone.endswith("by heart.")
    assert find_risks(noise(120, 3), settings_for(noise(120, 3), {"rung": "linear"})) == []
    assert any("100 coordinates" in risk for risk in find_risks(noise(5000, 100), settings_for(noise(5000, 100))))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t, e: np.sin(2 * np.pi * t / 12) + 0.3 * e, "A period of 12 rows"),
        (lambda t, e: 0.01 * t + 0.3 * e, "A trend explains up to"),
        (lambda t, e: np.round(2 * e), "readings are rounded"),
    ],
)
def test_traits_are_named(make, words):
    t = np.arange(1200)
    values = make(t, np.random.default_rng(0).standard_normal(1200))
    traits = describe_traits(Series.from_arrays(values), FitSettings())
    assert any(words in trait for trait in traits)
    assert describe_traits(noise(1200, 2), FitSettings()) == []
