"""Data against data: what drifts is told before training, and what does not drift is not accused of it."""

import numpy as np
import pytest

from kaffee.certification.drift import Drift, measure_drift
from kaffee.data.series import Series
from kaffee.systems.catalogue import get_system
from kaffee.systems.simulation import simulate

TIME = np.arange(2000.0)
NOISE = np.random.default_rng(0).standard_normal(2000)
SEASON = np.sin(2 * np.pi * TIME / 52) + 0.1 * NOISE


def measure(values):
    return measure_drift(*Series.from_arrays(values if values.ndim > 1 else values[:, None]).split(0.8))


@pytest.mark.parametrize(
    "values", [0.01 * TIME + SEASON, 0.003 * TIME + SEASON, NOISE + 3.0 * (TIME > 1600)], ids=["trend", "slow", "shift"]
)
def test_a_trend_and_a_shift_are_told(values):
    found = measure(values)
    assert found.drifts
    assert "The recording drifts" in found.sentence
    assert "Linear models of differences can follow a level" in found.sentence
    assert found.columns["x1"] > 1.5


@pytest.mark.parametrize("rows", [500, 1500, 5000])
@pytest.mark.parametrize("name", ["lorenz63", "chua", "lorenz96", "van_der_pol"])
def test_slow_short_and_wide_recordings_do_not_drift(name, rows):
    found = measure(simulate(get_system(name), rows, process_noise=0.02, observation_noise=0.2).observations)
    assert not found.drifts
    assert found.sentence.startswith("Held-out rows lie where training rows lie")


def test_what_cannot_be_compared_is_not():
    assert measure(NOISE[:60]) is None
    assert measure(np.ones(500)) is None
    stuck = np.where(TIME < 1600, NOISE, 0.5)
    assert np.isfinite(measure(stuck).whole)  # held-out rows that do not vary
    assert measure(stuck).drifts
    gaps = NOISE.copy()
    gaps[::3] = np.nan
    found = measure(gaps)
    assert np.isnan(found.pieces) or found.pieces < 1.0
    assert not found.drifts
    assert isinstance(found, Drift)
