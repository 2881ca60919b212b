"""Delay coordinates, and runs that repeat themselves."""

import numpy as np
import pytest

from kaffee.metrics.attractors import Extent
from kaffee.metrics.delays import Delays, choose_delays
from kaffee.metrics.recurrence import find_period, half_structure


def wave(num_steps, step=0.1, noise=0.0):
    clean = np.sin(step * np.arange(num_steps))[:, None]
    return clean + noise * np.random.default_rng(0).standard_normal(clean.shape)


def logistic(num_steps, r):
    x = [0.3]
    for _ in range(num_steps + 500):
        x.append(r * x[-1] * (1 - x[-1]))
    return np.array(x[-num_steps:])[:, None]


def test_one_coordinate_gets_three_and_two_get_four():
    lag = choose_delays([wave(2000)])
    assert lag.copies == 3
    assert 0.1 * lag.lag == pytest.approx(np.arccos(np.exp(-1)), abs=0.1)  # where the autocorrelation falls below 1/e
    assert choose_delays([np.hstack([wave(2000), wave(2000) ** 2])]).copies == 2
    assert choose_delays([np.zeros((100, 3))]) is None
    assert choose_delays([]) is None
    assert choose_delays([wave(100, step=0.01)]).lag <= 5  # of few rows most are left
    assert choose_delays([logistic(500, 3.99)]).lag == 1


def test_rows_stand_beside_earlier_ones():
    x = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(Delays(2, 2).embed(x), np.hstack([x[2:], x[:-2]]))
    assert Delays(5, 3).embed(x).shape == (0, 6)


def test_the_structure_function_is_its_definition():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((40, 2)), rng.standard_normal((25, 2))]
    rows = np.concatenate(parts)
    for k in (1, 7, 20):
        pairs = np.concatenate([x[k:] - x[:-k] for x in parts])
        assert half_structure(parts)[k] == pytest.approx(np.mean(pairs**2 / rows.var(axis=0)) / 2)
    assert len(half_structure(parts)) == 21


@pytest.mark.parametrize(
    ("run", "period"),
    [
        (wave(1000, step=2 * np.pi / 40.3), 40),  # no whole number of steps
        (logistic(400, 3.5), 4),
        (logistic(400, 3.83), 3),
        (logistic(400, 3.99), 0),
        (np.exp(-0.1 * np.arange(400.0))[:, None], 0),
        (np.zeros((400, 1)), 0),
    ],
)
def test_a_period_is_found(run, period):
    assert find_period(run) == period


def test_a_cycle_is_found_where_data_do_not_repeat_themselves_and_noise_does_not_explain_it():
    chaos, cycle = logistic(2000, 3.99), logistic(500, 3.83)
    extent = Extent.measure([chaos], 400)
    assert extent.find_periods(cycle[None], 0.0).tolist() == [3]
    assert extent.find_periods(logistic(500, 3.98)[None], 0.0).tolist() == [0]
    assert extent.find_periods(cycle[None], 0.0, [cycle]).tolist() == [3]
    assert extent.find_periods(cycle[None], 0.0, [chaos]).tolist() == [0]
    assert extent.find_periods(np.zeros((0, 500, 1)), 0.0).tolist() == []


def test_a_cycle_of_noisy_cyclic_data_is_right():
    extent = Extent.measure([wave(3000, noise=0.2)], 500)
    assert extent.find_periods(wave(1000)[None], 0.04 / 0.54).tolist() == [0]
